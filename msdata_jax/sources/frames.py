"""What a child process sends to its parent: a prefix, a msgpack header, then the raw bytes of arrays.

The child may have gone wild before it wrote them, so every number is compared with its bound before anything
of that size is made. No pickle.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import numpy as np

from msdata_jax.records import BadSample, Block, Sample

PREFIX = struct.Struct("<4sIQ")  # magic, bytes of the header, bytes of the arrays
_MAGIC = b"MSDC"
MAX_HEADER_BYTES = 64 << 20
MAX_BODY_BYTES = 8 << 30

Receive = Callable[[memoryview], None]
"""Fills a view with the bytes that come next."""


class BrokenFrame(Exception):
    """The bytes are none that `encode` made."""


def encode(header: dict[str, Any], arrays: Sequence[np.ndarray] = ()) -> list[memoryview]:
    """The pieces of a frame, the arrays without a copy.

    Raises:
        BrokenFrame: more bytes than a frame may have.
    """
    packed = pack(header)
    views = [array.data.cast("B") for array in arrays if array.nbytes]
    num_bytes = sum(view.nbytes for view in views)
    if len(packed) > MAX_HEADER_BYTES or num_bytes > MAX_BODY_BYTES:
        raise BrokenFrame(f"a block of {num_bytes} bytes is too large, give the source a smaller block_size")
    return [memoryview(PREFIX.pack(_MAGIC, len(packed), num_bytes) + packed), *views]


def receive_header(receive: Receive) -> tuple[dict[str, Any], int]:
    """The header of the next frame, and how many bytes of arrays follow it.

    Raises:
        BrokenFrame: no frame, or one that breaks a bound.
    """
    prefix = bytearray(PREFIX.size)
    receive(memoryview(prefix))
    magic, header_bytes, body_bytes = PREFIX.unpack(prefix)
    if magic != _MAGIC or header_bytes > MAX_HEADER_BYTES or body_bytes > MAX_BODY_BYTES:
        raise BrokenFrame(f"a frame begins with {magic!r}, {header_bytes} and {body_bytes} bytes")
    packed = bytearray(header_bytes)
    receive(memoryview(packed))
    header = unpack(packed)
    if not isinstance(header, dict):
        raise BrokenFrame(f"the header is a {type(header).__name__}")
    return header, body_bytes


def pack(value: Any) -> bytes:
    """Plain values as msgpack."""
    return msgpack.packb(value, unicode_errors="surrogatepass")  # type: ignore[return-value]


def unpack(packed: bytes | bytearray) -> Any:
    """What `pack` packed. Raises BrokenFrame."""
    try:
        return msgpack.unpackb(packed, strict_map_key=False, unicode_errors="surrogatepass")
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise BrokenFrame(f"the header is no msgpack: {error}") from error


def describe_block(block: Block) -> tuple[dict[str, Any], list[np.ndarray]]:
    """A block as header and arrays: the infos, the tokens of all samples, the patches of each."""
    shapes = [
        [len(each["tokens"]), *(each["patches"].shape if "patches" in each else (0, 0))]
        for each in block.samples
    ]
    header = {
        "range": [block.start, block.stop],
        "shapes": shapes,
        "bad": [[each.position, each.reason, each.by_luck] for each in block.bad],
        "verdicts": list(block.verdicts.items()),
    }
    tokens = [np.concatenate([each["tokens"] for each in block.samples])] if block.samples else []
    patches = [each["patches"] for each in block.samples if "patches" in each]
    return header, [block.infos.view(np.uint8), *tokens, *patches]


def receive_block(header: dict[str, Any], num_bytes: int, dtype: np.dtype, receive: Receive) -> Block:
    """The block of a header; every sample owns its arrays.

    Raises:
        BrokenFrame: the header does not fit the number of bytes.
    """
    try:
        start, stop = header["range"]
        shapes = np.array(header["shapes"], np.int64).reshape(-1, 3)
        bad = [BadSample(position=p, reason=reason, by_luck=luck) for p, reason, luck in header["bad"]]
        verdicts = dict(header["verdicts"])
        read_seconds = float(header.get("read_seconds", 0.0))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BrokenFrame(f"the header is of no block: {error!r}") from error
    expected = len(shapes) * dtype.itemsize + sum(4 * t + p * v for t, p, v in shapes.tolist())
    if (shapes < 0).any() or expected != num_bytes:
        raise BrokenFrame(f"a block of {expected} bytes comes with {num_bytes}")
    infos = np.empty(len(shapes), dtype)
    _fill(infos.view(np.uint8), receive)
    samples = _receive_samples(receive, shapes)
    return Block(
        start=start,
        stop=stop,
        infos=infos,
        samples=samples,
        bad=bad,
        verdicts=verdicts,
        read_seconds=read_seconds,
    )


def _receive_samples(receive: Receive, shapes: np.ndarray) -> list[Sample]:
    tokens = np.empty(int(shapes[:, 0].sum()), np.int32)
    _fill(tokens, receive)
    ends = np.cumsum(shapes[:, 0])[:-1]
    samples: list[Sample] = (
        [{"tokens": part.copy()} for part in np.split(tokens, ends)] if len(shapes) else []
    )
    for sample, (_, num_patches, num_values) in zip(samples, shapes.tolist(), strict=True):
        if num_patches:
            sample["patches"] = np.empty((num_patches, num_values), np.uint8)
            _fill(sample["patches"], receive)
    return samples


def _fill(array: np.ndarray, receive: Receive) -> None:
    if array.nbytes:
        receive(array.data.cast("B"))
