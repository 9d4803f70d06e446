"""TFRecord: length and its checksum, bytes and their checksum. A pass over the lengths finds the records.

A file that ends between two records is whole: nothing in the format says how many there should be.
"""

import struct
from array import array
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from msdata_jax.errors import SourceError
from msdata_jax.sources.protocol import BadRecord, require
from msdata_jax.sources.storage import ByteFile, open_bytes
from msdata_jax.sources.tf_example import parse_example

_HEADER = struct.Struct("<QI")  # the length, and its checksum
_FOOTER = struct.Struct("<I")
_OVERHEAD_BYTES = _HEADER.size + _FOOTER.size
_MASK_DELTA = 0xA282EAD8
_PIECE_BYTES = 64 << 10
_NEAR_BYTES = 16 << 10
_PARSERS = ("example", "bytes")


@dataclass(frozen=True, kw_only=True)
class TfRecordFormat:
    """TFRecord, not compressed.

    Attributes:
        parse: what the bytes of a record are. `example`: a tf.train.Example, whose features become the
            record's values: float32 and int64 lists as 1-D arrays, one bytes value as bytes, several or none
            as a list. `bytes`: anything; the record is `{"record": bytes}`.
        max_record_bytes: a larger record is bad, and is not read into memory. A parsed one takes at most
            about 32 times its bytes.
        keep_damaged: set by the source's policy. A file that is cut short or has a broken length is an error
            when it is False; else its whole records are read, and one bad record stands for the rest.
    """

    parse: str = "example"
    max_record_bytes: int = 256 << 20
    keep_damaged: bool = False
    window_groups = 1

    def __post_init__(self) -> None:
        if self.parse not in _PARSERS or self.max_record_bytes < 0:
            raise SourceError(
                f"TfRecordFormat takes parse out of {_PARSERS} and max_record_bytes of at least 0, got "
                f"parse={self.parse!r}, max_record_bytes={self.max_record_bytes}; correct Source.options"
            )

    def index(self, path: str) -> "TfRecordFile":
        """Find the records. Raises SourceError where the first length does not have its checksum."""
        return TfRecordFile(path, self)


class TfRecordFile:
    """One file: where each record starts, and where the last one ends."""

    group_sizes = None

    def __init__(self, path: str, options: TfRecordFormat) -> None:
        self._path = path
        self._options = options
        self._checksum = require("google_crc32c", "tfrecord").value
        with closing(open_bytes(path)) as stream:
            self._starts, self._damage = self._find_records(stream)
        whole = len(self._starts) - 1
        if self._damage and not whole:
            raise SourceError(f"{path} is not a TFRecord file: {self._damage}; unpack it or write it again")
        if self._damage and not options.keep_damaged:
            raise SourceError(
                f"{path} {self._damage}, after {whole} records; write it again, or set on_bad_sample to "
                "'skip' or 'replace' to use the records before it"
            )

    def __len__(self) -> int:
        return len(self._starts) - 1 + bool(self._damage)

    def open(self) -> ByteFile:
        """The bytes of the file."""
        return open_bytes(self._path)

    def read(self, handle: ByteFile, indices: np.ndarray) -> list[Any]:
        """One pread and one checksum per record."""
        return [self._read_one(handle, index) for index in indices.tolist()]

    def _read_one(self, handle: ByteFile, index: int) -> Any:
        if index == len(self._starts) - 1:
            return BadRecord(f"the file {self._damage}; this record and all after it are lost")
        start, end = self._starts[index : index + 2].tolist()
        size = end - start - _OVERHEAD_BYTES
        if size > self._options.max_record_bytes:
            return BadRecord(
                f"the record at byte {start} has {size} bytes, max_record_bytes is "
                f"{self._options.max_record_bytes}"
            )
        found = handle.pread(start + _HEADER.size, size + _FOOTER.size)
        if len(found) < size + _FOOTER.size:
            return BadRecord(f"the record at byte {start} is cut short: the file has shrunk")
        encoded = found[:size]
        if _FOOTER.unpack_from(found, size)[0] != self._masked(encoded):
            return BadRecord(f"the record at byte {start} does not have its checksum")
        if self._options.parse == "bytes":
            return {"record": encoded}
        try:
            return parse_example(encoded)
        except ValueError as error:
            return BadRecord(
                f"the record at byte {start} is no tf.train.Example: {error}; parse='bytes' reads others"
            )

    def _masked(self, content: bytes) -> int:
        """CRC-32C, turned and shifted so that a checksum of checksums is none of itself."""
        checksum = self._checksum(content)
        return ((checksum >> 15 | checksum << 17) + _MASK_DELTA) & 0xFFFFFFFF

    def _find_records(self, stream: ByteFile) -> tuple[np.ndarray, str]:
        """Where the whole records start and the last ends, and what is wrong behind it ("" for nothing)."""
        starts, damage = array("q", [0]), ""
        window = _Window(stream)
        while not damage and starts[-1] < stream.size:
            start, header = starts[-1], window.read(starts[-1], _HEADER.size)
            if len(header) < _HEADER.size:
                damage = f"is cut short at byte {start}, within a header"
                break
            size, checksum = _HEADER.unpack(header)
            end = start + _OVERHEAD_BYTES + size
            if checksum != self._masked(header[:8]):
                damage = f"has a length without its checksum at byte {start}{_kind_of(header)}"
            elif end > stream.size:
                damage = (
                    f"is cut short: the record at byte {start} has {size} bytes, {stream.size - start} follow"
                )
            else:
                starts.append(end)
        return np.asarray(starts), damage


class _Window:
    """Small reads in rising order: where they are near each other, one larger read serves several."""

    def __init__(self, stream: ByteFile) -> None:
        self._stream = stream
        self._bytes = b""
        self._start = self._last = 0

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset` on, fewer at the end of the file."""
        place = offset - self._start
        if place + size > len(self._bytes):
            wanted = _PIECE_BYTES if offset - self._last < _NEAR_BYTES else size
            self._start, self._bytes, place = offset, self._stream.pread(offset, wanted), 0
        self._last = offset
        return self._bytes[place : place + size]


def _kind_of(header: bytes) -> str:
    if header[:2] == b"\x1f\x8b":
        return " (it is gzip)"
    return " (it is zlib)" if header[:1] == b"\x78" else ""
