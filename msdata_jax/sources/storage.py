"""The bytes of a file by its path or URL: read at any offset, by several threads at once."""

import glob
import io
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

if TYPE_CHECKING:
    from msdata_jax.sources.remote.store import RemotePath

_FILE_SCHEME = "file://"
_BUFFER_BYTES = 64 << 10
_MAX_STATS = 16


class ByteFile(Protocol):
    """An open file."""

    @property
    def size(self) -> int:
        """Bytes of the file when it was opened; of a remote one when the source was."""
        ...

    def pread(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset` on, fewer at the end of the file. Raises OSError as `os.pread` does."""
        ...

    def close(self) -> None:
        """Close it; twice is no error."""
        ...


class LocalFile:
    """A file of this machine's file systems."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._descriptor).st_size

    def pread(self, offset: int, size: int) -> bytes:
        """As `ByteFile`; a size that a damaged header made up allocates no more than the file has."""
        return os.pread(self._descriptor, max(0, min(size, self.size - offset)), offset)

    def close(self) -> None:
        """As `ByteFile`."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def is_remote(path: str) -> bool:
    """Whether a path names a file by a scheme, such as `https://`; `file://` is no such scheme."""
    return "://" in path and not path.startswith(_FILE_SCHEME)


def open_bytes(path: str) -> ByteFile:
    """Open a file. Raises OSError as `open` does."""
    if is_remote(path):
        from msdata_jax.sources.remote.store import RemoteFile

        return RemoteFile(_remote(path))
    return LocalFile(_local(path))


def as_file(path: str) -> BinaryIO:
    """A file object for reading, with `seek`. Raises OSError as `open` does."""
    if is_remote(path):
        return cast(BinaryIO, io.BufferedReader(_Raw(open_bytes(path)), _BUFFER_BYTES))
    return open(_local(path), "rb")


def local_copy(path: str) -> str:
    """A local path with the same bytes: of a remote file a copy in the disk cache. Raises OSError."""
    if is_remote(path):
        remote = _remote(path)
        return remote.store.copy(remote)
    return _local(path)


def size_of(path: str) -> int:
    """Bytes of a file. Raises OSError as `os.stat` does."""
    return _remote(path).version().size if is_remote(path) else os.stat(_local(path)).st_size


def sizes_of(paths: Sequence[str]) -> dict[str, int]:
    """Bytes of each file; remote ones are asked for several at a time. Raises OSError as `os.stat` does."""
    remote = [path for path in paths if is_remote(path)]
    with ThreadPoolExecutor(_MAX_STATS) as pool:
        found = dict(zip(remote, pool.map(size_of, remote), strict=True)) if remote else {}
    return {path: found[path] if path in found else size_of(path) for path in paths}


def find(pattern: str, storage: Mapping[str, Any] | None = None) -> list[str]:
    """The paths that a path or pattern names, sorted; none where there is nothing.

    Args:
        pattern: a path or glob. As URL also with braces (`{000..099}`, `{a,b}`), or a list of files (`.txt`).
        storage: `Source.storage`.

    Raises:
        OSError: what is remote cannot be listed.
        SourceError: wrong options, or a package that is missing.
    """
    if is_remote(pattern):
        from msdata_jax.sources.remote.store import RemoteStore

        return list(RemoteStore(pattern, storage or {}).find())
    pattern = _local(pattern)
    return [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))


def beside(path: str, name: str) -> str:
    """The file `name` of the folder in which the file `path` is."""
    if is_remote(path):
        return _remote(path).beside(name)
    return os.path.join(os.path.dirname(path), name)


def is_inside(path: str, root: str) -> bool:
    """Whether a path is below the folder `root`; both are real ones, without links on the way."""
    return path.startswith(root.rstrip("/") + "/")


def base_name(path: str) -> str:
    """A file's name without its folder, equal for a file and its remote copy."""
    if is_remote(path):
        from msdata_jax.sources.remote.urls import base_name as of_url

        return of_url(path)
    return os.path.basename(path)


def num_retries(paths: Sequence[str]) -> int:
    """How many requests of these files were tried again, by all threads of this process."""
    stores = {id(store): store for path in paths if (store := getattr(path, "store", None))}
    return sum(store.counts.num_retries for store in stores.values())


class _Raw(io.RawIOBase):
    """A `ByteFile` as Python's raw file."""

    def __init__(self, file: ByteFile) -> None:
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        if base + offset < 0:
            raise ValueError(f"a place in a file is at least 0, got {base + offset}")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._file.pread(self._at, len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _local(path: str) -> str:
    return path.removeprefix(_FILE_SCHEME) if path.startswith(_FILE_SCHEME) else path


def _remote(path: str) -> "RemotePath":
    from msdata_jax.sources.remote.store import RemotePath, RemoteStore

    return path if isinstance(path, RemotePath) else RemoteStore(path, {}).path_of(path)
