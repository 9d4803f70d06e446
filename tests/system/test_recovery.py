"""Loaders die at any moment, in one process; what is delivered is what it would have been."""

import itertools
import random
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from jobs.recipe import make_recipe
from msdata_transport import Faults, Message

import msdata_jax as msd
from msdata_jax import loader as loader_module
from msdata_jax.data_state import DataState
from msdata_jax.runtime.job import start_in_process

NUM_STEPS = 12
NUM_LOADERS = 4

Steps = list[tuple[int, str, dict[str, bytes], Mapping[str, bytes]]]


class Killer:
    """Kills ranks when so many messages have been sent in the job: `kills` are ranks by that number."""

    def __init__(self, faults: Faults, kills: Mapping[int, int]) -> None:
        self._faults, self._kills = faults, kills
        self._numbers, self._lock = itertools.count(), threading.Lock()
        self.num_messages = 0

    def __call__(self, sender: int, receiver: int, message: Message) -> bool:
        """Asked whether to lose a message, which it never does."""
        with self._lock:
            number = self.num_messages = next(self._numbers)
        if number in self._kills:
            self._faults.kill(self._kills[number])
        return False


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[int, int]], Killer]:
    """Says of the next DataLoader which ranks die in it; loaders are ranks 1, 2, ..."""

    def plan(kills: Mapping[int, int]) -> Killer:
        faults = Faults()
        killer = Killer(faults, kills)
        faults.drop(killer)
        monkeypatch.setattr(loader_module, "start_in_process", partial(start_in_process, faults=faults))
        return killer

    return plan


def take_all(loader: msd.DataLoader, steps: Steps) -> None:
    """All further steps, as long as they come."""
    for batch in loader:
        fields = {name: np.asarray(value).tobytes() for name, value in batch.items()}
        steps.append((loader.last_step.step, loader.last_step.digest, fields, loader.leaves()))


def play(
    recipe: msd.Recipe, *, leaves: Mapping[str, bytes] | None = None, skip_to: int = 0, **options
) -> tuple[Steps, Mapping]:
    """The steps of a job and its figures."""
    options = {"num_steps": NUM_STEPS, "num_loaders": NUM_LOADERS, "step_seconds": 60, **options}
    steps: Steps = []
    with msd.DataLoader(recipe, **options) as loader:
        if leaves is not None:
            loader.restore(DataState.from_leaves(leaves))
        if skip_to:
            loader.skip_to(skip_to)
        take_all(loader, steps)
    return steps, loader.job_figures


@pytest.fixture(scope="module", params=["plain", "buckets"])
def run(request: pytest.FixtureRequest, job_data: Path) -> tuple[msd.Recipe, Steps]:
    """A recipe, and its steps where nobody dies."""
    recipe = make_recipe(job_data, buckets=request.param == "buckets")
    return recipe, play(recipe, num_loaders=1)[0]


def draw_kills(seed: int, num_messages: int) -> dict[int, int]:
    """One or two loaders, at any moment of the job."""
    rng = random.Random(seed)
    victims = rng.sample(range(1, 1 + NUM_LOADERS), rng.randint(1, 2))
    return dict(zip(rng.sample(range(num_messages), len(victims)), victims, strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_the_same_steps_whoever_dies_and_when(
    run: tuple[msd.Recipe, Steps], kill: Callable, seed: int
) -> None:
    recipe, wanted = run
    kills = draw_kills(seed, 150)
    killer = kill(kills)
    steps, figures = play(recipe, threads_per_loader=1 + seed % 2, steps_ahead=1 + seed % 4)
    assert killer.num_messages > 150, "the job is too short for these kills"
    assert steps == wanted
    assert {each["rank"] for each in figures["lost"]} == set(kills.values())
    assert len(figures["loaders"]) == NUM_LOADERS - len(kills)


@pytest.mark.parametrize("seed", range(3))
def test_the_same_steps_where_it_goes_on_from_a_state(
    run: tuple[msd.Recipe, Steps], kill: Callable, seed: int
) -> None:
    recipe, wanted = run
    kill(draw_kills(seed, 60))
    assert play(recipe, leaves=wanted[3 + seed][3])[0] == wanted[4 + seed :]


def test_the_same_steps_where_others_are_skipped(run: tuple[msd.Recipe, Steps], kill: Callable) -> None:
    recipe, wanted = run
    kill({30: 2, 70: 3})
    assert play(recipe, skip_to=8)[0] == wanted[8:]


def test_the_data_end_where_the_last_loader_dies(run: tuple[msd.Recipe, Steps], kill: Callable) -> None:
    recipe, wanted = run
    kill({60: 1, 120: 2})
    steps: Steps = []
    with msd.DataLoader(recipe, num_loaders=2, step_seconds=60) as loader:
        with pytest.raises(msd.BadSampleError) as failed:
            take_all(loader, steps)
        kept = loader.leaves()
    says = str(failed.value)
    assert says.startswith("no source loader is left (")
    assert all(f"rank {rank}: it was killed" in says for rank in (1, 2))
    assert "resume from the last checkpoint" in says
    assert steps == wanted[: len(steps)]
    kill({})
    assert play(recipe, leaves=kept)[0] == wanted[len(steps) :]  # and it can be gone on from there


def test_a_job_that_loses_all_loaders_before_it_began_fails(kill: Callable) -> None:
    records = [{"tokens": np.full(3, 1, np.int32)}] * 9
    strategy = msd.DGraph().mix({"s": 1}).pack(seq_len=8, rows=2)
    recipe = msd.Recipe(sources={"s": msd.Source(records)}, strategy=strategy)
    kill({0: 1})
    with (
        msd.DataLoader(recipe, num_loaders=1, step_seconds=60) as loader,
        pytest.raises(msd.JobFailed, match=r"LaunchError: no source loader is left \(rank 1: it was killed"),
    ):
        next(loader)
