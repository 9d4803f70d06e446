"""What one step delivers, and where: the planner's decision as plain arrays."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from msdata_jax.errors import PlanError as PlanError

PLAN_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """The decision for one step.

    Content (equal on every mesh): `samples`, `row`, `offset`, `start`, `length` describe each segment of each
    row, in order of (row, offset). Placement (depends on the mesh): `order`.

    Attributes:
        step: from 0.
        samples: SampleInfo records `[segments]`.
        row: int32 `[segments]`, row that the segment is in; rows are numbered by content and step.
        offset: int32 `[segments]`, first place in the row.
        start: int32 `[segments]`, first token of the sample that is used.
        length: int32 `[segments]`, tokens that are used.
        num_rows: rows of the step; some may be empty.
        seq_len: places in a row.
        patches_per_row: image patches that a row can hold.
        row_cost: int64 `[num_rows]`, MFLOP (or places, without a cost formula).
        order: int32 `[num_rows]`; global batch row `g` shows row `order[g]`.
        num_groups: data-parallel groups; group `i` holds the i-th equal stretch of `order`.
        num_microbatches: equal stretches of each group.
        dropped: SampleInfo records of samples drawn for this step and left out, since no row can hold them.
    """

    step: int
    samples: np.ndarray
    row: np.ndarray
    offset: np.ndarray
    start: np.ndarray
    length: np.ndarray
    num_rows: int
    seq_len: int
    patches_per_row: int
    row_cost: np.ndarray
    order: np.ndarray
    num_groups: int
    num_microbatches: int
    dropped: np.ndarray

    def content_digest(self) -> str:
        """A digest (hex, 16 bytes) of what the step delivers: equal on every mesh, host and processor."""
        return self._digest(("row", "offset", "start", "length"))

    def digest(self) -> str:
        """A digest (hex, 16 bytes) of content and placement."""
        return self._digest(("row", "offset", "start", "length", "order"))

    def _digest(self, names: tuple[str, ...]) -> str:
        state = hashlib.blake2b(digest_size=16)
        head = (PLAN_VERSION, self.step, len(self.samples), self.num_rows, self.seq_len, self.patches_per_row)
        if "order" in names:
            head += (self.num_groups, self.num_microbatches)
        state.update(np.array(head, dtype="<i8").tobytes())
        for name in self.samples.dtype.names or ():
            state.update(self.samples[name].astype("<i8").tobytes())
        for name in names:
            state.update(getattr(self, name).astype("<i4").tobytes())
        return state.hexdigest()

    @property
    def fill(self) -> float:
        """Share of the step's places that hold tokens or patches, from 0 to 1."""
        return float(self.length.sum()) / (self.num_rows * self.seq_len)

    def group_costs(self, order: np.ndarray | None = None) -> np.ndarray:
        """int64 `[num_groups]`: cost of each data-parallel group; under another `order` if one is given."""
        order = self.order if order is None else order
        return self.row_cost[order].reshape(self.num_groups, -1).sum(axis=1)

    def check(self) -> None:
        """Raise PlanError where a law is broken: segments tile their rows, nothing twice, caps held."""
        for broken in (*self._broken_order(), *self._broken_segments()):
            raise PlanError(f"step {self.step}: {broken}")

    def _broken_order(self) -> Iterator[str]:
        if not np.array_equal(np.sort(self.order), np.arange(self.num_rows)):
            yield f"order is no permutation of {self.num_rows} rows"
        if self.num_rows % (self.num_groups * self.num_microbatches):
            yield (
                f"{self.num_rows} rows do not divide by {self.num_groups} groups x "
                f"{self.num_microbatches} microbatches"
            )

    def _broken_segments(self) -> Iterator[str]:
        if not len(self.samples):
            return
        keys = [self.samples[name].astype(np.int64) for name in ("source", "position", "part")]
        if np.unique(np.stack([*keys, self.start]), axis=1).shape[1] != len(self.samples):
            yield "a sample is placed twice"
        if not (self.row[0] >= 0 and np.all(self.row[1:] >= self.row[:-1]) and self.row[-1] < self.num_rows):
            yield f"rows are not in order from 0 to {self.num_rows - 1}"
            return
        end = self.offset + self.length
        previous_end = np.where(np.diff(self.row, prepend=-1) == 0, np.roll(end, 1), 0)
        if not np.array_equal(self.offset, previous_end):
            yield "segments do not tile their rows"
        if end.max() > self.seq_len or self.length.min() < 1:
            yield f"a segment is empty or ends behind place {self.seq_len}"
        if self.start.min() < 0 or (self.start + self.length > self.samples["tokens"]).any():
            yield "a segment uses more tokens than its sample has"
        patches = np.bincount(self.row, weights=self.samples["patches"])
        if patches.max() > self.patches_per_row:
            yield f"a row has more than {self.patches_per_row} patches"
