"""A run of 30 steps, stopped behind every step, goes on with 1, 2 and 4 training processes: the same rows."""

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from roles.played import make_placement
from roles.test_whole_job import recipe
from roles.whole_job import WholeJob

import msdata_jax as msd

NUM_STEPS = 30
PROCESSES = (1, 2, 4)
CASES = [("drop", before, after) for before in PROCESSES for after in PROCESSES]
CASES += [("split", 1, 4), ("split", 4, 2)]

Rows = list[bytes]


def make_recipe(kind: str) -> msd.Recipe:
    """As `test_whole_job` has them; where samples are split, three steps are regrouped besides."""
    made = recipe(kind)
    return replace(made, strategy=made.strategy.regroup(steps=3)) if kind == "split" else made


def play(kind: str, processes: int, state: dict[str, bytes] | None = None) -> WholeJob:
    """A whole job, with another number of loaders each time that it goes on."""
    loaders = 2 if state is None else 1 + len(state["step"]) % 3
    placement = make_placement(loaders, processes)
    job = WholeJob(make_recipe(kind), placement, random.Random(processes), state, num_steps=NUM_STEPS)
    job.run()
    return job


@cache
def whole_run(kind: str, processes: int) -> WholeJob:
    return play(kind, processes)


def steps_of(job: WholeJob) -> dict[int, list[Rows]]:
    """The rows that each training process got, by step; a row is the bytes of all its fields."""
    steps: dict[int, list[Rows]] = {}
    for rank in job.placement.constructors:
        for delivered in job.trainers[rank].taken:
            fields = delivered.fields
            rows = zip(*(fields[name] for name in sorted(fields)), strict=True)
            mine = [b"".join(np.ascontiguousarray(part).tobytes() for part in row) for row in rows]
            steps.setdefault(delivered.expect.step, []).append(mine)
    return steps


def rows_of(step: list[Rows]) -> Rows:
    return sorted(row for rows in step for row in rows)


@pytest.mark.parametrize(("kind", "before", "after"), CASES)
def test_goes_on_behind_every_step(kind: str, before: int, after: int) -> None:
    first, other = whole_run(kind, before), steps_of(whole_run(kind, after))
    leaves = first.trainers[first.placement.constructors[0]].leaves_after
    assert sorted(leaves) == list(range(NUM_STEPS))
    same = steps_of(first)
    for step in range(NUM_STEPS - 1):
        resumed = steps_of(play(kind, after, leaves[step]))
        assert sorted(resumed) == list(range(step + 1, NUM_STEPS))
        for number, got in resumed.items():
            assert got == other[number]  # the same mesh: every byte in its place
            assert rows_of(got) == rows_of(same[number])  # another mesh: the same rows
