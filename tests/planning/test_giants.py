from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import items_to_divide

from msdata_jax.errors import RecipeError
from msdata_jax.planning.giants import context_degrees, dominance, num_giants
from msdata_jax.planning.partitioning import loads, partition


@given(items_to_divide(max_parts=9), st.sampled_from([Fraction(0), Fraction(6, 100), Fraction(1, 2)]))
def test_every_item_on_an_aligned_group_of_its_degree(case, overhead):
    costs, num_parts = case
    found = context_degrees(costs, num_parts, overhead)
    total, expected = int(costs.sum()), [0] * num_parts
    for cost, degree, part in zip(costs.tolist(), found.degree.tolist(), found.part.tolist(), strict=True):
        assert degree & (degree - 1) == 0
        assert part % degree == 0
        assert part + degree <= num_parts
        share = cost * ((1 + overhead) / 2) ** (degree.bit_length() - 1)
        # The least degree that is enough: the mean is met, or no larger degree is left; half was not enough.
        assert share * num_parts <= total or 2 * degree > num_parts
        assert degree == 1 or share / ((1 + overhead) / 2) * num_parts > total
        for member in range(part, part + degree):
            expected[member] += -(-share.numerator // share.denominator) if degree > 1 else cost
    assert found.loads.tolist() == expected


@given(items_to_divide())
def test_without_giants_nothing_is_shared(case):
    costs, num_parts = case
    costs = np.append(
        costs, [costs.max(initial=1)] * num_parts
    )  # so that the mean is no less than the dearest
    found = context_degrees(costs, num_parts)
    assert num_giants(costs, num_parts) == 0
    assert (found.degree == 1).all()
    assert found.loads.tolist() == loads(costs, found.part, num_parts).tolist()
    assert found.loads.max() * num_parts <= costs.sum() + (num_parts - 1) * costs.max()


def test_by_hand():
    # The mean of 4 parts is 15: 50 is halved twice (12.5 without overhead), 10 not at all.
    found = context_degrees(np.array([50, 5, 3, 2]), 4, Fraction(0))
    assert found.degree.tolist() == [4, 1, 1, 1]
    assert found.part.tolist() == [0, 0, 1, 2]
    assert found.loads.tolist() == [18, 16, 15, 13]
    # Two parts share 20 at 6 % more: 10.6 each, rounded up; the group [2, 3] is free for the other.
    found = context_degrees(np.array([20, 20, 4, 4]), 5)
    assert found.degree.tolist() == [4, 4, 1, 1]
    assert found.part.tolist() == [0, 0, 4, 4]


def test_one_part_shares_nothing():
    found = context_degrees(np.array([7, 1]), 1)
    assert found.degree.tolist() == [1, 1]
    assert found.loads.tolist() == [8]


def test_giants_and_dominance():
    assert num_giants(np.array([9, 1, 1, 1]), 3) == 1
    assert num_giants(np.array([4, 4, 4]), 3) == 0  # as dear as the mean, not dearer
    assert dominance(np.array([9, 1, 1, 1]), 3) == Fraction(9, 4)
    assert dominance(np.array([4, 4, 4]), 3) == 1
    assert dominance(np.zeros(3, dtype=np.int64), 2) == 1


def long_documents(count, rng, longest=131_072):
    """Costs of a bulk of short documents and a few up to the longest: linear and quadratic in tokens."""
    tail = np.exp(rng.uniform(np.log(6500), np.log(125_000), count))
    tokens = np.where(rng.random(count) < 0.976, 6200 * rng.beta(2, 2, count) + 16, tail)
    tokens = np.minimum(tokens, longest)
    return (1000 * (tokens + tokens**2 / 58_000)).astype(np.int64)


@pytest.mark.parametrize(
    ("num_parts", "count", "alone", "shared"),
    [(64, 1000, 3.0, 1.07), (128, 8000, 1.05, 1.01), (512, 8000, 3.5, 1.05), (500, 8000, 3.5, 1.06)],
)
def test_sharing_brings_giants_to_the_mean(num_parts, count, alone, shared):
    for seed in range(3):
        costs = long_documents(count, np.random.default_rng(seed))
        mean = costs.sum() / num_parts
        assert loads(costs, partition(costs, num_parts), num_parts).max() / mean > alone
        assert dominance(costs, num_parts) > alone
        found = context_degrees(costs, num_parts).loads
        assert found.max() / mean <= shared  # the overhead of sharing
        assert found.max() / found.mean() <= 1.005


def test_refused():
    with pytest.raises(RecipeError, match="from 0 to less than 1, got 1"):
        context_degrees(np.array([1]), 2, Fraction(1))
    with pytest.raises(RecipeError, match="at least 0"):
        context_degrees(np.array([-1]), 2)
    with pytest.raises(RecipeError, match="at least 1"):
        context_degrees(np.array([1]), 0)
