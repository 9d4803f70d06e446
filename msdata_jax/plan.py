"""What one step delivers, and where: the planner's decision as plain arrays."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgpack
import numpy as np

from msdata_jax.errors import PlanError as PlanError
from msdata_jax.records import BASE_COLUMNS, info_dtype

PLAN_VERSION = 2
"""Changes when the same recipe delivers something else, or when the bytes of a plan change."""

_SEGMENT_ARRAYS = ("row", "offset", "start", "length")
_ROW_ARRAYS = ("row_cost", "row_encoder_cost", "row_memory", "order")
_VALUES = (
    "step", "num_rows", "seq_len", "patches_per_row", "num_groups", "num_microbatches", "num_slots",
    "patches_per_slot", "balanced_by", "note",
)  # fmt: skip


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
        row_cost: int64 `[num_rows]`, work of the backbone in MFLOP (or places, without a cost formula).
        row_encoder_cost: int64 `[num_rows]`, work of the encoder, 0 where there is none.
        row_memory: int64 `[num_rows]`, bytes of activations, 0 without a formula.
        order: int32 `[num_rows]`; global batch row `g` shows row `order[g]`.
        num_groups: data-parallel groups; group `i` holds the i-th equal stretch of `order`.
        num_microbatches: equal stretches of each group.
        balanced_by: the method that gave the rows their order; `none` where they stayed as they were.
        note: what is worth saying about the placement, such as why a method was not used; else empty.
        dropped: SampleInfo records of samples drawn for this step and left out, since no row can hold them.
        slot: int32 `[segments]`, slot of the encoder's batch that shows the segment's patches, -1 for
            segments without; empty where patches stay with their rows.
        num_slots: equal stretches of the encoder's batch; 0 where patches stay with their rows.
        patches_per_slot: patches that a slot can hold.
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
    row_encoder_cost: np.ndarray
    row_memory: np.ndarray
    order: np.ndarray
    num_groups: int
    num_microbatches: int
    dropped: np.ndarray
    slot: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    num_slots: int = 0
    patches_per_slot: int = 0
    balanced_by: str = "none"
    note: str = ""

    @cached_property
    def content_digest(self) -> str:
        """A digest (hex, 16 bytes) of what the step delivers: equal on every mesh, host and processor."""
        state = hashlib.blake2b(digest_size=16)
        head = (PLAN_VERSION, self.step, len(self.samples), self.num_rows, self.seq_len, self.patches_per_row)
        state.update(np.array(head, dtype="<i8").tobytes())
        for name, kind in (("source", "<i4"), ("position", "<i8"), ("part", "<i4")):
            state.update(np.ascontiguousarray(self.samples[name], dtype=kind).data)
        for name in _SEGMENT_ARRAYS:
            state.update(np.ascontiguousarray(getattr(self, name), dtype="<i4").data)
        return state.hexdigest()

    @cached_property
    def digest(self) -> str:
        """A digest (hex, 16 bytes) of content and placement."""
        state = hashlib.blake2b(bytes.fromhex(self.content_digest), digest_size=16)
        state.update(np.array((self.num_groups, self.num_microbatches), dtype="<i8").tobytes())
        state.update(np.ascontiguousarray(self.order, dtype="<i4").data)
        if self.num_slots:
            state.update(np.array((self.num_slots, self.patches_per_slot), dtype="<i8").tobytes())
            state.update(np.ascontiguousarray(self.slot, dtype="<i4").data)
        return state.hexdigest()

    @property
    def fill(self) -> float:
        """Share of the step's places that hold tokens or patches, from 0 to 1."""
        return float(self.length.sum()) / (self.num_rows * self.seq_len)

    @property
    def num_cut(self) -> int:
        """Segments that show a part of their sample only: it was truncated or split."""
        return int(np.count_nonzero(self.length < self.samples["tokens"]))

    @cached_property
    def first_patch(self) -> np.ndarray:
        """int64 `[segments]`: place of each segment's first patch in its slot; segments follow in order."""
        patches = np.where(self.slot >= 0, self.samples["patches"], 0)
        by_slot = np.argsort(self.slot, kind="stable")
        before = np.cumsum(patches[by_slot]) - patches[by_slot]
        sorted_slot = self.slot[by_slot]
        first = np.empty(len(patches), dtype=np.int64)
        first[by_slot] = before - before[np.searchsorted(sorted_slot, sorted_slot)]
        return first

    @property
    def phase_costs(self) -> np.ndarray:
        """int64 `[2, num_rows]`: work of the backbone and of the encoder on the rank that has the row."""
        encoder = np.zeros_like(self.row_cost) if self.num_slots else self.row_encoder_cost
        return np.stack([self.row_cost, encoder])

    def group_costs(self, order: np.ndarray | None = None) -> np.ndarray:
        """int64 `[num_groups]`: cost of each group: backbone, and encoder where patches stay with rows.

        Args:
            order: another order of the rows to take the costs of.
        """
        order = self.order if order is None else order
        return self.phase_costs.sum(axis=0)[order].reshape(self.num_groups, -1).sum(axis=1)

    def to_bytes(self) -> bytes:
        """The plan as bytes: a msgpack header, then the arrays as they are. `from_bytes` reads it."""
        head: dict[str, Any] = {name: getattr(self, name) for name in _VALUES}
        columns = [name for name in _names(self.samples.dtype) if name not in _KEY_AND_BASE]
        head |= {"columns": columns, "num_segments": len(self.samples), "num_dropped": len(self.dropped)}
        packed: Any = msgpack.packb({"version": PLAN_VERSION, **head})
        arrays = [np.ascontiguousarray(getattr(self, name), kind) for name, kind, _ in _layout(head)]
        return b"".join([len(packed).to_bytes(4, "little"), packed, *(array.tobytes() for array in arrays)])

    @staticmethod
    def from_bytes(data: bytes) -> "StepPlan":
        """The plan that `to_bytes` wrote.

        Raises:
            PlanError: the bytes are cut off, of another version, or no plan at all.
        """
        head = _read_head(data)
        at = 4 + int.from_bytes(data[:4], "little")
        arrays: dict[str, Any] = {}
        for name, kind, count in _layout(head):
            arrays[name] = np.frombuffer(data, kind, count=count, offset=at).copy()
            at += arrays[name].nbytes
        return StepPlan(**{name: head[name] for name in _VALUES}, **arrays)

    def check(self) -> None:
        """Raise PlanError where a law is broken: segments tile their rows, nothing twice, caps held."""
        for broken in (*self._broken_order(), *self._broken_segments(), *self._broken_slots()):
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
        sorted_keys = np.stack([*keys, self.start])[:, np.lexsort([self.start, *reversed(keys)])]
        if (sorted_keys[:, 1:] == sorted_keys[:, :-1]).all(axis=0).any():
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

    def _broken_slots(self) -> Iterator[str]:
        if not self.num_slots:
            return
        patches = self.samples["patches"].astype(np.int64)
        if not np.array_equal(self.slot >= 0, patches > 0) or self.slot.max(initial=-1) >= self.num_slots:
            yield f"patches are in no slot from 0 to {self.num_slots - 1}"
        elif np.bincount(self.slot[self.slot >= 0], patches[self.slot >= 0], 1).max() > self.patches_per_slot:
            yield f"a slot has more than {self.patches_per_slot} patches"


_KEY_AND_BASE = ("source", "part", "position", *BASE_COLUMNS)
_MOST = 2**31


def _names(dtype: np.dtype) -> tuple[str, ...]:
    assert dtype.names is not None  # a record
    return dtype.names


def _layout(head: dict) -> list[tuple[str, np.dtype, int]]:
    """Name, dtype and count of each array of a plan with this header, in order."""
    infos = info_dtype(head["columns"])
    return [
        ("samples", infos, head["num_segments"]),
        ("dropped", infos, head["num_dropped"]),
        *((name, np.dtype("<i4"), head["num_segments"]) for name in _SEGMENT_ARRAYS),
        ("slot", np.dtype("<i4"), head["num_segments"] if head["num_slots"] else 0),
        *((name, np.dtype("<i4" if name == "order" else "<i8"), head["num_rows"]) for name in _ROW_ARRAYS),
    ]


def _read_head(data: bytes) -> dict:
    """The checked header of a plan's bytes. Raises PlanError."""
    size = int.from_bytes(data[:4], "little")
    try:
        head = msgpack.unpackb(data[4 : 4 + size])
    except (ValueError, msgpack.UnpackException) as error:
        raise PlanError(f"these {len(data)} bytes are no plan: {error}") from None
    if not isinstance(head, dict) or head.get("version") != PLAN_VERSION:
        version = head.get("version") if isinstance(head, dict) else None
        raise PlanError(f"the plan is of version {version}; this msdata_jax reads {PLAN_VERSION}")
    texts, numbers = ("balanced_by", "note"), (*_VALUES[:8], "num_segments", "num_dropped")
    columns: Any = head.get("columns")
    sound = all(isinstance(head.get(name), str) for name in texts)
    sound &= all(isinstance(head.get(name), int) and 0 <= head[name] < _MOST for name in numbers)
    sound &= isinstance(columns, list) and all(isinstance(each, str) for each in columns)
    if not sound:
        raise PlanError("the header of the plan lacks fields, or has some of another kind")
    if len({*columns, *_KEY_AND_BASE}) < len(columns) + len(_KEY_AND_BASE):
        raise PlanError(f"names of columns are distinct, got {columns} beside {list(_KEY_AND_BASE)}")
    expected = 4 + size + sum(kind.itemsize * count for _, kind, count in _layout(head))
    if expected != len(data):
        raise PlanError(f"a plan of this header takes {expected} bytes; there are {len(data)}: it is cut off")
    return head
