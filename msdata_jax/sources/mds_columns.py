"""The columns of MDS: what the bytes of a sample mean. Pickled ones are refused, not read."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

_SCALARS = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64"),
    )
}
_DTYPE_CODES = {
    code: _SCALARS[name]
    for code, name in (
        *((8, "uint8"), (9, "int8"), (16, "uint16"), (17, "int16"), (18, "float16"), (32, "uint32")),
        *((33, "int32"), (34, "float32"), (64, "uint64"), (65, "int64"), (66, "float64")),
    )
}
_SIZE_BYTES = 4
_MAX_DIMS = 63


@dataclass(frozen=True)
class Columns:
    """The columns of a shard.

    Attributes:
        names: of all columns, in the order in which they are stored.
        sizes: bytes of each column; None where every sample says it.
        decoders: of the columns that are wanted, None for others.
    """

    names: tuple[str, ...]
    sizes: tuple[int | None, ...]
    decoders: tuple[Callable[[bytes], Any] | None, ...]

    def decode(self, sample: bytes) -> dict[str, Any]:
        """The wanted values of a sample.

        Raises:
            ValueError: the bytes do not fit the columns; says which.
        """
        num_told = sum(size is None for size in self.sizes)
        told = iter(np.frombuffer(sample[: _SIZE_BYTES * num_told], f"<u{_SIZE_BYTES}").tolist())
        sizes = [next(told, 0) if size is None else size for size in self.sizes]
        start = _SIZE_BYTES * num_told
        if start + sum(sizes) != len(sample):
            raise ValueError(f"has {len(sample)} bytes, its columns take {start + sum(sizes)}")
        record = {}
        for name, size, decode in zip(self.names, sizes, self.decoders, strict=True):
            if decode is not None:
                try:
                    record[name] = decode(sample[start : start + size])
                except (ValueError, ArithmeticError, RecursionError) as error:
                    raise ValueError(
                        f"has a damaged column {name!r}: {error or type(error).__name__}"
                    ) from error
            start += size
        return record


def read_columns(
    names: Sequence[str], encodings: Sequence[str], sizes: Sequence[int | None], wanted: Sequence[str] | None
) -> Columns:
    """The columns that an index describes, with decoders for the wanted ones (None: all).

    Raises:
        ValueError: the lists do not fit each other, an encoding is not supported, or a column is missing.
    """
    if not len(names) == len(encodings) == len(sizes) or len(set(names)) < len(names):
        raise ValueError(f"{len(names)} names of columns, {len(encodings)} encodings, {len(sizes)} sizes")
    if missing := sorted(set(wanted or ()) - set(names)):
        raise ValueError(f"has the columns {sorted(names)}, Source.options asks for {missing}")
    decoders = []
    for name, encoding, size in zip(names, encodings, sizes, strict=True):
        if size is not None and not (isinstance(size, int) and 0 <= size < 2**32):
            raise ValueError(f"the column {name!r} has the size {size!r}, not a number of bytes or null")
        is_wanted = wanted is None or name in wanted
        decoders.append(_decoder(name, encoding) if is_wanted else None)
    # As in the library, a size of 0 says as little as none.
    return Columns(tuple(names), tuple(size or None for size in sizes), tuple(decoders))


def _decoder(name: str, encoding: str) -> Callable[[bytes], Any]:
    if encoding == "pkl":
        raise ValueError(
            f"the column {name!r} is pickled, and reading it would run code from the file; convert it, or "
            "name the other columns in options={'columns': (...)}"
        )
    kind, colon, rest = encoding.partition(":")
    if kind == "ndarray":
        return _array_decoder(rest)
    if colon or kind not in _DECODERS:
        raise ValueError(
            f"the column {name!r} has the encoding {encoding!r}, this reads {sorted(_DECODERS)} and ndarray"
        )
    return _DECODERS[kind]


def _array_decoder(told: str) -> Callable[[bytes], np.ndarray]:
    """Of `ndarray`, `ndarray:dtype` or `ndarray:dtype:2,3`; what is not told there, every value says."""
    dtype, _, shape = told.partition(":")
    if dtype and dtype not in _SCALARS:
        raise ValueError(f"there is no ndarray of {dtype!r}")
    dims = tuple(int(dim) for dim in shape.split(",")) if shape else None
    if dims is not None and (min(dims) < 1 or len(dims) > _MAX_DIMS):
        raise ValueError(f"there is no ndarray of shape {dims}")
    return partial(_array, dtype=_SCALARS.get(dtype), shape=dims)


def _array(value: bytes, *, dtype: np.dtype | None, shape: tuple[int, ...] | None) -> np.ndarray:
    at = 0
    if dtype is None:
        dtype = _DTYPE_CODES.get(value[0]) if value else None
        if dtype is None:
            raise ValueError(f"an array has the dtype code {value[:1]!r}")
        at = 1
    if shape is None:
        if len(value) <= at:
            raise ValueError("an array has no shape")
        num_dims, width = value[at] >> 2, 1 << (value[at] & 3)
        dims = value[at + 1 : at + 1 + num_dims * width]
        if len(dims) < num_dims * width:
            raise ValueError("the shape of an array is cut short")
        shape = tuple(np.frombuffer(dims, f"<u{width}").tolist())
        at += 1 + len(dims)
    if math.prod(shape) * dtype.itemsize != len(value) - at:
        raise ValueError(f"an array of {dtype} {shape} has {len(value) - at} bytes")
    return np.frombuffer(value, dtype, offset=at).reshape(shape).astype(dtype.newbyteorder("="))


def _scalar(value: bytes, *, dtype: np.dtype) -> Any:
    if len(value) != dtype.itemsize:
        raise ValueError(f"{len(value)} bytes are no {dtype}")
    return np.frombuffer(value, dtype)[0]


def _int(value: bytes) -> int:
    return int(_scalar(value, dtype=_SCALARS["int64"]))


def _text(value: bytes) -> str:
    return value.decode()


def _json(value: bytes) -> Any:
    return json.loads(value.decode())


def _str_int(value: bytes) -> int:
    return int(value.decode())


def _str_float(value: bytes) -> float:
    return float(value.decode())


def _str_decimal(value: bytes) -> Decimal:
    return Decimal(value.decode())


def _bytes_list(value: bytes, *, at: int) -> list[bytes]:
    """Values one after the other: from `at` on how many there are, and the bytes of each."""
    head = (
        np.frombuffer(value[at : at + _SIZE_BYTES], "<u4").tolist() if len(value) >= at + _SIZE_BYTES else []
    )
    start = at + _SIZE_BYTES + _SIZE_BYTES * (head[0] if head else 0)
    if not head or start > len(value):
        raise ValueError(f"a list of {head} values has {len(value)} bytes")
    sizes = np.frombuffer(value, "<u4", count=head[0], offset=at + _SIZE_BYTES)
    if start + int(sizes.sum(dtype=np.int64)) != len(value):
        raise ValueError(f"a list of {head[0]} values has {len(value)} bytes, they take others")
    bounds = np.cumsum([start, *sizes.tolist()]).tolist()
    return [value[first:last] for first, last in pairwise(bounds)]


def _same(value: bytes) -> bytes:
    return value


# Images stay encoded: DecodeImage is a transform. `pil` is width, height, mode and pixels.
_DECODERS: dict[str, Callable[[bytes], Any]] = {
    **{name: partial(_scalar, dtype=dtype) for name, dtype in _SCALARS.items()},
    **dict.fromkeys(("bytes", "jpeg", "png", "pil"), _same),
    **dict.fromkeys(("list[jpeg]", "list[png]", "list[pil]"), partial(_bytes_list, at=4)),
    **dict.fromkeys(("jpeg_array", "jpegarray"), partial(_bytes_list, at=0)),
    "str": _text,
    "int": _int,
    "json": _json,
    "str_int": _str_int,
    "str_float": _str_float,
    "str_decimal": _str_decimal,
}
