"""A folder of loose files: the files of one key are one record, named as the members of a WebDataset tar.

`a/7.jpg` and `a/7.txt` are the record `{"__key__": "a/7", "__folder__": "a", "jpg": ..., "txt": ...}`: the
path from the folder on up to the first dot of the name is the key, and the folder's part of it is there as a
label. Files whose names start with a dot, or have none, are no values; folders that start with one are left
out.
"""

import errno
import hashlib
import os
import stat
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from msdata_jax.errors import SourceError
from msdata_jax.sources.formats import is_container
from msdata_jax.sources.protocol import BadRecord
from msdata_jax.sources.tar import split_name

# What a file that was listed may have become; other errors are of the disk or the network.
_GONE = frozenset(
    (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO)
)


@dataclass(frozen=True, kw_only=True)
class FolderFormat:
    """A folder of loose files.

    Attributes:
        max_record_bytes: a larger record is bad, and is not read into memory.
    """

    max_record_bytes: int = 256 << 20
    window_groups = 1

    def index(self, path: str) -> "FolderRecords":
        """List the files. Raises SourceError where a link leaves the folder, or there are no records."""
        return FolderRecords(path, self.max_record_bytes)


class FolderRecords:
    """The folder: for each record its key and the endings of its files; 12 bytes and the key's length."""

    group_sizes = None

    def __init__(self, path: str, max_record_bytes: int) -> None:
        self._path = os.path.realpath(path)
        self._max_record_bytes = max_record_bytes
        numbers: dict[tuple[str, ...], int] = {}
        names, name_ends, kinds = bytearray(), array("q"), array("i")
        digest = hashlib.blake2b(digest_size=16)
        for key, endings in _records(path, self._path, digest):
            names += key.encode("utf-8", "surrogateescape")
            name_ends.append(len(names))
            kinds.append(numbers.setdefault(endings, len(numbers)))
        self._keys, self._key_ends = bytes(names), np.asarray(name_ends, np.int64)
        self._kinds, self._endings = np.asarray(kinds, np.int32), list(numbers)
        self._digest = digest.digest()

    def __len__(self) -> int:
        return len(self._key_ends)

    def content_digest(self) -> bytes:
        """Of the names and sizes of the files."""
        return self._digest

    def open(self) -> "Folder":
        """The open folder."""
        return Folder(self._path)

    def read(self, handle: "Folder", indices: np.ndarray) -> list[Any]:
        """Each file is opened, read and closed."""
        return [self._read_one(handle, index) for index in indices.tolist()]

    def _read_one(self, handle: "Folder", index: int) -> Any:
        start = int(self._key_ends[index - 1]) if index else 0
        key = self._keys[start : int(self._key_ends[index])].decode("utf-8", "surrogateescape")
        record: dict[str, Any] = {"__key__": key, "__folder__": key.rpartition("/")[0]}
        room = self._max_record_bytes
        for ending in self._endings[int(self._kinds[index])]:
            name = ending.lower()
            if name in record:
                return BadRecord(f"record {key!r} has two files .{name}, in upper and lower case")
            try:
                record[name] = handle.read(f"{key}.{ending}", room)
            except _TooLargeError as error:
                return BadRecord(
                    f"record {key!r} has {self._max_record_bytes - room + error.size} bytes or more, "
                    f"max_record_bytes is {self._max_record_bytes}"
                )
            except OSError as error:
                if error.errno not in _GONE:
                    raise
                return BadRecord(f"record {key!r}: its file .{ending} is gone ({error.strerror})")
            room -= len(record[name])
        return record


class _TooLargeError(Exception):
    def __init__(self, size: int) -> None:
        self.size = size


class Folder:
    """A folder whose files are read by their names from it on, and none outside of it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def read(self, name: str, max_bytes: int) -> bytes:
        """All bytes of a file. Raises OSError as `open` does, `_TooLargeError` where there are more."""
        # O_NONBLOCK: a pipe that has taken the file's place is no reason to wait.
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=self._descriptor)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or not self._holds(descriptor):
                raise OSError(errno.ELOOP, "it is no file of this folder any more")
            if found.st_size > max_bytes:
                raise _TooLargeError(found.st_size)
            return _read_all(descriptor, found.st_size)
        finally:
            os.close(descriptor)

    def _holds(self, descriptor: int) -> bool:
        """False where a link has led out of the folder; true where the system cannot tell."""
        try:
            return _is_inside(os.readlink(f"/proc/self/fd/{descriptor}"), self._path)
        except OSError:
            return True

    def close(self) -> None:
        """Close it; twice is no error."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _read_all(descriptor: int, size: int) -> bytes:
    parts = []
    while size > 0 and (part := os.read(descriptor, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _records(path: str, root: str, digest: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The key of each record and the endings of its files: folder by folder, sorted within one.

    Holds the names of one folder at a time. The digest is told of names and sizes.
    """
    waiting = [""]
    is_loose = False
    while waiting:
        prefix = waiting.pop()
        files, folders = _list(path, root, prefix)
        waiting += sorted(folders, reverse=True)
        for key, members in groupby(sorted(files), key=lambda each: each[0]):
            endings = []
            for _, ending, size in members:
                endings.append(ending)
                digest.update(f"{key}.{ending}\n{size}\n".encode("utf-8", "surrogateescape"))
                is_loose = is_loose or not is_container(f"{key}.{ending}")
            yield key, tuple(endings)
    if not is_loose:
        raise SourceError(
            f"{path} is a folder without loose files named KEY.ENDING, the values of records; give a glob of "
            f"files that hold records, such as {path}/*.parquet"
        )


def _list(path: str, root: str, prefix: str) -> tuple[list[tuple[str, str, int]], list[str]]:
    """(key, ending, size) of the files of one folder, and its folders."""
    files, folders = [], []
    try:
        with os.scandir(os.path.join(root, prefix)) as entries:
            for entry in entries:
                name = prefix + entry.name
                if entry.name.startswith("."):
                    continue
                if entry.is_symlink() and not _is_inside(real := os.path.realpath(entry.path), root):
                    raise SourceError(
                        f"{path}: {name} is a link that leaves the folder, to {real}; copy the file, or give "
                        "the folder that holds the files"
                    )
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{name}/")
                elif entry.is_file() and (parts := split_name(name, lower=False))[1]:
                    files.append((*parts, entry.stat().st_size))
    except OSError as error:
        raise SourceError(f"{os.path.join(path, prefix)} cannot be listed: {error.strerror}") from error
    return files, folders


def _is_inside(real: str, root: str) -> bool:
    return real.startswith(root.rstrip("/") + "/")
