"""One request each: the version of an object, or a range of that version.

http and s3 check the version in the same request, other file systems in a second one.
"""

import asyncio
import errno
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from msdata_jax.sources.protocol import require
from msdata_jax.sources.remote.failures import changed, of_status, short, translated

_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)")
_TAGS = ("ETag", "etag", "generation", "version_id", "md5Hash", "content_md5", "md5", "checksum", "sha256")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created", "modified")


@dataclass(frozen=True, kw_only=True)
class Version:
    """What tells one content of an object from another.

    Attributes:
        size: bytes.
        tag: ETag, generation or time of change, as the file system tells it; "" where it tells none.
    """

    size: int
    tag: str


class Client(Protocol):
    """Requests of one file system. Methods raise OSError, and may be called from several threads at once."""

    def stat(self, address: str, name: str) -> Version:
        """The version of an object; `name` is for messages."""
        ...

    def read(self, address: str, name: str, start: int, stop: int, version: Version) -> bytes:
        """Bytes [start, stop) of that version; `ChangedError` where there is another by now."""
        ...


def make_client(url: str, storage: Mapping[str, Any], request_seconds: float) -> "tuple[FsspecClient, str]":
    """The client for a URL, and the URL's address in it."""
    core = require("fsspec.core", "remote")
    scheme = urlsplit(url).scheme
    if scheme in ("http", "https"):
        require("aiohttp", "remote")
    try:
        file_system, address = core.url_to_fs(url, **storage)
    except (ImportError, ValueError) as error:  # ValueError: of no such scheme
        raise OSError(
            errno.EINVAL, f"{scheme}:// needs a file system of fsspec, and there is none: {error}"
        ) from None
    kind = {"http": HttpClient, "https": HttpClient, "s3": S3Client, "s3a": S3Client}.get(
        scheme, FsspecClient
    )
    return kind(file_system, request_seconds), address


class FsspecClient:
    """Any file system of fsspec. The version is asked for after each range, in a request of its own."""

    def __init__(self, file_system: Any, request_seconds: float) -> None:
        self.file_system = file_system
        self.request_seconds = request_seconds

    def glob(self, pattern: str, name: str) -> list[tuple[str, str]]:
        """URL and address of each file that is listed; `name` is for messages. Raises OSError."""
        self.file_system.invalidate_cache()
        found = self._call(lambda: self.file_system.glob(pattern), name)
        return [(self.file_system.unstrip_protocol(each), each) for each in found]

    def stat(self, address: str, name: str) -> Version:
        """As `Client`."""
        self.file_system.invalidate_cache()
        info = self._call(lambda: self.file_system.info(address), name)
        if info.get("type") == "directory":
            raise IsADirectoryError(
                errno.EISDIR,
                f"{name} is a folder; name its files by a glob or braces, or copy it to a local disk",
            )
        if info.get("size") is None:
            raise OSError(errno.EINVAL, f"{name}: its size is not known")
        tag = next((str(info[key]) for key in (*_TAGS, *_TIMES) if info.get(key)), "")
        return Version(size=int(info["size"]), tag=tag)

    def read(self, address: str, name: str, start: int, stop: int, version: Version) -> bytes:
        """As `Client`."""
        data = self._call(lambda: self.file_system.cat_file(address, start=start, end=stop), name)
        if version.tag and self.stat(address, name) != version:
            raise changed(name)
        if len(data) != stop - start:
            raise short(name, len(data), stop - start)
        return data

    def _call(self, call: Callable[[], Any], name: str) -> Any:
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - every file system has exceptions of its own
            raise translated(error, name) from None

    def _await(self, coroutine: Callable[[], Awaitable[Any]], name: str) -> Any:
        sync = require("fsspec.asyn", "remote").sync

        async def timed() -> Any:
            return await asyncio.wait_for(coroutine(), self.request_seconds)

        return self._call(lambda: sync(self.file_system.loop, timed), name)


@dataclass(frozen=True, kw_only=True)
class _Answer:
    version: Version
    body: bytes


class HttpClient(FsspecClient):
    """Ranges by GET; the version is in the headers of each answer (signed URLs refuse a HEAD)."""

    def stat(self, address: str, name: str) -> Version:
        """As `Client`."""
        return self._await(lambda: self._get(address, name, 0, 1, wants_body=False), name).version

    def read(self, address: str, name: str, start: int, stop: int, version: Version) -> bytes:
        """As `Client`."""
        answer = self._await(lambda: self._get(address, name, start, stop, wants_body=True), name)
        if answer.version != version:
            raise changed(name)
        return answer.body

    async def _get(self, address: str, name: str, start: int, stop: int, *, wants_body: bool) -> _Answer:
        session = await self.file_system.set_session()
        options = dict(self.file_system.kwargs)
        options["headers"] = {
            **options.get("headers", {}),
            "Range": f"bytes={start}-{stop - 1}",
            "Accept-Encoding": "identity",
        }
        async with session.get(self.file_system.encode_url(address), **options) as response:
            start, stop, total = _what_is_sent(response, name, start, stop, wants_body=wants_body)
            tag = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
            body = await _body(response, name, stop - start) if wants_body else b""
            return _Answer(version=Version(size=total, tag=tag), body=body)


def _what_is_sent(
    response: Any, name: str, start: int, stop: int, *, wants_body: bool
) -> tuple[int, int, int]:
    """Range of the object that an answer holds, and the object's size."""
    match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if response.status == 416:  # beyond the end: the object is empty, or has become shorter
        if wants_body or match is None or int(match[3]):
            raise changed(name)
        return 0, 0, 0
    if response.status == 206 and match is not None and match[1]:
        first, last, total = map(int, match.groups())
        if (first, last + 1) != (start, min(stop, total)):
            raise OSError(
                errno.EINVAL, f"{name}: asked for bytes {start} to {stop - 1}, got {first} to {last}"
            )
        return first, last + 1, total
    if response.status in (200, 206):
        total = response.content_length
        if response.status == 206 or total is None or (wants_body and (start or total > stop)):
            raise OSError(
                errno.EINVAL,
                f"{name}: the server sends no ranges of files (status {response.status} for a request with "
                "Range); serve the files by one that does, or copy them",
            )
        return 0, total, total
    raise of_status(name, response.status, response.reason or "")


async def _body(response: Any, name: str, wanted: int) -> bytes:
    parts, found = [], 0
    while found <= wanted and (part := await response.content.read(wanted + 1 - found)):
        parts.append(part)
        found += len(part)
    if found != wanted:
        raise short(name, found, wanted)
    return b"".join(parts)


class S3Client(FsspecClient):
    """Ranges by GetObject, whose answer has the ETag."""

    def read(self, address: str, name: str, start: int, stop: int, version: Version) -> bytes:
        """As `Client`."""
        data, tag = self._await(lambda: self._get(address, start, stop), name)
        if tag != version.tag:
            raise changed(name)
        if len(data) != stop - start:
            raise short(name, len(data), stop - start)
        return data

    async def _get(self, address: str, start: int, stop: int) -> tuple[bytes, str]:
        bucket, key, version_id = self.file_system.split_path(address)
        options = {"VersionId": version_id} if version_id else {}
        answer = await self.file_system._call_s3(
            "get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}", **options,
            **self.file_system.req_kw,
        )  # fmt: skip
        async with answer["Body"] as stream:
            return await stream.read(), answer["ETag"]


def own_tag() -> str:
    """A tag for objects without one: what is cached of them is not found by another process."""
    return f"only {uuid.uuid4().hex}"
