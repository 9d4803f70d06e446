"""The remote files of one source: where they are, how they are asked for, and their bytes block by block."""

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from msdata_jax.errors import SourceError
from msdata_jax.recipe import without_credentials
from msdata_jax.sources.remote.cache import DiskCache
from msdata_jax.sources.remote.clients import FsspecClient, Version, make_client, own_tag
from msdata_jax.sources.remote.failures import with_retries
from msdata_jax.sources.remote.options import split_storage
from msdata_jax.sources.remote.readahead import read_ahead
from msdata_jax.sources.remote.urls import expand_braces, identity, is_glob, manifest_entries

_COPY_BYTES = 8 << 20
_MAX_MANIFEST_BYTES = 64 << 20

T = TypeVar("T")


@dataclass
class Counts:
    """What a source asked for, since it was opened in this process."""

    num_requests: int = 0
    num_bytes: int = 0
    num_retries: int = 0
    num_ahead: int = 0


class RemotePath(str):
    """A URL without credentials, as all messages show it, that knows how its object is asked for.

    Attributes:
        address: the object's name in the file system.
        store: of the source.
    """

    __slots__ = ("_lock", "_version", "address", "store")

    address: str
    store: "RemoteStore"
    _version: Version | None
    _lock: threading.Lock

    def __new__(cls, url: str, address: str, store: "RemoteStore") -> "RemotePath":
        """A path of a store."""
        path = super().__new__(cls, without_credentials(url))
        path.address, path.store = address, store
        path._version, path._lock = None, threading.Lock()
        return path

    def __reduce__(self) -> Any:
        """A copy elsewhere is the URL alone."""
        return str, (str(self),)

    def version(self) -> Version:
        """The version that the source was opened with: asked for once, then for good. Raises OSError."""
        with self._lock:
            if self._version is None:
                self._version = self.store.stat(self)
            return self._version

    def beside(self, name: str) -> "RemotePath":
        """Another file of this file's folder; its address has the same query."""
        address, mark, query = self.address.partition("?" if self.startswith("http") else "\0")
        folder, _, _ = address.rpartition("/")
        return RemotePath(f"{self.rpartition('/')[0]}/{name}", f"{folder}/{name}{mark}{query}", self.store)


class RemoteStore:
    """What the files of one source share.

    Args:
        url: one of its URLs, or a pattern of them.
        storage: `Source.storage`.

    Raises:
        SourceError: options that cannot be honoured, or a package that is missing.
    """

    def __init__(self, url: str, storage: Mapping[str, Any]) -> None:
        if "::" in url:
            raise SourceError(
                f"{without_credentials(url)} chains file systems, which is not possible here; give the "
                "URL of the files themselves, whose blocks are cached without"
            )
        self._url = url
        self.options, self._storage = split_storage(storage)
        self._client: tuple[int, FsspecClient] | None = None
        self._lock = threading.Lock()
        self._flights: dict[str, Future[bytes]] = {}
        self.cache = DiskCache(self.options.cache_dir, self.options.cache_bytes)
        self.counts = Counts()

    def find(self) -> list[RemotePath]:
        """The files of the URL, sorted; those of a list in its order. Raises OSError and SourceError."""
        if urlsplit(self._url).path.endswith(".txt"):
            return self._listed()
        urls = list(expand_braces(self._url))
        found = [each for url in urls for each in (self._glob(url) if is_glob(url) else [self.path_of(url)])]
        return sorted(set(found))

    def path_of(self, url: str) -> RemotePath:
        """The path of one URL."""
        return RemotePath(url, self._fs()._strip_protocol(url), self)

    def stat(self, path: RemotePath) -> Version:
        """The version of an object now, tried again where that fails. Raises OSError."""
        version = self.retried(lambda: self._counted(path, 0).stat(path.address, str(path)))
        return version if version.tag else Version(size=version.size, tag=own_tag())

    def retried(self, call: Any) -> Any:
        """What `call` returns, tried again as the options say."""
        return with_retries(call, self.options.deadline_seconds, lambda: self._count("num_retries", 1))

    def fetch(self, path: RemotePath, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of the version that the source was opened with, once. Raises OSError."""
        version = path.version()
        client = self._counted(path, stop - start)
        asked = Version(size=version.size, tag="" if version.tag.startswith("only ") else version.tag)
        return client.read(path.address, str(path), start, stop, asked)

    def key_of(self, path: RemotePath, part: str) -> str:
        """Name in the cache of a part of the version that the source was opened with."""
        version = path.version()
        where = identity(self._host(), path.address, self._storage)
        text = "\n".join((where, str(version.size), version.tag, part))
        return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()

    def block(self, path: RemotePath, key: str, start: int, stop: int) -> bytes:
        """Fetch and keep a block; whoever else on the host wants it waits. Raises OSError."""
        flight, is_mine = self._join(key)
        if not is_mine:
            try:
                return flight.result(self.options.request_seconds)
            except OSError:  # it was tried only once, or took too long: TimeoutError is an OSError
                found = self.cache.read(key, 0, stop - start)
                return self.retried(lambda: self.fetch(path, start, stop)) if found is None else found
        with self._landing(key, flight), self.cache.turn(key, self.options.request_seconds):
            data = self.cache.read(key, 0, stop - start)
            if data is None:
                data = self.retried(lambda: self.fetch(path, start, stop))
                self.cache.put(key, data)
            flight.set_result(data)
        return data

    def _fetch_ahead(self, path: RemotePath, key: str, start: int, stop: int) -> None:
        """Fetch and keep a block, unless somebody does; tried once."""
        flight, is_mine = self._join(key)
        if not is_mine:
            return
        with self._landing(key, flight), self.cache.turn(key, 0) as is_our_turn:
            if is_our_turn and not self.cache.has(key):
                data = self.fetch(path, start, stop)
                self.cache.put(key, data)
                flight.set_result(data)
                self._count("num_ahead", 1)

    @contextlib.contextmanager
    def _landing(self, key: str, flight: "Future[bytes]") -> Iterator[None]:
        """Afterwards the fetch is over; those who wait for it and get no result fetch themselves."""
        try:
            yield
        finally:
            with self._lock:
                del self._flights[key]
            if not flight.done():
                flight.set_exception(InterruptedError())

    def offer_block(self, path: RemotePath, key: str, start: int, stop: int) -> None:
        """Fetch a block soon, if there is a thread for it; errors are left to whoever asks for it."""

        def task() -> None:
            with contextlib.suppress(OSError):
                self._fetch_ahead(path, key, start, stop)

        if key not in self._flights and not self.cache.has(key):
            read_ahead().offer(key, task)

    def copy(self, path: RemotePath) -> str:
        """A local path with the whole file. Raises OSError."""
        key = self.key_of(path, "copy")
        found = self.cache.copy_of(key)
        if found is None:
            found = self.cache.put_copy(key, path.version().size, self._pieces(path))
        return found

    def _pieces(self, path: RemotePath) -> Iterator[bytes]:
        size = path.version().size
        for start in range(0, size, _COPY_BYTES):
            stop = min(start + _COPY_BYTES, size)
            yield self.retried(lambda start=start, stop=stop: self.fetch(path, start, stop))

    def _join(self, key: str) -> tuple["Future[bytes]", bool]:
        """The fetch of a block under way, and whether it is the caller who does it."""
        with self._lock:
            flight = self._flights.get(key)
            if flight is not None:
                return flight, False
            self._flights[key] = Future()
            return self._flights[key], True

    def _listed(self) -> list[RemotePath]:
        """What a list of files names, in its order."""
        path = self.path_of(self._url)
        size = path.version().size
        if size > _MAX_MANIFEST_BYTES:
            raise SourceError(f"{path} has {size} bytes, a list of files has at most {_MAX_MANIFEST_BYTES}")
        content = self.retried(lambda: self.fetch(path, 0, size)) if size else b""
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise SourceError(f"{path} is no list of files, which is text in UTF-8: {error}") from error
        return [self.path_of(url) for url in manifest_entries(text, self._url)]

    def _glob(self, pattern: str) -> list[RemotePath]:
        self._count("num_requests", 1)
        client = self._clients()
        found = self.retried(lambda: client.glob(pattern, without_credentials(pattern)))
        return [RemotePath(url, address, self) for url, address in found]

    def _host(self) -> str:
        """Where the file system is: the first part of a URL, if addresses are without."""
        return urlsplit(without_credentials(self._url)).netloc

    def _fs(self) -> Any:
        return self._clients().file_system

    def _counted(self, path: RemotePath, num_bytes: int) -> FsspecClient:
        self._count("num_requests", 1)
        self._count("num_bytes", num_bytes)
        return self._clients()

    def _count(self, name: str, amount: int) -> None:
        with self._lock:
            setattr(self.counts, name, getattr(self.counts, name) + amount)

    def _clients(self) -> FsspecClient:
        """The client of this process: connections do not survive a fork."""
        with self._lock:
            if self._client is None or self._client[0] != os.getpid():
                first = next(iter(expand_braces(self._url)))
                client = make_client(first, self._storage, self.options.request_seconds)[0]
                self._client = (os.getpid(), client)
            return self._client[1]


class RemoteFile:
    """A remote file, open. As `ByteFile`; holds no connection, and no bytes."""

    def __init__(self, path: RemotePath) -> None:
        self._path = path
        self._store = path.store
        self.size = path.version().size
        self._block_bytes = path.store.options.block_bytes
        self._key = path.store.key_of(path, f"block {self._block_bytes}")
        self._last = -2

    def pread(self, offset: int, size: int) -> bytes:
        """As `ByteFile`."""
        stop = min(offset + size, self.size)
        if offset < 0 or offset >= stop:
            return b""
        first, last = offset // self._block_bytes, (stop - 1) // self._block_bytes
        until = self._until(first, last)
        parts = []
        for number in range(first, last + 1):
            self._offer(number + 1, min(number + self._store.options.read_ahead, until))
            begin = number * self._block_bytes
            parts.append(self._part(number, max(offset - begin, 0), min(stop - begin, self._block_bytes)))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """As `ByteFile`; nothing is open."""

    def _part(self, number: int, start: int, stop: int) -> bytes:
        key = self._key_of(number)
        found = self._store.cache.read(key, start, stop)
        if found is not None and len(found) == stop - start:
            return found
        return self._store.block(self._path, key, *self._bounds(number))[start:stop]

    def _until(self, first: int, last: int) -> int:
        """The last block worth fetching ahead: of this read, or of the file where reads follow each other."""
        before, self._last = self._last, last
        is_in_order = first == before + 1 or first == before < last
        return (self.size - 1) // self._block_bytes if is_in_order else last

    def _offer(self, first: int, last: int) -> None:
        for each in range(first, last + 1):
            self._store.offer_block(self._path, self._key_of(each), *self._bounds(each))

    def _bounds(self, number: int) -> tuple[int, int]:
        begin = number * self._block_bytes
        return begin, min(begin + self._block_bytes, self.size)

    def _key_of(self, number: int) -> str:
        return hashlib.blake2b(f"{self._key}\n{number}".encode(), digest_size=20).hexdigest()
