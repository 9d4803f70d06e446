"""The files of an array's chunks: what is looked at before tensorstore reads one.

tensorstore reads whole files, follows links, and lets blosc allocate what a header asks for; its other codecs
stop where the chunk's shape ends. So these are checked first: that a file is one of the folder, its size,
the places in the index of a shard, and the headers of blosc.
"""

import itertools
import math
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from msdata_jax.sources.storage import is_inside
from msdata_jax.sources.zarr_metadata import ArrayFolder

# What codecs may add to a chunk: their headers, and a share where its bytes cannot be compressed.
_OVERHEAD_BYTES = 4096
_OVERHEAD_SHARE = 8
INDEX_ENTRY_BYTES = 16  # of the index of a shard
_SHARDING = "sharding_indexed"
_NOT_STORED = np.uint64(2**64 - 1)
_CHECKSUM_BYTES = 4
_MAX_OFFSET = 1 << 62  # no file is as large
_BLOSC_BYTES = 16  # its header; bytes 4 to 7 are the size of what was compressed


class Shapes(NamedTuple):
    """Of the array; of a chunk, which is decoded at a time; of a shard, which is a file.

    The last two are equal without sharding. `item_bytes` is the size of a value.
    """

    array: tuple[int, ...]
    chunk: tuple[int, ...]
    shard: tuple[int, ...]
    item_bytes: int

    @property
    def num_inner(self) -> int:
        """Chunks of a shard."""
        widths = zip(self.shard, self.chunk, strict=True)
        return math.prod(-(-shard // chunk) for shard, chunk in widths)

    @property
    def decoded_bytes(self) -> int:
        """Of the chunks that a row is in: of full shape, also where the array ends before they do."""
        widths = zip(self.array[1:], self.chunk[1:], strict=True)
        return (
            self.item_bytes * self.chunk[0] * math.prod(-(-size // width) * width for size, width in widths)
        )


class ChunkFiles:
    """The files that the rows of an array are in.

    Args:
        folder: of the array.
        metadata: as tensorstore has read them.
        shapes: of the array and its chunks.
    """

    def __init__(self, folder: ArrayFolder, metadata: Mapping[str, Any], shapes: Shapes) -> None:
        self._folder = folder
        self._name = _naming(folder.driver, metadata)
        self._shard_rows = shapes.shard[0] if shapes.shard else 1
        self._chunk_bytes = shapes.item_bytes * math.prod(shapes.chunk)
        self._num_inner = shapes.num_inner
        codecs = metadata.get("codecs", [])
        sharding = next((each["configuration"] for each in codecs if each["name"] == _SHARDING), None)
        self._index = None if sharding is None else _Index(sharding, shapes.num_inner)
        self._is_blosc = _is_blosc(metadata, codecs if sharding is None else sharding["codecs"])
        widths = zip(shapes.array[1:], shapes.shard[1:], strict=True)
        self._outer = [range(-(-size // width)) for size, width in widths]
        self._good: set[str] = set()  # shards whose index was looked at

    def find_fault(self, row: int) -> str | None:
        """What forbids to decode the chunks that a row is in, in words; None for nothing.

        Files that are missing are no fault here.

        Raises:
            OSError: a file cannot be read.
        """
        for numbers in itertools.product([row // self._shard_rows], *self._outer):
            name = self._name(numbers)
            try:
                with _opened(f"{self._folder.path}/{name}") as stream:
                    fault = self._fault_of(stream, name)
            except (FileNotFoundError, NotADirectoryError):
                continue
            if fault:
                return f"the chunk {name} {fault}"
        return None

    def _fault_of(self, stream: int, name: str) -> str | None:
        found = os.fstat(stream)
        real = os.path.realpath(f"{self._folder.path}/{name}")
        if not stat.S_ISREG(found.st_mode) or not is_inside(real, self._folder.path):
            return "is no file of the folder; a link must not leave it"
        limit = self._num_inner * (_most(self._chunk_bytes) + INDEX_ENTRY_BYTES)
        if found.st_size > limit:
            return f"has {found.st_size} bytes, and its shape takes {limit} at most"
        if self._index is None:
            offset = _n5_header(stream) if self._folder.driver == "n5" else 0
            return self._fault_of_blosc(stream, offset)
        if name in self._good:
            return None
        fault = self._fault_of_shard(self._index, stream, found.st_size)
        if fault is None:
            self._good.add(name)
        return fault

    def _fault_of_shard(self, index: "_Index", stream: int, size: int) -> str | None:
        entries = index.read(stream, size)
        if entries is None:
            return f"is cut short: it has {size} bytes, its index alone {index.num_bytes}"
        limit = _most(self._chunk_bytes)
        if (largest := int(entries[:, 1].max(initial=0))) > limit:
            return f"has a chunk of {largest} bytes, its shape takes {limit} at most"
        if not self._is_blosc:
            return None
        faults = (self._fault_of_blosc(stream, offset) for offset in entries[:, 0].tolist())
        return next(filter(None, faults), None)

    def _fault_of_blosc(self, stream: int, offset: int) -> str | None:
        if not self._is_blosc or offset > _MAX_OFFSET:
            return None
        size = int.from_bytes(os.pread(stream, _BLOSC_BYTES, offset)[4:8], "little")
        if size <= self._chunk_bytes:
            return None
        return f"decompresses to {size} bytes, its shape takes {self._chunk_bytes}"


class _Index:
    """The index of a shard: of each chunk its offset and its size, or that it is not stored."""

    def __init__(self, sharding: Mapping[str, Any], num_chunks: int) -> None:
        codecs = {codec["name"]: codec for codec in sharding["index_codecs"]}
        is_big = codecs.get("bytes", {}).get("configuration", {}).get("endian") == "big"
        self._dtype = ">u8" if is_big else "<u8"
        self._is_first = sharding["index_location"] == "start"
        self._checksum_bytes = _CHECKSUM_BYTES if "crc32c" in codecs else 0
        self.num_bytes = INDEX_ENTRY_BYTES * num_chunks

    def read(self, stream: int, size: int) -> np.ndarray | None:
        """The entries of chunks that are stored; None where the shard is shorter. Checks no checksum."""
        place = 0 if self._is_first else max(0, size - self.num_bytes - self._checksum_bytes)
        content = os.pread(stream, self.num_bytes, place)
        if len(content) < self.num_bytes:
            return None
        entries = np.frombuffer(content, self._dtype).reshape(-1, 2)
        return entries[(entries != _NOT_STORED).any(axis=1)]


def is_readable(metadata: Mapping[str, Any]) -> bool:
    """Whether an index of a shard can be looked at: shards are not nested, and it is not compressed."""
    shardings = [each["configuration"] for each in metadata.get("codecs", []) if each["name"] == _SHARDING]
    return all(
        all(codec["name"] != _SHARDING for codec in sharding["codecs"])
        and [codec["name"] for codec in sharding["index_codecs"]] in (["bytes"], ["bytes", "crc32c"])
        for sharding in shardings
    )


def _most(num_bytes: int) -> int:
    return num_bytes + num_bytes // _OVERHEAD_SHARE + _OVERHEAD_BYTES


def _naming(driver: str, metadata: Mapping[str, Any]) -> Callable[[Iterable[int]], str]:
    """A function from the numbers of a chunk to the name of its file."""
    if driver != "zarr3":
        separator = metadata.get("dimension_separator", ".") if driver == "zarr" else "/"
        return lambda numbers: separator.join(map(str, numbers))
    encoding = metadata["chunk_key_encoding"]
    is_default = encoding["name"] == "default"
    separator = encoding.get("configuration", {}).get("separator", "/" if is_default else ".")
    return lambda numbers: separator.join((*["c"] * is_default, *map(str, numbers)))


def _is_blosc(metadata: Mapping[str, Any], codecs: Any) -> bool:
    compressor = metadata.get("compressor") or metadata.get("compression") or {}
    names = [compressor.get("id"), compressor.get("type"), *(codec["name"] for codec in codecs)]
    return "blosc" in names


def _n5_header(stream: int) -> int:
    """The bytes of a block's header: its mode, its number of dimensions, and their sizes."""
    return 4 + 4 * int.from_bytes(os.pread(stream, 4, 0)[2:4], "big")


@contextmanager
def _opened(path: str) -> Iterator[int]:
    # O_NONBLOCK: a pipe in a file's place is no reason to wait
    stream = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        yield stream
    finally:
        os.close(stream)
