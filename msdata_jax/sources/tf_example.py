"""The wire format of tf.train.Example -> names and values, without TensorFlow or protobuf.

An Example is a map from names to lists of one kind: bytes, float32 or int64. Fields that it does not have are
skipped, fields that come twice are merged, and of a name that comes twice the last value counts, as in
protobuf. Groups, which protobuf gave up before Example was made, and entries that are more than a name and a
value are refused.
"""

from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np

MAX_FEATURES = 1 << 16
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES = 10
_PIECE_BYTES = 64 << 10
_FEW_BYTES = 64


def parse_example(encoded: bytes) -> dict[str, Any]:
    """The features of an Example: float32 and int64 lists as 1-D arrays, bytes as bytes.

    A list of exactly one bytes value is that value, any other a list of bytes. Features of no kind are left
    out. The result takes at most about 32 times the bytes of the input.

    Raises:
        ValueError: the bytes are no Example; says why.
    """
    features: dict[str, Any] = {}
    for number, kind, message in _fields(memoryview(encoded)):
        if number == 2 and kind == _BYTES:
            raise ValueError("it is a SequenceExample; read it with parse='bytes' and a transform")
        if number != 1 or kind != _BYTES:
            continue
        for inner, inner_kind, entry in _fields(message):
            if inner == 1 and inner_kind == _BYTES:
                name, value = _entry(entry)
                features[name] = value
                if len(features) > MAX_FEATURES:
                    raise ValueError(f"it has more than {MAX_FEATURES} features")
    return {name: value for name, value in features.items() if value is not None}


def _entry(entry: memoryview) -> tuple[str, Any]:
    """Name and value of an entry of the map."""
    name, feature = "", memoryview(b"")
    for number, kind, value in _fields(entry):
        if kind == _BYTES and number == 1:
            name = str(value, "utf-8")  # UnicodeDecodeError is a ValueError
        elif kind == _BYTES and number == 2:
            feature = _merged(feature, value)
        else:
            raise ValueError(f"an entry of its map has a field {number} of the kind {kind}")
    return name, _feature(feature)


def _feature(feature: memoryview) -> Any:
    """The values of a Feature, None where it has no kind. Of several kinds the last counts."""
    which, values = 0, memoryview(b"")
    for number, kind, value in _fields(feature):
        if kind == _BYTES and number in _LISTS:
            if which not in (0, number):
                _LISTS[which](values)  # what does not count has to be whole, too
                values = memoryview(b"")
            which, values = number, _merged(values, value)
    return _LISTS[which](values) if which else None


def _merged(message: memoryview, more: memoryview) -> memoryview:
    """Messages one after the other are one message with the fields of both."""
    return memoryview(b"".join((message, more))) if message and more else message or more


def _bytes_list(message: memoryview) -> Any:
    values = [bytes(value) for number, kind, value in _fields(message) if number == 1 and kind == _BYTES]
    return values[0] if len(values) == 1 else values


def _float_list(message: memoryview) -> np.ndarray:
    encoded = bytearray()
    for number, kind, value in _fields(message):
        if number == 1 and kind in (_BYTES, _FIXED32):
            if len(value) % 4:
                raise ValueError(f"a list of float32 has {len(value)} bytes")
            encoded += value
    return np.frombuffer(encoded, "<f4").astype(np.float32, copy=False)


def _int64_list(message: memoryview) -> np.ndarray:
    values = array("Q")
    for number, kind, value in _fields(message):
        if number == 1 and kind == _VARINT:
            values.append(value)
        elif number == 1 and kind == _BYTES:
            _extend(values, value)
    return np.frombuffer(values, np.int64)


def _extend(values: "array[int]", packed: memoryview) -> None:
    if len(packed) > _FEW_BYTES:
        values.frombytes(_packed_varints(packed).view(np.uint8).data)
        return
    at = 0
    while at < len(packed):
        value, at = _varint(packed, at)
        values.append(value)


_LISTS = {1: _bytes_list, 2: _float_list, 3: _int64_list}


def _packed_varints(packed: memoryview) -> np.ndarray:
    """Varints one after the other -> uint64, a piece at a time: little memory is in use beside them."""
    data = np.frombuffer(packed, np.uint8)
    values = np.zeros(np.count_nonzero(data < 128), np.uint64)
    at = done = 0
    while at < len(data):
        piece = data[at : at + _PIECE_BYTES]
        ends = np.flatnonzero(piece < 128)  # of each number the last byte, which has no high bit
        if not len(ends):
            raise ValueError("the last number of a list of int64 is cut short")
        starts = np.concatenate([[0], ends[:-1] + 1])
        sizes = ends - starts + 1
        if sizes.max() > _MAX_VARINT_BYTES:
            raise ValueError(f"a number has more than {_MAX_VARINT_BYTES} bytes")
        into = values[done : done + len(ends)]
        for place in range(int(sizes.max())):
            has = sizes > place
            into[has] |= (piece[starts[has] + place].astype(np.uint64) & np.uint64(127)) << np.uint64(
                7 * place
            )
        done += len(ends)
        at += int(ends[-1]) + 1
    return values


def _fields(message: memoryview) -> Iterator[tuple[int, int, Any]]:
    """Number, kind and value of each field: an int below 2**64 of a varint, else the bytes."""
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise ValueError(f"a field has the number {number}")
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, kind, value
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in _FIXED_SIZES:
            size = _FIXED_SIZES[kind]
        else:
            raise ValueError(f"field {number} is of the kind {kind}, which is not in use")
        if size > end - at:
            raise ValueError(f"field {number} has {size} bytes, {end - at} are left")
        yield number, kind, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number below 2**64, and where it ends."""
    if at < len(message) and message[at] < 128:
        return message[at], at + 1
    value = 0
    for place, byte in enumerate(message[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, at + place + 1
    raise ValueError("a number is cut short or has more than 10 bytes")
