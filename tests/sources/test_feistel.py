import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msdata_jax.sources.feistel import MAX_RECORDS, derive_key, order_key, permute, sub_key

KEYS = st.integers(0, 2**64 - 1)


@settings(deadline=None)
@given(st.integers(1, 5000), KEYS)
def test_is_a_permutation(n, key):
    assert np.array_equal(np.sort(permute(np.arange(n), n, key)), np.arange(n))


@settings(deadline=None)
@given(st.integers(1, MAX_RECORDS), KEYS, st.lists(st.integers(0, MAX_RECORDS - 1), max_size=20, unique=True))
def test_is_one_to_one_and_elementwise_at_any_size(n, key, numbers):
    index = np.array([number % n for number in numbers], np.int64)
    moved = permute(index, n, key)
    assert moved.dtype == np.int64
    assert ((moved >= 0) & (moved < n)).all()
    assert len(np.unique(moved)) == len(np.unique(index))
    assert [int(permute(one[None], n, key)[0]) for one in index] == moved.tolist()


def test_keeps_the_shape_and_takes_nothing():
    assert permute(np.zeros((0,), np.int64), 5, 1).shape == (0,)
    assert permute(np.arange(6).reshape(2, 3), 6, 1).shape == (2, 3)


def test_pinned_values():
    """A saved position means the same data for ever, so these never change."""
    key = order_key(17, "books", 0)
    assert key == GOLDEN_KEY
    assert permute(np.arange(8), 1000, key).tolist() == GOLDEN_1000
    assert permute(np.arange(3), 2**62, key).tolist() == GOLDEN_2_62


GOLDEN_KEY = 14429375842111012552
GOLDEN_1000 = [121, 443, 633, 214, 517, 233, 894, 700]
GOLDEN_2_62 = [3763596629792943246, 3676714514277282776, 132092758564182799]


def test_looks_random():
    """Neighbours are spread evenly, and each epoch is another order."""
    n = 10_007
    orders = [permute(np.arange(n), n, order_key(1, "a", epoch)) for epoch in range(3)]
    for order in orders:
        assert abs(np.corrcoef(np.arange(n), order)[0, 1]) < 0.05
        assert abs(np.diff(order)).mean() == pytest.approx(n / 3, rel=0.05)
    assert (orders[0] == orders[1]).sum() < 20
    small = {tuple(permute(np.arange(4), 4, key)) for key in range(2000)}
    assert len(small) == 24  # every order of four records occurs


def test_keys_differ_by_purpose_seed_name_and_epoch():
    keys = {
        derive_key(purpose, seed, name, epoch)
        for purpose in ("order", "random")
        for seed in range(5)
        for name in ("a", "b", "1\na")
        for epoch in range(5)
    }
    assert len(keys) == 2 * 5 * 3 * 5
    assert len({sub_key(7, number) for number in range(100)}) == 100


def test_the_key_is_the_same_in_another_process():
    code = "from msdata_jax.sources.feistel import order_key; print(order_key(3, 'söurce', 9))"
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, env=environment
    ).stdout
    assert int(output) == order_key(3, "söurce", 9)


@pytest.mark.parametrize(("index", "n"), [([0], 0), ([0], 2**62 + 1), ([5], 5), ([-1], 5)])
def test_refuses_what_is_out_of_range(index, n):
    with pytest.raises(ValueError, match="got"):
        permute(np.array(index), n, 1)
