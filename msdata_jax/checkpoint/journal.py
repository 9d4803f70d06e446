"""The journal: the state behind every step that a training process took, appended to files in a folder.

A file `journal-<number>.msd` holds frames, each an encoded state (`files`) behind its length: first a full
one, then what changed against that. A frame that is cut off, since the machine went down, ends the file. A
new file begins with each run, after `steps_per_file` states, and where the change would pass half of a full
one. Old files go when the newer ones hold twice that many states.
"""

import contextlib
import os
import re
import struct
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from msdata_jax.checkpoint.files import BaseRef, decode, digest_of, encode_delta, encode_full
from msdata_jax.data_state import DataState, Leaves
from msdata_jax.errors import CheckpointError

STEPS_PER_FILE = 1000
_LENGTH = struct.Struct("<Q")
_NAME = re.compile(r"journal-(\d{1,18})\.msd")


class JournalWriter:
    """Appends states. Files of earlier runs stay until newer ones push them out, and are never written again.

    Frames are not forced to the disk one by one: a process that is killed loses none, a machine that goes
    down may lose the last ones.

    Args:
        folder: made where it is not there.
        steps_per_file: states in a file at most, and the states behind the newest that are kept at least.

    Raises:
        CheckpointError: the folder cannot be made; from `append`: a file cannot be written. The next state
            begins a new one.
    """

    def __init__(self, folder: Path, steps_per_file: int = STEPS_PER_FILE) -> None:
        self._folder, self._steps_per_file = folder, steps_per_file
        self._file: FileIO | None = None
        self._base: tuple[BaseRef, Leaves, int] | None = None  # with the bytes of its frame
        self._counts: list[tuple[Path, int]] = []  # the files and their states, oldest first
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._counts = [(path, _count_frames(path)) for path in _files(folder)]
        except OSError as error:
            raise self._failure(error) from error

    def append(self, leaves: Leaves, step: int) -> None:
        """Write the state before `step` behind the others; `leaves` may change afterwards."""
        try:
            if self._base is not None and self._counts[-1][1] < self._steps_per_file:
                ref, base, full_bytes = self._base
                data = encode_delta(leaves, step, ref, base)
                if 2 * len(data) <= full_bytes:
                    self._write(data)
                    return
            self._begin_file(leaves, step)
        except OSError as error:
            self._base = None
            raise self._failure(error) from error

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _begin_file(self, leaves: Leaves, step: int) -> None:
        self.close()
        numbers = [int(match[1]) for path, _ in self._counts if (match := _NAME.fullmatch(path.name))]
        path = self._folder / f"journal-{max(numbers, default=0) + 1:09d}.msd"
        data = encode_full(leaves, step)
        self._file = path.open("xb", buffering=0)
        self._counts.append((path, 0))
        self._write(data)
        self._base = BaseRef(where=path.name, digest=digest_of(data)), dict(leaves), len(data)
        while len(self._counts) > 2 and sum(n for _, n in self._counts[1:]) >= 2 * self._steps_per_file:
            self._counts.pop(0)[0].unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        """Write a whole frame, or none."""
        assert self._file is not None
        end = self._file.tell()
        try:
            rest = memoryview(_LENGTH.pack(len(data)) + data)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(end)
            raise
        path, count = self._counts[-1]
        self._counts[-1] = path, count + 1

    def _failure(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"the journal in {self._folder} cannot be written: {error.strerror or error}; make room, name "
            "another folder, or leave the journal out"
        )


def read_journal(folder: Path, step: int | None = None) -> DataState:
    """The newest state of a journal, or the one before a step.

    Raises:
        CheckpointError: there is no journal, none of its states can be read, or it has none before `step`.
    """
    files = list(reversed(_files(folder)))
    if not files:
        raise CheckpointError(
            f"{folder} holds no journal (journal-*.msd); give the folder of DataLoader(journal=...)"
        )
    found: list[int] = []
    for file in files:
        for leaves, at in reversed(list(_states(file))):
            if step is None or at == step:
                return DataState.from_leaves(leaves)
            found.append(at)
    if not found:
        raise CheckpointError(f"no frame of the journal in {folder} is whole: none of its states can be read")
    have = f"it has those before steps {min(found)} to {max(found)}"
    raise CheckpointError(f"the journal in {folder} has no state before step {step}; {have}")


def is_journal(folder: Path) -> bool:
    """Whether a folder holds a journal."""
    return bool(_files(folder))


def list_journal(folder: Path) -> list[tuple[Path, int]]:
    """The file of each state of a journal and the step that it is before, oldest first."""
    files = _files(folder)
    return [(file, step) for file in files for _, step in _states(file)]


def _files(folder: Path) -> list[Path]:
    """The files of a journal, oldest first."""
    there = folder.glob("journal-*.msd")
    numbered = [(int(match[1]), path) for path in there if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(numbered)]


def _count_frames(path: Path) -> int:
    """Frames of a file, by their lengths alone."""
    count = 0
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while len(prefix := file.read(_LENGTH.size)) == _LENGTH.size:
            (length,) = _LENGTH.unpack(prefix)
            if length > size - file.tell():
                break
            file.seek(length, os.SEEK_CUR)
            count += 1
    return count


def _states(path: Path) -> Iterator[tuple[Leaves, int]]:
    """The states of a file, up to the first frame that is not whole."""
    base: Leaves | None = None
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while len(prefix := file.read(_LENGTH.size)) == _LENGTH.size:
            (length,) = _LENGTH.unpack(prefix)
            if length > size - file.tell():
                return
            try:
                state = decode(file.read(length), str(path), base)
            except CheckpointError:
                return
            base = state.leaves if base is None else base
            yield state.leaves, state.head.step
