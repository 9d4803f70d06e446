"""Managers of orbax: the cases in a process of their own, and deaths at each point of a save."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
ENV = {**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}


def test_cases_with_real_managers() -> None:
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER / "orbax_cases.py")]
    done = subprocess.run(
        line, env=ENV, cwd=FOLDER.parents[1], timeout=300, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]


BASE, DELTA = 5, 7
POINTS = (
    "before the directory",
    "half a file",
    "file not on disk yet",
    "file without its name",
    "item without its name",
    "step without its name",
    "old steps not deleted yet",
)
COMMITTED = "old steps not deleted yet"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(FOLDER / "kill_program.py"), *arguments]
    return subprocess.run(line, env=ENV, timeout=200, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def after_deaths(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], dict]:
    """Of each death, what the run that went on found."""
    cases = [(point, step) for point in POINTS for step in (BASE, DELTA)]
    roots = [str(tmp_path_factory.mktemp("killed")) for _ in cases]
    with ThreadPoolExecutor(2) as pool:
        deaths = list(pool.map(lambda root, case: run("save", root, case[0], str(case[1])), roots, cases))
    for case, death in zip(cases, deaths, strict=True):
        assert death.returncode == -9, f"{case}\n{death.stderr}"
    done = run("go_on", *roots)
    assert done.returncode == 0, done.stderr[-5_000:]
    return dict(zip(cases, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("step", [BASE, DELTA], ids=["base", "delta"])
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_in_any_phase_costs_that_save_alone(
    after_deaths: dict[tuple[str, int], dict], point: str, step: int
) -> None:
    """The step before is restored exactly, the run goes on with a full, and all steps that stay are exact."""
    found = after_deaths[point, step]
    assert found["latest"] == (step if point == COMMITTED else step - 1)
    assert found["exact"] is True
    assert found["first"] == "full"
    assert {"10", "11"} <= set(found["left"])
    assert all(found["left"].values())
