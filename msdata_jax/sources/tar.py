"""WebDataset tar: consecutive members of one key are one record. A pass over the headers finds them.

As in webdataset, the key is the member's path up to the FIRST dot of its name and the rest, in lower case, is
the name of the value: `a/7.seg.png` has the key `a/7` and the value `seg.png`. Names that start with a dot,
or have none, are no records.
"""

import io
import tarfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import numpy as np

from msdata_jax.errors import SourceError
from msdata_jax.sources.protocol import BadRecord, compact
from msdata_jax.sources.storage import ByteFile, as_file, open_bytes

_BLOCK_BYTES = tarfile.BLOCKSIZE
_NOT_PLAIN = -1


@dataclass(frozen=True, kw_only=True)
class TarFormat:
    """WebDataset tar, not compressed.

    Attributes:
        max_record_bytes: a larger record is bad, and is not read into memory.
        keep_damaged: set by the source's policy. A file that is cut short or has a broken header is an error
            when it is False; else its whole records are read, and one bad record stands for the rest.
    """

    max_record_bytes: int = 256 << 20
    keep_damaged: bool = False
    window_groups = 1

    def index(self, path: str) -> "TarFile":
        """Read the headers. Raises SourceError where there are none."""
        return TarFile(path, self)


class TarFile:
    """One file: offset, size and name of each member, and for each record its first member and its key."""

    group_sizes = None

    def __init__(self, path: str, options: TarFormat) -> None:
        self._path = path
        self._max_record_bytes = options.max_record_bytes
        offsets, sizes, extensions = array("q"), array("q"), array("i")
        firsts, key_ends, keys = array("q"), array("q"), bytearray()
        numbers: dict[str, int] = {}
        last_key = ""
        headers = _Headers(path)
        for name, offset, size in headers:
            key, extension = split_name(name)
            if not extension:
                continue
            if key != last_key:
                last_key = key
                firsts.append(len(offsets))
                keys += key.encode("utf-8", "surrogateescape")
                key_ends.append(len(keys))
            extensions.append(numbers.setdefault(extension, len(numbers)))
            offsets.append(offset)
            sizes.append(size)
        self._members = (compact(offsets), compact(sizes), compact(extensions))
        self._extensions = list(numbers)
        self._firsts = compact(np.append(np.asarray(firsts, np.int64), len(offsets)))
        self._keys, self._key_ends = bytes(keys), compact(key_ends)
        self._damage = headers.damage
        if self._damage and not (options.keep_damaged and len(self)):
            raise SourceError(
                f"{path} {self._damage}, after {len(self)} records; write it again, or set on_bad_sample to "
                "'skip' or 'replace' to use the records before it"
            )

    def __len__(self) -> int:
        return len(self._key_ends)

    def open(self) -> ByteFile:
        """The file's bytes: pread needs no lock and no buffer."""
        return open_bytes(self._path)

    def read(self, handle: ByteFile, indices: np.ndarray) -> list[Any]:
        """One pread per member."""
        return [self._read_one(handle, index) for index in indices.tolist()]

    def _key(self, index: int) -> str:
        start = int(self._key_ends[index - 1]) if index else 0
        return self._keys[start : int(self._key_ends[index])].decode("utf-8", "surrogateescape")

    def _read_one(self, handle: ByteFile, index: int) -> Any:
        key = self._key(index)
        if self._damage and index == len(self) - 1:  # it may lack members
            return BadRecord(f"{self._damage}; record {key!r} and all after it are lost")
        members = slice(*self._firsts[index : index + 2].tolist())
        offsets, sizes, extensions = (column[members].tolist() for column in self._members)
        if _NOT_PLAIN in sizes:
            return BadRecord(f"record {key!r} has a sparse member")
        if sum(sizes) > self._max_record_bytes:
            return BadRecord(
                f"record {key!r} has {sum(sizes)} bytes, max_record_bytes is {self._max_record_bytes}"
            )
        record: dict[str, Any] = {"__key__": key}
        for offset, size, number in zip(offsets, sizes, extensions, strict=True):
            extension = self._extensions[number]
            if extension in record:
                return BadRecord(f"record {key!r} has two members .{extension}; keys end at the first dot")
            record[extension] = handle.pread(offset, size)
            if len(record[extension]) < size:
                return BadRecord(f"record {key!r} ends after {len(record[extension])} of {size} bytes")
        return record


class _Headers:
    """The members of a tar file, and after the pass what is wrong with it ("" where nothing is)."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.damage = ""

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        """(name, offset, size) of each plain member; of a file that is cut, the last one is not all there."""
        end = 0  # where the next header should be
        with as_file(self._path) as stream:
            num_bytes = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            try:
                with tarfile.open(fileobj=stream, mode="r:", errors="surrogateescape") as members:
                    while (member := members.next()) is not None and member.size >= 0:
                        cast(Any, members).members = []  # it would keep them all
                        if member.isreg():
                            size = _NOT_PLAIN if member.issparse() else member.size
                            yield member.name, member.offset_data, size
                        if not end < members.offset <= num_bytes:
                            break
                        end = members.offset
                        if not members.pax_headers:  # of all members that follow
                            yield from _plain_members(members, stream, num_bytes)
                            end = members.offset
            except (tarfile.TarError, OSError, ValueError, OverflowError) as error:
                if end == 0:
                    raise SourceError(f"{self._path} is not an uncompressed tar file: {error}") from error
            stream.seek(end)
            self.damage = _damage_at(end, stream.read(_BLOCK_BYTES))


def _plain_members(
    members: tarfile.TarFile, stream: BinaryIO, num_bytes: int
) -> Iterator[tuple[str, int, int]]:
    """As above, the next members whose header says all; `members` goes on at the first that is not so.

    tarfile knows every dialect, and takes four times as long: seconds for shards of many small members.
    """
    while True:
        stream.seek(members.offset)
        plain = _plain(stream.read(_BLOCK_BYTES))
        if plain is None:
            return
        name, size = plain
        start = members.offset + _BLOCK_BYTES
        end = start + -(-size // _BLOCK_BYTES) * _BLOCK_BYTES
        if end > num_bytes:
            return
        yield name, start, size
        members.offset = end


def _plain(header: bytes) -> tuple[str, int] | None:
    """Name and size of a regular file whose whole ustar or GNU header needs no other one."""
    if header[257:262] != b"ustar" or header[156:157] != tarfile.REGTYPE or header[345:346] != b"\0":
        return None
    size, checksum = header[124:136], header[148:156]
    try:
        num_bytes = int(size.rstrip(b" \0"), 8)
        # The sum of all bytes, its own taken for spaces.
        is_whole = int(checksum.rstrip(b" \0"), 8) == sum(header) - sum(checksum) + 8 * ord(" ")
    except ValueError:
        return None
    if not is_whole or num_bytes < 0:
        return None
    return header[:100].partition(b"\0")[0].decode("utf-8", "surrogateescape"), num_bytes


def _damage_at(offset: int, block: bytes) -> str:
    """What is wrong where the archive should end. tarfile takes a broken header for the end."""
    if len(block) == _BLOCK_BYTES and not any(block):
        return ""
    if len(block) < _BLOCK_BYTES:
        return f"is cut short at byte {offset}: no end of archive follows"
    return f"has a member that is cut short or a broken header at byte {offset}"


def split_name(name: str) -> tuple[str, str]:
    """`a/7.seg.PNG` -> `a/7`, `seg.png`; no extension where the file is no part of a record."""
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return (folder + slash + stem, extension.lower()) if stem else ("", "")
