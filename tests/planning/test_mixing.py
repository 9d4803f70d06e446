import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import credits_that_sum_to_zero, known_streams, source_weights

from msdata_jax.errors import RecipeError
from msdata_jax.planning.mixing import (
    WEIGHT_SCALE,
    Draws,
    Mixture,
    credit_after,
    merge_by_due_time,
    scale_weights,
)


def plain_merge(weights, credit, units, ended):
    """One draw at a time, in exact fractions; ends at the first sample that is not known."""
    drawn, taken, draws = [0] * len(units), [0] * len(units), []
    while True:
        # The two lightest streams become one, again and again; the one that is due first speaks for both.
        streams = [(int(w), s, int(credit[s]), drawn[s], s) for s, w in enumerate(weights) if w]
        while len(streams) > 1:
            streams.sort()
            a, b, *rest = streams
            ticks = []
            for weight, _, owed, before, s in (a, b):
                size = int(units[s][taken[s]]) if taken[s] < len(units[s]) else 1
                earned_at = Fraction(WEIGHT_SCALE * (2 * before + size) - 2 * owed, 2 * weight)
                ticks.append(math.ceil(earned_at))
            due = a if ticks[0] <= ticks[1] else b
            streams = [*rest, (a[0] + b[0], min(a[1], b[1]), a[2] + b[2], a[3] + b[3], due[4])]
        s = streams[0][4]
        if taken[s] == len(units[s]):
            return draws, s
        draws.append((s, taken[s]))
        drawn[s] += int(units[s][taken[s]])
        taken[s] += 1


@st.composite
def merges(draw, max_units=50, with_credit=True):
    weights = draw(source_weights())
    units, ended = draw(known_streams(len(weights), max_units=max_units))
    credit = np.zeros(len(weights), dtype=np.int64)
    if with_credit:
        credit = draw(credits_that_sum_to_zero(len(weights), WEIGHT_SCALE * max_units))
    return weights, credit, units, ended


def pairs(draws: Draws):
    return list(zip(draws.source.tolist(), draws.index.tolist(), strict=True))


@given(merges())
def test_equals_the_plain_loop(case):
    weights, credit, units, ended = case
    draws = merge_by_due_time(weights, credit, units, ended)
    expected, last = plain_merge(weights, credit, units, ended)
    assert pairs(draws) == expected
    assert (draws.limited_by, draws.ended_by) == ((None, last) if ended[last] else (last, None))


@given(merges(), st.data())
def test_what_is_certain_stays(case, data):
    weights, credit, units, ended = case
    full = pairs(merge_by_due_time(weights, credit, units, ended))
    known = [u[: data.draw(st.integers(0, len(u)))] for u in units]
    all_known = [len(k) == len(u) for k, u in zip(known, units, strict=True)]
    draws = merge_by_due_time(
        weights, credit, known, [e and a for e, a in zip(ended, all_known, strict=True)]
    )
    assert pairs(draws) == full[: len(draws.source)]
    if draws.limited_by is not None and not all_known[draws.limited_by]:
        # What is asked for helps: with it the certain part never shrinks, and some more of it decides.
        more = list(known)
        more[draws.limited_by] = units[draws.limited_by]
        assert len(merge_by_due_time(weights, credit, more, ended).source) >= len(draws.source)


@given(merges())
def test_weight_zero_is_never_drawn_nor_waited_for(case):
    weights, credit, units, ended = case
    draws = merge_by_due_time(weights, credit, units, ended)
    for source in {*draws.source.tolist(), draws.limited_by, draws.ended_by} - {None}:
        assert weights[source] > 0


def deviations(weights, units, draws):
    """How far each source is from its share in every prefix, in units."""
    drawn = np.array([units[s][i] for s, i in pairs(draws)], dtype=np.int64)
    total = np.cumsum(drawn)
    of_source = np.cumsum((draws.source == np.arange(len(weights))[:, None]) * drawn, axis=1)
    return np.abs(of_source - total * (weights[:, None] / WEIGHT_SCALE)).max(axis=1, initial=0)


def long_streams(weights, num_draws, sizes):
    rng = np.random.default_rng(0)
    return [rng.choice(sizes, size=int(num_draws * w / WEIGHT_SCALE) + 3) for w in weights]


@given(source_weights(max_sources=40), st.sampled_from([[1], [1, 500], [5, 80, 100]]))
def test_every_prefix_keeps_its_shares(weights, sizes):
    units = long_streams(weights, 400, sizes)
    draws = merge_by_due_time(weights, np.zeros_like(weights), units, [False] * len(weights))
    assert deviations(weights, units, draws).max() <= 1.5 * max(sizes)


@pytest.mark.parametrize("num_small", [3, 20, 100, 305])
def test_one_heavy_source_among_many_small_ones_keeps_its_share(num_small):
    # All at once by due time, the heavy one would come num_small / 2 times before the first small one.
    weights = scale_weights([Fraction(num_small), *[Fraction(1)] * num_small])
    units = long_streams(weights, 1000, [1])
    draws = merge_by_due_time(weights, np.zeros_like(weights), units, [False] * len(weights))
    assert deviations(weights, units, draws).max() <= 1
    assert (draws.source[:20] == 0).sum() == 10


@given(source_weights(), st.lists(source_weights(), max_size=4), st.integers(1, 30), st.integers(0, 9))
def test_steps_continue_each_other(weights, later, num_draws, seed):
    """Cutting the stream into steps changes nothing; credits sum to zero, also when the weights change."""
    rng = np.random.default_rng(seed)
    units = [rng.integers(1, 20, 200) for _ in weights]
    credit = np.zeros_like(weights)
    whole = pairs(merge_by_due_time(weights, credit, units, [False] * len(weights)))
    taken = np.zeros_like(weights)
    stepwise = []
    for _ in range(4):
        ahead = [u[n:] for u, n in zip(units, taken, strict=True)]
        draws = merge_by_due_time(weights, credit, ahead, [False] * len(weights))
        source, index = draws.source[:num_draws], draws.index[:num_draws]
        stepwise += [(s, int(taken[s]) + i) for s, i in zip(source.tolist(), index.tolist(), strict=True)]
        drawn = np.array([ahead[s][: (source == s).sum()].sum() for s in range(len(weights))])
        credit = credit_after(weights, credit, drawn)
        taken += np.bincount(source, minlength=len(weights))
        assert credit.sum() == 0
    assert stepwise == whole[: len(stepwise)]
    for changed in (w for w in later if len(w) == len(weights)):
        credit = credit_after(changed, credit, np.arange(len(weights)))
        assert credit.sum() == 0


def test_huge_units_stay_exact():
    weights = scale_weights([Fraction(3), Fraction(1)])
    units = [np.full(40, 1 << 30, dtype=np.int64), np.full(40, 1 << 30, dtype=np.int64)]
    draws = merge_by_due_time(weights, np.zeros(2, np.int64), units, [False, False])
    assert pairs(draws) == plain_merge(weights, np.zeros(2, np.int64), units, [False, False])[0]


# --- weights ------------------------------------------------------------------------------------------------


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
        ({"knots": [(0, {"a": 1})], "on_exhausted": "renormalise"}, "renormalise"),
    ],
)
def test_refuses_schedules_that_mean_nothing(options, says):
    with pytest.raises(RecipeError, match=says):
        Mixture(**options)


def test_refuses_weights_and_units_that_do_not_match_the_sources():
    with pytest.raises(RecipeError, match=r"step 0 unknown: \['b'\], without a weight: \['c'\]"):
        Mixture(knots=[(0, {"a": 1, "b": 1})]).check(["a", "c"], [])
    with pytest.raises(RecipeError, match="got 'words'"):
        Mixture(knots=[(0, {"a": 1})], unit="words").check(["a"], ["frames"])
    Mixture(knots=[(0, {"a": 1})], unit="frames").check(["a"], ["frames"])
