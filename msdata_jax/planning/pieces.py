"""What is packed: samples, or pieces of long ones, and which of them stay together."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from msdata_jax.planning.arrays import narrow, numbered_by_first
from msdata_jax.planning.packing import Pack, Units


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """Stretches of samples, each packed as one segment.

    Attributes:
        infos: SampleInfo records `[pieces]`, of the whole sample.
        start: int64 `[pieces]`, first token of the sample that is used.
        length: int64 `[pieces]`, tokens that are used, at least 1.
        unit: int64 `[pieces]`, equal for carried ones that stay together; -1 for those drawn since.
    """

    infos: np.ndarray
    start: np.ndarray
    length: np.ndarray
    unit: np.ndarray

    def __len__(self) -> int:
        """Number of pieces."""
        return len(self.length)

    def take(self, which: np.ndarray) -> "Pieces":
        """Those at an index or mask."""
        which = np.flatnonzero(which) if which.dtype == bool else which
        return Pieces(
            infos=self.infos.take(which),
            start=self.start[which],
            length=self.length[which],
            unit=self.unit[which],
        )

    def used_infos(self) -> np.ndarray:
        """SampleInfo records with `tokens` cut to what is used, for the cost functions."""
        if np.array_equal(self.infos["tokens"], self.length):
            return self.infos
        used = self.infos.copy()
        used["tokens"] = self.length
        return used


def no_pieces(dtype: np.dtype) -> Pieces:
    """Pieces of nothing."""
    nothing = np.empty(0, dtype=np.int64)
    return Pieces(infos=np.empty(0, dtype=dtype), start=nothing, length=nothing, unit=nothing)


def join(parts: Sequence[Pieces]) -> Pieces:
    """One after the other."""
    return Pieces(
        infos=join_records([part.infos for part in parts]),
        start=np.concatenate([part.start for part in parts]),
        length=np.concatenate([part.length for part in parts]),
        unit=np.concatenate([part.unit for part in parts]),
    )


def join_records(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Records of one dtype, one array after the other: as raw bytes, which numpy copies far faster."""
    kind = parts[0].dtype
    return np.concatenate([part.view(f"V{kind.itemsize}") for part in parts]).view(kind)


def cut(pack: Pack, tokens: np.ndarray, patches: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pieces that samples are packed in, after the pack's rule for long ones.

    Args:
        pack: the rule.
        tokens: int64 `[samples]`, places of each.
        patches: int64 `[samples]`, patches of each.

    Returns:
        int64 `[pieces]` each: which sample, its first token, its length. A sample that is dropped has none.
    """
    too_long = tokens > pack.seq_len
    count = (tokens > 0).astype(np.int64)
    if pack.oversize == "drop":
        count[too_long | (patches > pack.patches_per_row)] = 0
    if pack.oversize == "split":
        count[too_long] = -(-tokens[too_long] // pack.seq_len)
    sample = np.repeat(np.arange(len(tokens)), count)
    start = (np.arange(len(sample)) - (np.cumsum(count) - count)[sample]) * pack.seq_len
    left = tokens[sample] - start
    return sample, start, left if pack.oversize == "raise" else np.minimum(left, pack.seq_len)


def gather(pack: Pack, pool: Pieces) -> np.ndarray:
    """Which pieces stay together: consecutive ones of a source that agree in the column `pack.together`.

    What was drawn between two carried pieces may have its row already: whether those are consecutive is known
    from when they were drawn. The last one drawn of each source is always there.

    Returns:
        int64 `[pieces]`: the unit of each, numbered by its first piece in the pool.
    """
    if pack.together is None:
        return np.arange(len(pool))
    by_source = np.argsort(pool.infos["source"], kind="stable")
    source, value = pool.infos["source"][by_source], pool.infos[pack.together][by_source]
    before = pool.unit[by_source]
    other = np.where(before[1:] < 0, value[1:] != value[:-1], before[1:] != before[:-1])
    begins = np.ones(len(pool), dtype=bool)
    begins[1:] = (source[1:] != source[:-1]) | other
    run_of_piece = np.empty(len(pool), dtype=np.int64)
    run_of_piece[by_source] = np.cumsum(begins) - 1
    return numbered_by_first(run_of_piece)


def unfinished(pool: Pieces, unit: np.ndarray) -> np.ndarray:
    """Which units the next sample of a source may belong to: its last; bool `[units]`."""
    num_units = int(unit.max()) + 1 if len(unit) else 0
    last = np.zeros(num_units, dtype=bool)
    _, from_behind = np.unique(pool.infos["source"][::-1], return_index=True)
    last[unit[len(pool) - 1 - from_behind]] = True
    return last


def measure_units(pool: Pieces, unit: np.ndarray, costs: np.ndarray) -> Units:
    """Size and cost of each unit.

    Args:
        pool: the pieces.
        unit: int64 `[pieces]`.
        costs: int64 `[pieces]`.
    """
    num_units = int(unit.max()) + 1 if len(unit) else 0
    if num_units == len(pool):
        segments = np.ones(num_units, dtype=np.int64)
        patches = pool.infos["patches"].astype(np.int64)
        return Units(length=pool.length, patches=patches, segments=segments, cost=costs)

    def total(values: np.ndarray | int) -> np.ndarray:
        sums = np.zeros(num_units, dtype=np.int64)
        np.add.at(sums, unit, values)
        return sums

    return Units(
        length=total(pool.length), patches=total(pool.infos["patches"]), segments=total(1), cost=total(costs)
    )


def pieces_in_order(unit: np.ndarray, row_of_unit: np.ndarray) -> np.ndarray:
    """int64 `[placed pieces]`: those whose unit has a row, by row, then by unit, then as they come.

    Args:
        unit: int64 `[pieces]`.
        row_of_unit: int64 `[units]`; -1 for units without a row.
    """
    placed = np.flatnonzero(row_of_unit >= 0)
    units = placed[np.argsort(narrow(row_of_unit[placed]), kind="stable")]
    if len(row_of_unit) == len(unit):
        return units
    by_unit = np.argsort(unit, kind="stable")
    count = np.bincount(unit, minlength=len(row_of_unit))
    first = np.cumsum(count) - count
    counts = count[units]
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return by_unit[np.repeat(first[units], counts) + within]
