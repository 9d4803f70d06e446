"""JSON Lines in gzip or zstd. A pass over the file finds its lines, and groups that decompress on their own.

Opening a file decompresses all of it once, a piece at a time. Its units (gzip members, zstd frames) become
groups: small ones together, up to a few MiB. One that is too large to be decompressed for a record is packed
anew in groups, into a temporary file. Reads decompress a group and keep a few, bounded by their bytes.
"""

import threading
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from msdata_jax.errors import SourceError
from msdata_jax.sources.decoded import DecodedGroups
from msdata_jax.sources.decompress import (
    GZIP_MAGIC,
    ZSTD_MAGIC,
    DamagedError,
    Piece,
    gzip_pieces,
    is_skippable,
    zstd_pieces,
)
from msdata_jax.sources.jsonl import LineFinder, Lines, check_beginning, parse_line, too_long
from msdata_jax.sources.protocol import BadRecord, require
from msdata_jax.sources.spill import Spill
from msdata_jax.sources.storage import ByteFile, open_bytes

try:
    import zstandard
except ImportError:
    zstandard: Any = None

_GROUP_BYTES = 4 << 20
_SNIFF_BYTES = 65536
_FREE_BYTES = 64 << 20
_FAST = 1

# (file, offset of a unit) -> the pieces from there to the end of the file
Decompress = Callable[[ByteFile, int], Iterator[Piece]]


@dataclass(frozen=True, kw_only=True)
class CompressedJsonlFormat:
    """JSON Lines in gzip or zstd (`.jsonl.gz`, `.jsonl.zst`; also `.ndjson`, `.json`).

    Attributes:
        max_record_bytes: a longer line is a bad record, and is not read into memory.
        max_group_bytes: a larger gzip member or zstd frame is packed anew in groups of 4 MiB into a temporary
            file, about as large as the file is; one that is not is decompressed whole for its records. At
            least 4 MiB.
        cache_bytes: decompressed groups that are kept, over all files of the source.
        window_groups: how many groups a shuffle mixes; `cache_bytes` should hold as many.
        max_ratio: a file whose text is larger than so many times the file and than 64 MiB is an error. Bounds
            the time that it takes to open, not the memory. Real text has seldom 20; gzip comes to 1032 at
            most, zstd to some 30,000.
        max_index_bytes: a file with a larger index, of 24 bytes a record, is an error.
        max_temp_bytes: of the source's temporary file.
        keep_damaged: set by the source's policy. A file that is cut short or has a damaged member or frame is
            an error when it is False; else the records before it are read, and one bad record stands for the
            rest.
    """

    max_record_bytes: int = 256 << 20
    max_group_bytes: int = 64 << 20
    cache_bytes: int = 256 << 20
    window_groups: int = 4
    max_ratio: int = 256
    max_index_bytes: int = 1 << 30
    max_temp_bytes: int = 64 << 30
    keep_damaged: bool = False
    groups: DecodedGroups = field(init=False, repr=False, compare=False)
    spill: Spill = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sizes = (self.max_record_bytes, self.cache_bytes, self.max_index_bytes, self.max_temp_bytes)
        counts = (self.window_groups, self.max_ratio)
        if min(sizes) < 0 or min(counts) < 1 or self.max_group_bytes < _GROUP_BYTES:
            raise SourceError(
                "CompressedJsonlFormat takes sizes of at least 0, window_groups and max_ratio of at least 1 "
                f"and max_group_bytes of at least {_GROUP_BYTES}, got {self}; correct Source.options"
            )
        object.__setattr__(self, "groups", DecodedGroups(self.cache_bytes))
        object.__setattr__(self, "spill", Spill(self.max_temp_bytes))

    def index(self, path: str) -> "CompressedJsonlFile":
        """Decompress it all once. Raises SourceError where it is no such file, or is damaged."""
        try:
            return CompressedJsonlFile(path, self)
        except BaseException:
            self.spill.close()  # there will be no source that closes it
            raise


class CompressedJsonlFile:
    """One file: its lines, and the groups of its text."""

    def __init__(self, path: str, options: CompressedJsonlFormat) -> None:
        self._path = path
        self._options = options
        self._lock = threading.Lock()  # a group that several threads want is decompressed once
        stream = self.open()
        try:
            self._decompress = _choose_decompress(path, stream)
            indexing = _Indexing(path, stream, self._decompress, options)
            self._damage = indexing.run()
        finally:
            stream.close()
        self._lines = indexing.lines(is_damaged=bool(self._damage))
        self._groups = indexing.groups()
        num_whole = len(self._lines.starts)
        if self._damage and not (options.keep_damaged and num_whole):
            rest = ", or set on_bad_sample to 'skip' or 'replace' to use those records" if num_whole else ""
            raise SourceError(
                f"{path}: {self._damage}, after {num_whole} whole records; write it again{rest}"
            )
        self.group_sizes = self._count_records()

    def _count_records(self) -> np.ndarray:
        """Records that begin in each group; groups in which none does are left out."""
        numbers = np.searchsorted(self._groups.starts, self._lines.starts, side="right") - 1
        counts = np.bincount(numbers)
        if self._damage:
            counts[-1] += 1
        return counts[counts > 0].astype(np.int64)

    def __len__(self) -> int:
        return len(self._lines.starts) + bool(self._damage)

    def open(self) -> ByteFile:
        """The compressed bytes."""
        return open_bytes(self._path)

    def close(self) -> None:
        """Free the temporary file, which all files of the source share."""
        self._options.spill.close()

    def read(self, handle: ByteFile, indices: np.ndarray) -> list[Any]:
        """Each group that is touched is decompressed once; all its records are bad where that fails."""
        records: list[Any] = [None] * len(indices)
        at_hand: dict[int, memoryview] = {}
        for place in np.argsort(indices, kind="stable").tolist():
            records[place] = self._read_one(handle, int(indices[place]), at_hand)
        return records

    def _read_one(self, handle: ByteFile, index: int, at_hand: dict[int, memoryview]) -> Any:
        if index == len(self._lines.starts):
            return BadRecord(f"{self._damage}; all records from there on are lost")
        start, size, number = (int(column[index]) for column in self._lines)
        if size > self._options.max_record_bytes:
            return too_long(number, size, self._options.max_record_bytes)
        try:
            line = self._text(handle, start, size, at_hand)
        except DamagedError as error:
            return BadRecord(f"line {number} cannot be decompressed any more: {error}")
        return parse_line(line, number)

    def _text(self, handle: ByteFile, start: int, size: int, at_hand: dict[int, memoryview]) -> bytes:
        """Bytes of the text, which may be in several groups; leaves the last one at hand."""
        parts = []
        group = int(np.searchsorted(self._groups.starts, start, side="right")) - 1
        while size > 0:
            begin = start - int(self._groups.starts[group])
            if group not in at_hand:
                at_hand.clear()
                at_hand[group] = self._decoded(handle, group)
            part = at_hand[group][begin : begin + size]
            parts.append(part)
            start, size, group = start + len(part), size - len(part), group + 1
        return b"".join(parts)

    def _decoded(self, handle: ByteFile, group: int) -> memoryview:
        key = (self._path, group)
        with self._lock:
            decoded = self._options.groups.get(key)
            if decoded is None:
                decoded = memoryview(self._decode(handle, group))
                self._options.groups.put(key, decoded)
        return decoded

    def _decode(self, handle: ByteFile, group: int) -> bytes:
        offset, stop = int(self._groups.offsets[group]), int(self._groups.stops[group])
        size = int(self._groups.starts[group + 1] - self._groups.starts[group])
        if self._groups.is_spilled[group]:
            return _unpack(self._options.spill.read(offset, stop - offset), size)
        parts, found, end = [], 0, offset
        for piece in self._decompress(handle, offset):
            parts.append(piece.content)
            found += len(piece.content)
            end = piece.end or end
            if end >= stop or found > size:
                break
        if found != size or end != stop:
            raise DamagedError(f"the file has changed, bytes {offset} to {stop} are others")
        return b"".join(parts)


@dataclass(frozen=True)
class _Groups:
    """Where each group begins in the text (the end comes last), and its bytes in the file or the spill."""

    starts: np.ndarray
    offsets: np.ndarray
    stops: np.ndarray
    is_spilled: np.ndarray


class _Indexing:
    """The pass over a file. Holds a piece of the text, and a group while it packs one anew."""

    def __init__(
        self, path: str, stream: ByteFile, decompress: Decompress, options: CompressedJsonlFormat
    ) -> None:
        self._path, self._stream, self._decompress, self._options = path, stream, decompress, options
        self._finder = LineFinder()
        self._starts, self._offsets, self._stops = array("q"), array("q"), array("q")
        self._is_spilled = bytearray()
        self._num_bytes = 0  # of the text so far
        self._beginning = b""
        self._unit = self._unit_start = 0  # the offset of this unit in the file, and in the text
        self._group = self._group_start = 0  # the same of the group that grows
        self._packer: _Packer | None = None  # of this unit, where it is a large one

    def run(self) -> str:
        """Read it all; what is wrong with the file, "" where nothing is."""
        try:
            for piece in self._decompress(self._stream, 0):
                self._feed(piece)
        except DamagedError as error:
            self._check_beginning()
            self._close_group()
            return str(error)
        self._check_beginning()
        self._close_group()
        return ""

    def lines(self, *, is_damaged: bool) -> Lines:
        """The lines that are in whole units only. In a damaged file each has its line break there."""
        lines = self._finder.lines(is_cut=is_damaged)
        whole = lines.starts.astype(np.int64) + lines.sizes <= self._unit_start
        return lines if whole.all() else Lines(*(column[whole] for column in lines))

    def groups(self) -> _Groups:
        """The groups of the whole units."""
        kept = np.asarray(self._starts, np.int64) < self._unit_start
        columns = (self._starts, self._offsets, self._stops)
        starts, offsets, stops = (np.asarray(column, np.int64)[kept] for column in columns)
        is_spilled = np.frombuffer(bytes(self._is_spilled), bool)[kept]
        return _Groups(np.append(starts, self._unit_start), offsets, stops, is_spilled)

    def _feed(self, piece: Piece) -> None:
        if piece.content:
            self._finder.feed(piece.content)
            self._num_bytes += len(piece.content)
            self._sniff(piece.content)
            self._check_sizes()
            self._pack(piece.content)
        if piece.end is not None:
            self._end_unit(piece.end)

    def _sniff(self, content: bytes) -> None:
        if len(self._beginning) < _SNIFF_BYTES:
            self._beginning += content[: _SNIFF_BYTES - len(self._beginning)]
            if len(self._beginning) == _SNIFF_BYTES:
                self._check_beginning()

    def _check_beginning(self) -> None:
        if self._beginning:
            check_beginning(self._path, self._beginning)

    def _check_sizes(self) -> None:
        options = self._options
        if self._num_bytes > max(_FREE_BYTES, options.max_ratio * self._stream.size):
            raise SourceError(
                f"{self._path} has {self._stream.size} bytes and decompresses to {self._num_bytes} or more; "
                f"max_ratio is {options.max_ratio}: where this is no attack, raise it in Source.options"
            )
        if self._finder.num_bytes > options.max_index_bytes:
            raise SourceError(
                f"{self._path} has an index of {self._finder.num_bytes} bytes or more, at byte "
                f"{self._num_bytes} of its text; max_index_bytes is {options.max_index_bytes}: raise it in "
                "Source.options if the memory is there, or write smaller files"
            )

    def _pack(self, content: bytes) -> None:
        if self._packer:
            self._add_packed(self._packer.feed(content))
        elif self._num_bytes - self._unit_start > self._options.max_group_bytes:
            self._close_group()
            self._packer = _Packer(self._path, self._options.spill, self._unit_start)
            for again in self._unit_so_far():
                self._add_packed(self._packer.feed(again))

    def _unit_so_far(self) -> Iterator[bytes]:
        """What was decompressed of this unit and thrown away; for zstd this takes a second window."""
        rest = self._num_bytes - self._unit_start
        for piece in self._decompress(self._stream, self._unit):
            yield piece.content[:rest]
            rest -= len(piece.content)
            if rest <= 0:
                return

    def _add_packed(self, found: Iterable[tuple[int, int, int]]) -> None:
        for each in found:
            self._add_group(*each, is_spilled=True)

    def _end_unit(self, end: int) -> None:
        if self._packer:
            self._add_packed(self._packer.flush())
            self._packer = None
            self._group, self._group_start = end, self._num_bytes
        elif self._num_bytes - self._group_start > self._options.max_group_bytes:
            self._close_group()
        self._unit, self._unit_start = end, self._num_bytes
        if self._num_bytes - self._group_start >= _GROUP_BYTES:
            self._close_group()

    def _close_group(self) -> None:
        """End the group that grows with the last whole unit."""
        if self._unit_start > self._group_start:
            self._add_group(self._group_start, self._group, self._unit, is_spilled=False)
        self._group, self._group_start = self._unit, self._unit_start

    def _add_group(self, start: int, offset: int, stop: int, *, is_spilled: bool) -> None:
        self._starts.append(start)
        self._offsets.append(offset)
        self._stops.append(stop)
        self._is_spilled.append(is_spilled)


class _Packer:
    """Packs a text anew in groups that are decompressed one by one, and that end with a line if they can.

    The groups depend on the text alone, not on the pieces in which it comes.
    """

    def __init__(self, path: str, spill: Spill, start: int) -> None:
        self._path, self._spill = path, spill
        self._start = start
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, content: bytes) -> Iterator[tuple[int, int, int]]:
        """Take more of the text; the start in the text and the place on disk of each group that is full."""
        self._parts.append(content)
        self._size += len(content)
        while self._size >= _GROUP_BYTES:
            text = b"".join(self._parts)
            cut = text.rfind(b"\n", 0, _GROUP_BYTES) + 1 or _GROUP_BYTES
            self._parts, self._size = [text[cut:]], len(text) - cut
            yield self._write(text[:cut])

    def flush(self) -> Iterator[tuple[int, int, int]]:
        """The same of the last group, however small; nothing where it is empty."""
        if self._size:
            yield self._write(b"".join(self._parts))

    def _write(self, text: bytes) -> tuple[int, int, int]:
        packed = _pack(text)
        start, offset = self._start, self._spill.append(packed, self._path)
        self._start += len(text)
        return start, offset, offset + len(packed)


def _pack(text: bytes) -> bytes:
    """For the temporary file: by zstd where it is installed, as zlib takes several times as long."""
    if zstandard is None:
        return zlib.compress(text, _FAST)
    return zstandard.ZstdCompressor(_FAST, write_checksum=True).compress(text)


def _unpack(packed: bytes, size: int) -> bytes:
    """Raises DamagedError where these are not the bytes that were written."""
    errors = zlib.error if zstandard is None else zstandard.ZstdError
    try:
        if zstandard is None:
            return zlib.decompress(packed, bufsize=size)
        return zstandard.ZstdDecompressor().decompress(packed)
    except errors as error:
        raise DamagedError(f"the temporary file is damaged ({error})") from error


def _choose_decompress(path: str, stream: ByteFile) -> Decompress:
    """How to decompress a file, by its first bytes. Raises SourceError where it is not compressed."""
    beginning = stream.pread(0, 4)
    if beginning.startswith(GZIP_MAGIC):
        return gzip_pieces
    if beginning == ZSTD_MAGIC or is_skippable(beginning):
        require("zstandard", "zstd")
        return zstd_pieces
    raise SourceError(
        f"{path} is neither gzip nor zstd: it begins with {beginning!r}; compress it, or name it .jsonl "
        "where it is not compressed"
    )
