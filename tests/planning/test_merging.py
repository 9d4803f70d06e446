import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import credits_that_sum_to_zero, merges, source_weights

from msdata_jax.planning import merging
from msdata_jax.planning.merging import (
    WEIGHT_SCALE,
    Draws,
    credit_after,
    deal_out,
    draw_counts,
    in_order_of_first_draw,
    merge_by_due_time,
)
from msdata_jax.planning.mixing import scale_weights


def plain_merge(weights, credit, units, ended, renormalize=False):
    """One draw at a time, in exact fractions; ends at the first sample that is not known.

    Returns:
        draws, whose sample is missing, and (credit, exhausted) after each number of draws.
    """
    credit, gone, last = credit.tolist(), [False] * len(units), None
    left = plain_weights_left(weights, gone)
    drawn, taken, draws = [0] * len(units), [0] * len(units), []
    after = [(list(credit), list(gone))]
    while any(left):
        # The two lightest streams become one, again and again; the one that is due first speaks for both.
        streams = [(w, s, credit[s], drawn[s], s) for s, w in enumerate(left) if w]
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
        if taken[s] < len(units[s]):
            draws.append((s, taken[s]))
            drawn[s] += int(units[s][taken[s]])
            taken[s] += 1
            after.append((plain_credit(left, credit, drawn), list(gone)))
        elif not renormalize or not ended[s]:
            return draws, s, after
        else:
            credit, drawn = plain_credit(left, credit, drawn), [0] * len(units)
            gone[s] = True
            left = plain_weights_left(weights, gone)
            if any(left):
                owed, credit[s] = credit[s], 0
                credit = [c + part for c, part in zip(credit, plain_deal(owed, left), strict=True)]
            last = s
    return draws, last, after


def plain_credit(weights, credit, drawn):
    return [c + sum(drawn) * w - WEIGHT_SCALE * u for c, w, u in zip(credit, weights, drawn, strict=True)]


def plain_deal(amount, weights):
    running, parts = 0, []
    for weight in weights:
        dealt = math.floor(Fraction(amount * running, sum(weights)))
        running += weight
        parts.append(math.floor(Fraction(amount * running, sum(weights))) - dealt)
    return parts


def plain_weights_left(weights, gone):
    left = [0 if g else int(w) for w, g in zip(weights, gone, strict=True)]
    return plain_deal(WEIGHT_SCALE, left) if any(left) else left


def pairs(draws: Draws):
    return list(zip(draws.source.tolist(), draws.index.tolist(), strict=True))


modes = st.booleans()  # whether an exhausted source gives its weight to the others


def merge(case, renormalize, **options):
    weights, credit, units, ended = case
    exhausted = np.zeros(len(weights), dtype=bool) if renormalize else None
    return merge_by_due_time(weights, credit, units, ended, exhausted=exhausted, **options)


@given(merges(), modes)
def test_equals_the_plain_loop(case, renormalize):
    weights, credit, units, ended = case
    draws = merge(case, renormalize)
    expected, last, after = plain_merge(weights, credit, units, ended, renormalize)
    assert pairs(draws) == expected
    assert draws.units.tolist() == [units[s][i] for s, i in expected]
    assert (draws.limited_by, draws.ended_by) == ((None, last) if ended[last] else (last, None))
    for num_draws, (owed, gone) in enumerate(after):
        stands = draws.after(num_draws)
        assert (stands[0].tolist(), stands[1].tolist()) == (owed, gone)
        assert sum(owed) == 0


@given(merges(), modes, st.data())
def test_what_is_certain_stays(case, renormalize, data):
    weights, credit, units, ended = case
    full = pairs(merge(case, renormalize))
    known = [u[: data.draw(st.integers(0, len(u)))] for u in units]
    all_known = [len(k) == len(u) for k, u in zip(known, units, strict=True)]
    known_to_end = [e and a for e, a in zip(ended, all_known, strict=True)]
    draws = merge((weights, credit, known, known_to_end), renormalize)
    assert pairs(draws) == full[: len(draws.source)]
    if draws.limited_by is not None and not all_known[draws.limited_by]:
        # What is asked for helps: with it the certain part never shrinks, and some more of it decides.
        more = list(known)
        more[draws.limited_by] = units[draws.limited_by]
        known_to_end[draws.limited_by] = ended[draws.limited_by]
        again = merge((weights, credit, more, known_to_end), renormalize)
        assert len(again.source) >= len(draws.source)


@given(merges(), modes, st.integers(1, 2000))
def test_a_limit_finds_the_same_draws_sooner(case, renormalize, limit):
    full, draws = merge(case, renormalize), merge(case, renormalize, limit_units=limit)
    assert pairs(draws) == pairs(full)[: len(draws.source)]
    if draws.units.sum() >= limit:
        assert draws.units[:-1].sum() < limit
        assert (draws.limited_by, draws.ended_by) == (None, None)
    else:
        assert (draws.limited_by, draws.ended_by) == (full.limited_by, full.ended_by)
        assert len(draws.source) == len(full.source)
    for stands, expected in zip(draws.after(len(draws.source)), full.after(len(draws.source)), strict=True):
        assert stands.tolist() == expected.tolist()


def merge_by(way, case, renormalize, **options):
    """All in turn, or all on arrays."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "DRAWS_IN_TURN", {"in turn": 1 << 40, "arrays": -1}[way])
        return merge(case, renormalize, **options)


@given(merges(), modes, st.none() | st.integers(1, 2000))
def test_draws_in_turn_and_on_arrays_are_the_same(case, renormalize, limit):
    draws, same = (merge_by(way, case, renormalize, limit_units=limit) for way in ("in turn", "arrays"))
    assert_same(draws, same)


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(0, 8), modes)
def test_the_way_of_drawing_is_not_seen_on_either_side_of_the_crossover(seed, num_sources, per_source, mode):
    """Many sources of equal and very unequal weights, equal units, so that ticks are often equal."""
    rng = np.random.default_rng(seed)
    weights = scale_weights([Fraction(int(w)) for w in [1, *rng.choice([0, 1, 1, 9, 1000], num_sources - 1)]])
    units = [rng.choice([1, 4, 4, 90], size=rng.integers(0, 3 * per_source + 1)) for _ in weights]
    credit = rng.integers(-90, 90, num_sources) * WEIGHT_SCALE
    credit[0] -= credit.sum()
    case = weights, credit, units, (rng.random(num_sources) < 0.5).tolist()
    limit = 1 + per_source * num_sources * 20
    draws = merge(case, mode, limit_units=limit)
    for way in ("in turn", "arrays"):
        assert_same(merge_by(way, case, mode, limit_units=limit), draws)


def assert_same(draws, others):
    assert pairs(draws) == pairs(others)
    assert draws.units.tolist() == others.units.tolist()
    assert (draws.limited_by, draws.ended_by) == (others.limited_by, others.ended_by)
    for num_draws in range(len(draws.source) + 1):
        for stands, expected in zip(draws.after(num_draws), others.after(num_draws), strict=True):
            assert stands.tolist() == expected.tolist()


def test_huge_units_are_drawn_in_turn_as_on_arrays():
    weights = scale_weights([Fraction(3), Fraction(1), Fraction(0)])
    case = weights, np.zeros(3, np.int64), [np.full(40, 1 << 30, dtype=np.int64)] * 3, [False] * 3
    assert_same(merge_by("in turn", case, False), merge_by("arrays", case, False))


@given(merges(), modes, st.data())
def test_a_cut_changes_nothing(case, renormalize, data):
    """Cutting the stream anywhere, also right where a source turns out to be exhausted."""
    weights, _, units, ended = case
    whole = merge(case, renormalize)
    cut = data.draw(st.integers(0, len(whole.source)))
    credit, exhausted = whole.after(cut)
    taken = np.bincount(whole.source[:cut], minlength=len(weights))
    rest = merge_by_due_time(
        weights,
        credit,
        [u[n:] for u, n in zip(units, taken, strict=True)],
        ended,
        exhausted=exhausted if renormalize else None,
    )
    assert [(s, int(taken[s]) + i) for s, i in pairs(rest)] == pairs(whole)[cut:]
    assert (rest.limited_by, rest.ended_by) == (whole.limited_by, whole.ended_by)


@given(merges(), modes)
def test_weight_zero_is_never_drawn_nor_waited_for(case, renormalize):
    draws = merge(case, renormalize)
    for source in {*draws.source.tolist(), draws.limited_by, draws.ended_by} - {None}:
        assert case[0][source] > 0


# --- sources that end ---------------------------------------------------------------------------------------


@given(merges())
def test_renormalized_sources_are_read_to_their_ends(case):
    weights, credit, units, _ = case
    draws = merge((weights, credit, units, [True] * len(weights)), True)
    expected = [(s, i) for s, u in enumerate(units) if weights[s] for i in range(len(u))]
    assert sorted(pairs(draws)) == expected
    assert draws.ended_by is not None


def test_the_others_share_the_weight_of_a_source_that_ends():
    weights = scale_weights([Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)])
    units = [np.ones(n, dtype=np.int64) for n in (400, 5, 400)]
    draws = merge((weights, np.zeros(3, np.int64), units, [True] * 3), True)
    until = int(np.flatnonzero(draws.source == 1)[-1]) + 1
    assert np.bincount(draws.source[:until]).tolist() == [9, 5, 4]
    later = draws.source[until : until + 300]
    assert np.bincount(later, minlength=3).tolist() == pytest.approx([200, 0, 100], abs=2)
    credit, exhausted = draws.after(until + 300)
    assert exhausted.tolist() == [False, True, False]
    assert (credit[1], credit.sum()) == (0, 0)


def test_nothing_is_drawn_when_all_are_exhausted():
    weights = scale_weights([Fraction(0), Fraction(1), Fraction(1)])
    nothing = [np.empty(0, dtype=np.int64)] * 3
    exhausted = np.array([False, True, True])
    draws = merge_by_due_time(weights, np.zeros(3, np.int64), nothing, [True] * 3, exhausted=exhausted)
    assert (len(draws.source), draws.limited_by, draws.ended_by) == (0, None, 1)
    assert draws.after(0)[1].tolist() == exhausted.tolist()


@given(st.integers(-(2**50), 2**50), source_weights())
def test_dealt_amounts_sum_exactly_and_are_proportional(amount, weights):
    parts = deal_out(amount, weights)
    assert parts.tolist() == plain_deal(amount, weights.tolist())
    assert parts.sum() == amount
    assert all(
        abs(p - Fraction(amount * w, WEIGHT_SCALE)) < 1
        for p, w in zip(parts.tolist(), weights.tolist(), strict=True)
    )
    assert not parts[weights == 0].any()


# --- shares -------------------------------------------------------------------------------------------------


def deviations(weights, credit, draws):
    """How far each source is from its share in every prefix, in units: `[sources]`."""
    total = np.cumsum(draws.units)
    of_source = np.cumsum((draws.source == np.arange(len(weights))[:, None]) * draws.units, axis=1)
    owed = credit[:, None] / WEIGHT_SCALE + total * (weights[:, None] / WEIGHT_SCALE) - of_source
    return np.abs(owed).max(axis=1, initial=0)


def long_streams(weights, num_draws, sizes):
    rng = np.random.default_rng(0)
    return [rng.choice(sizes, size=int(num_draws * w / WEIGHT_SCALE) + 3) for w in weights]


@given(source_weights(max_sources=40), st.sampled_from([[1], [1, 500], [5, 80, 100]]))
def test_every_prefix_keeps_its_shares(weights, sizes):
    credit, units = np.zeros_like(weights), long_streams(weights, 400, sizes)
    draws = merge_by_due_time(weights, credit, units, [False] * len(weights))
    assert deviations(weights, credit, draws).max() <= 1.5 * max(sizes)


@pytest.mark.parametrize("num_small", [3, 20, 100, 305])
def test_one_heavy_source_among_many_small_ones_keeps_its_share(num_small):
    # All at once by due time, the heavy one would come num_small / 2 times before the first small one.
    weights = scale_weights([Fraction(num_small), *[Fraction(1)] * num_small])
    credit, units = np.zeros_like(weights), long_streams(weights, 1000, [1])
    draws = merge_by_due_time(weights, credit, units, [False] * len(weights))
    assert deviations(weights, credit, draws).max() <= 1
    assert (draws.source[:20] == 0).sum() == 10


@given(st.data(), st.integers(1, 8), st.sampled_from([[1], [1, 500], [5, 80, 100]]))
def test_every_prefix_keeps_its_shares_when_the_weights_change(data, num_sources, sizes):
    """The quota is the sum over the steps of share x units; what is owed grows like a logarithm at most."""
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    credit = np.zeros(num_sources, dtype=np.int64)
    for _ in range(data.draw(st.integers(1, 8))):
        numbers = st.lists(st.integers(0, 30), min_size=num_sources, max_size=num_sources)
        weights = scale_weights([Fraction(w) for w in data.draw(numbers.filter(any))])
        units = [rng.choice(sizes, size=20) for _ in range(num_sources)]
        limit = data.draw(st.integers(1, 20)) * max(sizes)
        draws = merge_by_due_time(weights, credit, units, [False] * num_sources, limit_units=limit)
        assert deviations(weights, credit, draws).max() <= (1.5 + math.log2(num_sources)) * max(sizes)
        credit, _ = draws.after(len(draws.source))
        assert credit.sum() == 0


@given(source_weights(), st.data(), st.integers(0, 300))
def test_counts_are_those_of_the_merge(weights, data, num_draws):
    credit = data.draw(
        credits_that_sum_to_zero(len(weights), WEIGHT_SCALE * data.draw(st.sampled_from([1, 40])))
    )
    ones = [np.ones(num_draws + 1, dtype=np.int64)] * len(weights)
    draws = merge_by_due_time(weights, credit, ones, [False] * len(weights))
    expected = np.bincount(draws.source[:num_draws], minlength=len(weights))
    assert draw_counts(weights.tolist(), credit.tolist(), num_draws) == expected.tolist()


@given(source_weights(), st.data())
def test_the_order_of_first_draws_is_that_of_the_merge(weights, data):
    num_sources = len(weights)
    credit = data.draw(credits_that_sum_to_zero(num_sources, WEIGHT_SCALE))
    ones = [np.ones(num_sources + 1, dtype=np.int64)] * num_sources
    draws = merge_by_due_time(weights, credit, ones, [False] * num_sources)
    first = dict.fromkeys(draws.source[:num_sources].tolist())
    expected = [*first, *(source for source in range(num_sources) if source not in first)]
    assert in_order_of_first_draw(weights, credit).tolist() == expected


def test_counts_of_very_many_draws():
    weights = scale_weights([Fraction(1), Fraction(2), Fraction(5)])
    counts = draw_counts(weights.tolist(), [0, 0, 0], 8 * WEIGHT_SCALE * 10**9)
    assert counts == [8 * 10**9 * w for w in weights.tolist()]


def test_huge_units_stay_exact():
    weights = scale_weights([Fraction(3), Fraction(1)])
    units = [np.full(40, 1 << 30, dtype=np.int64), np.full(40, 1 << 30, dtype=np.int64)]
    draws = merge_by_due_time(weights, np.zeros(2, np.int64), units, [False, False])
    expected, _, after = plain_merge(weights, np.zeros(2, np.int64), units, [False, False])
    assert pairs(draws) == expected
    assert draws.after(len(expected))[0].tolist() == after[-1][0]


@given(st.lists(source_weights(), min_size=1, max_size=4), st.integers(0, 2**30))
def test_credits_sum_to_zero(steps, units):
    for weights in steps:
        credit = credit_after(weights, np.zeros_like(weights), units * np.arange(len(weights)))
        assert credit.sum() == 0
