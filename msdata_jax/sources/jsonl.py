"""JSON Lines: one object a line. A pass over the file finds where lines start; records are read by pread.

Blank lines are no records. A line that does not parse, or that is no object, is a bad record.
"""

import json
import os
from array import array
from dataclasses import dataclass
from io import FileIO
from typing import Any

import numpy as np

from msdata_jax.errors import SourceError
from msdata_jax.sources.protocol import BadRecord

_PIECE_BYTES = 1 << 20
_SNIFF_BYTES = 65536


@dataclass(frozen=True, kw_only=True)
class JsonlFormat:
    """JSON Lines.

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
        with open(path, "rb") as stream:
            beginning = stream.read(_SNIFF_BYTES)
            if not any(line.lstrip(b" \t\xef\xbb\xbf").startswith(b"{") for line in beginning.splitlines()):
                raise SourceError(
                    f"{path} is not JSON Lines: no line of its first {len(beginning)} bytes starts with '{{' "
                    f"(it begins with {beginning[:8]!r}); unpack or convert it"
                )
            stream.seek(0)
            self._starts, self._sizes, self._lines = _find_lines(stream)

    def __len__(self) -> int:
        return len(self._starts)

    def open(self) -> FileIO:
        """A raw file: pread needs no lock and no buffer."""
        return FileIO(self._path)

    def read(self, handle: FileIO, indices: np.ndarray) -> list[Any]:
        """One pread and one parse per record."""
        return [self._read_one(handle, index) for index in indices.tolist()]

    def _read_one(self, handle: FileIO, index: int) -> Any:
        size, where = int(self._sizes[index]), f"line {self._lines[index]}"
        if size > self._max_record_bytes:
            return BadRecord(f"{where} has {size} bytes, max_record_bytes is {self._max_record_bytes}")
        line = os.pread(handle.fileno(), size, int(self._starts[index]))
        try:
            record = json.loads(line.decode("utf-8-sig"))
        except (
            ValueError,
            RecursionError,
        ) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
            return BadRecord(f"{where} is not JSON in UTF-8: {error}")
        if not isinstance(record, dict):
            return BadRecord(f"{where} is a JSON {type(record).__name__}, not an object")
        return record


def _find_lines(stream: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Offset, size and number (from 1) of each line that is not blank; holds 1 MiB of the file at most."""
    starts, sizes, numbers = array("q"), array("q"), array("q")
    start = position = 0
    number, blank = 1, True
    while piece := stream.readline(_PIECE_BYTES):
        position += len(piece)
        blank = blank and piece.isspace()
        if not piece.endswith(b"\n") and len(piece) == _PIECE_BYTES:
            continue  # the line goes on
        if not blank:
            starts.append(start)
            sizes.append(position - start)
            numbers.append(number)
        start, number, blank = position, number + 1, True
    if not blank:  # the last line ended with a whole piece
        starts.append(start)
        sizes.append(position - start)
        numbers.append(number)
    return np.asarray(starts), np.asarray(sizes), np.asarray(numbers)
