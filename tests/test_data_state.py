"""The state as leaves: what goes in comes out, and whatever else comes is a CheckpointError."""

from dataclasses import fields, replace
from functools import cache

import msgpack
import numpy as np
import pytest
from checkpoint.states import make_state, runs
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import make_infos

from msdata_jax.data_state import (
    STATE_VERSION,
    BadRecords,
    DataState,
    change_leaves,
    changed_leaves,
    leaves_digest,
    pack_leaves,
    unpack_leaves,
)
from msdata_jax.errors import CheckpointError
from msdata_jax.planning.graph import Composed, DGraph, Gathered, initial_state
from msdata_jax.records import BadSample

# --- what goes in comes out ---------------------------------------------------------------------------------


def assert_equal_streams(one, other):
    for name in ("credit", "exhausted", "last_position", "last_part"):
        value, same = getattr(one, name), getattr(other, name)
        assert value.dtype == same.dtype
        assert np.array_equal(value, same), name
    for name in ("infos", "start", "length", "unit"):
        assert np.array_equal(getattr(one.carry, name), getattr(other.carry, name)), name
    assert (one.step, one.ended) == (other.step, other.ended)
    for name in ("gathered", "pending"):
        plans, same = getattr(one, name), getattr(other, name)
        assert [each.to_bytes() for each in plans] == [each.to_bytes() for each in same]


@given(runs(), st.data())
def test_a_state_comes_out_as_it_went_in(states, data):
    """Of any strategy, with what waits for a row, with windows and with bad records."""
    state = data.draw(st.sampled_from(states))
    read = DataState.from_leaves(state.to_leaves())
    assert_equal_streams(read.stream, state.stream)
    for each in fields(DataState):
        if each.name not in ("stream", "mixture"):
            assert getattr(read, each.name) == getattr(state, each.name), each.name
    assert read.to_leaves() == state.to_leaves()
    assert unpack_leaves(pack_leaves(state.to_leaves())) == state.to_leaves()
    names = state.source_names
    assert np.array_equal(
        read.mixture.weights_at(state.step, names), state.mixture.weights_at(state.step, names)
    )


@given(runs(), st.data())
def test_the_leaves_of_a_run_do_not_change_and_those_of_a_step_are_all_others(states, data):
    first, later = (data.draw(st.sampled_from(states)) for _ in range(2))
    assert first.run_leaves() == later.run_leaves()
    assert not first.run_leaves().keys() & first.step_leaves().keys()
    assert first.to_leaves() == first.run_leaves() | first.step_leaves()


some_leaves = st.dictionaries(st.text(max_size=3), st.binary(max_size=5), max_size=5)


@given(some_leaves, some_leaves, st.data())
def test_changes_lead_from_one_state_to_the_other(before, after, data):
    after = {**after, **{name: before[name] for name in before if data.draw(st.booleans())}}
    changed, removed = changed_leaves(before, after)
    leaves = dict(before)
    change_leaves(leaves, changed, removed)
    assert leaves == after
    assert set(removed) == before.keys() - after.keys()
    assert all(before.get(name) != leaf for name, leaf in changed.items())


@given(some_leaves, some_leaves)
def test_digests_tell_leaves_apart_and_know_no_order(leaves, other):
    assert leaves_digest(dict(reversed(leaves.items()))) == leaves_digest(leaves)
    assert (leaves_digest(leaves) == leaves_digest(other)) == (leaves == other)


GROUPS = {"text": {"a": 3, "b": 0.5}, "all": {"text": 2, "c": 1}}
MIXTURES = {
    "schedule": DGraph().mix([(0, {"a": 1, "b": 2, "c": 0}), (9, {"a": 1, "b": 1, "c": 1})], unit="tokens"),
    "ramp": DGraph().mix(
        [(0, {"a": 1, "b": 2, "c": 0}), (9, {"a": 1, "b": 1, "c": 1.5})], interpolation="linear"
    ),
    "groups": DGraph().mix({"all": 1}, groups=GROUPS, on_exhausted="renormalize"),
}


@pytest.mark.parametrize("graph", MIXTURES.values(), ids=MIXTURES)
def test_mixtures_are_the_same_at_every_step(graph):
    state = make_state(graph, ("a", "b", "c"), replace(initial_state(3), step=4))
    read = DataState.from_leaves(state.to_leaves()).mixture
    for name in ("unit", "on_exhausted", "interpolation"):
        assert getattr(read, name) == getattr(graph.mixture, name)
    for step in range(12):
        assert read.shares_at(step, ("a", "b", "c")) == graph.mixture.shares_at(step, ("a", "b", "c"))


def warm_up(step):
    return {"a": 1, "b": np.float32(step) / 4}


def test_of_a_function_its_name_and_what_it_says_of_the_next_step_are_kept():
    graph = DGraph().mix(warm_up)
    state = make_state(graph, ("a", "b"), replace(initial_state(2), step=3))
    read = DataState.from_leaves(state.to_leaves())
    assert repr(read.mixture.knots) == "<function warm_up>"
    assert read.mixture.shares_at(3, "ab") == graph.mixture.shares_at(3, "ab")
    assert DataState.from_leaves(read.to_leaves()).to_leaves() == state.to_leaves()


@pytest.mark.parametrize("later", [{"a": -1, "b": 1}, {"a": 1}, None])
def test_where_a_function_knows_no_later_step_what_it_said_last_is_kept(later):
    """A run ends with its schedule; and one that a wrong weight ended can go on with a better one."""
    graph = DGraph().mix(lambda step: {"a": 1, "b": 1 + step} if step < 3 else later)
    state = make_state(graph, ("a", "b"), replace(initial_state(2), step=3))
    read = DataState.from_leaves(state.to_leaves())
    assert read.mixture.shares_at(3, "ab") == graph.mixture.shares_at(2, "ab")


# --- what is none of ours -----------------------------------------------------------------------------------


@cache
def rich_leaves():
    """Leaves of every kind: pieces that wait, a window, bad records."""
    graph = DGraph().mix({"a": 2, "b": 1}).pack(seq_len=8, rows=2).regroup(steps=3)
    ahead = [make_infos(source, [5, 3, 7, 6, 1] * 20) for source in range(2)]
    stream = initial_state(2)
    while stream.step < 4 or not stream.pending:
        composed = graph.compose(stream, "ab", ahead, [False] * 2)
        assert isinstance(composed, Composed | Gathered)
        stream = composed.state
        ahead = [infos[n:] for infos, n in zip(ahead, composed.drawn.tolist(), strict=True)]
    assert len(stream.carry)
    bad = BadRecords(
        num_bad=3,
        listed=(BadSample(position=1, reason="broken"), BadSample(position=2, reason="slow", by_luck=True)),
        verdicts=((0, 2, "slow"),),
    )
    return make_state(graph, ("a", "b"), stream, bad=(bad, BadRecords())).to_leaves()


def refused(leaves, says=None):
    with pytest.raises(CheckpointError, match=says):
        DataState.from_leaves(leaves)


def test_the_leaves_for_these_tests_are_of_every_kind():
    kinds = {name.split("/")[0] for name in rich_leaves()}
    assert kinds == {"run", "source", "step", "mixture", "carry", "stream", "bad", "pending"}
    assert DataState.from_leaves(rich_leaves()).to_leaves() == rich_leaves()


@pytest.mark.parametrize("version", [STATE_VERSION + 1, 0, "1", None])
def test_another_version_is_told_apart(version):
    run = msgpack.unpackb(rich_leaves()["run"])
    says = (
        f"the state is of version {version!r}; this msdata_jax reads version {STATE_VERSION}: go on with the"
    )
    refused({**rich_leaves(), "run": msgpack.packb({**run, "version": version})}, says)
    refused({**rich_leaves(), "run": msgpack.packb([version])}, "version None")


@pytest.mark.parametrize("name", sorted(rich_leaves()))
def test_every_leaf_is_needed_whole(name):
    leaves = rich_leaves()
    leaf = leaves[name]
    is_optional = name.startswith("bad/") or name == "pending/5"  # the last of a window may be the one before
    if not is_optional:
        refused({each: value for each, value in leaves.items() if each != name})
    for wrong in (leaf[:-1], leaf[: len(leaf) // 2], b"", leaf + b"\x00"):
        refused({**leaves, name: wrong})
    for wrong in (None, 5, "text", [1]):
        refused({**leaves, name: wrong})


@pytest.mark.parametrize(
    "name", ["source/2", "stream/extra", "bad/2", "bad/x", "", "pending/x", "pending/9", "runs"]
)
def test_leaves_too_many_are_refused(name):
    refused({**rich_leaves(), name: rich_leaves()["bad/0"]})


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("step", {"step": -1}, "a whole number from 0"),
        ("step", {"step": True}, "a whole number from 0"),
        ("step", {"ended": 0}, "true or false"),
        ("step", {"num_carried": 99}, "bytes; 99 of"),
        ("step", {"plan_digest": b"x"}, "a text belongs"),
        ("run", {"seed": 2**63}, "a whole number from 0"),
        ("run", {"num_sources": 3}, "bytes; 3 of"),
        ("run", {"num_sources": 0}, "a whole number from 1"),
        ("run", {"columns": ["frames"]}, "carry/infos has"),
        ("run", {"columns": "tokens"}, "carry/infos|no state|another's"),
        ("source/0", {"num_records": 0}, "a whole number from 1"),
        ("source/0", {"files": {"x": 5}}, "a text belongs"),
        ("source/0", {"name": 5}, "a text belongs"),
        ("mixture", {"knots": [[0, {"a": 1}]]}, "weight"),
        ("mixture", {"knots": [[0, {"a": True, "b": 1}]]}, "a weight by name"),
        ("mixture", {"knots": [[0, {"a": -1, "b": 2}]]}, "RecipeError"),
        ("mixture", {"knots": [[3, {"a": 1, "b": 2}]]}, "RecipeError"),
        ("mixture", {"groups": {"a": {"a": 1}}}, "RecipeError"),
        ("mixture", {"on_exhausted": "panic"}, "RecipeError"),
    ],
)
def test_values_that_mean_nothing_are_told(name, change, says):
    leaves = rich_leaves()
    refused({**leaves, name: msgpack.packb({**msgpack.unpackb(leaves[name]), **change})}, says)


def test_positions_and_credits_that_no_run_leaves_are_told():
    leaves = rich_leaves()

    def ints(*values):
        return np.array(values, "<i8").tobytes()

    refused({**leaves, "stream/credit": ints(5, -4)}, "does not sum to zero")
    refused({**leaves, "stream/credit": ints(2**62, 2**62)}, "does not sum to zero")
    refused({**leaves, "stream/last_position": ints(-2, 50)}, "below -1")
    refused({**leaves, "stream/last_position": ints(-1, -1)}, "was never drawn")
    count = len(leaves["carry/length"]) // 8
    refused({**leaves, "carry/length": ints(*[0] * count)}, "more tokens than its sample")
    refused({**leaves, "carry/start": ints(*[2**63 - 1] * count)}, "more tokens than its sample")
    refused({**leaves, "carry/length": ints(*[2**63 - 1] * count)}, "more tokens than its sample")


@pytest.mark.parametrize(
    "change",
    [
        {"step": 6}, {"num_groups": 0}, {"num_microbatches": 0}, {"num_groups": 2}, {"num_slots": 1},
        {"num_rows": 3}, {"seq_len": 2}, {"columns": ["frames"]}, {"num_dropped": 1}, {"version": 1},
    ],
    ids=str,
)  # fmt: skip
def test_plans_of_later_steps_that_nobody_composed_are_refused(change):
    leaves = rich_leaves()
    plan = leaves["pending/5"]
    size = int.from_bytes(plan[:4], "little")
    packed = msgpack.packb({**msgpack.unpackb(plan[4 : 4 + size]), **change})
    refused({**leaves, "pending/5": len(packed).to_bytes(4, "little") + packed + plan[4 + size :]})


@given(st.binary(max_size=60))
def test_any_bytes_are_leaves_or_a_checkpoint_error(data):
    try:
        leaves = unpack_leaves(data)
    except CheckpointError:
        return
    assert all(isinstance(name, str) and isinstance(leaf, bytes) for name, leaf in leaves.items())


@pytest.mark.parametrize("value", [5, [b"x"], {"run": "text"}, {5: b"x"}, {b"run": b"x"}, None])
def test_what_is_packed_as_something_else_is_no_leaves(value):
    with pytest.raises(CheckpointError, match="bytes are no state"):
        unpack_leaves(msgpack.packb(value))


# --- any change at all --------------------------------------------------------------------------------------

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.sampled_from([0, 1, -1, 2**31 - 1, 2**31, 2**62])
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def mutated(value, draw):
    """A msgpack value with one place of it changed, added or left out."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        name = draw(st.sampled_from(sorted(value, key=str)))
        if draw(st.integers(0, 3)) == 0:
            return {key: each for key, each in value.items() if key != name}
        return {**value, name: mutated(value[name], draw)}
    if isinstance(value, list) and value and draw(st.booleans()):
        place = draw(st.integers(0, len(value) - 1))
        rest = value[place + 1 :]
        return [
            *value[:place],
            *([] if draw(st.integers(0, 3)) == 0 else [mutated(value[place], draw)]),
            *rest,
        ]
    return draw(values)


def other_bytes(leaf, draw):
    """A few bytes of it changed, or some added, or left out."""
    start = draw(st.integers(0, len(leaf)))
    stop = draw(st.integers(start, min(start + 8, len(leaf))))
    keeps_size = draw(st.booleans())
    size = stop - start
    return (
        leaf[:start]
        + draw(st.binary(min_size=size * keeps_size, max_size=size if keeps_size else 8))
        + leaf[stop:]
    )


def other_head(plan, draw):
    """A plan whose header says something else."""
    size = int.from_bytes(plan[:4], "little")
    packed = msgpack.packb(mutated(msgpack.unpackb(plan[4 : 4 + size]), draw))
    return len(packed).to_bytes(4, "little") + packed + plan[4 + size :]


def changed(leaves, draw):
    name = draw(st.sampled_from(sorted(leaves)))
    kind = draw(st.sampled_from(["bytes", "value", "value", "name"]))
    if kind == "name":
        other = draw(st.sampled_from([*sorted(leaves), name + "0", name.replace("5", "6"), "pending/7"]))
        return {**{each: leaf for each, leaf in leaves.items() if each != name}, other: leaves[name]}
    is_packed = name in ("run", "step", "mixture") or name.startswith(("source/", "bad/"))
    if kind == "value" and is_packed:
        return {**leaves, name: msgpack.packb(mutated(msgpack.unpackb(leaves[name]), draw))}
    if kind == "value" and name.startswith("pending/"):
        return {**leaves, name: other_head(leaves[name], draw)}
    return {**leaves, name: other_bytes(leaves[name], draw)}


@given(st.data())
@settings(max_examples=1000)
def test_whatever_is_changed_is_refused_or_a_state(data):
    leaves = changed(rich_leaves(), data.draw)
    try:
        state = DataState.from_leaves(leaves)
    except CheckpointError:
        return
    again = state.to_leaves()
    assert DataState.from_leaves(again).to_leaves() == again
