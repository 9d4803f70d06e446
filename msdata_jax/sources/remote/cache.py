"""Blocks and whole files on disk, shared by the processes of a host, and never more than so many bytes.

A file is made under another name and renamed when it is whole; its size counts from the moment that it is
begun, under a lock of the folder. So no reader sees a part, and the bound holds however many processes write.
What a process that died has left is told by its lock being free, and goes at the next eviction. The least
recently used goes first: times of use are the files' times of change, which outlive processes.
"""

import contextlib
import fcntl
import os
import struct
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from msdata_jax.errors import SourceError
from msdata_jax.sources.remote.options import PAGE_BYTES

_HEADER = struct.Struct("<4sQ")
_CRC_BYTES = 4
_MAGIC = b"msb1"
_LOCK_SECONDS = 10.0
_LOOK_SECONDS = 0.002
_TOUCH_SECONDS = 1.0
_KEEP_SHARE = 0.9  # what an eviction leaves, so that not every write evicts
_PART = ".part"


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    size: int
    used: float


class DiskCache:
    """Blocks and files by key.

    Args:
        folder: of the cache; made where it is not there, for this user alone.
        max_bytes: sizes of all its files together, as far as this process writes.

    Raises:
        SourceError: the folder cannot be made or written.
    """

    def __init__(self, folder: str, max_bytes: int) -> None:
        self._folder = Path(folder) / "v1"
        self.max_bytes = max_bytes
        self._serial = 0
        self._serial_lock = threading.Lock()
        self._verified: set[tuple[str, int, int]] = set()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._folder / "usage", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise SourceError(
                f"the cache of remote files cannot be written at {self._folder}: {error.strerror}; set "
                "MSDATA_CACHE_DIR to a folder of a local disk"
            ) from error

    def has(self, key: str) -> bool:
        """Whether a block is there, if it is whole."""
        return os.path.exists(self._path(key))

    def read(self, key: str, start: int, stop: int) -> bytes | None:
        """Bytes [start, stop) of a block, fewer at its end; None where it is not there or damaged."""
        path = self._path(key)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            data = _read_pages(descriptor, key, start, stop)
            if data is None:
                _remove(path)
            else:
                _touch(descriptor)
            return data
        except OSError:
            return None
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def turn(self, key: str, seconds: float) -> Iterator[bool]:
        """The turn to fetch a block, which other processes of the host then wait for.

        Args:
            key: of the block.
            seconds: how long to wait for another process that has the turn.

        Yields:
            whether it is this process's turn; not where the wait was too long, or the disk fails.
        """
        try:  # a few keys share a lock: the files stay, and are not many
            path = self._folder / f"turns-{key[:3]}"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            yield False
            return
        try:
            yield _lock(descriptor, seconds)
        finally:
            _unlock(descriptor)

    def put(self, key: str, data: bytes) -> bool:
        """Keep a block; False where there is no room or the disk fails. Blocks of one key are equal."""
        pages = range(0, len(data), PAGE_BYTES)
        crcs = b"".join(_crc(key, data[at : at + PAGE_BYTES]) for at in pages)
        pieces = (_HEADER.pack(_MAGIC, len(data)), crcs, data)
        return self._write(self._path(key), sum(map(len, pieces)), pieces) is not None

    def copy_of(self, key: str) -> str | None:
        """Path of a whole file; None where it is not there or damaged. It is checked once a process."""
        prefix = f"{key}-"
        folder = os.path.dirname(self._path(key))
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                if name.startswith(prefix) and not name.endswith(_PART):
                    return self._checked(os.path.join(folder, name))
        return None

    def put_copy(self, key: str, size: int, pieces: Iterable[bytes]) -> str:
        """Keep a whole file.

        Args:
            key: of the file.
            size: bytes of all pieces.
            pieces: its content; what they raise comes through.

        Raises:
            OSError: there is no room.
        """
        path = self._write(self._path(key), size, pieces, with_crc=True)
        if path is None:
            raise OSError(
                f"no room for a file of {size} bytes in the cache of {self.max_bytes} bytes at "
                f"{self._folder}; raise MSDATA_CACHE_BYTES, or look after the disk"
            )
        return path

    @property
    def num_bytes(self) -> int:
        """Sizes of all files now."""
        return sum(each.size for each in self._entries())

    def _path(self, key: str) -> str:
        return f"{self._folder}/{key[:2]}/{key}"

    def _write(self, path: str, size: int, pieces: Iterable[bytes], *, with_crc: bool = False) -> str | None:
        """Write a file of `size` bytes; its path, or None where there was no room or the disk failed."""
        part = self._reserve(path, size)
        if part is None:
            return None
        name, descriptor = part
        crc = 0
        try:
            for piece in pieces:
                if not _write_all(descriptor, piece):
                    _remove(name)
                    return None
                crc = zlib.crc32(piece, crc) if with_crc else 0
            final = f"{path}-{crc:08x}" if with_crc else path
            os.replace(name, final)
        except BaseException:
            _remove(name)
            raise
        finally:
            os.close(descriptor)
        return final

    def _reserve(self, path: str, size: int) -> tuple[str, int] | None:
        """A file of that size under a name of its own, locked while it is written; None without room."""
        with self._serial_lock:
            self._serial += 1
            name = f"{path}.{os.getpid()}-{id(self):x}-{self._serial}{_PART}"
        try:
            with self._locked() as usage:
                if usage is None or not self._make_room(usage, size):
                    return None
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
                descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.ftruncate(descriptor, size)
                except OSError:
                    os.close(descriptor)
                    _remove(name)
                    raise
        except OSError:
            return None
        return name, descriptor

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int | None]:
        """The descriptor of `usage`, under its lock; None where another process holds it for too long."""
        descriptor = os.open(self._folder / "usage", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield descriptor if _lock(descriptor, _LOCK_SECONDS) else None
        finally:
            _unlock(descriptor)

    def _make_room(self, usage: int, size: int) -> bool:
        """Count `size` bytes more, after an eviction where that is needed; False where it is not enough."""
        written = os.pread(usage, 32, 0)
        total = int(written) if written.isdigit() else None
        if total is None or total + size > self.max_bytes:
            total = self._evict(int(self.max_bytes * _KEEP_SHARE) - size)
            os.ftruncate(usage, 0)
            if total + size > self.max_bytes:
                os.pwrite(usage, b"%020d" % total, 0)
                return False
        os.pwrite(usage, b"%020d" % (total + size), 0)
        return True

    def _evict(self, max_bytes: int) -> int:
        """Remove the least recently used until at most so many bytes are left; how many are."""
        entries = sorted(self._entries(), key=lambda each: each.used)
        total = sum(each.size for each in entries)
        for each in entries:
            is_part = each.path.endswith(_PART)
            if is_part and _is_being_written(each.path):
                continue
            if is_part or total > max_bytes:
                _remove(each.path)
                total -= each.size
        return total

    def _entries(self) -> Iterator[_Entry]:
        with os.scandir(self._folder) as folders:
            names = [each.path for each in folders if each.is_dir(follow_symlinks=False)]
        for name in names:
            with contextlib.suppress(FileNotFoundError), os.scandir(name) as files:
                for each in files:
                    with contextlib.suppress(FileNotFoundError):
                        stat = each.stat(follow_symlinks=False)
                        yield _Entry(each.path, stat.st_size, stat.st_mtime)

    def _checked(self, path: str) -> str | None:
        """A file whose content is that of its name; None, and the file removed, where it is not."""
        try:
            with open(path, "rb") as stream:
                stat = os.fstat(stream.fileno())
                seen = (path, stat.st_ino, stat.st_size)
                if seen not in self._verified:
                    crc = 0
                    while piece := stream.read(PAGE_BYTES):
                        crc = zlib.crc32(piece, crc)
                    if not path.endswith(f"-{crc:08x}"):
                        _remove(path)
                        return None
                    self._verified.add(seen)
                os.utime(stream.fileno())
        except OSError:
            return None
        return path


def _read_pages(descriptor: int, key: str, start: int, stop: int) -> bytes | None:
    stat = os.fstat(descriptor)
    header = os.pread(descriptor, _HEADER.size, 0)
    if len(header) < _HEADER.size:
        return None
    magic, size = _HEADER.unpack(header)
    num_pages = -(-size // PAGE_BYTES)
    begin = _HEADER.size + _CRC_BYTES * num_pages
    if magic != _MAGIC or stat.st_size != begin + size:
        return None
    stop = min(stop, size)
    if start >= stop:
        return b""
    first, last = start // PAGE_BYTES, -(-stop // PAGE_BYTES)
    crcs = os.pread(descriptor, _CRC_BYTES * (last - first), _HEADER.size + _CRC_BYTES * first)
    data = os.pread(descriptor, min(last * PAGE_BYTES, size) - first * PAGE_BYTES, begin + first * PAGE_BYTES)
    view = memoryview(data)
    for page in range(last - first):
        found = _crc(key, view[page * PAGE_BYTES : (page + 1) * PAGE_BYTES])
        if found != crcs[page * _CRC_BYTES : (page + 1) * _CRC_BYTES]:
            return None
    at = first * PAGE_BYTES
    return data if (start, stop) == (at, at + len(data)) else bytes(view[start - at : stop - at])


def _crc(key: str, page: bytes | memoryview) -> bytes:
    """Of a page and its block's key: a file under a wrong name is as bad as a damaged one."""
    return zlib.crc32(page, zlib.crc32(key.encode())).to_bytes(_CRC_BYTES, "little")


def _touch(descriptor: int) -> None:
    if time.time() - os.fstat(descriptor).st_mtime > _TOUCH_SECONDS:
        os.utime(descriptor)


def _lock(descriptor: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_SECONDS)


def _unlock(descriptor: int) -> None:
    """At once, even if a process that was forked meanwhile has the descriptor too."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _is_being_written(path: str) -> bool:
    """Whether the process that writes a part lives: the system frees the lock of one that died."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _lock(descriptor, 0)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> bool:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError:  # the disk is full, say
        return False
    return True


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.remove(path)
