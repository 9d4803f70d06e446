"""Parquet: row groups are decoded in pieces, and decoded pieces are kept, bounded by their bytes.

A row group is good as a whole or bad as a whole, in whatever pieces it is decoded: all of it is decoded once
before a record of it is believed. Where the row groups that a shuffle mixes fit into `cache_bytes`, they are
decoded about once an epoch. Larger ones are decoded again for each block of records, a piece at a time.
"""

import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from msdata_jax.errors import SourceError
from msdata_jax.sources.decoded import DecodedGroups
from msdata_jax.sources.feistel import MAX_RECORDS
from msdata_jax.sources.protocol import BadRecord, is_transient, one_line, require
from msdata_jax.sources.storage import as_file, is_remote

PIECE_BYTES = 4 << 20
_MAX_PIECE_ROWS = 1 << 16
_NEIGHBOURS = 2  # so many pieces at most where records are read one after the other
_BUFFER_BYTES = 64 << 10
_KEPT_WINDOWS = 2  # one that is being read, and one that some threads have not left yet
_KEPT_FOOTER_BYTES = 64 << 10


@dataclass(frozen=True, kw_only=True)
class ParquetFormat:
    """Parquet.

    Attributes:
        columns: names of the columns to decode; None for all. Fewer columns are less work.
        cache_bytes: decoded data that are kept, over all files of the source; of all sources of a process
            together `MSDATA_DECODED_MB` megabytes (512).
        memory_map: map the files instead of reading them piece by piece. What was read then counts as memory
            of the process until the file is closed. Not for network file systems.
        verify_checksums: check page checksums where the file has them. Without, damage may pass unseen.
        window_groups: how many row groups a shuffle mixes; `cache_bytes` should hold as many.
    """

    columns: tuple[str, ...] | None = None
    cache_bytes: int = 256 << 20
    memory_map: bool = False
    verify_checksums: bool = True
    window_groups: int = 4
    groups: DecodedGroups = field(init=False, repr=False, compare=False)
    totals: "_Totals" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.columns, str) or self.window_groups < 1 or self.cache_bytes < 0:
            raise SourceError(
                "ParquetFormat takes columns as a tuple of names, window_groups of at least 1 and "
                f"cache_bytes of at least 0, got columns={self.columns!r},"
                f" window_groups={self.window_groups}, "
                f"cache_bytes={self.cache_bytes}"
            )
        object.__setattr__(self, "groups", DecodedGroups(self.cache_bytes))
        object.__setattr__(self, "totals", _Totals())

    def index(self, path: str) -> "ParquetFile":
        """Read the footer. Raises SourceError where there is none, or where `columns` are not in it."""
        file = ParquetFile(path, self)
        self.totals.num_groups += len(file.group_sizes)
        self.totals.most_pieces = max(self.totals.most_pieces, file.most_pieces)
        self.groups.max_groups = _KEPT_WINDOWS * self.window_groups * self.totals.most_pieces
        return file

    def fits(self, num_bytes: int) -> bool:
        """Whether row groups of such a size can be kept, as many as a shuffle mixes."""
        return num_bytes * min(self.window_groups, self.totals.num_groups) <= self.groups.max_bytes


@dataclass
class _Totals:
    """Of all files of a source."""

    num_groups: int = 0
    most_pieces: int = 1
    has_warned: bool = False


class _Open:
    """An open file, and where its last pass over a row group has come to."""

    def __init__(self, file: Any, stream: Any) -> None:
        self.file = file
        self._stream = stream
        self.group, self.next_number = -1, 0
        self.rest: Iterator[Any] = iter(())

    def close(self) -> None:
        """Close the file."""
        self.rest = iter(())
        self.file.close()
        if self._stream is not None:
            self._stream.close()


class ParquetFile:
    """One file: for each row group its rows, and how many of them are decoded at a time.

    A small footer is kept as well; a large one is read again when the file is opened again.
    """

    def __init__(self, path: str, options: ParquetFormat) -> None:
        self._path = path
        self._options = options
        self._arrow = require("pyarrow", "parquet")
        self._parquet = require("pyarrow.parquet", "parquet")
        self._metadata: Any = None
        # A reader of one file decodes for one thread at a time.
        self._lock = threading.Lock()
        try:
            handle = self.open()
            try:
                footer = handle.file.metadata
                names = handle.file.schema_arrow.names
            finally:
                handle.close()
        except (self._arrow.ArrowException, OSError, ValueError, MemoryError) as error:
            if is_remote(path) and isinstance(error, OSError) and error.errno:
                raise  # of the network; an error of the data has no number
            raise SourceError(
                f"{path} is not a readable Parquet file, cut short or damaged: {one_line(error)}; write it "
                "again"
            ) from error
        if footer.serialized_size <= _KEPT_FOOTER_BYTES:
            self._metadata = footer
        groups = range(footer.num_row_groups)
        self.group_sizes = np.array([footer.row_group(g).num_rows for g in groups], np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self.group_sizes)])
        self._check(names, footer.num_rows)
        self._piece_rows = _choose_piece_rows(footer, self.group_sizes, options.columns)
        self._is_whole = np.zeros(len(self.group_sizes), bool)

    def _check(self, names: list[str], num_rows: int) -> None:
        total = sum(self.group_sizes.tolist())
        if (self.group_sizes < 0).any() or total != num_rows or total > MAX_RECORDS:
            raise SourceError(
                f"{self._path} has a damaged footer: {num_rows} rows, row groups of "
                f"{self.group_sizes.tolist()[:8]}; write it again"
            )
        if missing := sorted(set(self._options.columns or ()) - set(names)):
            raise SourceError(f"{self._path} has the columns {names}, Source.options asks for {missing}")

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def most_pieces(self) -> int:
        """Pieces of the row group that has most of them."""
        return int((-(-self.group_sizes // self._piece_rows)).max(initial=1))

    def open(self) -> _Open:
        """Open the file; of a column it reads as much at a time as is decoded."""
        stream = as_file(self._path) if is_remote(self._path) else None
        file = self._parquet.ParquetFile(
            self._path if stream is None else stream,
            metadata=self._metadata,
            memory_map=self._options.memory_map,
            buffer_size=_BUFFER_BYTES,
            pre_buffer=False,
            page_checksum_verification=self._options.verify_checksums,
        )
        return _Open(file, stream)

    def read(self, handle: _Open, indices: np.ndarray) -> list[Any]:
        """All records of a row group are bad where decoding fails."""
        groups = np.searchsorted(self._starts, indices, side="right") - 1
        records: list[Any] = [None] * len(indices)
        for group in np.unique(groups).tolist():
            places = np.flatnonzero(groups == group)
            rows = indices[places] - self._starts[group]
            found = self._read_group(handle, group, rows)
            for place, row in zip(places.tolist(), rows.tolist(), strict=True):
                records[place] = found if isinstance(found, BadRecord) else found[row]
        return records

    def _read_group(self, handle: _Open, group: int, rows: np.ndarray) -> dict[int, Any] | BadRecord:
        """The records of a row group by their rows."""
        piece_rows = int(self._piece_rows[group])
        found: dict[int, Any] = {}

        def take(number: int, piece: Any) -> None:
            first = number * piece_rows
            wanted = rows[(first <= rows) & (rows < first + piece.num_rows)]
            found.update({row: _row(piece, row - first) for row in wanted.tolist()})

        with self._lock:
            missing = set()
            for number in np.unique(rows // piece_rows).tolist():
                piece = self._options.groups.get((self._path, group, number))
                if piece is None:
                    missing.add(number)
                else:
                    take(number, piece)
            if missing and (bad := self._decode(handle, group, missing, take)):
                return bad
        return found

    def _decode(self, handle: _Open, group: int, missing: set[int], take: Any) -> BadRecord | None:
        """Decode pieces, take those that are missing, and keep what is worth keeping."""
        keeps_all = self._keeps_all(group)
        last = max(missing)
        stop = None if keeps_all or not self._is_whole[group] else last + 1
        num_rows, kept = 0, []
        try:
            for number, piece in self._pieces(handle, group, min(missing), stop):
                num_rows += piece.num_rows
                if keeps_all or (number == last and len(missing) <= _NEIGHBOURS):
                    kept.append((number, piece))
                if number in missing:
                    take(number, piece)
        except (self._arrow.ArrowException, OSError, ValueError, IndexError) as error:
            handle.group = -1
            return BadRecord(
                f"row group {group} cannot be decoded: {one_line(error, [self._path])}",
                transient=is_transient(error),
            )
        if stop is None and not self._is_whole[group]:
            if num_rows != self.group_sizes[group]:
                return BadRecord(f"row group {group} has {num_rows} rows, not {self.group_sizes[group]}")
            self._is_whole[group] = True
        for number, piece in kept:  # not before the row group was seen to be whole
            self._options.groups.put((self._path, group, number), piece)
        return None

    def _pieces(self, handle: _Open, group: int, first: int, stop: int | None) -> Iterator[tuple[int, Any]]:
        """Pieces with their numbers up to `stop`, from where the last pass was if that is before `first`."""
        if not (stop is not None and handle.group == group and handle.next_number <= first):
            columns = None if self._options.columns is None else list(self._options.columns)
            handle.group, handle.next_number = group, 0
            handle.rest = handle.file.iter_batches(
                int(self._piece_rows[group]), row_groups=[group], columns=columns, use_threads=False
            )
        while handle.next_number != stop and (piece := next(handle.rest, None)) is not None:
            handle.next_number += 1
            yield handle.next_number - 1, piece
        if stop is None:
            handle.group, handle.rest = -1, iter(())

    def _keeps_all(self, group: int) -> bool:
        """Whether all pieces of a row group are kept, since the row groups that are mixed with it are too."""
        num_bytes = PIECE_BYTES * int(self.group_sizes[group]) // int(self._piece_rows[group])
        if self._options.fits(num_bytes):
            return True
        if not self._options.totals.has_warned:
            self._options.totals.has_warned = True
            kept = self._options.groups.max_bytes >> 20
            warnings.warn(
                f"{self._path} has row groups of about {num_bytes >> 20} MB, and those that a shuffle mixes "
                f"({self._options.window_groups}) do not fit into the {kept} MB that are kept decoded: they "
                "are decoded anew for each block of records. Write the file with row groups of at most 8 MB "
                "('Memory' in docs/guides/tuning.md), or raise cache_bytes and MSDATA_DECODED_MB",
                RuntimeWarning,
                stacklevel=2,
            )
        return False


def _choose_piece_rows(footer: Any, group_sizes: np.ndarray, columns: tuple[str, ...] | None) -> np.ndarray:
    """For each row group as many rows (int32) as have about PIECE_BYTES in the columns that are decoded."""
    roots = [footer.schema.column(c).path.partition(".")[0] for c in range(footer.num_columns)]
    chosen = [c for c, root in enumerate(roots) if columns is None or root in columns]
    piece_rows = np.ones(len(group_sizes), np.int32)
    for group, num_rows in enumerate(group_sizes.tolist()):
        described = footer.row_group(group)
        num_bytes = sum(described.column(c).total_uncompressed_size for c in chosen)
        fitting = num_rows * PIECE_BYTES // max(1, num_bytes)
        piece_rows[group] = max(1, min(fitting, num_rows, _MAX_PIECE_ROWS))
    return piece_rows


def _row(piece: Any, row: int) -> Any:
    try:
        return {name: _value(piece.column(place)[row]) for place, name in enumerate(piece.schema.names)}
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
