"""Zarr (v2, v3) and N5 by tensorstore: an array's first axis is its records, or flat tokens with offsets.

A folder of one array gives its rows. A group of arrays with equally many rows gives records with a value of
each. A group with the arrays `tokens` (flat) and `offsets` (where each record begins, and the end) gives
records of unequal lengths. What is decoded at a time is all chunks of the rows that one chunk has.
"""

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from msdata_jax.errors import SourceError
from msdata_jax.sources.decoded import DecodedGroups
from msdata_jax.sources.feistel import MAX_RECORDS
from msdata_jax.sources.protocol import BadRecord, is_transient, one_line, require, says_transient
from msdata_jax.sources.storage import is_remote
from msdata_jax.sources.zarr_metadata import find_arrays

_GROUP_BYTES = 4 << 20
_MAX_GROUPS = 1 << 22
_ERRORS = (
    ValueError,
    OSError,
    KeyError,
    IndexError,
    TypeError,
    NotImplementedError,
    MemoryError,
    RuntimeError,
)


@dataclass(frozen=True, kw_only=True)
class ZarrFormat:
    """Zarr v2, Zarr v3 and N5, on local disks.

    Attributes:
        name: of the value where the folder is a single array.
        columns: names of the arrays of a group to read; None for all.
        offsets: the array of a group that says where the records of the array `tokens` begin, if it is there.
        fill_missing: a chunk that is not stored has the array's fill value, as the format says. Without, its
            records are bad, since nothing tells it from a chunk that was lost.
        max_chunk_bytes: decoded rows of one chunk, over the array's other axes; a larger one is an error.
        max_record_bytes: a larger record is bad, and its memory is not asked for.
        max_index_bytes: of the offsets, which stay in memory.
        cache_bytes: decoded chunks that are kept, over all arrays of the source.
        window_groups: how many groups of at least 4 MiB a shuffle mixes; `cache_bytes` should hold as many.
    """

    name: str = "tokens"
    columns: tuple[str, ...] | None = None
    offsets: str = "offsets"
    fill_missing: bool = False
    max_chunk_bytes: int = 256 << 20
    max_record_bytes: int = 256 << 20
    max_index_bytes: int = 1 << 30
    cache_bytes: int = 256 << 20
    window_groups: int = 4
    groups: DecodedGroups = field(init=False, repr=False, compare=False)
    context: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.columns, str) or self.window_groups < 1 or self.cache_bytes < 0:
            raise SourceError(
                "ZarrFormat takes columns as a tuple of names, window_groups of at least 1 and cache_bytes of "
                f"at least 0, got columns={self.columns!r}, window_groups={self.window_groups}, "
                f"cache_bytes={self.cache_bytes}"
            )
        limits = {"data_copy_concurrency": {"limit": 1}, "file_io_concurrency": {"limit": 2}}
        tensorstore = require("tensorstore", "tensorstore")
        context = tensorstore.Context({"cache_pool": {"total_bytes_limit": 0}, **limits})
        object.__setattr__(self, "groups", DecodedGroups(self.cache_bytes))
        object.__setattr__(self, "context", context)

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
        self._arrays = find_arrays(path, options.name)
        opened = self.open()
        stores = opened.arrays
        if options.offsets in stores and "tokens" in stores:
            self._columns: Mapping[str, _Column] = {"tokens": self._column("tokens", stores["tokens"])}
            self._offsets: np.ndarray | None = self._read_offsets(stores[options.offsets])
            starts = self._offsets[:-1]
        else:
            chosen = self._chosen(stores)
            self._columns = {name: self._column(name, stores[name]) for name in chosen}
            self._offsets = None
            starts = range(self._count_rows())
        self._num_records = len(starts)
        self.group_sizes = self._group_sizes()

    def _chosen(self, stores: Mapping[str, Any]) -> list[str]:
        chosen = list(stores if self._options.columns is None else self._options.columns)
        if not chosen or not stores.keys() >= set(chosen):
            raise SourceError(
                f"{self._path} has the arrays {sorted(stores)}, Source.options asks for {sorted(chosen)}"
            )
        return chosen

    def _column(self, name: str, store: Any) -> "_Column":
        where = f"{self._path}: the array {name!r}"
        dtype = np.dtype(store.dtype.numpy_dtype)
        shape, chunk = tuple(map(int, store.shape)), store.chunk_layout.read_chunk.shape
        if not shape or dtype.hasobject:
            raise SourceError(
                f"{where} has the shape {shape} and holds {dtype}; it takes numbers and an axis"
            )
        row_bytes = dtype.itemsize
        for size in shape[1:]:
            row_bytes *= size
        rows = max(1, min(int(chunk[0]), shape[0]))
        chunk_bytes, index_bytes = _decoded_bytes(shape, dtype.itemsize, store.chunk_layout)
        limit = self._options.max_chunk_bytes
        if max(chunk_bytes, index_bytes, rows * row_bytes) > limit:
            raise SourceError(
                f"{where} of shape {shape} has chunks of {tuple(chunk)}: {chunk_bytes} bytes are decoded for a "
                f"record, and {index_bytes} for the index of a shard, max_chunk_bytes is {limit}; write it with "
                "smaller ones"
            )
        if shape[0] > MAX_RECORDS or shape[0] * row_bytes // _GROUP_BYTES > _MAX_GROUPS:
            raise SourceError(f"{where} says that it has the shape {shape}; that is more than can be stored")
        return _Column(name, shape[0], rows, row_bytes)

    def _count_rows(self) -> int:
        counts = {column.name: column.num_rows for column in self._columns.values()}
        if len(set(counts.values())) > 1:
            raise SourceError(
                f"{self._path} has arrays with unequal numbers of rows, {counts}; name those that belong "
                "together by Source.options={'columns': (...)}"
            )
        return next(iter(counts.values()))

    def _read_offsets(self, store: Any) -> np.ndarray:
        where = f"{self._path}: the array {self._options.offsets!r}"
        shape, limit = tuple(map(int, store.shape)), self._options.max_index_bytes
        dtype = np.dtype(store.dtype.numpy_dtype)
        if len(shape) != 1 or shape[0] < 1 or dtype.kind not in "iu" or 8 * shape[0] > limit:
            raise SourceError(
                f"{where} takes one axis of at least 1 integer, and {limit} bytes (max_index_bytes) at most, "
                f"got the shape {shape} of {dtype}"
            )
        self._column(self._options.offsets, store)  # its chunks are bounded too
        try:
            found = np.asarray(store.read().result())
        except _ERRORS as error:
            raise SourceError(f"{where} cannot be read: {one_line(error, [self._path])}") from error
        num_tokens = self._columns["tokens"].num_rows
        offsets = found.astype(np.int64)
        if (np.diff(offsets) < 0).any() or offsets[0] < 0 or offsets[-1] > num_tokens:
            raise SourceError(
                f"{where} must not decrease and ends at {num_tokens} at most, the number of tokens; it goes "
                f"from {offsets[0]} to {offsets[-1]}; write it again"
            )
        return offsets

    def _group_sizes(self) -> np.ndarray | None:
        """Records per group: whole chunks, and several where they are small."""
        widest = max(self._columns.values(), key=lambda column: column.rows)
        rows = widest.rows * max(1, -(-_GROUP_BYTES // max(1, widest.rows * widest.row_bytes)))
        if self._offsets is not None:
            counts = np.bincount(self._offsets[:-1] // rows) if self._num_records else np.zeros(0, np.int64)
            return counts[counts > 0].astype(np.int64)
        whole, rest = divmod(self._num_records, rows)
        return np.array([rows] * whole + [rest] * bool(rest), np.int64)

    def __len__(self) -> int:
        return self._num_records

    def content_digest(self) -> bytes:
        """Of the metadata, the first and the last record."""
        digest = hashlib.blake2b(digest_size=16)
        for name, array in sorted(self._arrays.items()):
            digest.update(f"{name}\n{array.metadata}\n".encode())
        ends = np.array([0, len(self) - 1][: len(self)], np.int64)
        for record in self.read(self.open(), ends):
            found = record.reason if isinstance(record, BadRecord) else record
            digest.update(found.encode() if isinstance(found, str) else _bytes_of(found))
        return digest.digest()

    def open(self) -> "OpenArrays":
        """The opened arrays. Raises SourceError where tensorstore refuses them."""
        tensorstore = require("tensorstore", "tensorstore")
        missing = {"fill_missing_data_reads": self._options.fill_missing}
        stores = {}
        for name, array in self._arrays.items():
            spec = {
                "driver": array.driver,
                "kvstore": {"driver": "file", "path": f"{array.path}/"},
                **missing,
            }
            try:
                opened = tensorstore.open(spec, open=True, read=True, context=self._options.context)
                stores[name] = opened.result()
            except _ERRORS as error:
                raise SourceError(
                    f"{self._path}: the array {name!r} cannot be opened: {one_line(error, [array.path])}"
                ) from error
        return OpenArrays(stores)

    def read(self, handle: "OpenArrays", indices: np.ndarray) -> list[Any]:
        """Each chunk that is touched is decoded once; all its records are bad where that fails."""
        records: list[Any] = [None] * len(indices)
        at_hand: dict[str, tuple[int, Any]] = {}
        for place in np.argsort(indices, kind="stable").tolist():
            index = int(indices[place])
            start, stop = (
                (index, index + 1) if self._offsets is None else self._offsets[index : index + 2].tolist()
            )
            records[place] = self._read_one(_Reading(self, handle, at_hand), start, stop)
        return records

    def _read_one(self, reading: "_Reading", start: int, stop: int) -> Any:
        size = sum(column.row_bytes for column in self._columns.values()) * (stop - start)
        if size > self._options.max_record_bytes:
            return BadRecord(
                f"a record has {size} bytes, max_record_bytes is {self._options.max_record_bytes}"
            )
        record = {}
        for name, column in self._columns.items():
            parts = reading.rows(column, start, stop)
            if isinstance(parts, BadRecord):
                return parts
            # copies, so that a record does not keep its chunk in memory
            record[name] = np.concatenate(parts) if self._offsets is not None else np.array(parts[0][0])
        return record

    def decoded(self, handle: "OpenArrays", column: "_Column", chunk: int) -> Any:
        """The rows of a chunk, or a BadRecord."""
        key = (self._path, column.name, chunk)
        with handle.lock:
            decoded = self._options.groups.get(key)
            if decoded is not None:
                return decoded
            start = chunk * column.rows
            stop = min(column.num_rows, start + column.rows)
            try:
                decoded = np.asarray(handle.arrays[column.name][start:stop].read().result())
            except _ERRORS as error:
                text = one_line(error, [self._path])
                return BadRecord(
                    f"rows {start} to {stop - 1} of {column.name!r} cannot be decoded: {text}",
                    transient=is_transient(error) or says_transient(text),
                )
            self._options.groups.put(key, decoded)
            return decoded


@dataclass(frozen=True)
class _Column:
    """An array: its rows, the rows of a chunk, and the bytes of a row."""

    name: str
    num_rows: int
    rows: int
    row_bytes: int


class OpenArrays:
    """The arrays of a folder, opened."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self.arrays = arrays
        self.lock = threading.Lock()

    def close(self) -> None:
        """Nothing stays open between reads; the arrays go with the object."""


@dataclass(frozen=True)
class _Reading:
    """One call of `read`; keeps the last chunk of each array at hand, also where the cache is too small."""

    records: ZarrRecords
    handle: OpenArrays
    at_hand: dict[str, tuple[int, Any]]

    def rows(self, column: _Column, start: int, stop: int) -> Any:
        """The rows of each chunk that has some; no rows are one empty part."""
        parts = []
        last = max(start, stop - 1)
        for chunk in range(start // column.rows, last // column.rows + 1):
            if start == stop == column.num_rows:  # no rows, and behind the last chunk
                chunk = max(0, (start - 1) // column.rows)
            if self.at_hand.get(column.name, (-1, None))[0] != chunk:
                self.at_hand[column.name] = chunk, self.records.decoded(self.handle, column, chunk)
            decoded = self.at_hand[column.name][1]
            if isinstance(decoded, BadRecord):
                return decoded
            begin = chunk * column.rows
            parts.append(decoded[max(0, start - begin) : max(0, stop - begin)])
        return parts


def _decoded_bytes(shape: tuple[int, ...], item_bytes: int, layout: Any) -> tuple[int, int]:
    """What is decoded for the rows of one chunk, over the other axes, and the index of a shard.

    A chunk has its full shape on disk, also where the array ends before it does.
    """
    chunk = tuple(map(int, layout.read_chunk.shape))
    chunk_bytes = item_bytes * chunk[0]
    for size, width in zip(shape[1:], chunk[1:], strict=True):
        chunk_bytes *= -(-size // width) * width
    num_inner = 1
    for outer, inner in zip(layout.write_chunk.shape, chunk, strict=True):
        num_inner *= -(-int(outer) // inner)
    return chunk_bytes, 16 * num_inner


def _bytes_of(record: Mapping[str, np.ndarray]) -> bytes:
    return b"".join(np.ascontiguousarray(value).tobytes() for value in record.values())
