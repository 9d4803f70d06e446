"""Totals of the steps that were taken, recounted plainly."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from roles.played import make_placement, make_recipe, start_job

from msdata_jax.roles import messages as m
from msdata_jax.roles.effects import Send
from msdata_jax.roles.tally import RECENT_STEPS, Tally


def announced(step: int, imbalance: float, samples: list[int]) -> list[Send]:
    """What two constructors are told of a step: a plan of a real job, with these figures."""
    job = start_job(make_recipe(), make_placement(num_constructors=1))
    job.run(tokens=4)
    expect = job.steps()[0]
    figures = {
        "step": step,
        "imbalance": imbalance,
        "imbalance_unbalanced": 2 * imbalance,
        "source_samples": np.array(samples),
        "source_tokens": 10 * np.array(samples),
        "fill": 0.5,
    }
    changed = m.Expect(**{**vars(expect), **figures})
    return [Send(rank=1, message=m.Visible(step=0)), *(Send(rank=r, message=changed) for r in (2, 3))]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=6), st.integers(0, 6))
def test_only_what_was_taken_counts(samples: list[tuple[int, int]], taken: int) -> None:
    tally = Tally(2)
    for step, each in enumerate(samples):
        tally.announce(announced(step, 1.5, list(each)))
    tally.take(taken - 1)
    counted = np.array(samples[:taken]).reshape(-1, 2).sum(axis=0)
    assert tally.samples.tolist() == counted.tolist()
    assert tally.tokens.tolist() == (10 * counted).tolist()
    assert tally.num_steps == min(taken, len(samples))
    assert tally.sums.tolist() == [1.5 * tally.num_steps, 3.0 * tally.num_steps, 0.5 * tally.num_steps]
    tally.take(taken - 1)
    assert tally.samples.tolist() == counted.tolist()


def test_recent_steps_are_the_last_ones() -> None:
    tally = Tally(2)
    assert tally.recent() is None
    for step in range(RECENT_STEPS + 3):
        tally.announce(announced(step, 1.5 if step < 3 else 1.0, [1, 1]))
    tally.take(2)
    assert tally.recent().tolist() == [1.5, 3.0, 0.5]
    tally.take(RECENT_STEPS + 2)
    assert tally.recent().tolist() == [1.0, 2.0, 0.5]
