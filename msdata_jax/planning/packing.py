"""Samples to rows of static shape."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from msdata_jax.errors import RecipeError
from msdata_jax.planning.arrays import narrow

Method = Literal["best_fit", "first_fit", "balanced", "pad"]
METHODS: tuple[Method, ...] = ("best_fit", "first_fit", "balanced", "pad")
Oversize = Literal["raise", "drop", "truncate", "split"]
OVERSIZE: tuple[Oversize, ...] = ("raise", "drop", "truncate", "split")

BLOCKS = 8
"""Best fit works in blocks of an eighth of the rows: small enough to choose well, few enough to be fast."""
SMALL = 8
"""Units of at most an eighth of a row fill what the longer ones leave."""
FEW_UNITS = 400
"""Best fit puts up to so many units in turn: there numpy's calls cost more than what they compute."""

_NO_LIMIT = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The static shape of a step: XLA compiles one program for each."""

    seq_len: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class Pack:
    """The static shape of a step's rows and how they are filled.

    Attributes:
        shapes: the shapes that a step may have, by increasing `seq_len`; a sample goes to the first that
            holds it, and a step has the shape of the first bucket that is full.
        patches_per_row: image patches that a row can hold; 0 for recipes without images.
        patch_values: values of one patch (`patch * patch * 3`).
        max_segments_per_row: samples that a row may hold at most; None for no limit.
        method: `best_fit` puts the longest samples first, each where it leaves least room (highest fill);
            `first_fit` keeps the order of the stream, each sample in the first row with room; `balanced` puts
            the dearest first, each into the cheapest row with room (rows of even cost); `pad` gives each
            sample a row of its own.
        oversize: what happens to a sample longer than the longest row: `raise`, `drop` (counted), `truncate`,
            or `split` into pieces that are packed on their own.
        together: a metadata column; consecutive samples of a source that agree in it share a row.
    """

    shapes: tuple[Shape, ...]
    patches_per_row: int = 0
    patch_values: int = 768
    max_segments_per_row: int | None = None
    method: Method = "best_fit"
    oversize: Oversize = "raise"
    together: str | None = None

    def __post_init__(self) -> None:
        """Refuse shapes and names that mean nothing."""
        self._check_shapes()
        for name, least in (("patch_values", 1), ("patches_per_row", 0), ("max_segments_per_row", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise RecipeError(f"pack({name}=...) is at least {least}, got {value}")
        for name, allowed in (("method", METHODS), ("oversize", OVERSIZE)):
            if getattr(self, name) not in allowed:
                raise RecipeError(f"pack({name}=...) is one of {allowed}, got {getattr(self, name)!r}")
        if self.together is not None and (self.oversize == "split" or self.method == "pad"):
            raise RecipeError(
                f"pack(together={self.together!r}) keeps samples in one row; oversize='split' and padding "
                "take them apart: use one or the other"
            )

    def _check_shapes(self) -> None:
        if not self.shapes:
            raise RecipeError("a step needs a shape: pack(seq_len=..., rows=...)")
        for shape in self.shapes:
            for name in ("seq_len", "rows"):
                if getattr(shape, name) < 1:
                    raise RecipeError(f"pack({name}=...) is at least 1, got {getattr(shape, name)}")
        lengths = [shape.seq_len for shape in self.shapes]
        if sorted(set(lengths)) != lengths:
            raise RecipeError(f"buckets have distinct lengths in increasing order, got {lengths}")

    @property
    def seq_len(self) -> int:
        """Places of the longest row."""
        return self.shapes[-1].seq_len

    @property
    def segments_per_row(self) -> int | None:
        """Samples that a row may hold at most."""
        return 1 if self.method == "pad" else self.max_segments_per_row

    def bucket_of(self, lengths: np.ndarray) -> np.ndarray:
        """int64 `[samples]`: index of the first shape whose rows hold each length (at most `seq_len`)."""
        return np.searchsorted([shape.seq_len for shape in self.shapes], lengths).astype(np.int64)

    def pool_places(self, shape: Shape, rows_beyond: int = 1) -> int:
        """Places that the samples to choose from should fill: those of the rows and of some rows more."""
        return _NO_LIMIT if self.method == "pad" else (shape.rows + rows_beyond) * shape.seq_len

    def pool_segments(self, shape: Shape, rows_beyond: int = 1) -> int:
        """Samples to choose from at most: what those rows can hold; with padding, one for each row."""
        if self.method == "pad":
            return shape.rows
        return (shape.rows + rows_beyond) * (self.max_segments_per_row or shape.seq_len)


@dataclass(frozen=True, kw_only=True)
class Units:
    """What is placed as one: a sample, or several that stay together.

    Attributes:
        length: int64 `[units]`, places, each at most the row's.
        patches: int64 `[units]`, each at most the row's.
        segments: int64 `[units]`, samples, each at most the row's.
        cost: int64 `[units]`.
    """

    length: np.ndarray
    patches: np.ndarray
    segments: np.ndarray
    cost: np.ndarray

    def take(self, which: np.ndarray | slice) -> "Units":
        """Those at an index, mask or slice."""
        arrays = (self.length, self.patches, self.segments, self.cost)
        length, patches, segments, cost = (each[which] for each in arrays)
        return Units(length=length, patches=patches, segments=segments, cost=cost)


def assign_rows(pack: Pack, shape: Shape, units: Units, num_carried: int) -> np.ndarray:
    """Choose a row for each unit of the pool, or -1 for those that wait for the next step.

    Units carried over from earlier steps (the first `num_carried`, in order of age) choose before the others,
    so that none waits for ever.

    Returns:
        int64 `[units]`; rows are numbered by the pool's order of their first unit, empty ones last.
    """
    if pack.method == "pad":
        chosen = np.arange(len(units.length), dtype=np.int64)
        return np.where(chosen < shape.rows, chosen, -1)
    rows = Rows(pack, shape)
    if pack.method == "best_fit":
        best_fit = best_fit_of_few if len(units.length) <= FEW_UNITS else best_fit_of_many
        chosen = best_fit(rows, units, num_carried)
    else:
        chosen = _one_by_one(rows, units, num_carried, cheapest=pack.method == "balanced")
    return _number_by_first_unit(chosen, shape.rows)


class Rows:
    """What the rows still hold."""

    def __init__(self, pack: Pack, shape: Shape) -> None:
        self.count, self.seq_len = shape.rows, shape.seq_len
        self.patches_per_row = pack.patches_per_row
        self.segments_per_row = pack.segments_per_row  # None: places run out first
        self.room = np.full(shape.rows, shape.seq_len, dtype=np.int64)
        self.patch_room = np.full(shape.rows, pack.patches_per_row, dtype=np.int64)
        self.segment_room = np.full(shape.rows, self.segments_per_row or shape.seq_len, dtype=np.int64)

    def fill(self, row: np.ndarray | int, units: Units, chosen: np.ndarray | int) -> None:
        """Put units `chosen` into rows `row`, no two into the same."""
        self.room[row] -= units.length[chosen]
        if self.patches_per_row:
            self.patch_room[row] -= units.patches[chosen]
        if self.segments_per_row:
            self.segment_room[row] -= units.segments[chosen]

    def size_of(self, units: Units) -> tuple[np.ndarray, np.ndarray]:
        """The size of each unit in places, and which units are sized by more than their places.

        Patches and segments enter in proportion to what a row holds of them, rounded up; `room_for` rounds
        down, so that what fits by size fits in every respect.
        """
        special = (units.patches > 0) | (units.segments > 1)
        if not special.any():
            return units.length, special
        size = np.maximum(units.length, -(-units.patches * self.seq_len // max(self.patches_per_row, 1)))
        if self.segments_per_row:
            by_segments = -(-units.segments * self.seq_len // self.segments_per_row)
            size = np.maximum(size, by_segments * special)
        return size, special

    def room_for(self, *, special: bool) -> np.ndarray:
        """int64 `[rows]`: the largest size of a unit that each row holds; 0 where a row is full."""
        room = self.room
        if self.segments_per_row:
            room = np.where(self.segment_room > 0, room, 0)
        if special and self.segments_per_row:
            room = np.minimum(room, self.segment_room * self.seq_len // self.segments_per_row)
        if special and self.patches_per_row:
            room = np.minimum(room, self.patch_room * self.seq_len // self.patches_per_row)
        return room


def best_fit_of_many(rows: Rows, units: Units, num_carried: int) -> np.ndarray:
    """Best-fit decreasing (Johnson 1973), a block of units at a time, so that it works on arrays.

    A block holds an eighth as many units as there are rows. Its units choose in order of size, the smallest
    first, each the row with least room that holds it and that no other of the block took; those that find
    only taken rows choose again with the next block. (Units sized by patches or segments choose before the
    others, for their sake.) Carried units come first, in blocks by age, then fresh ones from the longest down
    to an eighth of a row. The rest fills up: as long as any fits, each row in turn, the emptiest first, takes
    the longest that it holds.
    """
    size, special = rows.size_of(units)
    chosen = np.full(len(size), -1, dtype=np.int64)
    small = size <= rows.seq_len // SMALL
    small[:num_carried] = False
    fresh = _longest_first(size, num_carried + np.flatnonzero(~small[num_carried:]))
    waiting = np.concatenate([np.arange(num_carried), fresh])
    block_size = max(rows.count // BLOCKS, 1)
    while len(waiting):
        block, waiting = waiting[:block_size], waiting[block_size:]
        again = []
        for kind in (True, False):
            mine = block[special[block] == kind]
            if not len(mine):
                continue
            mine = _longest_first(size, np.sort(mine))[::-1]
            row, fits = _tightest_rows(rows.room_for(special=kind), size[mine])
            chosen[mine[row >= 0]] = row[row >= 0]
            rows.fill(row[row >= 0], units, mine[row >= 0])
            again.append(mine[(row < 0) & fits])
        waiting = np.concatenate([*again, waiting])
    for kind in (True, False):
        rest = _longest_first(size, np.flatnonzero(small & (special == kind)))
        while len(rest):
            row, place = _emptiest_rows(rows.room_for(special=kind), size[rest])
            if not len(row):
                break
            chosen[rest[place]] = row
            rows.fill(row, units, rest[place])
            rest = np.delete(rest, place)
    return chosen


def _longest_first(size: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Units or rows `which`, increasing, by decreasing size, then by number."""
    sizes = size[which]
    return which[np.argsort(narrow(sizes.max(initial=0) - sizes), kind="stable")]


def _tightest_rows(room: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each of increasing `sizes` the row with least room that holds it and is not taken by one before.

    Returns:
        int64 `[sizes]`, -1 where all such rows are taken or none is there; and whether any row holds each.
    """
    by_room = np.argsort(narrow(room), kind="stable")
    first = np.searchsorted(room[by_room], sizes)
    turn = np.arange(len(sizes))
    # Behind the first row that holds it, and behind that of the one before.
    place = np.maximum.accumulate(first - turn) + turn
    row = np.full(len(sizes), -1, dtype=np.int64)
    free = place < len(room)
    row[free] = by_room[place[free]]
    return row, first < len(room)


def _emptiest_rows(room: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows by decreasing room, and which of decreasing `sizes` each takes: the longest that it holds.

    Returns:
        int64 `[taken]` rows and int64 `[taken]` places in `sizes`.
    """
    candidates = np.flatnonzero(room >= sizes[-1])
    row = _longest_first(room, candidates)
    longest = len(sizes) - np.searchsorted(sizes[::-1], room[row], side="right")
    turn = np.arange(len(row))
    place = np.maximum.accumulate(longest - turn) + turn
    taken = place < len(sizes)
    return row[taken], place[taken]


def best_fit_of_few(rows: Rows, units: Units, num_carried: int) -> np.ndarray:
    """As `best_fit_of_many`, on plain integers."""
    few = _FewRows(rows, units)
    fresh = sorted(range(num_carried, len(few.size)), key=few.size.__getitem__, reverse=True)
    most = rows.seq_len // SMALL
    waiting = [*range(num_carried), *(i for i in fresh if few.size[i] > most)]
    block_size = max(rows.count // BLOCKS, 1)
    while waiting:
        block, again = waiting[:block_size], []
        for kind in sorted({few.special[i] for i in block}, reverse=True):
            again += few.fill_tightest([i for i in block if few.special[i] == kind], special=kind)
        waiting[:block_size] = again
    for kind in (True, False):
        rest = [i for i in fresh if few.size[i] <= most and few.special[i] == kind]
        while few.fill_emptiest(rest, special=kind):
            pass
    return np.array(few.chosen, dtype=np.int64)


class _FewRows:
    """What the rows still hold, in plain integers, and the row that each unit has."""

    def __init__(self, rows: Rows, units: Units) -> None:
        size, special = rows.size_of(units)
        self.size, self.special = size.tolist(), special.tolist()
        self.chosen = [-1] * len(self.size)
        takes = (units.length, units.segments, units.patches)
        self._takes = list(zip(*(each.tolist() for each in takes), strict=True))
        self._caps = (rows.seq_len, rows.segments_per_row or rows.seq_len, rows.patches_per_row or 1)
        self._left = [self._caps] * rows.count
        self._room = {kind: [rows.seq_len] * rows.count for kind in (True, False)}  # as of `Rows.room_for`

    def fill_tightest(self, block: Iterable[int], *, special: bool) -> list[int]:
        """Fill as `_tightest_rows` says; returns the units for which all rows are taken."""
        by_room = sorted(range(len(self._left)), key=self._room[special].__getitem__)
        room = [self._room[special][row] for row in by_room]
        again, place = [], -1
        for unit in sorted(block, key=lambda i: (self.size[i], -i)):
            first = bisect_left(room, self.size[unit])
            place = max(place + 1, first)
            if place < len(room):
                self._put(unit, by_room[place])
            elif first < len(room):
                again.append(unit)
        return again

    def fill_emptiest(self, rest: list[int], *, special: bool) -> bool:
        """Fill as `_emptiest_rows` says with units of `rest`, the longest first; whether any was taken."""
        room = self._room[special]
        num_before, place = len(rest), 0
        for row in sorted(range(len(room)), key=room.__getitem__, reverse=True):
            place = max(place, bisect_left(rest, -room[row], key=lambda i: -self.size[i]))
            if place == len(rest):
                break
            self._put(rest.pop(place), row)
        return len(rest) < num_before

    def _put(self, unit: int, row: int) -> None:
        self.chosen[unit] = row
        length, num_segments, num_patches = self._takes[unit]
        places, segments, patches = self._left[row]
        places, segments, patches = places - length, segments - num_segments, patches - num_patches
        self._left[row] = places, segments, patches
        seq_len, most_segments, most_patches = self._caps
        room = places if segments else 0
        self._room[False][row] = room
        self._room[True][row] = min(
            room, segments * seq_len // most_segments, patches * seq_len // most_patches
        )


def _one_by_one(rows: Rows, units: Units, num_carried: int, *, cheapest: bool) -> np.ndarray:
    """Carried units by age, then the others in order, each into the first row with room.

    For `cheapest` the others come the dearest first, and each unit goes into the cheapest row with room.
    """
    chosen = np.full(len(units.length), -1, dtype=np.int64)
    row_cost = np.zeros(rows.count, dtype=np.int64)
    order = np.arange(len(chosen))
    if cheapest:
        order[num_carried:] = _longest_first(units.cost, order[num_carried:])
    for i in order.tolist():
        fits = (rows.room >= units.length[i]) & (rows.patch_room >= units.patches[i])
        fits &= rows.segment_room >= units.segments[i]
        if not fits.any():
            continue
        row = (
            int(np.where(fits, row_cost, np.iinfo(np.int64).max).argmin()) if cheapest else int(fits.argmax())
        )
        chosen[i] = row
        row_cost[row] += units.cost[i]
        rows.fill(row, units, i)
    return chosen


def _number_by_first_unit(chosen: np.ndarray, num_rows: int) -> np.ndarray:
    placed = np.flatnonzero(chosen >= 0)
    first = np.full(num_rows, len(chosen), dtype=np.int64)
    first[chosen[placed[::-1]]] = placed[::-1]  # the last assignment stays: the first unit of each row
    number = np.empty(num_rows, dtype=np.int64)
    number[np.argsort(first, kind="stable")] = np.arange(num_rows)
    return np.where(chosen >= 0, number[chosen], -1)
