"""One array of Zarr or N5: opened by tensorstore, and bounded before anything is decoded."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from msdata_jax.errors import SourceError
from msdata_jax.sources.feistel import MAX_RECORDS
from msdata_jax.sources.forking import ForkUnsafeError
from msdata_jax.sources.protocol import BadRecord, is_transient, one_line, require, says_transient
from msdata_jax.sources.zarr_chunks import INDEX_ENTRY_BYTES, ChunkFiles, Shapes, is_readable
from msdata_jax.sources.zarr_metadata import ArrayFolder

MAX_ARRAY_BYTES = 1 << 44
_ERRORS = (ValueError, LookupError, TypeError, RuntimeError, OSError)  # what tensorstore raises
_CONTEXTS: dict[int, Any] = {}


@dataclass(frozen=True)
class Column:
    """What is known of an array without its values.

    Attributes:
        name: for people and for records.
        folder: where it is.
        dtype: of its values.
        num_rows: along the first axis.
        row_shape: the other axes.
        rows: of a chunk.
        metadata: as tensorstore has read them.
    """

    name: str
    folder: ArrayFolder
    dtype: np.dtype
    num_rows: int
    row_shape: tuple[int, ...]
    rows: int
    metadata: Mapping[str, Any]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, at least 1."""
        return self.dtype.itemsize * math.prod(self.row_shape)


class OpenArray:
    """An array that is open.

    Args:
        name: for people.
        folder: where it is.
        fill_missing: chunks that are not stored have the fill value.

    Raises:
        SourceError: tensorstore refuses it.
    """

    def __init__(self, name: str, folder: ArrayFolder, fill_missing: bool) -> None:
        self._name = name
        self._folder = folder
        spec = {
            "driver": folder.driver,
            "kvstore": {"driver": "file", "path": f"{folder.path}/"},
            "fill_missing_data_reads": fill_missing,
        }
        try:
            opened = _tensorstore().open(spec, open=True, read=True, context=_shared_context())
            self._store = opened.result()
            self.metadata: Mapping[str, Any] = self._store.spec().to_json()["metadata"]
        except _ERRORS as error:
            raise SourceError(
                f"{folder.path}: the array cannot be opened: {_words(error, folder)}"
            ) from error
        self._files = ChunkFiles(folder, self.metadata, self._shapes())

    def column(self, max_chunk_bytes: int) -> Column:
        """What the array is. Raises SourceError where it is none of numbers, or more than can be decoded."""
        where = f"{self._folder.path}: the array"
        shapes, dtype = self._shapes(), self._dtype
        shape, chunk = shapes.array, shapes.chunk
        if not shape or dtype.hasobject or dtype.kind not in "biufcV" or not dtype.itemsize or 0 in shape[1:]:
            raise SourceError(
                f"{where} has the shape {shape} of {dtype}; it takes numbers, at least one axis, and rows "
                "that have values"
            )
        if not is_readable(self.metadata):
            raise SourceError(
                f"{where} has shards in its shards, or an index of a shard with other codecs than bytes and "
                "crc32c; write it without"
            )
        rows = max(1, min(chunk[0], shape[0]))
        column = Column(self._name, self._folder, dtype, shape[0], shape[1:], rows, self.metadata)
        chunk_bytes = max(shapes.decoded_bytes, rows * column.row_bytes)
        index_bytes = INDEX_ENTRY_BYTES * shapes.num_inner
        if max(chunk_bytes, index_bytes) > max_chunk_bytes:
            raise SourceError(
                f"{where} of shape {shape} has chunks of {chunk}: {chunk_bytes} bytes are decoded for a "
                f"record, and {index_bytes} for the index of a shard, max_chunk_bytes is {max_chunk_bytes}; "
                "write it with smaller ones"
            )
        if shape[0] > MAX_RECORDS or shape[0] * column.row_bytes > MAX_ARRAY_BYTES:
            raise SourceError(
                f"{where} says that it has the shape {shape} of {dtype}, {MAX_ARRAY_BYTES} bytes are "
                "allowed; split it, or correct the metadata"
            )
        return column

    def decode(self, start: int, stop: int) -> "np.ndarray | BadRecord":
        """The rows `start <= row < stop` of one chunk."""
        rows = f"rows {start} to {stop - 1} of {self._name!r} cannot be decoded"
        try:
            if fault := self._files.find_fault(start):
                return BadRecord(f"{rows}: {fault}")
            return np.asarray(self._store[start:stop].read().result())
        except _ERRORS as error:
            text = _words(error, self._folder)
            if "NOT_FOUND" in text:
                text = f"{text}; if it was left out as all of it is the fill value, set fill_missing"
            return BadRecord(f"{rows}: {text}", transient=is_transient(error) or says_transient(text))

    @property
    def _dtype(self) -> np.dtype:
        return np.dtype(self._store.dtype.numpy_dtype)

    def _shapes(self) -> Shapes:
        layout = self._store.chunk_layout
        # None for an array without axes
        chunk, shard = layout.read_chunk.shape or (), layout.write_chunk.shape or ()
        shape = tuple(map(int, self._store.shape))
        return Shapes(shape, tuple(map(int, chunk)), tuple(map(int, shard)), self._dtype.itemsize)


def _words(error: Exception, folder: ArrayFolder) -> str:
    """An error of tensorstore without the whole specification that it adds."""
    return one_line(error, [folder.path]).partition(" [tensorstore_spec=")[0]


def _tensorstore() -> Any:
    return require("tensorstore", "tensorstore")


def _shared_context() -> Any:
    """Few threads for all arrays of this process, and nothing kept of what they decode.

    Raises:
        ForkUnsafeError: the process was forked by one that uses tensorstore, which would abort it.
    """
    pid = os.getpid()
    if pid not in _CONTEXTS:
        if _CONTEXTS:
            raise ForkUnsafeError(
                "Zarr and N5 cannot be read in a process that was forked by one that reads them too; give "
                "all such sources isolate=True, or none"
            )
        limits = {"data_copy_concurrency": {"limit": 1}, "file_io_concurrency": {"limit": 2}}
        context = _tensorstore().Context({"cache_pool": {"total_bytes_limit": 0}, **limits})
        _CONTEXTS.setdefault(pid, context)
    return _CONTEXTS[pid]
