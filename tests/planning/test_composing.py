"""Edges of what a step delivers; the laws are in `test_graph.py`."""

import collections
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import make_infos, stories

from msdata_jax.errors import BadSampleError, RecipeError
from msdata_jax.planning import merging, packing
from msdata_jax.planning.graph import DGraph, EndOfData, initial_state
from msdata_jax.planning.refusals import MOST_DROPPED


def all_plans(graph, streams, columns=()):
    """Plans until the data end, for sources that end."""
    names = [f"s{i}" for i in range(len(streams))]
    state, taken = initial_state(len(streams), columns), np.zeros(len(streams), dtype=np.int64)
    plans = []
    while True:
        ahead = [each[n:] for each, n in zip(streams, taken, strict=True)]
        found = graph.compose(state, names, ahead, [True] * len(streams))
        if isinstance(found, EndOfData):
            return plans
        found.plan.check()
        plans.append(found.plan)
        state, taken = found.state, taken + found.drawn


def columns_of(value):
    """All arrays of a plan or a state as lists, inner ones too."""
    if isinstance(value, np.ndarray):
        return value.dtype.descr, value.tolist()
    if hasattr(value, "__dataclass_fields__"):
        return [columns_of(getattr(value, field.name)) for field in fields(value)]
    return value


def all_steps(graph, names, streams, few_units, draws_in_turn):
    """Columns of all plans and states, with other sizes of what counts as few."""
    state, taken, steps = initial_state(len(streams)), np.zeros(len(streams), dtype=np.int64), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "FEW_UNITS", few_units)
        patch.setattr(merging, "DRAWS_IN_TURN", draws_in_turn)
        while True:
            ahead = [each[n:] for each, n in zip(streams, taken, strict=True)]
            found = graph.compose(state, names, ahead, [True] * len(streams))
            steps.append(columns_of(found))
            if isinstance(found, EndOfData):
                return steps
            state, taken = found.state, taken + found.drawn


@given(stories())
def test_small_steps_are_composed_as_large_ones_are(story):
    graph, names, streams = story
    graph = replace(graph, regrouped_steps=1)
    of_few = all_steps(graph, names, streams, 1 << 40, 1 << 40)
    assert of_few == all_steps(graph, names, streams, -1, -1)
    assert of_few == all_steps(graph, names, streams, packing.FEW_UNITS, merging.DRAWS_IN_TURN)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=40), st.integers(2, 3), st.integers(1, 3))
def test_runs_stay_together_also_where_values_come_again(runs, num_values, rows):
    """A run that is carried must not join a later one of its value, though those between have rows."""
    run_of_position = np.repeat(np.arange(len(runs)), runs)
    infos = make_infos(0, 1 + run_of_position % 2, columns=["talk"])
    infos["talk"] = run_of_position % num_values
    graph = DGraph().mix({"s0": 1}, on_exhausted="stop").pack(seq_len=6, rows=rows, together="talk")
    rows_of = collections.defaultdict(set)
    for plan in all_plans(graph, [infos], ["talk"]):
        for position, row in zip(plan.samples["position"].tolist(), plan.row.tolist(), strict=True):
            rows_of[run_of_position[position]].add((plan.step, row))
    assert all(len(found) == 1 for found in rows_of.values())
    assert len(rows_of) == len(runs)


def test_once_a_source_ended_the_data_nothing_more_is_drawn():
    """Though at the next step, where the source that ended has no weight, others could go on."""
    graph = DGraph().mix([(0, {"s0": 1, "s1": 1}), (2, {"s0": 0, "s1": 1})], on_exhausted="stop")
    streams = [make_infos(0, [4] * 4), make_infos(1, [4] * 40)]
    plans = all_plans(graph.pack(seq_len=4, rows=4), streams)
    assert [len(plan.samples) for plan in plans] == [4, 4]
    assert [(plan.samples["source"] == 1).sum() for plan in plans] == [2, 2]


@pytest.mark.parametrize("first_that_fits", [None, MOST_DROPPED - 1, MOST_DROPPED])
def test_endless_data_of_which_nothing_fits_are_an_error(first_that_fits):
    infos = make_infos(0, np.full(MOST_DROPPED + 20, 9))
    if first_that_fits is not None:
        infos["tokens"][first_that_fits:] = 4
    graph = DGraph().mix({"s0": 1}).pack(seq_len=8, rows=1, oversize="drop")
    for known in (MOST_DROPPED + 10, MOST_DROPPED + 20):  # the same, whatever is known
        arguments = (initial_state(1), ["s0"], [infos[:known]], [False])
        if first_that_fits == MOST_DROPPED - 1:
            assert len(graph.compose(*arguments).plan.dropped) == first_that_fits
            continue
        with pytest.raises(BadSampleError, match=f"none of {MOST_DROPPED} samples in turn fits a row of 8"):
            graph.compose(*arguments)


@pytest.mark.parametrize("value", [2**36, 2**40, 2**62])
def test_units_that_would_leave_int64_are_refused(value):
    infos = make_infos(0, [4] * 10, columns=["work"])
    infos["work"] = value
    graph = DGraph().mix({"s0": 1}, unit="work").pack(seq_len=8, rows=1)
    with pytest.raises(RecipeError, match=rf"unit='work'.* got {10 * value}; count in a larger unit"):
        graph.compose(initial_state(1, ["work"]), ["s0"], [infos], [False])


def test_a_negative_count_names_source_and_position():
    graph = DGraph().mix({"s0": 1}, unit="frames").pack(seq_len=4, rows=1)
    infos = make_infos(0, [4] * 4, columns=["frames"])
    infos["frames"] = [3, 2, -5, 1]
    with pytest.raises(RecipeError, match=r"source 's0' measured -5 at position 2: mend its measure"):
        graph.compose(initial_state(1, ["frames"]), ["s0"], [infos], [True])
