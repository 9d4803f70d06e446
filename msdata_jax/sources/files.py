"""A path or glob -> records: finds the files, picks their format, reads them as one dataset.

Files are taken in sorted order of their paths. Their indices stay in memory; only a few stay open.
"""

import glob
import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from msdata_jax.errors import SourceError
from msdata_jax.recipe import without_credentials
from msdata_jax.sources import storage
from msdata_jax.sources.formats import choose_format
from msdata_jax.sources.handles import Handles
from msdata_jax.sources.protocol import BadRecord, ClosableFile, DigestedFile, Format, Handle, RecordFile

MAX_FILE_DIGESTS = 64
_DIGEST_BYTES = 65536
_NONE: Mapping[str, Any] = MappingProxyType({})


def open_files(
    pattern: str,
    options: Mapping[str, Any],
    *,
    keep_damaged: bool,
    storage_options: Mapping[str, Any] = _NONE,
) -> "FileRecords":
    """Find and index the files of a source.

    Args:
        pattern: a path, or a glob (`**` matches folders); or a URL, as `storage.find` takes it.
        options: fields of the format's class.
        keep_damaged: read what is whole of a damaged file, where the format can tell what is.
        storage_options: `Source.storage`.

    Raises:
        SourceError: no such file, no such format, no records, a wrong option, or a file that is damaged.
    """
    paths = _find(pattern, storage_options)
    record_format = choose_format(paths, options, keep_damaged)
    return FileRecords(paths, [_indexed(record_format, path) for path in paths], record_format.window_groups)


def _indexed(record_format: Format, path: str) -> RecordFile:
    try:
        return record_format.index(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error


class FileRecords:
    """The records of several files, one file after the other."""

    counts_epochs = False

    def __init__(self, paths: Sequence[str], files: Sequence[RecordFile], window_groups: int) -> None:
        self._paths = paths
        self._files = files
        self.window_groups = window_groups
        self._starts = np.concatenate([[0], np.cumsum([len(file) for file in files], dtype=np.int64)])
        self._handles = Handles(self._open)
        self._digested: tuple[str, dict[str, str]] | None = None

    @property
    def group_sizes(self) -> np.ndarray | None:
        """The groups of all files, where every file has groups."""
        sizes = [file.group_sizes for file in self._files]
        grouped = [size for size in sizes if size is not None]
        return np.concatenate(grouped) if len(grouped) == len(sizes) else None

    @property
    def num_open_files(self) -> int:
        """Files of this source that are open now; `sources.handles` bounds those of all sources together."""
        return len(self._handles)

    @property
    def num_retries(self) -> int:
        """How many requests were tried again, where the files are remote."""
        return storage.num_retries(self._paths)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, indices: np.ndarray) -> list[Any]:
        """One read per file that is touched."""
        numbers = np.searchsorted(self._starts, indices, side="right") - 1
        records: list[Any] = [None] * len(indices)
        for number in map(int, np.unique(numbers)):
            places = np.flatnonzero(numbers == number)
            found = self._read_file(number, indices[places] - self._starts[number])
            for place, record in zip(places.tolist(), found, strict=True):
                records[place] = record
        return records

    def _read_file(self, number: int, indices: np.ndarray) -> list[Any]:
        path = self._paths[number]
        try:
            with self._handles.using(number) as handle:
                found = self._files[number].read(handle, indices)
        except OSError as error:
            raise SourceError(f"{path} can no longer be read: {error.strerror or error}") from error
        name = storage.base_name(path)
        return [
            replace(record, reason=f"{name}: {record.reason}") if isinstance(record, BadRecord) else record
            for record in found
        ]

    def describe(self, index: int) -> str:
        """The record's number in its file, from 0."""
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return f"record {index - int(self._starts[number])} of {storage.base_name(self._paths[number])}"

    def fingerprint(self) -> str:
        """Digest of each file's name, size, record count, first and last 64 KiB (headers and footers)."""
        return self._digests()[0]

    def file_digests(self) -> dict[str, str]:
        """Digest of each file's size, record count, first and last 64 KiB."""
        return self._digests()[1]

    def _digests(self) -> tuple[str, dict[str, str]]:
        """Both, from one look at each file."""
        if self._digested is None:
            of_all, of_each = hashlib.blake2b(digest_size=16), list[str]()
            for path, file in zip(self._paths, self._files, strict=True):
                of_all.update(os.fsencode(f"{storage.base_name(path)}\n"))
                own = hashlib.blake2b(digest_size=8)
                for piece in _content(path, file):
                    of_all.update(piece)
                    own.update(piece)
                of_each.append(own.hexdigest())
            few = len(of_each) <= MAX_FILE_DIGESTS
            by_name = dict(zip(_short_names(self._paths), of_each, strict=True)) if few else {}
            self._digested = of_all.hexdigest(), by_name
        return self._digested

    def drop_handles(self) -> None:
        """Open the files anew from now on."""
        self._handles.drop()

    def close(self) -> None:
        """Close all files."""
        self._handles.close()
        for file in self._files:
            if isinstance(file, ClosableFile):
                file.close()

    def _open(self, number: int) -> Handle:
        try:
            return self._files[number].open()
        except OSError as error:
            raise SourceError(
                f"{self._paths[number]} can no longer be opened: {error.strerror or error}"
            ) from error


def _content(path: str, file: RecordFile) -> Iterator[bytes]:
    """What tells the file from others, without its name."""
    if isinstance(file, DigestedFile):
        yield b"%d\n" % len(file) + file.content_digest()
        return
    with closing(_opened(path)) as stream:
        yield f"{stream.size}\n{len(file)}\n".encode()
        yield stream.pread(0, _DIGEST_BYTES)
        yield stream.pread(max(0, stream.size - _DIGEST_BYTES), _DIGEST_BYTES)


def _short_names(paths: Sequence[str]) -> list[str]:
    """Base names; where files share one, their paths from the folder that all files have in common."""
    names = [storage.base_name(path) for path in paths]
    counts = Counter(names)
    whole = [os.path.abspath(path) for path in paths]
    folder = os.path.commonpath([os.path.dirname(path) for path in whole])
    return [
        name if counts[name] == 1 else os.path.relpath(path, folder)
        for name, path in zip(names, whole, strict=True)
    ]


def _opened(path: str) -> storage.ByteFile:
    try:
        return storage.open_bytes(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be opened: {error.strerror}") from error


def _find(pattern: str, storage_options: Mapping[str, Any]) -> list[str]:
    shown = without_credentials(pattern)
    try:
        paths = storage.find(pattern, storage_options)
        sizes = storage.sizes_of([path for path in paths if not os.path.isdir(path)])
    except OSError as error:
        where = error.filename or shown
        raise SourceError(f"{where} cannot be opened: {error.strerror or error}") from error
    if not paths:
        what = "there is no such file"
        if storage.is_remote(pattern):
            what = "no file is listed there; name the files by braces ({000..099}) or in a list (.txt)"
        elif glob.has_magic(pattern):
            what = "the glob matches no file"
        raise SourceError(f"{shown}: {what} (seen from {os.getcwd()}); correct the path of the source")
    for path, size in sizes.items():
        if size == 0:
            raise SourceError(f"{path} is empty (0 bytes); write it again or take it out of {shown}")
    return [path if storage.is_remote(path) else path.rstrip("/") or path for path in paths]
