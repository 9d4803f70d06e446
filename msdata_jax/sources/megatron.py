"""Indexed datasets of Megatron-LM: token ids in `NAME.bin`, where their sequences are in `NAME.idx`.

The index is read as records are asked for, and takes no memory. It says twice where a sequence ends: by its
length, and by where the next one starts; a damaged entry shows by that. The token ids have no checksum.
"""

import hashlib
import struct
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from msdata_jax.errors import SourceError
from msdata_jax.sources.protocol import BadRecord
from msdata_jax.sources.storage import ByteFile, base_name, beside, open_bytes

_HEADER = struct.Struct("<9sQBQQ")  # magic, version, code of the dtype, sequences, entries of the documents
_MAGIC, _VERSION = b"MMIDIDX\x00\x00", 1
_DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_FLOATS = {6: "float64", 7: "float32"}
_LENGTH_BYTES, _POINTER_BYTES = 4, 8
_DIGEST_BYTES = 65536
_UNITS = ("sequence", "document")


@dataclass(frozen=True, kw_only=True)
class MegatronFormat:
    """An indexed dataset of Megatron-LM; a source names either its `.idx` or its `.bin`.

    Attributes:
        unit: what a record is: `sequence`, or `document` (its sequences one after the other). They are the
            same unless the text was split into sentences.
        max_record_bytes: a record with more bytes of tokens is bad, and is not read into memory.
        allow_gaps: accept an index whose sequences do not follow each other in the `.bin`. Without, such an
            entry is a bad record, which finds damage that would pass unseen otherwise.
        keep_damaged: set by the source's policy. A `.bin` that is shorter than its index says is an error
            when it is False; else records that are not there are bad.
    """

    unit: str = "sequence"
    max_record_bytes: int = 256 << 20
    allow_gaps: bool = False
    keep_damaged: bool = False
    window_groups = 1

    def __post_init__(self) -> None:
        if self.unit not in _UNITS or self.max_record_bytes < 0:
            raise SourceError(
                f"MegatronFormat takes unit out of {_UNITS} and max_record_bytes of at least 0, got "
                f"unit={self.unit!r}, max_record_bytes={self.max_record_bytes}; correct Source.options"
            )

    def index(self, path: str) -> "MegatronFile":
        """Look at the header and the sizes. Raises SourceError where they do not fit each other."""
        return MegatronFile(path, self)


class MegatronFile:
    """One pair of files: what its header says."""

    group_sizes = None

    def __init__(self, path: str, options: MegatronFormat) -> None:
        self._paths = _both_paths(path)
        self._options = options
        with closing(self.open()) as pair:
            code, self._num_sequences, self._num_bounds = self._read_header(pair.index)
            self._dtype = np.dtype(_DTYPES[code])
            self._pointers_at = _HEADER.size + _LENGTH_BYTES * self._num_sequences
            self._bounds_at = self._pointers_at + _POINTER_BYTES * self._num_sequences
            self._end = self._find_end(pair)

    def __len__(self) -> int:
        if self._options.unit == "sequence":
            return self._num_sequences
        return max(0, self._num_bounds - 1)

    def open(self) -> "_Pair":
        """Both files."""
        return _Pair(*self._paths)

    def content_digest(self) -> bytes:
        """Digest of the sizes, the first and the last 64 KiB of both files."""
        digest = hashlib.blake2b(digest_size=16)
        with closing(self.open()) as pair:
            for stream in (pair.index, pair.tokens):
                digest.update(b"%d\n" % stream.size + stream.pread(0, _DIGEST_BYTES))
                digest.update(stream.pread(max(0, stream.size - _DIGEST_BYTES), _DIGEST_BYTES))
        return digest.digest()

    def read(self, handle: "_Pair", indices: np.ndarray) -> list[Any]:
        """A few small preads of the index and one of the tokens per record."""
        return [self._read_one(handle, index) for index in indices.tolist()]

    def _read_one(self, pair: "_Pair", index: int) -> Any:
        if self._options.unit == "sequence":
            found = self._read_run(pair, index, 1)
            return BadRecord(f"sequence {index} {found}") if isinstance(found, str) else found
        first, last = _numbers(pair.index, self._bounds_at + _POINTER_BYTES * index, 2, "<i8").tolist()
        if not 0 <= first <= last <= self._num_sequences:
            return BadRecord(
                f"document {index} is of the sequences {first} to {last}, out of {self._num_sequences}"
            )
        found = self._read_run(pair, first, last - first)
        return BadRecord(f"document {index} {found}") if isinstance(found, str) else found

    def _read_run(self, pair: "_Pair", first: int, count: int) -> dict[str, np.ndarray] | str:
        """The tokens of `count` sequences from `first` on, or what is wrong with them."""
        limit = self._options.max_record_bytes
        if count * (_LENGTH_BYTES + _POINTER_BYTES) > limit:
            return f"has {count} sequences, whose index alone has more than max_record_bytes ({limit})"
        lengths, starts = self._entries(pair, first, count)
        if (lengths < 0).any() or (starts < 0).any() or (starts > self._end).any():
            return f"has a damaged index: lengths {lengths[:4].tolist()}, starts {starts[:4].tolist()}"
        ends = starts[:-1] + lengths * self._dtype.itemsize
        if not self._options.allow_gaps and (ends != starts[1:]).any():
            return (
                f"has a damaged index: sequences end at byte {ends[:4].tolist()} and the next start at "
                f"{starts[1:5].tolist()}; allow_gaps=True accepts that"
            )
        if not count:
            return {"tokens": np.zeros(0, self._dtype)}
        num_bytes = int(lengths.sum()) * self._dtype.itemsize
        if num_bytes > limit:
            return f"has {num_bytes} bytes, max_record_bytes is {limit}"
        return self._tokens(pair.tokens, starts[:-1], ends)

    def _entries(self, pair: "_Pair", first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The lengths of `count` sequences in tokens; where they and the next one start, in bytes."""
        lengths = _numbers(pair.index, _HEADER.size + _LENGTH_BYTES * first, count, "<i4").astype(np.int64)
        is_last = first + count == self._num_sequences
        starts = _numbers(
            pair.index, self._pointers_at + _POINTER_BYTES * first, count + 1 - is_last, "<i8"
        ).astype(np.int64)
        return lengths, np.append(starts, self._end) if is_last else starts

    def _tokens(self, stream: ByteFile, starts: np.ndarray, ends: np.ndarray) -> dict[str, np.ndarray] | str:
        breaks = np.flatnonzero(ends[:-1] != starts[1:]) + 1  # one read as far as sequences follow each other
        runs = zip(starts[[0, *breaks]].tolist(), ends[[*(breaks - 1), -1]].tolist(), strict=True)
        found = bytearray()
        for start, end in runs:
            piece = stream.pread(start, end - start)
            if len(piece) < end - start:
                return f"ends at byte {end}, the .bin has {stream.size}"
            found += piece
        return {"tokens": np.frombuffer(found, self._dtype)}

    def _read_header(self, stream: ByteFile) -> tuple[int, int, int]:
        """Code of the dtype, sequences, and entries of the document list; checked against the file's size."""
        path = self._paths[0]
        header = stream.pread(0, _HEADER.size)
        if len(header) < _HEADER.size or not header.startswith(_MAGIC):
            raise SourceError(
                f"{path} is not a Megatron index: it begins with {header[:9]!r}, not {_MAGIC!r}"
            )
        _, version, code, num_sequences, num_bounds = _HEADER.unpack(header)
        if version != _VERSION or code not in _DTYPES:
            raise SourceError(
                f"{path} has version {version} and {_FLOATS.get(code, f'the dtype code {code}')}; this reads "
                f"version {_VERSION} and integers (codes {sorted(_DTYPES)}); write it again"
            )
        size = _HEADER.size + (_LENGTH_BYTES + _POINTER_BYTES) * num_sequences + _POINTER_BYTES * num_bounds
        # Datasets of several modes have a byte more for each sequence, which is not read.
        if stream.size not in (size, size + num_sequences):
            raise SourceError(
                f"{path} is cut short or damaged: {num_sequences} sequences and {num_bounds} document bounds "
                f"take {size} bytes, it has {stream.size}; write it again"
            )
        return code, num_sequences, num_bounds

    def _find_end(self, pair: "_Pair") -> int:
        """Where the last sequence ends in the `.bin`, which should be all of it."""
        end = 0
        if last := self._num_sequences:
            length = int(_numbers(pair.index, self._pointers_at - _LENGTH_BYTES, 1, "<i4")[0])
            end = int(_numbers(pair.index, self._bounds_at - _POINTER_BYTES, 1, "<i8")[0])
            end += length * self._dtype.itemsize
        size = pair.tokens.size
        found = f"{self._paths[1]} has {size} bytes, its index ends at byte {end} with sequence {last}"
        if size < end and not self._options.keep_damaged:
            raise SourceError(
                f"{found}; write it again, or set on_bad_sample to 'skip' or 'replace' to use what is there"
            )
        if size > end and not self._options.allow_gaps:
            raise SourceError(
                f"{found}; write both again, or give options={{'allow_gaps': True}} if the rest is no data"
            )
        return max(end, size)


class _Pair:
    """The open files."""

    def __init__(self, index_path: str, tokens_path: str) -> None:
        self.index = _open_one(index_path, tokens_path)
        try:
            self.tokens = _open_one(tokens_path, index_path)
        except BaseException:
            self.index.close()
            raise

    def close(self) -> None:
        """Close both."""
        self.index.close()
        self.tokens.close()


def _both_paths(path: str) -> tuple[str, str]:
    """Of the `.idx` and of the `.bin`."""
    name = base_name(path)
    if name.lower().endswith(".idx"):
        return path, beside(path, name[:-4] + ".bin")
    return beside(path, name[:-4] + ".idx"), path


def _open_one(path: str, other: str) -> ByteFile:
    try:
        return open_bytes(path)
    except FileNotFoundError as error:
        raise SourceError(f"{path} is missing beside {other}; an indexed dataset is both files") from error


def _numbers(stream: ByteFile, offset: int, count: int, dtype: str) -> np.ndarray:
    size = count * np.dtype(dtype).itemsize
    found = stream.pread(offset, size)
    if len(found) < size:
        raise SourceError(
            f"a Megatron index has shrunk since it was opened: no {size} bytes at byte {offset}"
        )
    return np.frombuffer(found, dtype)
