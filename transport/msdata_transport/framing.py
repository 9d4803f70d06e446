# pyright: strict, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# (msgpack has no types)
"""What a message looks like on the wire; no I/O here.

A head is a fixed little-endian prefix, then msgpack of `[kind, header, [[dtype, shape], ...]]`. The bytes of
the arrays travel raw after it. Rule of this file: every number that came from outside is compared with its
bound before anything of that size is made, and whatever breaks a rule is a `BadFrame`, never another error.
"""

import math
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import msgpack
import numpy as np

from msdata_transport.endpoint import Message
from msdata_transport.errors import BadFrame

_PREFIX = struct.Struct("<4sHHII")  # magic, version, reserved (0), bytes of msgpack, number of arrays
_MAGIC = b"MSDT"
_VERSION = 1
_MAX_KIND = 64
_MAX_DIMS = 32
_MAX_DEPTH = 32

_SCALARS = (int, float, str, bytes, type(None))  # bool is an int; msgpack refuses ints of over 64 bits
_SCALAR_TYPES = frozenset((*_SCALARS, bool))

HEAD_MIN_BYTES = _PREFIX.size

_NAMES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
DTYPES: dict[str, np.dtype[Any]] = {d.str: d for d in (np.dtype(name).newbyteorder("<") for name in _NAMES)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds of one message, the same on every rank. A decoded head takes up to some 70 times its bytes."""

    max_head_bytes: int = 64 << 20
    max_arrays: int = 65536
    max_array_bytes: int = 2 << 30
    max_message_bytes: int = 8 << 30

    def __post_init__(self) -> None:
        if not HEAD_MIN_BYTES < self.max_head_bytes < 1 << 32:
            raise ValueError(
                f"max_head_bytes must be over {HEAD_MIN_BYTES}, under 2**32: {self.max_head_bytes}"
            )
        if min(self.max_arrays, self.max_array_bytes, self.max_message_bytes) < 0:
            raise ValueError(f"limits cannot be negative: {self}")


DEFAULT_LIMITS = Limits()


class ArraySpec(NamedTuple):
    """An array before its bytes: what to allocate and how many bytes follow."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    num_bytes: int

    def allocate(self) -> np.ndarray:
        return np.empty(self.shape, self.dtype)


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """A message before its arrays."""

    kind: str
    header: dict[str, Any]
    arrays: tuple[ArraySpec, ...]


def encode_head(message: Message, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """Check a message and encode all of it but the bytes of its arrays.

    Raises:
        BadFrame: the message breaks a bound or holds what cannot be sent; says which and how.
    """
    _check_kind(message.kind)
    header = dict(message.header)
    _check_plain(header, 0)
    _bound("arrays in a message", len(message.arrays), limits.max_arrays)
    described = [_describe(index, array) for index, array in enumerate(message.arrays)]
    specs = [_spec(index, dtype, shape, limits) for index, (dtype, shape) in enumerate(described)]
    _bound(
        "bytes in all arrays of a message", sum(spec.num_bytes for spec in specs), limits.max_message_bytes
    )
    parts = [message.kind, header, described]
    try:
        body = cast("bytes", msgpack.packb(parts))
    except (TypeError, ValueError, OverflowError) as error:
        raise BadFrame(f"msgpack cannot carry the header of {message.kind!r}: {error}") from error
    _bound("bytes in a head", _PREFIX.size + len(body), limits.max_head_bytes)
    return _PREFIX.pack(_MAGIC, _VERSION, 0, len(body), len(specs)) + body


def decode_head(data: bytes | bytearray | memoryview, limits: Limits = DEFAULT_LIMITS) -> Head:
    """Decode what `encode_head` made.

    Raises:
        BadFrame: the bytes are no head of ours or break a bound; says which and how.
    """
    _bound("bytes in a head", len(data), limits.max_head_bytes)
    if len(data) < _PREFIX.size:
        raise BadFrame(f"a head has at least {_PREFIX.size} bytes, got {len(data)}")
    magic, version, reserved, body_bytes, num_arrays = _PREFIX.unpack_from(data)
    if magic != _MAGIC or reserved != 0:
        raise BadFrame(f"a head begins with {_MAGIC!r}, got {magic!r} (reserved {reserved})")
    if version != _VERSION:
        raise BadFrame(
            f"this side speaks version {_VERSION}, the peer {version}; run one version on all ranks"
        )
    if body_bytes != len(data) - _PREFIX.size:
        raise BadFrame(f"the head says {body_bytes} bytes follow its prefix, {len(data) - _PREFIX.size} do")
    _bound("arrays in a message", num_arrays, limits.max_arrays)
    kind, header, listed = _three_parts(_unpack(bytes(data[_PREFIX.size :])))
    if len(listed) != num_arrays:
        raise BadFrame(f"the head counts {num_arrays} arrays and lists {len(listed)}")
    specs = tuple(_spec(index, *_described(index, item), limits) for index, item in enumerate(listed))
    _bound(
        "bytes in all arrays of a message", sum(spec.num_bytes for spec in specs), limits.max_message_bytes
    )
    return Head(kind=kind, header=header, arrays=specs)


def copy_message(message: Message, limits: Limits = DEFAULT_LIMITS) -> Message:
    """The message as a receiver gets it: through the wire format, with arrays of its own.

    Raises:
        BadFrame: as `encode_head`.
    """
    head = decode_head(encode_head(message, limits), limits)
    arrays = tuple(np.array(array, copy=True, order="C", subok=False) for array in message.arrays)
    return Message(kind=head.kind, header=head.header, arrays=arrays)


def byte_view(array: np.ndarray) -> np.ndarray:
    """The bytes of a C-contiguous array that is not empty, without a copy."""
    return array.reshape(-1).view(np.uint8)


def _unpack(body: bytes) -> object:
    """Unpack msgpack that may be anything.

    A container of msgpack is allocated from the length it claims, so nested false claims of a short body
    could ask for gigabytes. `skip` makes nothing as it walks, and fails if a claim has no bytes behind it.
    """
    num_bytes = len(body)
    try:
        walker = msgpack.Unpacker(max_buffer_size=max(num_bytes, 1))
        walker.feed(body)
        walker.skip()
        if walker.tell() != num_bytes:
            raise BadFrame(f"{num_bytes - walker.tell()} bytes trail the message of {walker.tell()}")
        unpack = cast("Callable[..., object]", msgpack.unpackb)
        return unpack(body, strict_map_key=True, max_ext_len=0, ext_hook=_refuse_ext)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise BadFrame(f"the head is not msgpack: {type(error).__name__} {error}".rstrip()) from error


def _refuse_ext(code: int, data: bytes) -> object:
    raise BadFrame(f"extension types of msgpack are not allowed, got code {code} of {len(data)} bytes")


def _three_parts(value: object) -> tuple[str, dict[str, Any], list[object]]:
    match value:
        case [str(kind), dict(header), list(listed)]:
            _check_kind(kind)
            fields = cast("dict[str, Any]", header)
            _check_plain(fields, 0)
            return kind, fields, cast("list[object]", listed)
        case _:
            raise BadFrame("a head holds [kind, header, arrays], got something else")


def _check_kind(kind: object) -> None:
    if not isinstance(kind, str):
        raise BadFrame(f"a kind is a str, got {type(kind).__name__}")
    _bound("characters in a kind", len(kind), _MAX_KIND)


def _check_plain(value: object, depth: int) -> None:
    """Refuse header values that would not arrive as they were sent; a tuple passes, and arrives as a list."""
    if isinstance(value, _SCALARS):
        return
    _bound("levels of nesting in a header", depth, _MAX_DEPTH)
    if isinstance(value, dict):
        pairs = cast("dict[object, object]", value)
        for key in pairs:
            if not isinstance(key, str):
                raise BadFrame(f"keys in a header are str, got {type(key).__name__}")
        _check_items(pairs.values(), depth + 1)
    elif isinstance(value, (list, tuple)):
        _check_items(cast("list[object]", value), depth + 1)
    else:
        raise BadFrame(f"a header holds plain values (see Message), got {type(value).__name__}")


def _check_items(values: Iterable[object], depth: int) -> None:
    for value in values:
        if type(value) not in _SCALAR_TYPES:  # most are, and the loop over a long list is what costs
            _check_plain(value, depth)


def _describe(index: int, array: object) -> tuple[str, tuple[int, ...]]:
    """(dtype, shape) of an array that can be sent."""
    # Not isinstance: a masked array would lose its mask on the way.
    if type(array) is not np.ndarray and type(array) is not np.memmap:
        raise BadFrame(f"array {index} must be a numpy.ndarray, got {type(array).__name__}")
    array = cast("np.ndarray", array)
    if not array.flags.c_contiguous:
        raise BadFrame(f"array {index} of shape {array.shape} is not C-contiguous; use np.ascontiguousarray")
    return array.dtype.str, array.shape


def _described(index: int, item: object) -> tuple[str, tuple[int, ...]]:
    """(dtype, shape) that a peer sent, without trust."""
    match item:
        case [str(dtype), [*shape]]:
            pass
        case _:
            raise BadFrame(f"array {index} is described by [dtype, shape], got something else")
    for dim in cast("list[object]", shape):
        if type(dim) is not int or dim < 0:
            raise BadFrame(f"array {index}: a dimension is an integer from 0 up, got {str(dim)[:32]}")
    return dtype, tuple(cast("list[int]", shape))


def _spec(index: int, dtype: str, shape: tuple[int, ...], limits: Limits) -> ArraySpec:
    known = DTYPES.get(dtype)
    if known is None:
        raise BadFrame(f"array {index} has dtype {dtype[:16]!r}, which is not sent; view it as uint8")
    if len(shape) > _MAX_DIMS:
        raise BadFrame(f"too many dimensions of array {index}: {len(shape)}, at most {_MAX_DIMS}")
    num_bytes = math.prod(shape) * known.itemsize
    # numpy multiplies the dimensions other than 0 even where one is 0, so their product is bounded.
    extent = num_bytes or math.prod(dim for dim in shape if dim) * known.itemsize
    if extent > limits.max_array_bytes:
        raise BadFrame(f"too many bytes in array {index}: {extent}, at most {limits.max_array_bytes}")
    return ArraySpec(known, shape, num_bytes)


def _bound(rule: str, value: int, bound: int) -> None:
    if value > bound:
        raise BadFrame(f"too many {rule}: {value}, at most {bound}")
