"""Which places of a row each context-parallel part shows."""

from typing import Literal

import numpy as np


def context_order(seq_len: int, num_parts: int, layout: Literal["contiguous", "zigzag"]) -> np.ndarray | None:
    """Order of a row's places in the emitted array, whose equal stretches are the parts.

    `zigzag` cuts the row into `2 * num_parts` chunks; part `i` shows chunks `i` and `2 * num_parts - 1 - i`,
    so that under a causal mask every part has the same work.

    Args:
        seq_len: places; divides by the number of chunks.
        num_parts: context-parallel parts.
        layout: `contiguous` or `zigzag`.

    Returns:
        int64 `[seq_len]`, or None where the order stays as it is.
    """
    if layout == "contiguous" or num_parts == 1:
        return None
    chunks = np.arange(seq_len, dtype=np.int64).reshape(2 * num_parts, -1)
    parts = np.arange(num_parts)
    return chunks[np.stack([parts, 2 * num_parts - 1 - parts], axis=1)].reshape(-1)
