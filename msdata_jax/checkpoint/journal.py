"""The journal: the state behind every step that a training process took, appended to files in a folder.

A file `journal-<first step>.msd` holds frames, each an encoded state (`files`) behind its length: first a
full one, then what changed against that. A frame that is cut off, since the machine went down, ends the file.
A new file begins after `steps_per_file` steps; the newest two are kept.
"""

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
KEPT_FILES = 2
_LENGTH = struct.Struct("<Q")
_NAME = re.compile(r"journal-(\d{1,18})\.msd")


class JournalWriter:
    """Appends states; the file of an earlier run stays until a newer one pushes it out.

    Frames are not forced to the disk one by one: a process that is killed loses none, a machine that goes
    down may lose the last ones.

    Args:
        folder: made where it is not there.
        steps_per_file: states in a file.

    Raises:
        CheckpointError: the folder cannot be made; from `append`: a file cannot be written.
    """

    def __init__(self, folder: Path, steps_per_file: int = STEPS_PER_FILE) -> None:
        self._folder, self._steps_per_file = folder, steps_per_file
        self._file: FileIO | None = None
        self._base: tuple[BaseRef, Leaves] | None = None
        self._num_frames = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._failure(error) from error

    def append(self, leaves: Leaves, step: int) -> None:
        """Write the state before `step` behind the others."""
        try:
            if self._base is None or self._num_frames >= self._steps_per_file:
                self._begin_file(leaves, step)
                return
            data = encode_delta(leaves, step, *self._base)
            if 2 * len(data) > len(encode_full(self._base[1], step)):
                self._begin_file(leaves, step)
            else:
                self._write(data)
        except OSError as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _begin_file(self, leaves: Leaves, step: int) -> None:
        self.close()
        path = self._folder / f"journal-{step:09d}.msd"
        data = encode_full(leaves, step)
        self._file, self._num_frames = path.open("wb", buffering=0), 0
        self._write(data)
        self._base = BaseRef(where=path.name, digest=digest_of(data)), leaves
        for old in sorted(_files(self._folder), key=lambda each: each.stat().st_mtime_ns)[:-KEPT_FILES]:
            old.unlink()

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        rest = memoryview(_LENGTH.pack(len(data)) + data)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._num_frames += 1

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
    files = sorted(_files(folder), key=lambda each: each.stat().st_mtime_ns, reverse=True)
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
    have = (
        f"it has those before steps {min(found)} to {max(found)}" if found else "none of its frames is whole"
    )
    raise CheckpointError(f"the journal in {folder} has no state before step {step}; {have}")


def is_journal(folder: Path) -> bool:
    """Whether a folder holds a journal."""
    return bool(_files(folder))


def list_journal(folder: Path) -> list[tuple[Path, int]]:
    """The file of each state of a journal and the step that it is before, oldest first."""
    files = sorted(_files(folder), key=lambda each: each.stat().st_mtime_ns)
    return [(file, step) for file in files for _, step in _states(file)]


def _files(folder: Path) -> list[Path]:
    return [each for each in folder.glob("journal-*.msd") if _NAME.fullmatch(each.name)]


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
