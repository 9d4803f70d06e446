from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import credits_that_sum_to_zero, make_infos, mixtures

from msdata_jax.errors import RecipeError
from msdata_jax.planning.graph import DGraph, Gathered, initial_state
from msdata_jax.planning.mixing import WEIGHT_SCALE, Mixture, scale_weights
from msdata_jax.planning.resuming import carry_credits, carry_state, describe_changes, left_out_text

NAMES = ["a", "b", "c", "d", "e"]
some_names = st.lists(st.sampled_from(NAMES), min_size=1, unique=True)


@given(some_names, some_names, st.data())
def test_credits_follow_their_sources(before, after, data):
    credit = data.draw(credits_that_sum_to_zero(len(before), WEIGHT_SCALE))
    numbers = st.lists(st.integers(0, 9), min_size=len(after), max_size=len(after)).filter(any)
    weights = scale_weights([Fraction(w) for w in data.draw(numbers)])
    carried = dict(zip(after, carry_credits(credit, before, after, weights).tolist(), strict=True))
    owed = dict(zip(before, credit.tolist(), strict=True))
    weight = dict(zip(after, weights.tolist(), strict=True))
    assert sum(carried.values()) == 0
    removed = sum(owed[name] for name in before if name not in after)
    heirs = [name for name in after if name in before and weight[name]]
    heirs = heirs or [name for name in after if weight[name]]
    total = sum(weight[name] for name in heirs)
    for name in after:
        part = Fraction(removed * weight[name], total) if name in heirs else 0
        assert abs(carried[name] - owed.get(name, 0) - part) < 1


def test_credits_by_hand():
    weights = scale_weights([Fraction(1), Fraction(3), Fraction(4)])
    carried = carry_credits(np.array([-8, 5, 3]), ["old", "a", "b"], ["b", "a", "new"], weights)
    assert carried.tolist() == [3 - 2, 5 - 6, 0]


# --- the whole state ----------------------------------------------------------------------------------------


def stopped(names="abc", steps=3):
    """A graph, its state after some steps that leave samples to carry, and what is ahead."""
    graph = DGraph().mix(dict.fromkeys(names, 1)).pack(seq_len=8, rows=2)
    streams = [make_infos(s, [5, 3, 5, 6, 1] * 20) for s in range(len(names))]
    state = initial_state(len(names))
    for _ in range(steps):
        composed = graph.compose(state, names, streams, [False] * len(names))
        state = composed.state
        streams = [infos[n:] for infos, n in zip(streams, composed.drawn.tolist(), strict=True)]
    assert len(state.carry) > 2
    return graph, state, streams


def test_data_that_ended_go_on_only_where_something_changed():
    _, state, _ = stopped()
    state, mixture = replace(state, ended=True), DGraph().mix({"a": 1, "b": 1, "c": 1}).mixture
    other = DGraph().mix({"a": 2, "b": 1, "c": 1}).mixture
    assert carry_state(state, "abc", mixture, "abc", mixture)[0].ended
    assert not carry_state(state, "abc", mixture, "abc", other)[0].ended


def test_nothing_changes_where_nothing_changed():
    graph, state, _ = stopped()
    same, changes = carry_state(state, "abc", graph.mixture, "abc", graph.mixture)
    assert changes == []
    for each in ("credit", "exhausted", "last_position", "last_part"):
        assert np.array_equal(getattr(same, each), getattr(state, each))
    assert np.array_equal(same.carry.infos, state.carry.infos)


def test_sources_are_followed_by_name():
    graph, state, streams = stopped()
    removed = int(state.carry.infos["source"][-1])
    first, second = (s for s in range(3) if s != removed)
    names = ("new", "abc"[second], "abc"[first])
    after = DGraph().mix(dict(zip(names, (1, 2, 1), strict=True))).pack(seq_len=8, rows=2)
    carried, changes = carry_state(state, "abc", graph.mixture, names, after.mixture)
    assert carried.last_position.tolist() == [-1, *state.last_position[[second, first]]]
    assert carried.credit.sum() == 0
    left_out = int((state.carry.infos["source"] == removed).sum())
    assert len(carried.carry) == len(state.carry) - left_out
    assert set(carried.carry.infos["source"].tolist()) <= {1, 2}
    text = left_out_text(left_out, "abc"[removed])
    assert text in changes
    assert any("'new' is added with a share of 0.25" in each for each in changes)
    # And the data go on: carried samples first, then each source behind its last sample.
    ahead = [make_infos(0, [4] * 40), streams[second].copy(), streams[first].copy()]
    for source, infos in enumerate(ahead):
        infos["source"] = source
    composed = after.compose(carried, names, ahead, [False] * 3)
    composed.plan.check()
    assert composed.plan.step == state.step
    assert carried.carry.infos[0] in composed.plan.samples


def test_another_unit_starts_without_debts():
    graph, state, _ = stopped()
    by_tokens = DGraph().mix(dict.fromkeys("abc", 1), unit="tokens")
    carried, changes = carry_state(state, "abc", graph.mixture, "abc", by_tokens.mixture)
    assert carried.credit.tolist() == [0, 0, 0]
    assert changes == ["mix(unit=...) changes from 'samples' to 'tokens'"]


def test_sources_do_not_change_while_steps_are_composed_ahead():
    graph, _, _ = stopped()
    composed = graph.regroup(steps=3).compose(
        initial_state(3), "abc", [make_infos(s, [5, 3] * 60) for s in range(3)], [False] * 3
    )
    assert isinstance(composed, Gathered)
    with pytest.raises(RecipeError, match=r"up to 0 are composed already, .*; change them at step 1"):
        carry_state(composed.state, "abc", graph.mixture, "ab", DGraph().mix({"a": 1, "b": 1}).mixture)


@given(st.integers(0, 40), st.data())
def test_any_step_can_be_reached_at_once_where_steps_take_as_many_samples(step, data):
    knots = [(0, {"a": 3, "b": 1}), (7, {"a": 1, "b": data.draw(st.integers(0, 5))})]
    interpolation = data.draw(st.sampled_from(["step", "linear"]))
    graph = DGraph().mix(knots, interpolation=interpolation).pad(seq_len=4, rows=data.draw(st.integers(1, 5)))
    state, taken = initial_state(2), [0, 0]
    streams = [make_infos(s, [4] * 250) for s in range(2)]
    for _ in range(step):
        ahead = [infos[n:] for infos, n in zip(streams, taken, strict=True)]
        composed = graph.compose(state, "ab", ahead, [False] * 2)
        state, taken = composed.state, [n + m for n, m in zip(taken, composed.drawn.tolist(), strict=True)]
    at_once = graph.state_before(step, "ab")
    assert at_once.step == state.step
    for each in ("credit", "exhausted", "last_position", "last_part"):
        assert np.array_equal(getattr(at_once, each), getattr(state, each)), each
    assert len(state.carry) == len(at_once.carry) == 0


def test_steps_that_follow_from_others_are_not_reached_at_once():
    graph = DGraph().mix({"a": 1}, unit="tokens").pack(seq_len=4, rows=2, oversize="drop")
    with pytest.raises(RecipeError, match=r"step 9 follows .* needs pad\(...\).*unit='samples'.*'truncate'"):
        graph.state_before(9, "a")


# --- what changed, in words ---------------------------------------------------------------------------------


def mixture(weights, **options):
    return Mixture(knots=[(0, weights)], **options)


def ramp(step):
    return {"a": 1, "b": 1 + step}


def wave(step):
    return {"a": 1, "b": 1 + step % 2}


AB = {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("before", "after", "step", "expected"),
    [
        (AB, {"a": 2, "b": 2}, 0, []),
        (AB, {"b": 1, "a": 1}, 0, ["the order of the sources, which decides who is first at ties, changes"]),
        (
            AB,
            {"a": 1, "b": 1, "c": 2},
            5,
            [
                "source 'c' is added with a share of 0.5",
                "source 'a': its share at step 5 changes from 0.5 to 0.25",
                "source 'b': its share at step 5 changes from 0.5 to 0.25",
            ],
        ),
        (
            {"a": 1, "b": 3},
            {"a": 1},
            5,
            [
                "source 'a': its share at step 5 changes from 0.25 to 1",
                "source 'b' is removed; its share was 0.75",
            ],
        ),
        (
            {"a": 1, "b": 10**12},
            {"a": 2, "b": 2 * 10**12 - 1},
            0,
            [
                "source 'a': its share at step 0 changes from 9.99999999999e-13 to 9.999999999995e-13",
                "source 'b': its share at step 0 changes from 1000000000000/1000000000001 to "
                "1999999999999/2000000000001",
            ],
        ),
    ],
)
def test_changes_of_sources(before, after, step, expected):
    said = describe_changes(list(before), mixture(before), list(after), mixture(after), step)
    assert len(said) == len(expected)
    for text, start in zip(said, expected, strict=True):
        assert text.startswith(start)


@pytest.mark.parametrize(
    ("before", "after", "step", "expected"),
    [
        (mixture(AB), mixture(AB, unit="tokens"), 3, "mix(unit=...) changes from 'samples' to 'tokens'"),
        (
            mixture(AB),
            mixture(AB, on_exhausted="stop"),
            3,
            "mix(on_exhausted=...) changes from 'repeat' to 'stop'",
        ),
        (
            mixture(AB),
            Mixture(knots=[(0, AB), (9, {"a": 1, "b": 2})]),
            3,
            "the schedule of the weights differs from step 9 on",
        ),
        (
            Mixture(knots=[(0, AB), (8, {"a": 1, "b": 2})]),
            Mixture(knots=[(0, AB), (8, {"a": 1, "b": 2})], interpolation="linear"),
            0,
            "the schedule of the weights differs from step 1 on",
        ),
        (
            Mixture(knots=[(0, {"a": 1, "b": 5}), (8, AB)]),
            mixture(AB),
            9,
            None,
        ),
        (
            Mixture(knots=ramp),
            Mixture(knots=wave),
            1,
            "the schedule of the weights changes from step 1 on: "
            "it was <function ramp>, and is <function wave>",
        ),
        (
            Mixture(knots=wave),
            mixture(AB),
            2,
            "the schedule of the weights changes from step 2 on: it was <function wave>, and is knots",
        ),
        (Mixture(knots=ramp), Mixture(knots=ramp), 2, None),
        (
            mixture({"g": 1}, groups={"g": AB}),
            mixture({"g": 1}, groups={"g": {"a": 2, "b": 2}}),
            2,
            None,
        ),
        (
            mixture(AB),
            mixture({"g": 1}, groups={"g": AB}),
            2,
            "group 'g' is added: a 0.5, b 0.5",
        ),
        (
            mixture({"g": 1}, groups={"g": AB}),
            mixture(AB),
            2,
            "group 'g' is removed; it held a 0.5, b 0.5",
        ),
    ],
)
def test_changes_of_the_mixture(before, after, step, expected):
    said = describe_changes(["a", "b"], before, ["a", "b"], after, step)
    assert said == ([expected] if expected else [])


def test_a_group_split_in_another_way():
    before = mixture({"g": 1}, groups={"g": AB})
    after = mixture({"g": 1}, groups={"g": {"a": 1, "b": 3}})
    assert describe_changes(["a", "b"], before, ["a", "b"], after, 0) == [
        "source 'a': its share at step 0 changes from 0.5 to 0.25",
        "source 'b': its share at step 0 changes from 0.5 to 0.75",
        "group 'g' changes from a 0.5, b 0.5 to a 0.25, b 0.75",
    ]


@given(mixtures(), mixtures(), st.integers(0, 8))
def test_nothing_is_said_only_where_nothing_changes(case, other, step):
    """No sentence means the same shares at every step from this one on."""
    (knots, groups, interpolation, names), (knots2, groups2, interpolation2, names2) = case, other
    before = Mixture(knots=knots, groups=groups, interpolation=interpolation)
    after = Mixture(knots=knots2, groups=groups2, interpolation=interpolation2)
    assert describe_changes(names, before, names, before, step) == []
    same = names == names2 and all(
        before.shares_at(s, names) == after.shares_at(s, names) for s in range(step, 20)
    )
    if not same:
        assert describe_changes(names, before, names2, after, step) != []
