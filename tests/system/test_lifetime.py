"""However a DataLoader of one process ends, its threads end with it, and the next one works."""

import gc
import itertools
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

import msdata_jax as msd

RECORDS = [{"tokens": np.full(5, 1 + i, np.int32)} for i in range(20)]


def recipe(transform=lambda record: record, **options) -> msd.Recipe:
    strategy = msd.DGraph().mix({"s": 1}).pack(seq_len=8, rows=2)
    return msd.Recipe(sources={"s": msd.Source(RECORDS, [transform], **options)}, strategy=strategy)


@pytest.fixture(autouse=True)
def leaves_no_thread() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    gc.collect()
    deadline = time.monotonic() + 10
    for thread in set(threading.enumerate()) - before:
        thread.join(max(deadline - time.monotonic(), 0))
        assert not thread.is_alive(), thread


def first_tokens(steps: Iterator[dict]) -> list[int]:
    return [int(batch["tokens"][0, 0]) for batch in steps]


def test_several_at_once_and_one_after_another() -> None:
    with msd.DataLoader(recipe(), num_steps=4) as train, msd.DataLoader(recipe(), num_steps=4) as test:
        both = [int(a["tokens"][0, 0] + b["tokens"][0, 0]) for a, b in zip(train, test, strict=True)]
    with msd.DataLoader(recipe(), num_steps=4) as again:
        assert [2 * token for token in first_tokens(again)] == both


def test_going_on_after_a_break() -> None:
    with msd.DataLoader(recipe(), num_steps=6) as whole:
        expected = first_tokens(whole)
    with msd.DataLoader(recipe(), num_steps=6) as loader:
        assert first_tokens(itertools.islice(loader, 2)) + first_tokens(loader) == expected
        assert first_tokens(loader) == []


def test_no_steps_at_all() -> None:
    with msd.DataLoader(recipe(), num_steps=0) as loader:
        assert list(loader) == []
    assert loader.figures.summary()["steps"] == 0


def test_closing_before_the_first_step() -> None:
    msd.DataLoader(recipe()).close()


def test_a_batch_that_the_trainer_lets_go_is_gone() -> None:
    with msd.DataLoader(recipe(), num_steps=2) as loader:
        batch = next(loader)
        tokens = weakref.ref(batch["tokens"])
        del batch
        assert tokens() is None


def test_dropped_without_close() -> None:
    next(msd.DataLoader(recipe()))


def test_breaking_out_of_a_generator() -> None:
    loaders = []

    def batches() -> Iterator[dict]:
        with msd.DataLoader(recipe()) as loader:
            loaders.append(loader)
            yield from loader

    for _ in zip(range(3), batches(), strict=False):
        pass
    gc.collect()
    assert set(loaders[0].job_figures) >= {"planner", "loaders"}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_raising_inside(error: type[BaseException]) -> None:
    def train() -> None:
        with msd.DataLoader(recipe()) as loader:
            next(loader)
            raise error("stop")

    with pytest.raises(error):
        train()


def test_a_failure_that_no_step_needed_is_raised_by_close() -> None:
    def refuse(record: dict) -> dict:
        if record["tokens"][0] == 17:
            failed.set()
            raise SystemExit("no sample policy covers this")
        return record

    failed = threading.Event()
    loader = msd.DataLoader(recipe(refuse, shuffle=False, block_size=4), num_loaders=1)
    assert int(next(loader)["tokens"][0, 0]) == 1
    assert failed.wait(10)
    loader._side._thread.join(10)  # the job has heard of it
    with pytest.raises(msd.JobFailed, match="no sample policy covers this"):
        loader.close()


@pytest.mark.parametrize("change", [{"step_seconds": 0.0}, {"step_seconds": -1.0}, {"threads_per_loader": 0}])
def test_refuses_options_that_mean_nothing(change: dict) -> None:
    with pytest.raises(msd.RecipeError, match=next(iter(change))):
        msd.DataLoader(recipe(), **change)


def test_refuses_what_is_no_recipe() -> None:
    with pytest.raises(msd.RecipeError, match=r"got \{'sources': 3\}"):
        msd.DataLoader({"sources": 3})


PROGRAM = """
import time, numpy as np, msdata_jax as msd
def slow(record):
    if record["tokens"][0] > 8:
        time.sleep(60)
    return record
records = [{"tokens": np.full(5, 1 + i, np.int32)} for i in range(20)]
strategy = msd.DGraph().mix({"s": 1}).pack(seq_len=8, rows=2)
source = msd.Source(records, [slow], shuffle=False, block_size=4)
loader = msd.DataLoader(msd.Recipe(sources={"s": source}, strategy=strategy))
next(loader)
print("done")
"""


def test_a_program_ends_though_a_transform_hangs() -> None:
    line = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
