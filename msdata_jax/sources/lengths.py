"""Samples of bounded length. Patches stay with the places of `tokens` that show them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from msdata_jax.errors import BadSampleError, RecipeError
from msdata_jax.records import IMAGE_TOKEN


@dataclass(frozen=True)
class Truncate:
    """Keeps the first `max_tokens` places of a sample, and the patches that they show.

    Raises:
        RecipeError: max_tokens below 1.
        BadSampleError: for a record without tokens.
    """

    max_tokens: int

    def __post_init__(self) -> None:
        """Refuse a length that keeps nothing."""
        if self.max_tokens < 1:
            raise RecipeError(f"Truncate keeps at least 1 token, got max_tokens={self.max_tokens}")

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record, cut."""
        if _num_tokens(record) <= self.max_tokens:
            return record
        return _cut(record, 0, self.max_tokens)


@dataclass(frozen=True)
class Split:
    """Cuts a sample into consecutive samples of `max_tokens` places, the last one shorter.

    Each part has the patches that its places show. A last part of fewer than `min_tokens` is left out.

    Raises:
        RecipeError: not 1 <= min_tokens <= max_tokens.
        BadSampleError: for a record without tokens.
    """

    max_tokens: int
    min_tokens: int = 1

    def __post_init__(self) -> None:
        """Refuse lengths that no part can have."""
        if not 1 <= self.min_tokens <= self.max_tokens:
            raise RecipeError(
                f"Split needs 1 <= min_tokens <= max_tokens, got {self.min_tokens} and {self.max_tokens}"
            )

    def __call__(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        """The parts in order."""
        num_tokens = _num_tokens(record)
        starts = range(0, num_tokens, self.max_tokens)
        return [
            _cut(record, start, start + self.max_tokens)
            for start in starts
            if num_tokens - start >= self.min_tokens
        ]


def _num_tokens(record: dict[str, Any]) -> int:
    if record.get("tokens") is None:
        raise BadSampleError(f"no 'tokens' in the record, which has {sorted(record)}; put Tokenize before")
    return len(record["tokens"])


def _cut(record: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
    """Places [start, stop) of a record. Copies, so that a part does not hold the whole in memory."""
    tokens = np.asarray(record["tokens"])
    part = {**record, "tokens": tokens[start:stop].copy()}
    if record.get("patches") is not None:
        first = np.count_nonzero(tokens[:start] == IMAGE_TOKEN)
        count = np.count_nonzero(part["tokens"] == IMAGE_TOKEN)
        part["patches"] = record["patches"][first : first + count].copy()
    return part
