"""Parquet: a row group is decoded whole, and a few decoded groups are kept, bounded by their bytes."""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from msdata_jax.errors import SourceError
from msdata_jax.sources.feistel import MAX_RECORDS
from msdata_jax.sources.protocol import BadRecord, is_transient, one_line, require


@dataclass(frozen=True, kw_only=True)
class ParquetFormat:
    """Parquet.

    Attributes:
        columns: names of the columns to decode; None for all. Fewer columns are less work.
        cache_bytes: decoded row groups that are kept, over all files of the source; at least one group is.
        memory_map: map the files instead of reading them into buffers; turn it off on network file systems.
        verify_checksums: check page checksums where the file has them. Without, damage may pass unseen.
        window_groups: how many row groups a shuffle mixes; `cache_bytes` should hold as many.
    """

    columns: tuple[str, ...] | None = None
    cache_bytes: int = 256 << 20
    memory_map: bool = True
    verify_checksums: bool = True
    window_groups: int = 4
    groups: "DecodedGroups" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.columns, str) or self.window_groups < 1 or self.cache_bytes < 0:
            raise SourceError(
                "ParquetFormat takes columns as a tuple of names, window_groups of at least 1 and "
                f"cache_bytes of at least 0, got columns={self.columns!r},"
                f" window_groups={self.window_groups}, "
                f"cache_bytes={self.cache_bytes}"
            )
        object.__setattr__(self, "groups", DecodedGroups(self.cache_bytes))

    def index(self, path: str) -> "ParquetFile":
        """Read the footer. Raises SourceError where there is none, or where `columns` are not in it."""
        return ParquetFile(path, self)


class DecodedGroups:
    """Decoded row groups by (path, group), the least recently used dropped first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._groups: OrderedDict[tuple[str, int], Any] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    def get(self, key: tuple[str, int]) -> Any:
        """The group, or None."""
        with self._lock:
            if key in self._groups:
                self._groups.move_to_end(key)
            return self._groups.get(key)

    def put(self, key: tuple[str, int], group: Any) -> None:
        """Keep a group, and drop others until the bytes fit."""
        with self._lock:
            if key in self._groups:
                return
            self._groups[key] = group
            self._num_bytes += group.nbytes
            while self._num_bytes > self._max_bytes and len(self._groups) > 1:
                self._num_bytes -= self._groups.popitem(last=False)[1].nbytes


class ParquetFile:
    """One file: its footer."""

    def __init__(self, path: str, options: ParquetFormat) -> None:
        self._path = path
        self._options = options
        self._arrow = require("pyarrow", "parquet")
        self._parquet = require("pyarrow.parquet", "parquet")
        self._metadata: Any = None
        # A reader of one file decodes for one thread at a time.
        self._lock = threading.Lock()
        try:
            with self.open() as handle:
                self._metadata = handle.metadata
                names = handle.schema_arrow.names
        except (self._arrow.ArrowException, OSError, ValueError, MemoryError) as error:
            raise SourceError(
                f"{path} is not a readable Parquet file, cut short or damaged: {one_line(error)}; write it "
                "again"
            ) from error
        groups = range(self._metadata.num_row_groups)
        self.group_sizes = np.array([self._metadata.row_group(g).num_rows for g in groups], np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self.group_sizes)])
        self._check(names)

    def _check(self, names: list[str]) -> None:
        total = sum(self.group_sizes.tolist())
        if (self.group_sizes < 0).any() or total != self._metadata.num_rows or total > MAX_RECORDS:
            raise SourceError(
                f"{self._path} has a damaged footer: {self._metadata.num_rows} rows, row groups of "
                f"{self.group_sizes.tolist()[:8]}; write it again"
            )
        if missing := sorted(set(self._options.columns or ()) - set(names)):
            raise SourceError(f"{self._path} has the columns {names}, Source.options asks for {missing}")

    def __len__(self) -> int:
        return int(self._starts[-1])

    def open(self) -> Any:
        """A `pyarrow.parquet.ParquetFile`; the footer is parsed the first time only."""
        return self._parquet.ParquetFile(
            self._path,
            metadata=self._metadata,
            memory_map=self._options.memory_map,
            page_checksum_verification=self._options.verify_checksums,
        )

    def read(self, handle: Any, indices: np.ndarray) -> list[Any]:
        """Each row group that is touched is decoded once; all its records are bad where that fails."""
        groups = np.searchsorted(self._starts, indices, side="right") - 1
        records: list[Any] = [None] * len(indices)
        for group in np.unique(groups).tolist():
            decoded = self._decode(handle, group)
            for place in np.flatnonzero(groups == group).tolist():
                row = int(indices[place] - self._starts[group])
                records[place] = decoded if isinstance(decoded, BadRecord) else _row(decoded, row)
        return records

    def _decode(self, handle: Any, group: int) -> Any:
        key = (self._path, group)
        with self._lock:
            decoded = self._options.groups.get(key)
            if decoded is not None:
                return decoded
            try:
                columns = None if self._options.columns is None else list(self._options.columns)
                decoded = handle.read_row_group(group, columns=columns, use_threads=False).combine_chunks()
            except (self._arrow.ArrowException, OSError, ValueError) as error:
                return BadRecord(
                    f"row group {group} cannot be decoded: {one_line(error, [self._path])}",
                    transient=is_transient(error),
                )
            if decoded.num_rows != self.group_sizes[group]:
                return BadRecord(
                    f"row group {group} has {decoded.num_rows} rows, not {self.group_sizes[group]}"
                )
            self._options.groups.put(key, decoded)
            return decoded


def _row(table: Any, row: int) -> Any:
    try:
        return {name: _value(table.column(place)[row]) for place, name in enumerate(table.column_names)}
    except ValueError as error:  # a string that is not UTF-8, a date out of range
        return BadRecord(f"row {row} of its row group: {one_line(error)}")


def _value(scalar: Any) -> Any:
    """Lists of numbers without nulls as arrays (tokens, say), anything else as plain Python."""
    values: Any = getattr(scalar, "values", None)
    if scalar.is_valid and getattr(values, "null_count", 1) == 0:
        types = require("pyarrow.types", "parquet")
        if types.is_integer(values.type) or types.is_floating(values.type):
            return values.to_numpy(zero_copy_only=True).copy()
    return scalar.as_py()
