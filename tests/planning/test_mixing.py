import math
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import mixtures

from msdata_jax.errors import RecipeError
from msdata_jax.planning.mixing import WEIGHT_SCALE, Mixture, merge_by_due_time, scale_weights


@given(st.lists(st.fractions(0, 10) | st.just(Fraction(1, 10**12)), min_size=1, max_size=50).filter(any))
def test_scaled_weights_sum_exactly_and_none_gets_lost(weights):
    scaled = scale_weights(weights)
    total = sum(weights)
    assert scaled.sum() == WEIGHT_SCALE
    assert [w > 0 for w in weights] == (scaled > 0).tolist()
    shares = [weight * WEIGHT_SCALE / total for weight in weights]
    num_tiny = sum(0 < share < 1 for share in shares)  # raised to 1; others pay for them
    for share, value in zip(shares, scaled.tolist(), strict=True):
        assert abs(value - share) < 1 + num_tiny


def test_scaled_weights_by_hand():
    assert scale_weights([Fraction(3), Fraction(1)]).tolist() == [3 << 22, 1 << 22]
    assert scale_weights([Fraction(1)] * 3).tolist() == [5592406, 5592405, 5592405]
    assert scale_weights([Fraction(0), Fraction(1)]).tolist() == [0, WEIGHT_SCALE]
    assert scale_weights([Fraction(1), Fraction(1, 10**9)]).tolist() == [WEIGHT_SCALE - 1, 1]


# --- schedules ----------------------------------------------------------------------------------------------

SCHEDULE = [(0, {"a": 1, "b": 0}), (10, {"a": 1, "b": 3}), (20, {"a": 0, "b": 5})]


@pytest.mark.parametrize(
    ("interpolation", "step", "share_of_b"),
    [
        *[("step", 0, 0), ("step", 9, 0), ("step", 10, 0.75), ("step", 19, 0.75), ("step", 20, 1)],
        *[
            ("step", 10**6, 1),
            ("linear", 0, 0),
            ("linear", 5, 0.375),
            ("linear", 10, 0.75),
            ("linear", 12, 0.8),
        ],
        *[("linear", 20, 1), ("linear", 21, 1)],
    ],
)
def test_scheduled_weights(interpolation, step, share_of_b):
    mixture = Mixture(knots=SCHEDULE, interpolation=interpolation)
    mixture.check(["a", "b"], [])
    expected = scale_weights([1 - Fraction(share_of_b), Fraction(share_of_b)])
    assert mixture.weights_at(step, ["a", "b"]).tolist() == expected.tolist()


def curriculum(step):
    return {"a": 1, "b": np.float32(step) / 4}


def test_a_function_of_the_step_is_a_schedule():
    mixture = Mixture(knots=curriculum)
    mixture.check(["a", "b"], [])
    for step in (0, 1, 4, 1, 12):
        expected = scale_weights([Fraction(1), Fraction(step, 4)])
        assert mixture.weights_at(step, ["a", "b"]).tolist() == expected.tolist()
        assert mixture.weights_at(step, ["b", "a"]).sum() == WEIGHT_SCALE
    assert re.sub(" at 0x[0-9a-f]+", "", repr(mixture)).startswith("Mixture(knots=<function curriculum>")
    assert mixture.describe() == "weights from the function curriculum"
    assert mixture == Mixture(knots=curriculum)


def test_a_function_is_asked_once_a_step():
    asked = []

    def weights(step):
        asked.append(step)
        return {"a": 1, "b": step}

    mixture = Mixture(knots=weights)
    first = [mixture.weights_at(step, ["a", "b"]) for step in (3, 3, 4, 3)]
    assert asked == [3, 4]
    assert first[0] is first[1] is first[3]
    for step in range(100):
        mixture.weights_at(step, ["a", "b"])
    assert mixture.weights_at(3, ["a", "b"]).tolist() == first[0].tolist()


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ({"a": math.nan, "b": 1}, "finite and not negative; from .*faulty at step 7 got {'a': nan}"),
        ({"a": math.inf, "b": 1}, "finite"),
        ({"a": -1, "b": 1}, "not negative"),
        ({"a": 0, "b": 0}, "above zero; from .*faulty at step 7"),
        ({}, "above zero"),
        ({"a": 1}, r"from .*faulty at step 7 without a weight: \['b'\]"),
        ({"a": 1, "b": 1, "c": 0}, r"unknown: \['c'\]"),
        ([1, 2], r"by name; from .*faulty at step 7 got \[1, 2\]"),
    ],
)
def test_refuses_what_a_function_returns(returned, says):
    def faulty(step):
        return returned if step == 7 else {"a": 1, "b": 1}

    mixture = Mixture(knots=faulty)
    mixture.check(["a", "b"], [])
    with pytest.raises(RecipeError, match=says):
        mixture.weights_at(7, ["a", "b"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"knots": []}, "start at 0"),
        ({"knots": [(1, {"a": 1})]}, "start at 0"),
        ({"knots": [(0, {"a": 1}), (5, {"a": 1}), (5, {"a": 1})]}, "increase"),
        ({"knots": [(0, {"a": -1})]}, "not negative"),
        ({"knots": [(0, {"a": math.inf})]}, "finite"),
        ({"knots": [(0, {"a": math.nan})]}, "finite"),
        ({"knots": [(0, {"a": 0})]}, "above zero"),
        ({"knots": [(0, {"a": 1})], "interpolation": "cubic"}, "cubic"),
        ({"knots": curriculum, "interpolation": "linear"}, "curriculum"),
        ({"knots": [(0, {"a": 1})], "on_exhausted": "renormalise"}, "renormalise"),
    ],
)
def test_refuses_schedules_that_mean_nothing(options, says):
    with pytest.raises(RecipeError, match=says):
        Mixture(**options)


def test_refuses_weights_and_units_that_do_not_match_the_sources():
    with pytest.raises(RecipeError, match=r"step 0 unknown: \['b'\], without a weight: \['c'\]"):
        Mixture(knots=[(0, {"a": 1, "b": 1})]).check(["a", "c"], [])
    with pytest.raises(RecipeError, match=r"step 4 without a weight: \['b'\]"):
        Mixture(knots=[(0, {"a": 1, "b": 1}), (4, {"a": 1})]).check(["a", "b"], [])
    with pytest.raises(RecipeError, match="got 'words'"):
        Mixture(knots=[(0, {"a": 1})], unit="words").check(["a"], ["frames"])
    Mixture(knots=[(0, {"a": 1})], unit="frames").check(["a"], ["frames"])


# --- groups -------------------------------------------------------------------------------------------------


def plain_share(source, weights, groups):
    """From the source outwards: its part of its group, times that group's part of the next, and so on."""
    share, name = Fraction(1), source
    for _ in range(len(groups) + 1):
        around = next((members for members in groups.values() if name in members), weights)
        share *= Fraction(around[name]) / sum(Fraction(w) for w in around.values())
        if around is weights:
            return share
        name = next(group for group, members in groups.items() if members is around)
    raise AssertionError(source)


@given(mixtures(), st.integers(0, 12))
def test_shares_are_products_along_the_groups(case, step):
    knots, groups, interpolation, names = case
    mixture = Mixture(knots=knots, groups=groups, interpolation=interpolation)
    mixture.check(names, [])
    first, now = max((knot for knot in knots if knot[0] <= step), key=lambda knot: knot[0])
    expected = [plain_share(name, now, groups) for name in names]
    later = [knot for knot in knots if knot[0] > step]
    if interpolation == "linear" and later:
        after, then = later[0]
        part = Fraction(step - first, after - first)
        ends = [plain_share(name, then, groups) for name in names]
        expected = [(1 - part) * a + part * b for a, b in zip(expected, ends, strict=True)]
    assert mixture.shares_at(step, names) == expected
    assert sum(expected) == 1
    assert mixture.weights_at(step, names).tolist() == scale_weights(expected).tolist()


def test_groups_by_hand():
    groups = {"text": {"web": 3, "books": 1}, "all": {"text": 1, "images": 1}}
    mixture = Mixture(knots=[(0, {"all": 1, "code": 3})], groups=groups)
    names = ["web", "images", "books", "code"]
    mixture.check(names, [])
    shares = [Fraction(3, 32), Fraction(1, 8), Fraction(1, 32), Fraction(3, 4)]
    assert mixture.shares_at(0, names) == shares
    assert mixture.describe() == "all 0.25 (text 0.5 (web 0.75, books 0.25), images 0.5), code 0.75"
    scheduled = Mixture(knots=lambda step: {"all": 1, "code": step}, groups=groups)
    assert scheduled.shares_at(3, names) == shares
    assert "text (web 0.75, books 0.25)" in scheduled.describe()


def test_a_schedule_as_text():
    mixture = Mixture(knots=SCHEDULE, interpolation="linear")
    assert mixture.describe() == (
        "from step 0 a 1, b 0; from step 10 a 0.25, b 0.75; from step 20 a 0, b 1, moving evenly between"
    )


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ({"g": {"a": 1}, "h": {"a": 1}}, "'a' is in 'g' and 'h'"),
        ({"g": {"h": 1}, "h": {"g": 1}}, "'g' is, through 'h'"),
        ({"x": {"g": 1, "h": 1}, "g": {"a": 1}, "h": {"h2": 1}, "h2": {"x": 1}}, "inside itself"),
        ({"g": {"g": 1}}, "'g' is, through 'g'"),
        ({"g": {"a": 0, "b": 0}}, "above zero; in group 'g'"),
        ({"g": {}}, "above zero; in group 'g'"),
        ({"g": {"a": math.nan}}, "finite and not negative; in group 'g'"),
        ({"g": {"a": -1}}, "not negative; in group 'g'"),
    ],
)
def test_refuses_groups_that_mean_nothing(groups, says):
    with pytest.raises(RecipeError, match=says):
        Mixture(knots=[(0, {"g": 1})], groups=groups)


@pytest.mark.parametrize(
    ("weights", "groups", "says"),
    [
        ({"a": 1, "b": 1}, {"a": {"b": 1}}, r"no source has, got \['a'\]"),
        ({"g": 1, "b": 1}, {"g": {"a": 1, "z": 1}}, r"group 'g' has unknown members: \['z'\]"),
        ({"g": 1, "a": 1, "b": 1}, {"g": {"a": 1}}, r"unknown: \['a'\].*no weight beside it"),
        ({"a": 1, "b": 1}, {"g": {"a": 1}}, r"unknown: \['a'\], without a weight: \['g'\]"),
        ({"g": 1, "h": 1}, {"g": {"h": 1}, "h": {"a": 1, "b": 1}}, r"unknown: \['h'\]"),
    ],
)
def test_refuses_groups_that_do_not_match_the_sources(weights, groups, says):
    mixture = Mixture(knots=[(0, weights)], groups=groups)
    with pytest.raises(RecipeError, match=says):
        mixture.check(["a", "b"], [])


# --- any step at once ---------------------------------------------------------------------------------------


@given(mixtures(), st.booleans(), st.integers(0, 9), st.integers(0, 12))
def test_the_stream_before_a_step_is_that_of_all_steps_before(case, is_function, step, draws_per_step):
    knots, groups, interpolation, names = case
    mixture = Mixture(knots=knots, groups=groups, interpolation=interpolation)
    if is_function:
        mixture = Mixture(knots=lambda step: knots[step % len(knots)][1], groups=groups)
    drawn, credit = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
    for before in range(step):
        ones = [np.ones(draws_per_step + 1, np.int64)] * len(names)
        draws = merge_by_due_time(mixture.weights_at(before, names), credit, ones, [False] * len(names))
        credit, _ = draws.after(draws_per_step)
        drawn += np.bincount(draws.source[:draws_per_step], minlength=len(names))
    found = mixture.draws_before(step, draws_per_step, names)
    assert (found[0].tolist(), found[1].tolist()) == (drawn.tolist(), credit.tolist())


def test_far_steps_are_as_near():
    mixture = Mixture(knots=[(0, {"a": 1, "b": 3}), (1000, {"a": 1, "b": 1})])
    drawn, credit = mixture.draws_before(10**9, 8192, ["a", "b"])
    assert drawn.tolist() == [8192 * (250 + (10**9 - 1000) // 2), 8192 * (750 + (10**9 - 1000) // 2)]
    assert credit.tolist() == [0, 0]


def test_draws_that_differ_cannot_be_counted():
    with pytest.raises(RecipeError, match="got 'tokens'"):
        Mixture(knots=[(0, {"a": 1})], unit="tokens").draws_before(3, 4, ["a"])
