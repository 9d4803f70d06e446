"""Shared by all tests: Hypothesis profiles, and the small real data of the jobs that tests start."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None, derandomize=True, max_examples=60)
settings.register_profile("sample", deadline=None, max_examples=150)
settings.register_profile("slow", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True)
def no_jax_backend() -> Iterator[None]:
    """JAX warns of every later fork once it has computed: programs of their own do that for tests."""
    yield
    bridge = sys.modules.get("jax._src.xla_bridge")
    assert bridge is None or not bridge.backends_are_initialized(), "computed with JAX in pytest's process"


@pytest.fixture(scope="session")
def job_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text in three formats, images, and a tokenizer."""
    from jobs.make_data import make_data

    folder = tmp_path_factory.mktemp("job_data")
    make_data(folder)
    return folder


@pytest.fixture
def import_benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module of the repository's `benchmarks`, which is no installed package."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    yield lambda name: importlib.import_module(f"benchmarks.{name}")
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]
