import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msdata_jax.simulate.batches import count, packed
from msdata_jax.simulate.distributions import DISTRIBUTIONS


@given(
    st.sampled_from(sorted(DISTRIBUTIONS)),
    st.sampled_from([256, 4096]),
    st.integers(1, 60),
    st.integers(0, 99),
)
def test_packed_is_next_fit(distribution: str, context: int, num_microbatches: int, seed: int) -> None:
    batch = packed(distribution, context, num_microbatches, np.random.default_rng(seed))
    expected, current, filled = [], 0, 0
    for tokens in batch.samples.tokens.tolist():
        if filled + tokens > context:
            current, filled = current + 1, 0
        filled += tokens
        expected.append(current)
    assert batch.microbatch.tolist() == expected
    assert expected[-1] == num_microbatches - 1
    assert batch.num_microbatches == num_microbatches
    assert batch.cap == context


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_count(distribution: str) -> None:
    batch = count(distribution, 4096, 10, 3, np.random.default_rng(0))
    assert np.bincount(batch.microbatch).tolist() == [3] * 10
    assert np.all(np.diff(batch.microbatch) >= 0)
    assert len(batch.samples) == 30
    assert batch.cap is None
