"""JSON Lines: one object a line. A pass over the file finds where lines start; records are read by pread.

Blank lines are no records. A line that does not parse, or that is no object, is a bad record.
"""

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from msdata_jax.errors import SourceError
from msdata_jax.sources.protocol import BadRecord, compact
from msdata_jax.sources.storage import ByteFile, open_bytes

_PIECE_BYTES = 1 << 20
_SNIFF_BYTES = 65536
_NEWLINE = 10
_TAB, _CARRIAGE_RETURN, _SPACE = 9, 13, 32  # white space, as are the three between the first two


@dataclass(frozen=True, kw_only=True)
class JsonlFormat:
    """JSON Lines (`.jsonl`, `.ndjson`, `.json`).

    Attributes:
        max_record_bytes: a longer line is a bad record, and is not read into memory.
    """

    max_record_bytes: int = 256 << 20
    window_groups = 1

    def index(self, path: str) -> "JsonlFile":
        """Find the lines. Raises SourceError where no line of the beginning is a JSON object."""
        return JsonlFile(path, self.max_record_bytes)


class JsonlFile:
    """One file: for each record the offset, the size and the number of its line."""

    group_sizes = None

    def __init__(self, path: str, max_record_bytes: int) -> None:
        self._path = path
        self._max_record_bytes = max_record_bytes
        finder = LineFinder()
        stream = self.open()
        try:
            check_beginning(path, stream.pread(0, _SNIFF_BYTES))
            for piece in _pieces(stream):
                finder.feed(piece)
        finally:
            stream.close()
        self._lines = finder.lines()

    def __len__(self) -> int:
        return len(self._lines.starts)

    def open(self) -> ByteFile:
        """The file's bytes: pread needs no lock and no buffer."""
        return open_bytes(self._path)

    def read(self, handle: ByteFile, indices: np.ndarray) -> list[Any]:
        """One pread and one parse per record."""
        return [self._read_one(handle, index) for index in indices.tolist()]

    def _read_one(self, handle: ByteFile, index: int) -> Any:
        size, number = int(self._lines.sizes[index]), int(self._lines.numbers[index])
        if size > self._max_record_bytes:
            return too_long(number, size, self._max_record_bytes)
        return parse_line(handle.pread(int(self._lines.starts[index]), size), number)


class Lines(NamedTuple):
    """Offset, size in bytes and number from 1 of each line that is not blank (int32 or int64)."""

    starts: np.ndarray
    sizes: np.ndarray
    numbers: np.ndarray


class LineFinder:
    """Finds the lines of a text that comes in pieces; keeps none of them."""

    def __init__(self) -> None:
        self._starts, self._sizes, self._numbers = array("q"), array("q"), array("q")
        self._position = self._start = 0
        self._number, self._blank = 1, True

    @property
    def num_bytes(self) -> int:
        """Memory of what was found so far."""
        return 3 * 8 * len(self._starts)

    def feed(self, piece: bytes) -> None:
        """The next bytes of the text, at least one."""
        found = np.frombuffer(piece, np.uint8)
        ends = np.flatnonzero(found == _NEWLINE) + 1
        if len(ends):
            self._add_lines(found, ends)
        if tail := piece[int(ends[-1]) if len(ends) else 0 :]:
            self._blank = self._blank and tail.isspace()
        self._position += len(piece)

    def lines(self, *, is_cut: bool = False) -> Lines:
        """All lines, when the text has ended; the last one need not end with a line break.

        Args:
            is_cut: more text is lost, and a last line without its line break is left out: it may be half a
                line.
        """
        if not self._blank and not is_cut:
            self._starts.append(self._start)
            self._sizes.append(self._position - self._start)
            self._numbers.append(self._number)
            self._blank = True
        return Lines(compact(self._starts), compact(self._sizes), compact(self._numbers))

    def _add_lines(self, found: np.ndarray, ends: np.ndarray) -> None:
        """Lines that end in this piece, without the blank ones."""
        starts = np.concatenate([[0], ends[:-1]])
        kept = _is_text(found[starts])
        if not kept.all():  # only a line that begins with white space can be blank
            kept = np.logical_or.reduceat(_is_text(found[: ends[-1]]), starts)
        kept[0] |= not self._blank
        starts[0] = self._start - self._position  # its beginning was in the pieces before
        lines = np.flatnonzero(kept)
        self._starts.frombytes((starts[lines] + self._position).tobytes())
        self._sizes.frombytes((ends[lines] - starts[lines]).tobytes())
        self._numbers.frombytes((lines + self._number).tobytes())
        self._start = self._position + int(ends[-1])
        self._number += len(ends)
        self._blank = True


def _is_text(characters: np.ndarray) -> np.ndarray:
    """Whether each byte is no white space."""
    return ((characters < _TAB) | (characters > _CARRIAGE_RETURN)) & (characters != _SPACE)


def check_beginning(path: str, beginning: bytes) -> None:
    """Raises SourceError where no line of a text's beginning is a JSON object."""
    if not any(line.lstrip(b" \t\xef\xbb\xbf").startswith(b"{") for line in beginning.splitlines()):
        raise SourceError(
            f"{path} is not JSON Lines: no line of its first {len(beginning)} bytes starts with '{{' "
            f"(it begins with {beginning[:8]!r}); convert it, or name it .jsonl.gz or .jsonl.zst if that is "
            "what it is"
        )


def parse_line(line: bytes, number: int) -> Any:
    """The object of a line, or a BadRecord that names the line by its number."""
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        return BadRecord(f"line {number} is not JSON in UTF-8: {error}")
    if not isinstance(record, dict):
        return BadRecord(f"line {number} is a JSON {type(record).__name__}, not an object")
    return record


def too_long(number: int, size: int, max_record_bytes: int) -> BadRecord:
    """Stands for a line that is not read."""
    return BadRecord(f"line {number} has {size} bytes, max_record_bytes is {max_record_bytes}")


def _pieces(stream: ByteFile) -> Iterator[bytes]:
    offset = 0
    while piece := stream.pread(offset, _PIECE_BYTES):
        offset += len(piece)
        yield piece
