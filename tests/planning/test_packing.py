import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import packs, pools

from msdata_jax.errors import RecipeError
from msdata_jax.planning.packing import Pack, assign_rows


def plain_assign(pack, lengths, patches, costs, num_carried):
    """Carried ones in order of age, then the largest; each into the fullest (cheapest) row with room."""
    rows = [[] for _ in range(pack.rows)]
    size = costs if pack.method == "balanced" else lengths
    fresh = sorted(range(num_carried, len(lengths)), key=lambda i: (-size[i], i))
    for i in [*range(num_carried), *fresh]:

        def fits(row, i=i):
            together = [*row, i]
            few_enough = pack.max_segments_per_row is None or len(together) <= pack.max_segments_per_row
            tokens, images = sum(lengths[j] for j in together), sum(patches[j] for j in together)
            return few_enough and tokens <= pack.seq_len and images <= pack.patches_per_row

        def preference(row):
            return sum(costs[j] for j in row) if pack.method == "balanced" else -sum(lengths[j] for j in row)

        candidates = [row for row in rows if fits(row)]
        if candidates:
            min(candidates, key=preference).append(i)
    rows = sorted((sorted(row) for row in rows if row), key=lambda row: row[0])
    return [next((r for r, row in enumerate(rows) if i in row), -1) for i in range(len(lengths))]


@given(packs().flatmap(lambda pack: st.tuples(st.just(pack), pools(pack))))
def test_equals_the_plain_loop(case):
    pack, (lengths, patches, costs, num_carried) = case
    assigned = assign_rows(pack, lengths, patches, costs, num_carried)
    plain = [each.tolist() for each in (lengths, patches, costs)]
    assert assigned.tolist() == plain_assign(pack, *plain, num_carried)


@given(packs().flatmap(lambda pack: st.tuples(st.just(pack), pools(pack))))
def test_caps_hold_and_rows_are_numbered_by_first_sample(case):
    pack, (lengths, patches, costs, num_carried) = case
    assigned = assign_rows(pack, lengths, patches, costs, num_carried)
    assert assigned.shape == lengths.shape  # at most one row each
    for row in range(pack.rows):
        mine = assigned == row
        assert lengths[mine].sum() <= pack.seq_len
        assert patches[mine].sum() <= pack.patches_per_row
        assert pack.max_segments_per_row is None or mine.sum() <= pack.max_segments_per_row
    used = [row for row in assigned.tolist() if row >= 0]
    assert list(dict.fromkeys(used)) == list(range(len(set(used))))
    if len(lengths):
        assert assigned.max() >= 0  # something always finds a row
    if num_carried:
        assert assigned[0] >= 0  # the oldest never waits again


def stream_of(draw_length, pack, num_steps, costs=lambda lengths: lengths):
    """(pool, rows) of each step, the pool filled as the strategy fills it."""
    carry = np.empty(0, dtype=np.int64)
    for _ in range(num_steps):
        fresh = []
        while carry.sum() + sum(fresh) < pack.pool_tokens:
            fresh.append(draw_length())
        pool = np.array([*carry, *fresh], dtype=np.int64)
        rows = assign_rows(pack, pool, np.zeros_like(pool), costs(pool), len(carry))
        yield pool, rows, len(carry)
        carry = pool[rows < 0]


@pytest.mark.parametrize("method", ["best_fit", "balanced"])
def test_rows_are_full_on_heavy_tailed_lengths(method):
    rng = np.random.default_rng(1)
    pack = Pack(seq_len=4096, rows=64, method=method)
    fills = [
        pool[rows >= 0].sum() / (pack.rows * pack.seq_len)
        for pool, rows, _ in stream_of(
            lambda: min(4096, max(1, int(rng.lognormal(6.2, 1.2)))), pack, 12, lambda n: n + n * n // 4096
        )
    ]
    assert np.mean(fills) >= 0.97, fills


def test_balanced_rows_are_of_even_cost():
    rng = np.random.default_rng(2)

    def worst_row(method):
        pack = Pack(seq_len=4096, rows=64, method=method)
        costs = lambda lengths: lengths + lengths * lengths // 1024  # noqa: E731
        ratios = []
        for pool, rows, _ in stream_of(lambda: min(4096, 1 + int(rng.exponential(300))), pack, 5, costs):
            row_costs = np.bincount(rows[rows >= 0], costs(pool)[rows >= 0], minlength=pack.rows)
            ratios.append(row_costs.max() / row_costs.mean())
        return np.mean(ratios)

    assert worst_row("balanced") < 1.4
    assert worst_row("best_fit") > 1.6


def test_nobody_waits_for_ever_where_segments_are_scarce():
    # One sample a row, far more samples than rows: in order of age each is delivered in its turn.
    rng = np.random.default_rng(3)
    pack = Pack(seq_len=64, rows=4, max_segments_per_row=1)
    waiting = []
    for pool, rows, num_carried in stream_of(lambda: int(rng.integers(1, 64)), pack, 60):
        waiting.append(len(pool))
        assert (rows >= 0).sum() == 4
        assert (rows[: min(4, num_carried)] >= 0).all()  # the four oldest
    assert max(waiting[5:]) <= 2 * waiting[0]  # the short ones do not pile up


def test_same_answer_twice_and_on_equal_lengths():
    pack = Pack(seq_len=10, rows=3)
    lengths = np.full(7, 5)
    zeros = np.zeros(7, dtype=np.int64)
    assert assign_rows(pack, lengths, zeros, zeros, 0).tolist() == [0, 0, 1, 1, 2, 2, -1]
    assert assign_rows(pack, lengths, zeros, zeros, 3).tolist() == [0, 0, 1, 1, 2, 2, -1]
    assert assign_rows(pack, lengths[:0], zeros[:0], zeros[:0], 0).tolist() == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"seq_len": 0}, "seq_len=...\\) is at least 1, got 0"),
        ({"rows": 0}, "rows=...\\) is at least 1, got 0"),
        ({"patches_per_row": -1}, "patches_per_row"),
        ({"patch_values": 0}, "patch_values"),
        ({"max_segments_per_row": 0}, "max_segments_per_row"),
        ({"method": "first_fit"}, "first_fit"),
        ({"oversize": "split"}, "split"),
    ],
)
def test_refuses_shapes_that_mean_nothing(options, says):
    with pytest.raises(RecipeError, match=says):
        Pack(**{"seq_len": 8, "rows": 2, **options})
