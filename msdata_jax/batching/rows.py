"""What a batch looks like: its static shape, its fields, and where the segments of its rows go.

A batch has these fields, all over the same rows; `[row, place]` fields share one layout:

    tokens         int32   [rows, seq_len]   token ids; 0 where a patch is shown and in padding
    targets        int32   [rows, seq_len]   the next token of the same segment; 0 where there is none
    segment_ids    int32   [rows, seq_len]   from 1 in each row, 0 in padding
    positions      int32   [rows, seq_len]   place inside its segment, from 0
    loss_mask      float32 [rows, seq_len]   weight of the target in the loss; 0 where there is none
    patch_index    int32   [rows, seq_len]   which patch of the row is shown, -1 for none   (with images)
    patches        uint8   [rows, patches_per_row, patch_values]                            (with images)

Where the encoder's batch is spread over slots of its own, `patches` is not over the rows, and `patch_index`
counts in the slots of the whole batch one after the other:

    patches             uint8   [slots, patches_per_slot, patch_values]
    patch_segment_ids   int32   [slots, patches_per_slot]   from 1 in each slot, one for each sample; 0: none
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

ContextLayout = Literal["contiguous", "zigzag", "zigzag_document"]
Loss = Literal["tokens", "segments"]


@dataclass(frozen=True, kw_only=True)
class RowFormat:
    """Static shape of a row, the order of its places, and what its targets weigh.

    Attributes:
        seq_len: places.
        patches_per_row: patches; 0 leaves the image fields out.
        patch_values: values of one patch.
        context_parts: context-parallel parts, equal stretches of the places of an emitted row.
        context_layout: which places each part shows; see `batching.context`.
        loss: `tokens`: each target weighs 1. `segments`: the targets of each segment weigh 1 together, so
            that a long segment counts no more than a short one.
    """

    seq_len: int
    patches_per_row: int = 0
    patch_values: int = 768
    context_parts: int = 1
    context_layout: ContextLayout = "contiguous"
    loss: Loss = "tokens"


@dataclass(frozen=True, kw_only=True)
class Segments:
    """Where the segments of some rows go, in order of (row, offset).

    Attributes:
        row: int32 `[segments]`, row of the batch that is assembled, from 0.
        offset: int32 `[segments]`, first place in the row.
        length: int32 `[segments]`, places, at least 1.
        num_patches: int64 `[segments]`, patches reserved.
        factor: float32 `[segments]`, at least 0: what the weights of a segment's targets are multiplied by;
            None for 1.
        first_patch: int64 `[segments]`, place of each segment's first patch in the slots of the whole batch;
            None where patches stay with their rows.
    """

    row: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    num_patches: np.ndarray
    factor: np.ndarray | None = None
    first_patch: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class Slots:
    """The part of the encoder's batch that a process holds, and where patches go in it.

    Attributes:
        num_slots: slots.
        patches_per_slot: patches in each.
        slot: int32 `[images]`, from 0, increasing.
        first: int32 `[images]`, place of the first patch in its slot.
        num_patches: int32 `[images]`, patches reserved.
    """

    num_slots: int
    patches_per_slot: int
    slot: np.ndarray
    first: np.ndarray
    num_patches: np.ndarray


def field_shapes(
    form: RowFormat, num_rows: int, slots: tuple[int, int] = (0, 0)
) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and dtype of every field of a batch of `num_rows` rows.

    Args:
        form: the rows.
        num_rows: rows.
        slots: slots of the encoder's batch and patches in each; zeros where patches stay with their rows.
    """
    places = (num_rows, form.seq_len)
    fields: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
    for name in ("tokens", "targets", "segment_ids", "positions"):
        fields[name] = (places, np.dtype(np.int32))
    fields["loss_mask"] = (places, np.dtype(np.float32))
    if form.patches_per_row:
        fields["patch_index"] = (places, np.dtype(np.int32))
        patches = slots if slots[0] else (num_rows, form.patches_per_row)
        fields["patches"] = ((*patches, form.patch_values), np.dtype(np.uint8))
    if slots[0]:
        fields["patch_segment_ids"] = (slots, np.dtype(np.int32))
    return fields


def counts(lengths: np.ndarray) -> np.ndarray:
    """int64: 0 .. n-1 for each n of `lengths`, one after the other."""
    lengths = lengths.astype(np.int64)
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) - np.repeat(ends - lengths, lengths)
