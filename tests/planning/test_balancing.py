import heapq

import numpy as np
import pytest
from hypothesis import given
from strategies import rows_to_balance

from msdata_jax.planning.balancing import METHODS, balance, makespan


def plain_lpt(costs, num_groups):
    """The dearest row left goes to the cheapest group that is not full; ties to the first."""
    size = len(costs) // num_groups
    groups = [[] for _ in range(num_groups)]
    for row in sorted(range(len(costs)), key=lambda r: (-costs[r], r)):
        open_groups = [g for g in range(num_groups) if len(groups[g]) < size]
        groups[min(open_groups, key=lambda g: (sum(costs[r] for r in groups[g]), g))].append(row)
    return [sorted(group) for group in groups]


@pytest.mark.parametrize("method", METHODS)
@given(case=rows_to_balance())
def test_equal_counts_every_row_once_never_worse(method, case):
    costs, num_groups = case
    groups = balance(costs, num_groups, method)
    size = len(costs) // num_groups
    assert groups.shape == (num_groups, size)
    assert sorted(groups.reshape(-1).tolist()) == list(range(len(costs)))
    assert (np.diff(groups, axis=1) > 0).all()
    kept = np.arange(len(costs)).reshape(num_groups, size)
    assert makespan(costs, groups) <= makespan(costs, kept)
    if method == "none":
        assert np.array_equal(groups, kept)


@given(rows_to_balance())
def test_lpt_equals_the_plain_loop_where_it_helps(case):
    costs, num_groups = case
    groups = balance(costs, num_groups, "lpt")
    expected = np.array(plain_lpt(costs.tolist(), num_groups))
    kept = np.arange(len(costs)).reshape(num_groups, -1)
    if makespan(costs, expected) > makespan(costs, kept):
        expected = kept
    assert groups.tolist() == expected.tolist()


@given(rows_to_balance(max_size=12))
def test_the_dearest_group_is_near_the_mean(case):
    costs, num_groups = case
    mean = costs.sum() / num_groups
    assert makespan(costs, balance(costs, num_groups, "lpt")) <= mean + costs.max()


def heavy_tailed(name, size, rng):
    """Costs with the spread of the distributions in the planning notes, in units of a short sample."""
    tail = np.where(rng.random(size) < 0.976, rng.beta(2, 2, size) * 6200, 10 ** rng.uniform(3.81, 5.1, size))
    some = rng.choice([200, 864, 3000, 16000], size, p=[0.4, 0.4, 0.17, 0.03]) * rng.uniform(0.5, 1.5, size)
    tokens = {"coyo": rng.lognormal(5.6, 0.95, size), "wlb": tail, "mix": some}[name]
    return (tokens + tokens**2 / 58_000).astype(np.int64) + 1


@pytest.mark.parametrize("name", ["coyo", "wlb", "mix"])
@pytest.mark.parametrize(("num_groups", "num_rows"), [(8, 64), (64, 960), (128, 7936), (512, 7680)])
def test_lpt_is_near_the_best_possible_on_heavy_tails(name, num_groups, num_rows):
    rng = np.random.default_rng(0)
    size = num_rows // num_groups
    ratios = []
    for _ in range(4):
        costs = heavy_tailed(name, num_rows, rng)
        least = np.sort(costs)[: size - 1].sum() + costs.max()
        bound = max(costs.sum() / num_groups, least)
        ratios.append(makespan(costs, balance(costs, num_groups, "lpt")) / bound)
    assert np.mean(ratios) <= 1.05, ratios


def test_ties_are_broken_by_place_not_by_the_processor():
    # numpy's default argsort orders equal keys differently with and without AVX; hundreds of them show it.
    costs = np.tile([3, 3, 5, 5], 200)
    groups = balance(costs, 8, "lpt")
    assert makespan(costs, groups) == 400
    assert balance(np.full(12, 7), 3, "lpt").tolist() == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    heap = [(0, g) for g in range(8)]
    expected = [[] for _ in range(8)]
    for row in sorted(range(800), key=lambda r: (-costs[r], r)):
        total, g = heapq.heappop(heap)
        expected[g].append(row)
        if len(expected[g]) < 100:
            heapq.heappush(heap, (total + int(costs[row]), g))
    assert groups.tolist() == [sorted(each) for each in expected]


def test_snake_deals_to_and_fro():
    costs = np.array([1, 2, 3, 4, 5, 6])
    assert balance(costs, 2, "snake").tolist() == [[1, 2, 5], [0, 3, 4]]  # 6 | 5 4 | 3 2 | 1
    assert balance(costs, 3, "snake").tolist() == [[0, 5], [1, 4], [2, 3]]


def test_lpt_by_hand():
    assert balance(np.array([9, 1, 1, 1, 4, 2]), 2, "lpt").tolist() == [[0, 2, 3], [1, 4, 5]]
    assert balance(np.array([5, 1, 3]), 1, "lpt").tolist() == [[0, 1, 2]]
