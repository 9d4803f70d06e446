import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msdata_jax.batching.context import context_order


@given(st.integers(2, 8), st.integers(1, 5))
def test_zigzag_is_a_permutation_of_equal_causal_work(num_parts, chunk):
    seq_len = 2 * num_parts * chunk
    order = context_order(seq_len, num_parts, "zigzag")
    assert sorted(order.tolist()) == list(range(seq_len))
    work = (order + 1).reshape(num_parts, -1).sum(axis=1)  # place p attends to p + 1 places
    assert len(set(work.tolist())) == 1
    contiguous = (np.arange(seq_len) + 1).reshape(num_parts, -1).sum(axis=1)
    assert contiguous.max() > work[0]


def test_by_hand():
    assert context_order(8, 2, "zigzag").tolist() == [0, 1, 6, 7, 2, 3, 4, 5]
    assert context_order(8, 4, "zigzag").tolist() == [0, 7, 1, 6, 2, 5, 3, 4]


@pytest.mark.parametrize(("num_parts", "layout"), [(1, "zigzag"), (4, "contiguous"), (1, "contiguous")])
def test_nothing_moves_where_nothing_is_to_gain(num_parts, layout):
    assert context_order(8, num_parts, layout) is None
