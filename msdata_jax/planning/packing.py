"""Samples to rows of static shape."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from msdata_jax.errors import RecipeError

Oversize = Literal["raise", "drop", "truncate"]


@dataclass(frozen=True, kw_only=True)
class Pack:
    """The static shape of a step's rows and how they are filled.

    Attributes:
        seq_len: places in a row.
        rows: rows of the global batch.
        patches_per_row: image patches that a row can hold; 0 for recipes without images.
        patch_values: values of one patch (`patch * patch * 3`).
        max_segments_per_row: samples that a row may hold at most; None for no limit.
        method: `best_fit` puts a sample where it leaves least room (highest fill); `balanced` puts it into
            the cheapest row with room (rows of even cost).
        oversize: what happens to a sample longer than `seq_len`: `raise`, `drop` (counted) or `truncate`.
    """

    seq_len: int
    rows: int
    patches_per_row: int = 0
    patch_values: int = 768
    max_segments_per_row: int | None = None
    method: Literal["best_fit", "balanced"] = "best_fit"
    oversize: Oversize = "raise"

    def __post_init__(self) -> None:
        """Refuse shapes and names that mean nothing."""
        for name in ("seq_len", "rows"):
            if getattr(self, name) < 1:
                raise RecipeError(f"pack({name}=...) is at least 1, got {getattr(self, name)}")
        if self.patch_values < 1:
            raise RecipeError(f"pack(patch_values=...) is at least 1, got {self.patch_values}")
        if self.patches_per_row < 0:
            raise RecipeError(f"pack(patches_per_row=...) is at least 0, got {self.patches_per_row}")
        if self.max_segments_per_row is not None and self.max_segments_per_row < 1:
            raise RecipeError(
                f"pack(max_segments_per_row=...) is at least 1, got {self.max_segments_per_row}"
            )
        if self.method not in ("best_fit", "balanced"):
            raise RecipeError(f"pack(method=...) is 'best_fit' or 'balanced', got {self.method!r}")
        if self.oversize not in ("raise", "drop", "truncate"):
            raise RecipeError(f"pack(oversize=...) is 'raise', 'drop' or 'truncate', got {self.oversize!r}")

    @property
    def pool_segments(self) -> int:
        """Samples to choose from at most: what the rows and one row more can hold."""
        return (self.rows + 1) * (self.max_segments_per_row or self.seq_len)

    @property
    def pool_tokens(self) -> int:
        """Places that the samples to choose from should fill together: the rows and one row more."""
        return (self.rows + 1) * self.seq_len


def assign_rows(
    pack: Pack, lengths: np.ndarray, patches: np.ndarray, costs: np.ndarray, num_carried: int
) -> np.ndarray:
    """Choose a row for each sample of the pool, or -1 for those that wait for the next step.

    Samples carried over from earlier steps (the first `num_carried`) choose first, the oldest before the
    others, so that none waits for ever; then the fresh ones, the longest first (the dearest, for method
    `balanced`): best-fit decreasing, Johnson 1973.

    Args:
        pack: the rows' shape.
        lengths: int64 `[samples]`, each at most `seq_len`.
        patches: int64 `[samples]`, each at most `patches_per_row`.
        costs: int64 `[samples]`, used by method `balanced`.
        num_carried: how many of the first samples were carried over; those are in order of age.

    Returns:
        int64 `[samples]`; rows are numbered by the pool's order of their first sample, empty ones last.
    """
    room = np.full(pack.rows, pack.seq_len, dtype=np.int64)
    patch_room = np.full(pack.rows, pack.patches_per_row, dtype=np.int64)
    segment_room = np.full(pack.rows, pack.max_segments_per_row or np.iinfo(np.int64).max, dtype=np.int64)
    row_cost = np.zeros(pack.rows, dtype=np.int64)
    chosen = np.full(len(lengths), -1, dtype=np.int64)
    size = lengths if pack.method == "best_fit" else costs
    largest_first = num_carried + np.argsort(-size[num_carried:], kind="stable")
    for i in (*range(num_carried), *largest_first.tolist()):
        fits = (room >= lengths[i]) & (patch_room >= patches[i]) & (segment_room > 0)
        if not fits.any():
            continue
        preference = np.where(fits, room if pack.method == "best_fit" else row_cost, np.iinfo(np.int64).max)
        row = int(preference.argmin())
        chosen[i] = row
        room[row] -= lengths[i]
        patch_room[row] -= patches[i]
        segment_room[row] -= 1
        row_cost[row] += costs[i]
    return _number_by_first_sample(chosen, pack.rows)


def _number_by_first_sample(chosen: np.ndarray, num_rows: int) -> np.ndarray:
    used, first = np.unique(chosen[chosen >= 0], return_index=True)
    placed_order = np.empty(num_rows, dtype=np.int64)
    placed_order[used[np.argsort(first, kind="stable")]] = np.arange(len(used))
    return np.where(chosen >= 0, placed_order[chosen], -1)
