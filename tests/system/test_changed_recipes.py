"""Going on with another recipe: it goes on, or says when it may; no step comes that cannot be saved."""

from dataclasses import replace

import numpy as np
import pytest

import msdata_jax as msd
from msdata_jax.data_state import DataState

WEIGHTS = {"a": 2, "b": 1}


def tokens(record: dict) -> dict:
    return {"tokens": np.full(1 + record["number"] % 7, record["number"], np.int32)}


def longer(record: dict) -> dict:
    return {"tokens": np.full(2 + record["number"] % 5, record["number"], np.int32)}


def packed(on_exhausted: str = "repeat", seq_len: int = 16, rows: int = 4, steps: int = 1) -> msd.DGraph:
    graph = msd.DGraph().mix(WEIGHTS, on_exhausted=on_exhausted).pack(seq_len=seq_len, rows=rows)
    return graph.regroup(steps=steps)


def make_recipe(graph: msd.DGraph, transform=tokens, records: int = 20, block_size: int = 4) -> msd.Recipe:
    sources = {
        name: msd.Source([{"number": k} for k in range(records)], [transform], block_size=block_size)
        for name in WEIGHTS
    }
    return msd.Recipe(sources=sources, strategy=graph, seed=1)


def state_behind(recipe: msd.Recipe, steps: int) -> DataState:
    with msd.DataLoader(recipe, num_steps=steps) as loader:
        assert len(list(loader)) == steps
        return loader.state()


def go_on(recipe: msd.Recipe, state: DataState, steps: int = 12) -> list[int]:
    """The steps that come, each with a state that can be read again."""
    taken = []
    with msd.DataLoader(recipe, num_steps=steps, step_seconds=20) as loader:
        loader.restore(state, accept_changes=True)
        for _ in loader:
            taken.append(loader.last_step.step)
            DataState.from_leaves(loader.state().to_leaves())
    return taken


BEFORE = make_recipe(packed())


@pytest.mark.parametrize("steps", range(1, 7))
@pytest.mark.parametrize("on_exhausted", ["stop", "renormalize"])
def test_sources_that_repeated_end_where_they_stand(on_exhausted: str, steps: int) -> None:
    """In their first epoch at its end; in a later one at once, behind what waits for a row."""
    state = state_behind(BEFORE, steps)
    taken = go_on(make_recipe(packed(on_exhausted)), state)
    assert taken == list(range(steps, steps + len(taken)))
    if (state.stream.last_position >= 20).all():
        assert len(taken) <= 1  # what waited


@pytest.mark.parametrize(
    "after",
    [
        make_recipe(packed(rows=8)),
        make_recipe(packed(seq_len=7)),
        make_recipe(packed(), transform=longer),
        replace(BEFORE, seed=2),
        make_recipe(packed(), records=7),
        make_recipe(packed(), block_size=7),
        make_recipe(packed(steps=3)),
        make_recipe(msd.DGraph().mix(WEIGHTS).bucket({4: 8, 16: 4})),
        make_recipe(msd.DGraph().mix(WEIGHTS).pad(seq_len=16, rows=4)),
        make_recipe(msd.DGraph().mix(WEIGHTS).pack(seq_len=4, rows=4, oversize="split")),
    ],
    ids=[
        "rows",
        "seq_len",
        "transform",
        "seed",
        "records",
        "block_size",
        "regroup",
        "bucket",
        "pad",
        "split",
    ],
)
def test_what_is_accepted_goes_on(after: msd.Recipe) -> None:
    assert go_on(after, state_behind(BEFORE, 6)) == list(range(6, 12))


@pytest.mark.parametrize(
    "graph",
    [packed(), packed(steps=2), packed(steps=3, seq_len=32), packed(steps=3, rows=8)],
    ids=["none", "shorter", "seq_len", "rows"],
)
def test_inside_a_window_rows_may_not_change(graph: msd.DGraph) -> None:
    before = make_recipe(packed(steps=3))
    with pytest.raises(msd.RecipeError, match="steps up to 5 are composed already, in rows as they were"):
        go_on(make_recipe(graph), state_behind(before, 4))
    assert go_on(make_recipe(graph), state_behind(before, 6)) == list(range(6, 12))  # where a window ends
