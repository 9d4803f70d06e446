from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_packing import plain_rows
from strategies import packs, pools

from msdata_jax.errors import RecipeError
from msdata_jax.planning.packing import (
    FEW_UNITS,
    Pack,
    Rows,
    Shape,
    Units,
    assign_rows,
    best_fit_of_few,
    best_fit_of_many,
)


def pack_of(seq_len, rows, **options):
    return Pack(shapes=(Shape(seq_len=seq_len, rows=rows),), **options)


def units_of(lengths, patches=None, costs=None):
    nothing = np.zeros(len(lengths), dtype=np.int64)
    return Units(
        length=np.array(lengths, dtype=np.int64),
        patches=nothing if patches is None else patches,
        segments=nothing + 1,
        cost=nothing if costs is None else costs,
    )


def as_dicts(units):
    columns = {name: getattr(units, name).tolist() for name in ("length", "patches", "segments", "cost")}
    return [dict(zip(columns, each, strict=True)) for each in zip(*columns.values(), strict=True)]


cases = packs().flatmap(lambda pack: st.tuples(st.just(pack), pools(pack)))


@given(cases)
def test_equals_the_plain_loop(case):
    pack, (units, num_carried) = case
    assigned = assign_rows(pack, pack.shapes[0], units, num_carried)
    plain = plain_rows(pack, pack.shapes[0], as_dicts(units), num_carried)
    assert [None if row < 0 else row for row in assigned.tolist()] == plain


def both_ways(pack, units, num_carried):
    shape = pack.shapes[0]
    few = best_fit_of_few(Rows(pack, shape), units, num_carried)
    many = best_fit_of_many(Rows(pack, shape), units, num_carried)
    assert few.dtype == many.dtype
    return few.tolist(), many.tolist()


@given(packs(methods=("best_fit",)).flatmap(lambda pack: st.tuples(st.just(pack), pools(pack))))
def test_few_units_are_packed_as_many_are(case):
    pack, (units, num_carried) = case
    few, many = both_ways(pack, units, num_carried)
    assert few == many


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 80),
    st.sampled_from([0, 300]),
    st.sampled_from([None, 1, 7]),
    st.sampled_from([FEW_UNITS // 8, FEW_UNITS, FEW_UNITS + 1, 2 * FEW_UNITS]),
)
def test_sizes_around_the_crossover_are_packed_alike(seed, rows, patches_per_row, most_segments, num_units):
    """Heavy-tailed lengths, many of them equal, with images and with units of several samples."""
    rng = np.random.default_rng(seed)
    pack = pack_of(512, rows, patches_per_row=patches_per_row, max_segments_per_row=most_segments)
    length = np.clip(rng.lognormal(rng.uniform(1, 6), 1.0, num_units).astype(np.int64) // 4 * 4, 1, 512)
    units = Units(
        length=length,
        patches=rng.integers(0, patches_per_row + 1, num_units) * (rng.random(num_units) < 0.3),
        segments=np.minimum(length, rng.integers(1, min(most_segments or 3, 3) + 1, num_units)),
        cost=length,
    )
    few, many = both_ways(pack, units, int(rng.integers(0, num_units + 1)))
    assert few == many


@given(cases)
def test_caps_hold_and_rows_are_numbered_by_first_unit(case):
    pack, (units, num_carried) = case
    shape = pack.shapes[0]
    assigned = assign_rows(pack, shape, units, num_carried)
    assert assigned.shape == units.length.shape  # at most one row each
    for row in range(shape.rows):
        mine = units.take(assigned == row)
        assert mine.length.sum() <= shape.seq_len
        assert mine.patches.sum() <= pack.patches_per_row
        assert mine.segments.sum() <= (pack.segments_per_row or shape.seq_len)
    used = [row for row in assigned.tolist() if row >= 0]
    assert list(dict.fromkeys(used)) == list(range(len(set(used))))
    if len(units.length):
        assert assigned.max() >= 0  # something always finds a row
    if num_carried:
        assert assigned[0] >= 0  # the oldest never waits again


@given(cases)
def test_what_waits_fits_nowhere(case):
    """No row has room for a unit that waits, as far as sizes tell (patches stand for places)."""
    pack, (units, num_carried) = case
    shape = pack.shapes[0]
    if pack.method == "pad" or units.patches.any() or (units.segments > 1).any():
        return
    assigned = assign_rows(pack, shape, units, num_carried)
    room = shape.seq_len - np.bincount(assigned[assigned >= 0], units.length[assigned >= 0], shape.rows)
    count = np.bincount(assigned[assigned >= 0], minlength=shape.rows)
    room[count >= (pack.max_segments_per_row or shape.seq_len)] = 0
    assert not (units.length[assigned < 0] <= room.max()).any()


def stream_of(draw_length, pack, num_steps, costs=lambda lengths: lengths):
    """(pool, rows) of each step, the pool filled as the strategy fills it."""
    carry, shape = np.empty(0, dtype=np.int64), pack.shapes[0]
    for _ in range(num_steps):
        fresh = []
        while carry.sum() + sum(fresh) < pack.pool_places(shape):
            fresh.append(draw_length())
        pool = np.array([*carry, *fresh], dtype=np.int64)
        rows = assign_rows(pack, shape, units_of(pool, costs=costs(pool)), len(carry))
        yield pool, rows, len(carry)
        carry = pool[rows < 0]


def mean_fill(draw_length, pack, num_steps=12):
    places = pack.shapes[0].rows * pack.shapes[0].seq_len
    steps = stream_of(draw_length, pack, num_steps, lambda n: n + n * n // 4096)
    return np.mean([pool[rows >= 0].sum() / places for pool, rows, _ in steps])


@pytest.mark.parametrize(("method", "least"), [("best_fit", 0.998), ("balanced", 0.995), ("first_fit", 0.98)])
def test_rows_are_full_on_heavy_tailed_lengths(method, least):
    rng = np.random.default_rng(1)
    pack = pack_of(4096, 64, method=method)
    assert mean_fill(lambda: min(4096, max(1, int(rng.lognormal(6.2, 1.2)))), pack) >= least


def test_rows_are_full_on_even_lengths():
    rng = np.random.default_rng(1)
    assert mean_fill(lambda: int(rng.integers(100, 1400)), pack_of(4096, 64)) >= 0.99


def test_images_share_rows_with_text_and_both_fill():
    rng = np.random.default_rng(5)
    lengths = np.minimum(4096, rng.lognormal(6.2, 1.2, 1000).astype(int) + 1)
    lengths = lengths[: np.searchsorted(lengths.cumsum(), 41 * 4096)]
    patches = np.where(rng.random(len(lengths)) < 0.3, np.minimum(lengths, 200), 0)
    pack = pack_of(4096, 40, patches_per_row=1000)
    rows = assign_rows(pack, pack.shapes[0], units_of(lengths, patches), 0)
    assert lengths[rows >= 0].sum() / (40 * 4096) > 0.99
    assert patches[rows >= 0].sum() > 0.9 * patches.sum()


def test_balanced_rows_are_of_even_cost():
    rng = np.random.default_rng(2)

    def worst_row(method):
        pack = pack_of(4096, 64, method=method)
        costs = lambda lengths: lengths + lengths * lengths // 1024  # noqa: E731
        ratios = []
        for pool, rows, _ in stream_of(lambda: min(4096, 1 + int(rng.exponential(300))), pack, 5, costs):
            row_costs = np.bincount(rows[rows >= 0], costs(pool)[rows >= 0], minlength=64)
            ratios.append(row_costs.max() / row_costs.mean())
        return np.mean(ratios)

    assert worst_row("balanced") < 1.35 < worst_row("first_fit")


def test_thirty_and_seventy_cost_a_sixth_more_than_two_fifties():
    cost = lambda lengths: sum(length**2 for length in lengths)  # noqa: E731
    assert Fraction(cost([30, 70]), cost([50, 50])) == Fraction(116, 100)
    # Rows of even cost pair the 50s with one another only where the 30 and the 70 leave no other choice.
    pack = pack_of(100, 2, method="balanced")
    lengths = np.array([30, 70, 50, 50])
    rows = assign_rows(pack, pack.shapes[0], units_of(lengths, costs=lengths**2), 0)
    assert rows.tolist() == [0, 0, 1, 1]


def test_nobody_waits_for_ever_where_segments_are_scarce():
    # One sample a row, far more samples than rows: in order of age each is delivered in its turn.
    rng = np.random.default_rng(3)
    pack = pack_of(64, 4, max_segments_per_row=1)
    waiting = []
    for pool, rows, num_carried in stream_of(lambda: int(rng.integers(1, 64)), pack, 60):
        waiting.append(len(pool))
        assert (rows >= 0).sum() == 4
        assert (rows[: min(4, num_carried)] >= 0).all()  # the four oldest
    assert max(waiting[5:]) <= 2 * waiting[0]  # the short ones do not pile up


def test_same_answer_twice_and_on_equal_lengths():
    pack = pack_of(10, 3)
    units = units_of([5] * 7)
    assert assign_rows(pack, pack.shapes[0], units, 0).tolist() == [0, 0, 1, 1, 2, 2, -1]
    assert assign_rows(pack, pack.shapes[0], units, 3).tolist() == [0, 0, 1, 1, 2, 2, -1]
    assert assign_rows(pack, pack.shapes[0], units_of([]), 0).tolist() == []


def test_a_sample_goes_to_the_shortest_bucket_that_holds_it():
    pack = Pack(shapes=(Shape(seq_len=4, rows=8), Shape(seq_len=16, rows=2)))
    assert pack.bucket_of(np.array([1, 4, 5, 16])).tolist() == [0, 0, 1, 1]
    assert pack.seq_len == 16


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"shapes": ()}, "needs a shape"),
        ({"shapes": (Shape(seq_len=0, rows=1),)}, "seq_len=...\\) is at least 1, got 0"),
        ({"shapes": (Shape(seq_len=1, rows=0),)}, "rows=...\\) is at least 1, got 0"),
        ({"shapes": (Shape(seq_len=8, rows=1), Shape(seq_len=4, rows=1))}, r"increasing order, got \[8, 4\]"),
        ({"patches_per_row": -1}, "patches_per_row=...\\) is at least 0, got -1"),
        ({"patch_values": 0}, "patch_values"),
        ({"max_segments_per_row": 0}, "max_segments_per_row"),
        ({"method": "worst_fit"}, "worst_fit"),
        ({"oversize": "shrink"}, "shrink"),
        ({"together": "talk", "oversize": "split"}, "'talk'.* take them apart"),
        ({"together": "talk", "method": "pad"}, "'talk'.* take them apart"),
    ],
)
def test_refuses_shapes_that_mean_nothing(options, says):
    with pytest.raises(RecipeError, match=says):
        Pack(**{"shapes": (Shape(seq_len=8, rows=2),), **options})
