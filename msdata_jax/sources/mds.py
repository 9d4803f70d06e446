"""MDS, the shards of MosaicML Streaming: a folder of files, and `index.json`, which describes them.

A shard has the number of its samples, where each begins and the last ends, and the samples. One that is
compressed is decompressed whole, and a few are kept, bounded by their bytes. Names in the index stay inside
the folder, and pickled columns are not read.
"""

import hashlib
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from msdata_jax.errors import SourceError
from msdata_jax.sources.decoded import DecodedGroups
from msdata_jax.sources.decompress import DamagedError, gzip_pieces, zstd_pieces
from msdata_jax.sources.handles import Handles
from msdata_jax.sources.mds_index import FileInfo, Shard, read_index
from msdata_jax.sources.protocol import BadRecord
from msdata_jax.sources.storage import ByteFile, base_name, beside, open_bytes

INDEX_NAME = "index.json"
_NUM_LOCKS = 16
_PIECE_BYTES = 1 << 20
_DIGEST_BYTES = 65536
_DIGESTED_SHARDS = 64
_PAIR = struct.Struct("<2I")
_DECOMPRESS = {"gz": gzip_pieces, "zstd": zstd_pieces}


@dataclass(frozen=True, kw_only=True)
class MdsFormat:
    """MDS shards, as they are or compressed by gz or zstd.

    Attributes:
        columns: names of the columns to decode; None for all.
        max_record_bytes: a larger sample is bad, and is not read into memory.
        max_shard_bytes: a compressed shard that is larger, before or after, is an error when the source
            opens. Shards that are not compressed may have any size.
        max_index_bytes: a larger `index.json` is an error; parsed it takes about ten times its bytes for a
            moment.
        cache_bytes: decompressed shards that are kept, over all folders of the source; at least one is.
        verify_hashes: read a shard whole before its first sample and check the hashes that its index has, as
            far as hashlib knows them. A shard that does not have them has bad records only. Without, damage
            may pass unseen.
        window_groups: how many shards a shuffle mixes where shards are compressed or have hashes to check;
            `cache_bytes` should hold as many. Others are mixed as a whole.
    """

    columns: tuple[str, ...] | None = None
    max_record_bytes: int = 256 << 20
    max_shard_bytes: int = 256 << 20
    max_index_bytes: int = 64 << 20
    cache_bytes: int = 256 << 20
    verify_hashes: bool = True
    window_groups: int = 4
    shards: DecodedGroups = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sizes = (self.max_record_bytes, self.max_shard_bytes, self.max_index_bytes, self.cache_bytes)
        if isinstance(self.columns, str) or self.window_groups < 1 or min(sizes) < 0:
            raise SourceError(
                "MdsFormat takes columns as a tuple of names, window_groups of at least 1 and sizes of at "
                f"least 0, got columns={self.columns!r}, window_groups={self.window_groups}, sizes {sizes}"
            )
        object.__setattr__(self, "shards", DecodedGroups(self.cache_bytes))

    def index(self, path: str) -> "MdsFolder":
        """Read the `index.json` of a folder. Raises SourceError where there is none, or it is damaged."""
        return MdsFolder(path, self)


class MdsFolder:
    """One folder: what its index says of each shard."""

    def __init__(self, path: str, options: MdsFormat) -> None:
        self._index_path = path if base_name(path) == INDEX_NAME else f"{path}/{INDEX_NAME}"
        self._options = options
        self._content = self._read_index()
        self._shards = read_index(self._content, self._index_path, options.columns)
        self._check_sizes()
        sizes = np.array([shard.num_samples for shard in self._shards], np.int64)
        self._starts = np.concatenate([[0], np.cumsum(sizes)])
        are_grouped = any(self._is_read_whole(shard) for shard in self._shards)
        self.group_sizes = sizes if are_grouped else None
        # What several threads want of a shard is done once.
        self._locks = tuple(threading.Lock() for _ in range(_NUM_LOCKS))
        self._faults: dict[int, str] = {}  # of the shards that were looked at; "" for none

    def __len__(self) -> int:
        return int(self._starts[-1])

    def open(self) -> "_OpenShards":
        """A few open shards."""
        return _OpenShards(self._open_shard)

    def content_digest(self) -> bytes:
        """Digest of the index, and of the ends of up to 64 shards (all of them, or evenly spread)."""
        digest = hashlib.blake2b(self._content, digest_size=16)
        step = max(1, -(-len(self._shards) // _DIGESTED_SHARDS))
        with closing(self.open()) as handle:
            for number in range(0, len(self._shards), step):
                try:
                    with handle.using(number) as (stream, _):
                        digest.update(b"%d\n" % stream.size + stream.pread(0, _DIGEST_BYTES))
                        digest.update(stream.pread(max(0, stream.size - _DIGEST_BYTES), _DIGEST_BYTES))
                except FileNotFoundError:
                    digest.update(b"missing\n")
        return digest.digest()

    def read(self, handle: "_OpenShards", indices: np.ndarray) -> list[Any]:
        """Each shard that is touched is opened once; all its records are bad where it is not whole."""
        numbers = np.searchsorted(self._starts, indices, side="right") - 1
        records: list[Any] = [None] * len(indices)
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number).tolist()
            samples = [int(indices[place] - self._starts[number]) for place in places]
            for place, record in zip(places, self._read_shard(handle, number, samples), strict=True):
                records[place] = record
        return records

    def _read_shard(self, handle: "_OpenShards", number: int, samples: list[int]) -> list[Any]:
        shard = self._shards[number]
        try:
            with handle.using(number) as (stream, is_packed):
                content = self._checked(number, stream, is_packed)
                if isinstance(content, str):
                    return [BadRecord(f"{shard.raw.name} {content}")] * len(samples)
                return [self._read_sample(content, shard, sample) for sample in samples]
        except FileNotFoundError:
            return [BadRecord(f"{shard.raw.name} is missing")] * len(samples)

    def _read_sample(self, content: ByteFile, shard: Shard, sample: int) -> Any:
        where = f"sample {sample} of {shard.raw.name}"
        pair = content.pread(4 + 4 * sample, _PAIR.size)
        begin, end = _PAIR.unpack(pair) if len(pair) == _PAIR.size else (0, 0)
        if not 8 + 4 * shard.num_samples <= begin <= end <= content.size:
            return BadRecord(f"{where} has a damaged offset: bytes {begin} to {end} of {content.size}")
        if end - begin > self._options.max_record_bytes:
            return BadRecord(
                f"{where} has {end - begin} bytes, max_record_bytes is {self._options.max_record_bytes}"
            )
        encoded = content.pread(begin, end - begin)
        try:
            return shard.columns.decode(encoded)
        except ValueError as error:
            return BadRecord(f"{where} {error}")

    def _checked(self, number: int, stream: ByteFile, is_packed: bool) -> "ByteFile | str":
        """The bytes of a shard that is what the index says, or what is wrong with it."""
        shard = self._shards[number]
        with self._locks[number % _NUM_LOCKS]:
            if fault := self._faults.get(number):
                return fault
            if not is_packed:
                if number not in self._faults:
                    self._faults[number] = self._fault_of(stream, shard.raw, shard.num_samples)
                return self._faults[number] or stream
            key = (self._index_path, number)
            content = self._options.shards.get(key)
            if content is None:
                content = self._unpacked(stream, shard)
                if isinstance(content, str):
                    self._faults[number] = content
                    return content
                self._options.shards.put(key, content)
            return _InMemory(content)

    def _unpacked(self, stream: ByteFile, shard: Shard) -> memoryview | str:
        """A decompressed shard, never more than the index says, or what is wrong with it."""
        assert shard.packed is not None
        if fault := self._fault_of(stream, shard.packed, None):
            return f"(compressed) {fault}"
        content = bytearray()
        try:
            for piece in _DECOMPRESS[shard.compression](stream, 0):
                content += piece.content
                if len(content) > shard.raw.num_bytes:
                    return f"decompresses to more than the {shard.raw.num_bytes} bytes of its index"
        except DamagedError as error:
            return f"does not decompress: {error}"
        whole = memoryview(content).toreadonly()
        return self._fault_of(_InMemory(whole), shard.raw, shard.num_samples) or whole

    def _fault_of(self, stream: ByteFile, info: FileInfo, num_samples: int | None) -> str:
        """What is wrong with a file by its size, its hashes and its first four bytes; "" for nothing."""
        if stream.size != info.num_bytes:
            return f"has {stream.size} bytes, its index says {info.num_bytes}"
        if num_samples is not None and stream.pread(0, 4) != num_samples.to_bytes(4, "little"):
            return f"begins with another number of samples than {num_samples}, as its index says"
        if self._options.verify_hashes:
            for name, expected in info.hashes:
                if _hash_of(stream, name) != expected:
                    return f"does not have the {name} of its index"
        return ""

    def _is_read_whole(self, shard: Shard) -> bool:
        return shard.packed is not None or bool(self._options.verify_hashes and shard.raw.hashes)

    def _open_shard(self, number: int) -> tuple[ByteFile, bool]:
        """A shard, and whether it is compressed. The library leaves decompressed shards beside its index."""
        shard = self._shards[number]
        if shard.packed is not None:
            try:
                return open_bytes(beside(self._index_path, shard.packed.name)), True
            except FileNotFoundError:
                pass
        return open_bytes(beside(self._index_path, shard.raw.name)), False

    def _read_index(self) -> bytes:
        try:
            with closing(open_bytes(self._index_path)) as stream:
                if stream.size > self._options.max_index_bytes:
                    raise SourceError(
                        f"{self._index_path} has {stream.size} bytes, max_index_bytes is "
                        f"{self._options.max_index_bytes}; raise it in Source.options if that is meant"
                    )
                return stream.pread(0, stream.size)
        except FileNotFoundError as error:
            raise SourceError(f"{self._index_path} is missing; a folder of MDS has one") from error

    def _check_sizes(self) -> None:
        limit = self._options.max_shard_bytes
        for shard in self._shards:
            if shard.packed is not None and max(shard.raw.num_bytes, shard.packed.num_bytes) > limit:
                raise SourceError(
                    f"{self._index_path}: {shard.packed.name} has {shard.packed.num_bytes} bytes and "
                    f"{shard.raw.num_bytes} decompressed, max_shard_bytes is {limit}; raise it in "
                    "Source.options if the memory is there, or write smaller shards"
                )


class _OpenShards:
    """The handle of a folder: the shards that were read last stay open."""

    def __init__(self, open_shard: Any) -> None:
        self._handles = Handles(lambda number: _OpenShard(*open_shard(number)))

    @contextmanager
    def using(self, number: int) -> Iterator[tuple[ByteFile, bool]]:
        """The bytes of a shard, and whether they are compressed."""
        with self._handles.using(number) as shard:
            assert isinstance(shard, _OpenShard)
            yield shard.stream, shard.is_packed

    def close(self) -> None:
        """Close all shards."""
        self._handles.close()


@dataclass(frozen=True)
class _OpenShard:
    stream: ByteFile
    is_packed: bool

    def close(self) -> None:
        self.stream.close()


class _InMemory:
    """A shard in memory, as a `ByteFile`."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self.size = len(content)

    def pread(self, offset: int, size: int) -> bytes:
        return bytes(self._content[offset : offset + size])

    def close(self) -> None:
        pass


def _hash_of(stream: ByteFile, name: str) -> str:
    digest = hashlib.new(name)
    for offset in range(0, stream.size, _PIECE_BYTES):
        digest.update(stream.pread(offset, _PIECE_BYTES))
    return digest.hexdigest()
