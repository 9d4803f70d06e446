"""Files of JSON lines that stay below a size: a ring for what is recent, a thinned log for a whole run.

What cannot be written costs itself, never the job: the first error is shown, then nothing more is written.
A process that is killed may leave a line without its end; `read_lines` leaves that one out.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

RING_BYTES = 16 << 20
"""Of each of the two files of a ring, at most."""
LOG_BYTES = 32 << 20
"""Of a thinned log, at most."""


def to_line(value: Mapping[str, Any]) -> bytes:
    """A value as one line."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace") + b"\n"


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file, but for those that are cut off; none where there is no file."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):  # the disk was full once
                continue
            if isinstance(value, dict):
                yield value


class _Lines:
    """A file that is appended to, whole lines at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self.num_bytes = 0
        self._failed = False

    def append(self, data: bytes) -> None:
        self._try(lambda: self._append(data))

    def _append(self, data: bytes) -> None:
        if self._descriptor is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(self.path, flags | (0 if self.num_bytes else os.O_EXCL), 0o666)
        self.num_bytes += len(data)
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def _try(self, write: Callable[[], object]) -> None:
        if self._failed:
            return
        try:
            write()
        except OSError as error:
            self._failed = True
            print(f"msdata: {self.path} is written no more: {error}", file=sys.stderr, flush=True)  # noqa: T201

    def close(self) -> None:
        """Calling it again does nothing; what is appended later opens the file again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Ring(_Lines):
    """The newest lines: once a file is full it becomes `NAME.old.jsonl`, in place of the one before.

    Args:
        path: a file that is not there yet.
        head: gives the first line of each file.
        most_bytes: of each of the two.
    """

    def __init__(
        self, path: Path, head: Callable[[], Mapping[str, Any]], most_bytes: int = RING_BYTES
    ) -> None:
        super().__init__(path)
        self._head, self._most_bytes = head, most_bytes

    def write(self, values: Iterable[Mapping[str, Any]]) -> None:
        """Append lines."""
        data = b"".join(map(to_line, values))
        if not data:
            return
        if self.num_bytes and self.num_bytes + len(data) > self._most_bytes:
            self._try(self._turn)
        self.append(data if self.num_bytes else to_line(self._head()) + data)

    def _turn(self) -> None:
        self.close()
        os.replace(self.path, old_of(self.path))
        self.num_bytes = 0


def old_of(path: Path) -> Path:
    """Where the lines before those of a ring's file are."""
    return path.with_suffix(".old.jsonl")


class ThinnedLog(_Lines):
    """Lines of a whole run: when the file is full, every second line goes, and later ones come half as often.

    Args:
        path: a file that is not there yet.
        most_bytes: of the file.
    """

    def __init__(self, path: Path, most_bytes: int = LOG_BYTES) -> None:
        super().__init__(path)
        self._most_bytes, self._every, self._num_skipped = most_bytes, 1, 0
        self._latest: Mapping[str, Any] | None = None  # that was not written

    def write(self, value: Mapping[str, Any]) -> None:
        """Append a line, if it is its turn."""
        self._num_skipped += 1
        self._latest = value
        if self._num_skipped < self._every:
            return
        line = to_line(value)
        if self._is_full(line):
            self._try(self._thin)
        if self._num_skipped >= self._every:  # still, with every second line gone
            self._write(line)

    def close(self) -> None:
        """Append the last line whether it is its turn or not, and close."""
        if self._latest is not None:
            line = to_line(self._latest)
            if self._is_full(line):
                self._try(self._thin)
            self._write(line)
        super().close()

    def _is_full(self, line: bytes) -> bool:
        return self.num_bytes > 0 and self.num_bytes + len(line) > self._most_bytes

    def _write(self, line: bytes) -> None:
        self._num_skipped, self._latest = 0, None
        self.append(line)

    def _thin(self) -> None:
        super().close()
        passing = self.path.with_suffix(".thinned")
        kept = num_lines = 0
        with self.path.open("rb") as old, passing.open("wb") as new:
            for line in old:
                if num_lines % 2 == 0:
                    kept += new.write(line)
                num_lines += 1
        os.replace(passing, self.path)
        self.num_bytes = max(kept, 1)
        # The last line that is left is one turn back, or two.
        self._num_skipped += self._every if num_lines % 2 == 0 else 0
        self._every *= 2
