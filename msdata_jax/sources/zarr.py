"""Zarr (v2, v3) and N5 by tensorstore: an array's first axis is its records, or flat tokens with offsets.

A folder of one array gives its rows. A group of arrays with equally many rows gives records with a value of
each. A group with the arrays `tokens` and `offsets` (where each record begins, and the end) gives records of
unequal lengths, cut out of `tokens` and of the other arrays, which have as many rows. What is decoded at a
time is all chunks of the rows that one chunk has.
"""

import hashlib
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from msdata_jax.errors import SourceError
from msdata_jax.sources.decoded import DecodedGroups
from msdata_jax.sources.protocol import BadRecord, require
from msdata_jax.sources.storage import is_remote
from msdata_jax.sources.zarr_array import Column, OpenArray
from msdata_jax.sources.zarr_metadata import find_arrays

_GROUP_BYTES = 4 << 20
_OFFSET_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class ZarrFormat:
    """Zarr v2, Zarr v3 and N5, on local disks. The axes of N5 are in the order of its metadata.

    Attributes:
        name: of the value where the folder is a single array.
        columns: names of the arrays of a group to read; None for all.
        offsets: the array of a group that says where the records of the array `tokens` begin, if it is there.
        allow_gaps: accept offsets that do not begin at 0 or end before the tokens do. Without, it is an
            error, which finds offsets that were cut short.
        fill_missing: a chunk that is not stored has the array's fill value, as the format says. Without, its
            records are bad, since nothing tells it from a chunk that was lost.
        max_chunk_bytes: decoded chunks of one row; more is an error. An index of a shard has as many at most.
        max_record_bytes: a larger record is bad, and its memory is not asked for.
        max_index_bytes: of the offsets, which stay in memory.
        cache_bytes: decoded chunks that are kept, over all arrays of the source.
        window_groups: how many groups of at least 4 MiB a shuffle mixes; `cache_bytes` should hold as many.
    """

    name: str = "tokens"
    columns: tuple[str, ...] | None = None
    offsets: str = "offsets"
    allow_gaps: bool = False
    fill_missing: bool = False
    max_chunk_bytes: int = 256 << 20
    max_record_bytes: int = 256 << 20
    max_index_bytes: int = 1 << 30
    cache_bytes: int = 256 << 20
    window_groups: int = 4
    groups: DecodedGroups = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sizes = (self.max_chunk_bytes, self.max_record_bytes, self.max_index_bytes, self.cache_bytes)
        if isinstance(self.columns, str) or self.window_groups < 1 or min(sizes) < 0:
            raise SourceError(
                "ZarrFormat takes columns as a tuple of names, window_groups of at least 1 and sizes of at "
                f"least 0, got columns={self.columns!r}, window_groups={self.window_groups}, sizes {sizes}"
            )
        require("tensorstore", "tensorstore")
        object.__setattr__(self, "groups", DecodedGroups(self.cache_bytes))

    def index(self, path: str) -> "ZarrRecords":
        """Read the metadata, and the offsets. Raises SourceError where they do not fit each other."""
        if is_remote(path):
            raise SourceError(f"{path}: Zarr and N5 are read from local disks only; copy the folder")
        return ZarrRecords(path, self)


class ZarrRecords:
    """One array or group."""

    def __init__(self, path: str, options: ZarrFormat) -> None:
        self._path = path
        self._options = options
        folders = find_arrays(path, options.name)
        is_ragged = options.offsets in folders and "tokens" in folders
        names = self._choose(sorted(folders.keys() - {options.offsets} if is_ragged else folders))
        arrays = {name: OpenArray(name, folders[name], options.fill_missing) for name in names}
        self._columns = {name: array.column(options.max_chunk_bytes) for name, array in arrays.items()}
        num_rows = self._count_rows()
        self._offsets: np.ndarray | None = None
        if is_ragged:
            offsets = OpenArray(options.offsets, folders[options.offsets], options.fill_missing)
            self._offsets = self._read_offsets(offsets, num_rows)
        self._num_records = num_rows if self._offsets is None else len(self._offsets) - 1
        self.group_sizes = self._group_sizes()

    def _choose(self, names: list[str]) -> list[str]:
        chosen = list(names if self._options.columns is None else self._options.columns)
        if not chosen or not set(names) >= set(chosen):
            raise SourceError(f"{self._path} has the arrays {names}, Source.options asks for {chosen}")
        return chosen

    def _count_rows(self) -> int:
        counts = {column.name: column.num_rows for column in self._columns.values()}
        if len(set(counts.values())) > 1:
            raise SourceError(
                f"{self._path} has arrays with unequal numbers of rows, {counts}; name those that belong "
                "together by Source.options={'columns': (...)}"
            )
        return next(iter(counts.values()))

    def _read_offsets(self, array: OpenArray, num_rows: int) -> np.ndarray:
        where = f"{self._path}: the array {self._options.offsets!r}"
        column, limit = array.column(self._options.max_chunk_bytes), self._options.max_index_bytes
        size = _OFFSET_BYTES * column.num_rows
        if column.row_shape or not size or column.dtype.kind not in "iu" or size > limit:
            raise SourceError(
                f"{where} takes one axis of at least 1 integer, and {limit} bytes (max_index_bytes) at most, "
                f"got {column.num_rows} rows of the shape {column.row_shape} of {column.dtype}"
            )
        offsets = np.empty(column.num_rows, np.int64)
        for start in range(0, column.num_rows, column.rows):
            found = array.decode(start, min(column.num_rows, start + column.rows))
            if isinstance(found, BadRecord):
                raise SourceError(f"{where} cannot be read: {found.reason}; write it again")
            offsets[start : start + column.rows] = found  # 2**63 and more become negative, and are refused
        if offsets[0] < 0 or offsets[-1] > num_rows or (offsets[1:] < offsets[:-1]).any():
            raise SourceError(
                f"{where} must not decrease, and goes from 0 to {num_rows}, the number of tokens; it goes "
                f"from {offsets[0]} to {offsets[-1]} and {_first_decrease(offsets)}; write it again"
            )
        if (offsets[0] > 0 or offsets[-1] < num_rows) and not self._options.allow_gaps:
            raise SourceError(
                f"{where} goes from {offsets[0]} to {offsets[-1]}, there are {num_rows} tokens; write it "
                "again, or give options={'allow_gaps': True} if the rest is no data"
            )
        return offsets

    def _group_sizes(self) -> np.ndarray:
        """Records per group: of the array with the longest chunks one, or several where they are small."""
        widest = max(self._columns.values(), key=lambda column: column.rows)
        rows = widest.rows * -(-_GROUP_BYTES // (widest.rows * widest.row_bytes))
        if self._offsets is None:
            whole, rest = divmod(self._num_records, rows)
            return np.array([rows] * whole + [rest] * bool(rest), np.int64)
        counts = np.bincount(self._offsets[:-1] // rows)
        return counts[counts > 0].astype(np.int64)

    def __len__(self) -> int:
        return self._num_records

    def content_digest(self) -> bytes:
        """Of names, dtypes and shapes, the offsets, and the first and the last record."""
        digest = hashlib.blake2b(digest_size=16)
        for name, column in sorted(self._columns.items()):
            digest.update(f"{name} {column.dtype} {column.num_rows} {column.row_shape}\n".encode())
        if self._offsets is not None:
            digest.update(self._offsets.data)
        ends = np.array([0, len(self) - 1][: len(self)], np.int64)
        for record in self.read(self.open(), ends):
            if isinstance(record, BadRecord):
                digest.update(b"bad\n")
            else:
                for name in sorted(record):
                    digest.update(record[name].tobytes())
        return digest.digest()

    def open(self) -> "OpenArrays":
        """The opened arrays. Raises SourceError where they are others than when this was indexed."""
        arrays = {}
        for name, column in self._columns.items():
            arrays[name] = OpenArray(name, column.folder, self._options.fill_missing)
            if arrays[name].metadata != column.metadata:
                raise SourceError(
                    f"{column.folder.path}: the metadata changed since the source was opened; write new data "
                    "under new names"
                )
        return OpenArrays(arrays)

    def read(self, handle: "OpenArrays", indices: np.ndarray) -> list[Any]:
        """Each chunk that is touched is decoded once; all its records are bad where that fails."""
        records: list[Any] = [None] * len(indices)
        reading = _Reading(self, handle)
        for place in np.argsort(indices, kind="stable").tolist():
            records[place] = self._read_one(reading, int(indices[place]))
        return records

    def _read_one(self, reading: "_Reading", index: int) -> Any:
        start, stop = index, index + 1
        if self._offsets is not None:
            start, stop = self._offsets[index : index + 2].tolist()
        size = sum(column.row_bytes for column in self._columns.values()) * (stop - start)
        if size > self._options.max_record_bytes:
            return BadRecord(
                f"a record has {size} bytes, max_record_bytes is {self._options.max_record_bytes}"
            )
        record = {}
        for name, column in self._columns.items():
            rows = reading.rows(column, start, stop)
            if isinstance(rows, BadRecord):
                return rows
            record[name] = rows if self._offsets is not None else rows[0, ...]
        return record

    def decoded(self, handle: "OpenArrays", column: Column, chunk: int) -> Any:
        """The rows of a chunk, or a BadRecord. What several threads want of an array is done once."""
        key = (self._path, column.name, chunk)
        with handle.locks[column.name]:
            decoded = self._options.groups.get(key)
            if decoded is None:
                start = chunk * column.rows
                decoded = handle.arrays[column.name].decode(start, min(column.num_rows, start + column.rows))
                if not isinstance(decoded, BadRecord):
                    self._options.groups.put(key, decoded)
            return decoded


class OpenArrays:
    """The arrays of a folder, opened. They hold no descriptors between reads."""

    def __init__(self, arrays: dict[str, OpenArray]) -> None:
        self.arrays = arrays
        self.locks = {name: threading.Lock() for name in arrays}

    def close(self) -> None:
        """Let the arrays go."""
        self.arrays.clear()


class _Reading:
    """One call of `read`; keeps the last chunk of each array at hand, also where the cache is too small."""

    def __init__(self, records: ZarrRecords, handle: OpenArrays) -> None:
        self._records = records
        self._handle = handle
        self._at_hand: dict[str, tuple[int, Any]] = {}

    def rows(self, column: Column, start: int, stop: int) -> "np.ndarray | BadRecord":
        """A copy of some rows, so that a record does not keep its chunks in memory."""
        found = np.empty((stop - start, *column.row_shape), column.dtype)
        for chunk in range(start // column.rows, -(-stop // column.rows) if stop > start else 0):
            if self._at_hand.get(column.name, (-1, None))[0] != chunk:
                self._at_hand[column.name] = chunk, self._records.decoded(self._handle, column, chunk)
            decoded = self._at_hand[column.name][1]
            if isinstance(decoded, BadRecord):
                return decoded
            first = chunk * column.rows
            begin, end = max(start, first), min(stop, first + column.rows)
            found[begin - start : end - start] = decoded[begin - first : end - first]
        return found


def _first_decrease(offsets: np.ndarray) -> str:
    places = np.flatnonzero(offsets[1:] < offsets[:-1])
    return f"decreases first at {places[0] + 1}" if len(places) else "decreases nowhere"
