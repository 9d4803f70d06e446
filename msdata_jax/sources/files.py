"""A path or glob -> records: finds the files, picks their format, reads them as one dataset.

Files are taken in sorted order of their paths. Their indices stay in memory; only a few stay open.
"""

import dataclasses
import glob
import hashlib
import importlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from msdata_jax.errors import SourceError
from msdata_jax.sources.handles import Handles
from msdata_jax.sources.protocol import BadRecord, Format, Handle, RecordFile

MAX_OPEN_FILES = 32
MAX_FILE_DIGESTS = 64
_DIGEST_BYTES = 65536

# suffix -> module and class; imported when a source needs it
_FORMATS = {
    ".arrayrecord": ("arrayrecord", "ArrayRecordFormat"),
    ".array_record": ("arrayrecord", "ArrayRecordFormat"),
    ".parquet": ("parquet", "ParquetFormat"),
    ".jsonl": ("jsonl", "JsonlFormat"),
    ".tar": ("tar", "TarFormat"),
}


def open_files(pattern: str, options: Mapping[str, Any], *, keep_damaged: bool) -> "FileRecords":
    """Find and index the files of a source.

    Args:
        pattern: a path, or a glob (`**` matches folders).
        options: fields of the format's class.
        keep_damaged: read what is whole of a damaged file, where the format can tell what is.

    Raises:
        SourceError: no such file, no such format, no records, a wrong option, or a file that is damaged.
    """
    paths = _find(pattern)
    record_format = _choose_format(paths, options, keep_damaged)
    return FileRecords(paths, [record_format.index(path) for path in paths], record_format.window_groups)


class FileRecords:
    """The records of several files, one file after the other."""

    counts_epochs = False

    def __init__(self, paths: Sequence[str], files: Sequence[RecordFile], window_groups: int) -> None:
        self._paths = paths
        self._files = files
        self.window_groups = window_groups
        self._starts = np.concatenate([[0], np.cumsum([len(file) for file in files], dtype=np.int64)])
        self._handles = Handles(self._open, MAX_OPEN_FILES)

    @property
    def group_sizes(self) -> np.ndarray | None:
        """The groups of all files, where every file has groups."""
        sizes = [file.group_sizes for file in self._files]
        grouped = [size for size in sizes if size is not None]
        return np.concatenate(grouped) if len(grouped) == len(sizes) else None

    @property
    def num_open_files(self) -> int:
        """At most MAX_OPEN_FILES, and one for each read in progress."""
        return len(self._handles)

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
        name = os.path.basename(path)
        return [
            replace(record, reason=f"{name}: {record.reason}") if isinstance(record, BadRecord) else record
            for record in found
        ]

    def describe(self, index: int) -> str:
        """The record's number in its file, from 0."""
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return f"record {index - int(self._starts[number])} of {os.path.basename(self._paths[number])}"

    def fingerprint(self) -> str:
        """Digest of each file's name, size, record count, first and last 64 KiB (headers and footers)."""
        digest = hashlib.blake2b(digest_size=16)
        for path, file in zip(self._paths, self._files, strict=True):
            digest.update(f"{os.path.basename(path)}\n".encode())
            _digest_file(path, len(file), digest)
        return digest.hexdigest()

    def file_digests(self) -> dict[str, str]:
        """Digest of each file's size, record count, first and last 64 KiB."""
        if len(self._paths) > MAX_FILE_DIGESTS:
            return {}
        digests = {}
        for name, path, file in zip(_short_names(self._paths), self._paths, self._files, strict=True):
            digest = hashlib.blake2b(digest_size=8)
            _digest_file(path, len(file), digest)
            digests[name] = digest.hexdigest()
        return digests

    def drop_handles(self) -> None:
        """Open the files anew from now on."""
        self._handles.drop()

    def close(self) -> None:
        """Close all files."""
        self._handles.close()

    def _open(self, number: int) -> Handle:
        try:
            return self._files[number].open()
        except OSError as error:
            raise SourceError(f"{self._paths[number]} can no longer be opened: {error.strerror}") from error


def _digest_file(path: str, num_records: int, digest: Any) -> None:
    with _opened(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        digest.update(f"{size}\n{num_records}\n".encode())
        digest.update(stream.read(_DIGEST_BYTES))
        stream.seek(max(0, size - _DIGEST_BYTES))
        digest.update(stream.read(_DIGEST_BYTES))


def _short_names(paths: Sequence[str]) -> list[str]:
    """Base names; where files share one, their paths from the folder that all files have in common."""
    counts = Counter(os.path.basename(path) for path in paths)
    whole = [os.path.abspath(path) for path in paths]
    folder = os.path.commonpath([os.path.dirname(path) for path in whole])
    return [
        name if counts[name := os.path.basename(path)] == 1 else os.path.relpath(path, folder)
        for path in whole
    ]


def _opened(path: str) -> Any:
    try:
        return open(path, "rb")
    except OSError as error:
        raise SourceError(f"{path} cannot be opened: {error.strerror}") from error


def _find(pattern: str) -> list[str]:
    paths = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
    if not paths:
        what = "the glob matches no file" if glob.has_magic(pattern) else "there is no such file"
        raise SourceError(f"{pattern}: {what} (seen from {os.getcwd()}); correct the path of the source")
    for path in paths:
        if os.path.isdir(path):
            raise SourceError(f"{path} is a folder; give a glob of its files, such as {path}/*.parquet")
        with _opened(path) as stream:
            if os.fstat(stream.fileno()).st_size == 0:
                raise SourceError(f"{path} is empty (0 bytes); write it again or take it out of {pattern}")
    return paths


def _choose_format(paths: Sequence[str], options: Mapping[str, Any], keep_damaged: bool) -> Format:
    suffixes = {os.path.splitext(path)[1].lower() for path in paths}
    if len(suffixes) > 1 or not suffixes <= _FORMATS.keys():
        raise SourceError(
            f"a source is of files of one format out of {', '.join(_FORMATS)}, got {sorted(suffixes)} "
            f"({paths[0]}); convert or unpack the files, or split the source"
        )
    module, class_name = _FORMATS[suffixes.pop()]
    chosen = getattr(importlib.import_module(f"msdata_jax.sources.{module}"), class_name)
    known = {field.name for field in dataclasses.fields(chosen)} - {"keep_damaged"}
    if unknown := sorted(options.keys() - known):
        raise SourceError(
            f"{class_name} has the options {sorted(known)}, got {unknown}; correct Source.options"
        )
    return chosen(**options, **({"keep_damaged": keep_damaged} if hasattr(chosen, "keep_damaged") else {}))
