"""What every loader does with a record, and what a training process sees of a batch.

A record is bytes: source, number in it, and kind as three int32, then a payload. A text has uint16 tokens as
its payload, an image has a JPEG. The first two tokens of a sample are its source and number, so that whoever
gets the batch knows what is in it. Nothing here depends on a loader.
"""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

SEQ_LEN = 2048
IMAGE_SIDE, PATCH_SIDE = 224, 14
NUM_PATCHES = (IMAGE_SIDE // PATCH_SIDE) ** 2
PATCH_VALUES = PATCH_SIDE * PATCH_SIDE * 3
IMAGE_TOKEN = -1  # as in msdata_jax, which other loaders' environments lack
TEXT, IMAGE = 0, 1
HEADER_BYTES = 12
PAGE_BYTES = 4096


def encode(source: int, number: int, kind: int, payload: bytes) -> bytes:
    """A record."""
    return np.array([source, number, kind], np.int32).tobytes() + payload


def decode(record: bytes) -> dict[str, np.ndarray]:
    """The sample of a record.

    Returns:
        `tokens` int32 `[tokens]`, at most `SEQ_LEN`, `IMAGE_TOKEN` where a patch is shown; of images also
        `patches` uint8 `[256, 588]`.
    """
    source, number, kind = np.frombuffer(record, np.int32, 3).tolist()
    payload = memoryview(record)[HEADER_BYTES:]
    if kind == IMAGE:
        tokens = np.full(2 + NUM_PATCHES, IMAGE_TOKEN, np.int32)
        sample = {"tokens": tokens, "patches": patches_of(payload)}
    else:
        words = np.frombuffer(payload, np.uint16)[: SEQ_LEN - 2]
        tokens = np.empty(2 + len(words), np.int32)
        tokens[2:] = words
        sample = {"tokens": tokens}
    tokens[:2] = source, number
    return sample


def patches_of(jpeg: memoryview) -> np.ndarray:
    """uint8 `[256, 588]`: the image at 224 by 224, cut into squares of 14."""
    from PIL import Image

    image = Image.open(io.BytesIO(jpeg)).convert("RGB")
    pixels = np.asarray(image.resize((IMAGE_SIDE, IMAGE_SIDE), Image.Resampling.BILINEAR))
    across = IMAGE_SIDE // PATCH_SIDE
    # [row of squares, row, column of squares, column, colour]
    squares = pixels.reshape(across, PATCH_SIDE, across, PATCH_SIDE, 3)
    return squares.transpose(0, 2, 1, 3, 4).reshape(NUM_PATCHES, PATCH_VALUES)


def collate(samples: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """A batch, padded to its longest sample.

    Returns:
        `tokens` int32 `[samples, longest]`, `lengths` int32 `[samples]`, and `patches` uint8
        `[images, 256, 588]`.
    """
    lengths = np.array([len(sample["tokens"]) for sample in samples], np.int32)
    tokens = np.zeros((len(samples), lengths.max()), np.int32)
    for row, sample in zip(tokens, samples, strict=True):
        row[: len(sample["tokens"])] = sample["tokens"]
    patches = [sample["patches"] for sample in samples if "patches" in sample]
    stacked = np.stack(patches) if patches else np.zeros((0, NUM_PATCHES, PATCH_VALUES), np.uint8)
    return {"tokens": tokens, "lengths": lengths, "patches": stacked}


def collate_tensors(samples: Sequence[dict[str, np.ndarray]]) -> dict[str, Any]:
    """The same as torch tensors."""
    import torch

    return {name: torch.from_numpy(array) for name, array in collate(samples).items()}


def collate_records(records: Sequence[bytes]) -> dict[str, Any]:
    """A batch of torch tensors, from records."""
    return collate_tensors([decode(record) for record in records])


def samples_of(batch: Any) -> tuple[np.ndarray, np.ndarray]:
    """What is in a batch of `collate`.

    Returns:
        source and number of each sample, `[samples, 2]`; lengths in tokens, `[samples]`.
    """
    return np.asarray(batch["tokens"])[:, :2].copy(), np.asarray(batch["lengths"]).copy()


def touch(batch: Any) -> int:
    """Read a value of every page of a batch, as whoever sends it to a device touches all of them."""
    arrays = [np.asarray(array) for array in batch.values()]
    return sum(int(np.ravel(array)[:: PAGE_BYTES // array.itemsize].sum()) for array in arrays)
