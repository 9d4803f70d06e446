"""Samples to the rows of one process: fills the fields of `batching.rows` as samples arrive."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from msdata_jax.batching.context import place_order
from msdata_jax.batching.rows import RowFormat as RowFormat
from msdata_jax.batching.rows import Segments as Segments
from msdata_jax.batching.rows import Slots as Slots
from msdata_jax.batching.rows import counts
from msdata_jax.batching.rows import field_shapes as field_shapes
from msdata_jax.records import IMAGE_TOKEN, Sample

Payload: TypeAlias = Literal["all", "tokens", "patches"]
NOT_BY_PLACE = ("patches", "patch_segment_ids")
"""Fields that are not over the places of rows."""


class RowAssembly:
    """Rows of one step that fill up as samples arrive, in any order.

    Args:
        form: the rows' shape.
        num_rows: rows.
        segments: where samples go.
        slots: where patches go; None where they stay with their rows.
    """

    def __init__(
        self, form: RowFormat, num_rows: int, segments: Segments, slots: Slots | None = None
    ) -> None:
        self._form, self._segments, self._slots = form, segments, slots
        slot_shape = (slots.num_slots, slots.patches_per_slot) if slots else (0, 0)
        shapes = field_shapes(form, num_rows, slot_shape)
        self._fields = {name: np.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()}
        self._missing_images = np.ones(len(slots.slot) if slots else 0, dtype=bool)
        if form.patches_per_row:
            self._fields["patch_index"].fill(-1)
        self._image = np.zeros((num_rows, form.seq_len), dtype=bool)
        self._first_place = segments.row.astype(np.int64) * form.seq_len + segments.offset
        first_of_row = np.searchsorted(segments.row, segments.row)
        before = np.cumsum(segments.num_patches) - segments.num_patches
        in_row = before - before[first_of_row]
        self._first_patch = in_row if segments.first_patch is None else segments.first_patch
        self._missing = np.ones(len(segments.row), dtype=bool)
        ids = np.arange(len(segments.row)) - first_of_row + 1
        places = self._places(np.arange(len(segments.row)))
        self._flat("segment_ids")[places] = np.repeat(ids, segments.length)
        self._flat("positions")[places] = counts(segments.length)

    @property
    def complete(self) -> bool:
        """Whether every segment and every image was written."""
        return not self._missing.any() and not self._missing_images.any()

    def write(
        self, index: np.ndarray, tokens: np.ndarray, num_patches: np.ndarray, patches: np.ndarray
    ) -> None:
        """Write segments.

        Args:
            index: int `[k]`, which segments.
            tokens: int32 `[sum of their lengths]`, one after the other.
            num_patches: int `[k]`, patches that each shows.
            patches: uint8 `[sum(num_patches), patch_values]`; none where they go to slots.

        Raises:
            ValueError: sizes differ from what the plan announced, or a segment comes twice.
        """
        self._check(index, tokens, num_patches, patches)
        self._missing[index] = False
        places = self._places(index)
        shows_patch = tokens == IMAGE_TOKEN
        self._flat("tokens")[places] = np.where(shows_patch, 0, tokens)
        if not num_patches.any():
            return
        self._image.reshape(-1)[places] = shows_patch
        patch_of_row = np.repeat(self._first_patch[index], num_patches) + counts(num_patches)
        self._flat("patch_index")[places[shows_patch]] = patch_of_row
        if self._slots is None:
            row = np.repeat(self._segments.row[index], num_patches)
            self._fields["patches"][row, patch_of_row] = patches

    def is_missing(self, index: np.ndarray, *, for_slots: bool = False) -> np.ndarray:
        """Which segments (or images of `Slots`) are not written yet: bool `[k]`."""
        return (self._missing_images if for_slots else self._missing)[index]

    def write_patches(self, index: np.ndarray, num_patches: np.ndarray, patches: np.ndarray) -> None:
        """Write images into the slots of this process.

        Args:
            index: int `[k]`, which of the images of `Slots`.
            num_patches: int `[k]`, patches of each.
            patches: uint8 `[sum(num_patches), patch_values]`.

        Raises:
            ValueError: sizes differ from what the plan announced, or an image comes twice.
        """
        slots = self._slots
        if slots is None or not self._missing_images[index].all() or len(np.unique(index)) != len(index):
            raise ValueError("an image was written twice, or has no slot")
        self._check_patches(num_patches, slots.num_patches[index], patches)
        self._missing_images[index] = False
        if not len(patches):
            return
        slot = np.repeat(slots.slot[index], num_patches)
        place = np.repeat(slots.first[index], num_patches) + counts(num_patches)
        self._fields["patches"][slot, place] = patches
        number = index - np.searchsorted(slots.slot, slots.slot[index]) + 1
        self._fields["patch_segment_ids"][slot, place] = np.repeat(number, num_patches)

    def finish(self) -> dict[str, np.ndarray]:
        """The batch, with targets and their weights, its places in context-parallel order."""
        fields, ids = self._fields, self._fields["segment_ids"]
        num_rows, seq_len = ids.shape
        has_target = np.zeros(ids.shape, dtype=bool)
        has_target[:, :-1] = (ids[:, :-1] == ids[:, 1:]) & (ids[:, 1:] > 0) & ~self._image[:, 1:]
        fields["targets"][:, :-1] = np.where(has_target[:, :-1], fields["tokens"][:, 1:], 0)
        fields["loss_mask"][:] = has_target
        self._weigh(has_target.reshape(-1))
        order = place_order(self._form, self._segments, num_rows)
        if order is None:
            return fields
        flat = (order + seq_len * np.arange(num_rows)[:, None]).reshape(-1)  # the rows one after the other
        return {
            name: field if name in NOT_BY_PLACE else field.reshape(-1)[flat].reshape(field.shape)
            for name, field in fields.items()
        }

    def _weigh(self, has_target: np.ndarray) -> None:
        """Multiply the loss mask of each segment by the segment's weight, in float32."""
        segments = self._segments
        weight = np.ones(len(segments.row), dtype=np.float32)
        if self._form.loss == "segments" and len(weight):
            num_targets = np.add.reduceat(has_target, self._first_place, dtype=np.int64)
            weight /= np.maximum(num_targets, 1).astype(np.float32)
        if segments.factor is not None:
            weight *= segments.factor
        elif self._form.loss == "tokens":
            return
        self._flat("loss_mask")[self._places(np.arange(len(weight)))] *= np.repeat(weight, segments.length)

    def _flat(self, name: str) -> np.ndarray:
        return self._fields[name].reshape(-1)

    def _places(self, index: np.ndarray) -> np.ndarray:
        length = self._segments.length[index]
        return np.repeat(self._first_place[index], length) + counts(length)

    def _check(
        self, index: np.ndarray, tokens: np.ndarray, num_patches: np.ndarray, patches: np.ndarray
    ) -> None:
        if not self._missing[index].all() or len(np.unique(index)) != len(index):
            raise ValueError("a segment was written twice")
        if len(num_patches) != len(index):
            raise ValueError(f"{len(index)} segments came with patch counts of {len(num_patches)}")
        announced = int(self._segments.length[index].sum())
        if len(tokens) != announced:
            raise ValueError(f"segments of {announced} places in all came with {len(tokens)} tokens")
        num_shown = int(np.count_nonzero(tokens == IMAGE_TOKEN))
        if self._slots is None:
            self._check_patches(num_patches, self._segments.num_patches[index], patches)
        if num_shown != int(num_patches.sum()):
            raise ValueError(f"{num_shown} places show a patch and {int(num_patches.sum())} patches came")

    def _check_patches(self, num_patches: np.ndarray, announced: np.ndarray, patches: np.ndarray) -> None:
        if (num_patches > announced).any() or int(num_patches.sum()) != len(patches):
            raise ValueError(
                f"segments with {announced.tolist()} patches announced came with "
                f"{num_patches.tolist()}, {len(patches)} in all"
            )
        if len(patches) and patches.shape[1:] != (self._form.patch_values,):
            raise ValueError(
                f"patches have {patches.shape[1:]} values; pack(patch_values={self._form.patch_values})"
            )


@dataclass(frozen=True, kw_only=True)
class SampleBytes:
    """Parts of samples, one after the other, as they travel.

    Attributes:
        tokens: int32, the used tokens of each.
        num_patches: int32 `[k]`.
        patches: uint8 `[sum(num_patches), patch_values]`.
    """

    tokens: np.ndarray
    num_patches: np.ndarray
    patches: np.ndarray


def join_samples(
    samples: Sequence[Sample], start: np.ndarray, length: np.ndarray, what: Payload = "all"
) -> SampleBytes:
    """Cut `start : start + length` out of each sample, with the patches that those places show.

    Args:
        samples: the samples.
        start: int `[samples]`.
        length: int `[samples]`.
        what: `tokens` leaves the patches themselves out, `patches` the tokens.

    Raises:
        ValueError: patches of different samples differ in size, so that no row can hold both.
    """
    tokens, patches = [], []
    for sample, first, count in zip(samples, start.tolist(), length.tolist(), strict=True):
        tokens.append(sample["tokens"][first : first + count])
        patches.append(_patches_of_places(sample, first, count))
    with_patches = [part for part in patches if len(part)]
    widths = sorted({part.shape[1] for part in with_patches})
    if len(widths) > 1:
        raise ValueError(f"patches have {widths} values; all sources of a recipe cut images alike")
    with_tokens = tokens if what != "patches" else []
    with_patches = with_patches if what != "tokens" else []
    return SampleBytes(
        tokens=np.concatenate(with_tokens) if with_tokens else np.empty(0, np.int32),
        num_patches=np.array([len(part) for part in patches], dtype=np.int32),
        patches=np.concatenate(with_patches) if with_patches else np.empty((0, 0), np.uint8),
    )


def _patches_of_places(sample: Sample, first: int, count: int) -> np.ndarray:
    patches = sample.get("patches")
    if patches is None:
        return np.empty((0, 0), np.uint8)
    if count == len(sample["tokens"]):
        return patches
    shows_patch = sample["tokens"] == IMAGE_TOKEN
    before = int(shows_patch[:first].sum())
    return patches[before : before + int(shows_patch[first : first + count].sum())]
