"""Samples to the rows of one process.

A batch has these fields, all over the same rows; `[row, place]` fields share one layout:

    tokens         int32   [rows, seq_len]   token ids; 0 where a patch is shown and in padding
    targets        int32   [rows, seq_len]   the next token of the same segment; 0 where there is none
    segment_ids    int32   [rows, seq_len]   from 1 in each row, 0 in padding
    positions      int32   [rows, seq_len]   place inside its segment, from 0
    loss_mask      float32 [rows, seq_len]   1 where `targets` is a token to predict
    patch_index    int32   [rows, seq_len]   which patch of the row is shown, -1 for none   (with images)
    patches        uint8   [rows, patches_per_row, patch_values]                            (with images)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from msdata_jax.records import IMAGE_TOKEN, Sample


@dataclass(frozen=True, kw_only=True)
class RowFormat:
    """Static shape of a row and the order of its places.

    Attributes:
        seq_len: places.
        patches_per_row: patches; 0 leaves the image fields out.
        patch_values: values of one patch.
        context_order: int64 `[seq_len]` order of places in emitted arrays, or None; see `context_order`.
    """

    seq_len: int
    patches_per_row: int = 0
    patch_values: int = 768
    context_order: np.ndarray | None = None


def field_shapes(form: RowFormat, num_rows: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and dtype of every field of a batch of `num_rows` rows."""
    places = (num_rows, form.seq_len)
    fields: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
    for name in ("tokens", "targets", "segment_ids", "positions"):
        fields[name] = (places, np.dtype(np.int32))
    fields["loss_mask"] = (places, np.dtype(np.float32))
    if form.patches_per_row:
        fields["patch_index"] = (places, np.dtype(np.int32))
        fields["patches"] = ((num_rows, form.patches_per_row, form.patch_values), np.dtype(np.uint8))
    return fields


@dataclass(frozen=True, kw_only=True)
class Segments:
    """Where the segments of some rows go, in order of (row, offset).

    Attributes:
        row: int32 `[segments]`, row of the batch that is assembled, from 0.
        offset: int32 `[segments]`, first place in the row.
        length: int32 `[segments]`, places.
        num_patches: int64 `[segments]`, patches reserved.
    """

    row: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    num_patches: np.ndarray


class RowAssembly:
    """Rows of one step that fill up as samples arrive, in any order."""

    def __init__(self, form: RowFormat, num_rows: int, segments: Segments) -> None:
        self._form, self._segments = form, segments
        self._fields = {
            name: np.zeros(shape, dtype) for name, (shape, dtype) in field_shapes(form, num_rows).items()
        }
        if form.patches_per_row:
            self._fields["patch_index"].fill(-1)
        self._image = np.zeros((num_rows, form.seq_len), dtype=bool)
        self._first_place = segments.row.astype(np.int64) * form.seq_len + segments.offset
        first_of_row = np.searchsorted(segments.row, segments.row)
        before = np.cumsum(segments.num_patches) - segments.num_patches
        self._first_patch = before - before[first_of_row]
        self._missing = np.ones(len(segments.row), dtype=bool)
        ids = np.arange(len(segments.row)) - first_of_row + 1
        places = self._places(np.arange(len(segments.row)))
        self._flat("segment_ids")[places] = np.repeat(ids, segments.length)
        self._flat("positions")[places] = _counts(segments.length)

    @property
    def complete(self) -> bool:
        """Whether every segment was written."""
        return not self._missing.any()

    def write(
        self, index: np.ndarray, tokens: np.ndarray, num_patches: np.ndarray, patches: np.ndarray
    ) -> None:
        """Write segments.

        Args:
            index: int `[k]`, which segments.
            tokens: int32 `[sum of their lengths]`, one after the other.
            num_patches: int `[k]`, patches of each.
            patches: uint8 `[sum(num_patches), patch_values]`.

        Raises:
            ValueError: sizes differ from what the plan announced, or a segment comes twice.
        """
        self._check(index, tokens, num_patches, patches)
        self._missing[index] = False
        places = self._places(index)
        shows_patch = tokens == IMAGE_TOKEN
        self._flat("tokens")[places] = np.where(shows_patch, 0, tokens)
        if not len(patches):
            return
        self._image.reshape(-1)[places] = shows_patch
        patch_of_row = np.repeat(self._first_patch[index], num_patches) + _counts(num_patches)
        self._flat("patch_index")[places[shows_patch]] = patch_of_row
        row = np.repeat(self._segments.row[index], num_patches)
        self._fields["patches"][row, patch_of_row] = patches

    def finish(self) -> dict[str, np.ndarray]:
        """The batch, with targets and loss mask, its places in context-parallel order."""
        fields, ids = self._fields, self._fields["segment_ids"]
        follows = (ids[:, :-1] == ids[:, 1:]) & (ids[:, 1:] > 0) & ~self._image[:, 1:]
        fields["targets"][:, :-1] = np.where(follows, fields["tokens"][:, 1:], 0)
        fields["loss_mask"][:, :-1] = follows
        order = self._form.context_order
        if order is None:
            return fields
        return {name: field if name == "patches" else field[:, order] for name, field in fields.items()}

    def _flat(self, name: str) -> np.ndarray:
        return self._fields[name].reshape(-1)

    def _places(self, index: np.ndarray) -> np.ndarray:
        length = self._segments.length[index]
        return np.repeat(self._first_place[index], length) + _counts(length)

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
        if (num_patches > self._segments.num_patches[index]).any() or int(num_patches.sum()) != len(patches):
            raise ValueError(
                f"segments with {self._segments.num_patches[index].tolist()} patches announced came with "
                f"{num_patches.tolist()}, {len(patches)} in all"
            )
        if len(patches) and patches.shape[1:] != (self._form.patch_values,):
            raise ValueError(
                f"patches have {patches.shape[1:]} values; pack(patch_values={self._form.patch_values})"
            )
        num_shown = int(np.count_nonzero(tokens == IMAGE_TOKEN))
        if num_shown != len(patches):
            raise ValueError(f"{num_shown} places show a patch and {len(patches)} patches came")


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


def join_samples(samples: Sequence[Sample], start: np.ndarray, length: np.ndarray) -> SampleBytes:
    """Cut `start : start + length` out of each sample, with the patches that those places show.

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
    return SampleBytes(
        tokens=np.concatenate(tokens) if tokens else np.empty(0, np.int32),
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


def _counts(lengths: np.ndarray) -> np.ndarray:
    """0 .. n-1 for each n of `lengths`, one after the other."""
    lengths = lengths.astype(np.int64)
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) - np.repeat(ends - lengths, lengths)
