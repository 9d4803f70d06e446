"""A folder of loose files: the files of one key are one record, named as the members of a WebDataset tar.

`a/7.jpg` and `a/7.txt` are the record `{"__key__": "a/7", "__folder__": "a", "jpg": ..., "txt": ...}`: the
key is the path in the folder up to the first dot of the name, and the part before the name is a label.

Files whose names start with a dot, or have none, are no values. Folders whose names start with a dot are left
out, and so are links to folders inside: their files are found where they are.
"""

import errno
import hashlib
import os
import stat
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from msdata_jax.errors import SourceError
from msdata_jax.sources.formats import holds_records, suffix_of, tells_format
from msdata_jax.sources.protocol import BadRecord, compact
from msdata_jax.sources.storage import is_inside
from msdata_jax.sources.tar import split_name

# Of a link that leads nowhere, and of what a file may have become; others are of the disk or the network.
_NO_TARGET = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP))
_NO_FILE = _NO_TARGET | {errno.EISDIR, errno.EACCES, errno.EPERM, errno.ENXIO}
_NOT_PLAIN = -1


@dataclass(frozen=True, kw_only=True)
class FolderFormat:
    """A local folder of loose files.

    Attributes:
        max_record_bytes: a larger record is bad, and is not read into memory.
    """

    max_record_bytes: int = 256 << 20
    window_groups = 1

    def index(self, path: str) -> "FolderRecords":
        """List the files.

        Raises:
            SourceError: there are none, a folder cannot be listed, a link leaves the folder, or files hold
                records themselves.
        """
        return FolderRecords(path, self.max_record_bytes)


class FolderRecords:
    """The folder. The index has each record's key, where that ends, and which endings its files have."""

    group_sizes = None

    def __init__(self, path: str, max_record_bytes: int) -> None:
        self._root = os.path.realpath(path)
        self._max_record_bytes = max_record_bytes
        numbers: dict[tuple[str, ...], int] = {}
        keys, key_ends, kinds = bytearray(), array("q"), array("i")
        digest = hashlib.blake2b(digest_size=16)
        for key, endings in _find_records(path, self._root, digest):
            if endings not in numbers:
                names = [f"{key}.{ending}" for ending in endings]
                if holds_records(names):
                    raise _record_file(path, names[0])
                numbers[endings] = len(numbers)
            keys += os.fsencode(key)
            key_ends.append(len(keys))
            kinds.append(numbers[endings])
        self._keys, self._key_ends = bytes(keys), compact(key_ends)
        self._kinds, self._endings = compact(kinds), list(numbers)
        self._digest = digest.digest()
        _check_all(path, self._endings)

    def __len__(self) -> int:
        return len(self._key_ends)

    def content_digest(self) -> bytes:
        """Of the names and sizes of the files."""
        return self._digest

    def open(self) -> "Folder":
        """The open folder."""
        return Folder(self._root)

    def read(self, handle: "Folder", indices: np.ndarray) -> list[Any]:
        """Each file is opened, read and closed."""
        return [self._read_one(handle, index) for index in indices.tolist()]

    def _read_one(self, handle: "Folder", index: int) -> Any:
        start = int(self._key_ends[index - 1]) if index else 0
        key = os.fsdecode(self._keys[start : int(self._key_ends[index])])
        record: dict[str, Any] = {"__key__": key, "__folder__": key.rpartition("/")[0]}
        room = self._max_record_bytes
        for ending in self._endings[int(self._kinds[index])]:
            name = ending.lower()
            if name in record:
                return BadRecord(f"record {key!r} has two values {name!r}; endings are taken in lower case")
            try:
                record[name] = handle.read(f"{key}.{ending}", room)
            except _UnreadableError as error:
                return BadRecord(f"record {key!r}, file {f'.{ending}'!r} {error}")
            room -= len(record[name])
        return record


class _UnreadableError(Exception):
    """The file itself is why it cannot be read; the message goes on after its name."""


class Folder:
    """A folder whose files are read by their names in it; what is outside is not."""

    def __init__(self, root: str) -> None:
        self._descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def read(self, name: str, max_bytes: int) -> bytes:
        """All bytes of a file. Raises _UnreadableError, or OSError where the disk or the network fails."""
        try:
            # O_NONBLOCK: nobody may ever write to a pipe that is there instead of a file.
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=self._descriptor)
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise
            raise _UnreadableError(f"cannot be opened ({error.strerror})") from error
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise _UnreadableError("is no regular file")
            if not is_inside(_path_of(descriptor), _path_of(self._descriptor)):
                raise _UnreadableError("is a link that leaves the folder")
            if found.st_size > max_bytes:
                raise _UnreadableError(f"has {found.st_size} bytes, max_record_bytes leaves it {max_bytes}")
            return _read_all(descriptor, found.st_size)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Close it; twice is no error."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _read_all(descriptor: int, size: int) -> bytes:
    """The first `size` bytes: a file that grows meanwhile is read as far as it was."""
    parts, missing = [], size
    while missing > 0 and (part := os.read(descriptor, missing)):
        parts.append(part)
        missing -= len(part)
    if missing:
        raise _UnreadableError(f"ends after {size - missing} of {size} bytes")
    return b"".join(parts)


def _path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def _find_records(path: str, root: str, digest: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The key of each record and the endings of its files: folder by folder, sorted within one.

    Holds the names of one folder at a time. The digest is told of names and sizes.
    """
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        files, folders = _list(path, root, prefix)
        waiting += sorted(folders, reverse=True)
        files.sort()  # files of one key follow each other: their names begin with the key and a dot
        for name, size in files:
            digest.update(os.fsencode(f"{name}\0{size}\0"))
        for key, names in groupby((name for name, _ in files), key=lambda name: split_name(name)[0]):
            yield key, tuple(name[len(key) + 1 :] for name in names)


def _list(path: str, root: str, prefix: str) -> tuple[list[tuple[str, int]], list[str]]:
    """Name and size of the files of one folder that are values, and its folders."""
    files, folders = [], []
    listed = os.path.join(root, prefix)
    try:
        with os.scandir(listed) as entries:
            for entry in entries:
                name = prefix + entry.name
                if prefix and tells_format(listed, entry.name):
                    raise _dataset_inside(path, name)
                if entry.name.startswith("."):
                    continue
                if entry.is_symlink():
                    _check_link(path, root, name)
                size = _size_of(entry)
                if size is not None and split_name(name)[1]:
                    files.append((name, size))
                elif size is None and not entry.is_symlink():
                    folders.append(f"{name}/")
    except OSError as error:
        raise SourceError(
            f"{os.path.join(path, prefix)} cannot be listed ({error.strerror}); make it readable, or move it "
            "out of the folder"
        ) from error
    return files, folders


def _check_link(path: str, root: str, name: str) -> None:
    real = os.path.realpath(os.path.join(root, name))
    if real != root and not is_inside(real, root):
        raise SourceError(
            f"{path}: {name} is a link that leaves the folder, to {real}; copy what is there, or give the "
            "folder that holds it"
        )


def _size_of(entry: os.DirEntry) -> int | None:
    """Bytes of a file, None for a folder, _NOT_PLAIN for what will be a bad record. Raises OSError."""
    try:
        found = entry.stat()
    except OSError as error:
        if error.errno not in _NO_TARGET:
            raise
        return _NOT_PLAIN
    if stat.S_ISDIR(found.st_mode):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else _NOT_PLAIN


def _check_all(path: str, kinds: Sequence[Sequence[str]]) -> None:
    """Refuse a folder without records, and one of `.json` alone, which may be JSON Lines."""
    names = [f"*.{ending}" for endings in kinds for ending in endings]
    if not names:
        raise SourceError(
            f"{path} is a folder without files named KEY.ENDING, the values of records; correct the path, or "
            "rename the files"
        )
    if all(suffix_of(name) == ".json" for name in names):
        raise _record_file(path, names[0])


def _dataset_inside(path: str, name: str) -> SourceError:
    return SourceError(
        f"{path} has a dataset inside, as {name} tells; give {path}/{os.path.dirname(name)} as a source of "
        "its own, and move it out of a folder of loose files"
    )


def _record_file(path: str, name: str) -> SourceError:
    return SourceError(
        f"{path} is a folder with {name}, by its name a file of records and no value of one; give a glob of "
        f"such files ({path}/**/*{suffix_of(name)}*), or move it out of the folder of loose files"
    )
