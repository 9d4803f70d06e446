"""Which format the files of a source have: told by a file's suffix, and for a folder by what is in it."""

import dataclasses
import importlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msdata_jax.errors import SourceError
from msdata_jax.sources import storage
from msdata_jax.sources.protocol import Format

_COMPRESSIONS = frozenset((".gz", ".zst", ".bz2", ".xz", ".lz4", ".zip"))
_NUMBERED = re.compile(r"-\d+-of-\d+$")
_MARKER_BYTES = 1 << 20

# suffix -> module and class; imported when a source needs it
_FORMATS = {
    ".arrayrecord": ("arrayrecord", "ArrayRecordFormat"),
    ".array_record": ("arrayrecord", "ArrayRecordFormat"),
    ".parquet": ("parquet", "ParquetFormat"),
    ".jsonl": ("jsonl", "JsonlFormat"),
    ".ndjson": ("jsonl", "JsonlFormat"),
    ".json": ("jsonl", "JsonlFormat"),
    ".jsonl.gz": ("compressed", "CompressedJsonlFormat"),
    ".ndjson.gz": ("compressed", "CompressedJsonlFormat"),
    ".json.gz": ("compressed", "CompressedJsonlFormat"),
    ".jsonl.zst": ("compressed", "CompressedJsonlFormat"),
    ".ndjson.zst": ("compressed", "CompressedJsonlFormat"),
    ".json.zst": ("compressed", "CompressedJsonlFormat"),
    ".tar": ("tar", "TarFormat"),
    ".tfrecord": ("tfrecord", "TfRecordFormat"),
    ".tfrecords": ("tfrecord", "TfRecordFormat"),
    ".idx": ("megatron", "MegatronFormat"),
    ".bin": ("megatron", "MegatronFormat"),
}

# A file that tells the format of its folder -> what is in it, module and class. `Source.data` may name the
# folder or this file (a folder on a web server cannot be looked into); `Format.index` gets what was named.
_MARKERS = {
    "index.json": (b'"shards"', "mds", "MdsFormat"),
    ".zarray": (b'"shape"', "zarr", "ZarrFormat"),
    ".zgroup": (b'"zarr_format"', "zarr", "ZarrFormat"),
    "zarr.json": (b'"zarr_format"', "zarr", "ZarrFormat"),
    "attributes.json": (b'"(n5|dimensions)"', "zarr", "ZarrFormat"),
}

# Any other folder: its files are the values of its records.
_LOOSE_FILES = ("folder", "FolderFormat")
_ALSO_VALUES = frozenset((".json", ".bin"))


def choose_format(paths: Sequence[str], options: Mapping[str, Any], keep_damaged: bool) -> Format:
    """The format of all of `paths`, with these options.

    Raises:
        SourceError: the paths are of several formats or of none, or the format has no such option.
    """
    kinds = {_kind_of(path): path for path in paths}
    if len(kinds) > 1:
        examples = ", ".join(f"{path} ({_name_of(kind, path)})" for kind, path in list(kinds.items())[:4])
        raise SourceError(
            f"a source is of files of one format, got several: {examples}; split the source, or let the glob "
            "name one of them"
        )
    ((kind, path),) = kinds.items()
    if kind is None:
        raise _unknown(path)
    module, class_name = kind
    chosen = getattr(importlib.import_module(f"msdata_jax.sources.{module}"), class_name)
    known = {field.name for field in dataclasses.fields(chosen) if field.init} - {"keep_damaged"}
    if unknown := sorted(options.keys() - known):
        raise SourceError(
            f"{class_name} has the options {sorted(known)}, got {unknown}; correct Source.options"
        )
    return chosen(**options, **({"keep_damaged": keep_damaged} if hasattr(chosen, "keep_damaged") else {}))


def suffix_of(path: str) -> str:
    """The suffix in lower case, of two parts where it names a compression; without the number of a shard.

    `C4.00001-of-01024.json.gz` -> `.json.gz`, `train.tfrecord-00001-of-00010` -> `.tfrecord`.
    """
    stem, suffix = os.path.splitext(_NUMBERED.sub("", storage.base_name(path).lower()))
    return os.path.splitext(stem)[1] + suffix if suffix in _COMPRESSIONS else suffix


def holds_records(names: Sequence[str]) -> bool:
    """Whether the files of one key are files of records by their names, and not the values of one record.

    `.json` and `.bin` are usual for values too, and do not tell where they are alone.
    """
    suffixes = {suffix_of(name) for name in names}
    # `.tar.gz` holds records as well, though it has to be unpacked
    known = all(each in _FORMATS or os.path.splitext(each)[0] in _FORMATS for each in suffixes)
    return known and not suffixes <= _ALSO_VALUES


def tells_format(folder: str, name: str) -> bool:
    """Whether the file `name` tells that its local folder is a dataset of one format.

    Raises:
        OSError: it cannot be read.
    """
    marker, path = _MARKERS.get(name), os.path.join(folder, name)
    if marker is None or not os.path.isfile(path):
        return False
    with open(path, "rb") as stream:
        return re.search(marker[0], stream.read(_MARKER_BYTES)) is not None


def _kind_of(path: str) -> tuple[str, str] | None:
    """Module and class of a path's format, None for no known one."""
    if not storage.is_remote(path) and os.path.isdir(path):
        return _kind_of_folder(path)
    if marker := _MARKERS.get(storage.base_name(path)):
        return marker[1:]
    return _FORMATS.get(suffix_of(path))


def _kind_of_folder(path: str) -> tuple[str, str]:
    for name, marker in _MARKERS.items():
        try:
            if tells_format(path, name):
                return marker[1:]
        except OSError as error:
            raise SourceError(
                f"{os.path.join(path, name)} cannot be read ({error.strerror}), and may tell the format of "
                "its folder; make it readable"
            ) from error
    return _LOOSE_FILES


def _unknown(path: str) -> SourceError:
    if storage.is_remote(path) and not suffix_of(path):
        return SourceError(
            f"{path} has no suffix, and a folder that is not on a local disk cannot be looked into; name its "
            "files by a glob, braces or a list (.txt), or copy it to a local disk"
        )
    return SourceError(
        f"{path} is of no known format ({suffix_of(path) or 'no suffix'}); a source is of files of one "
        f"format out of {', '.join(_FORMATS)}, a folder with {', '.join(_MARKERS)} in it, or a local folder "
        "of loose files, named without a glob; convert or unpack the files"
    )


def _name_of(kind: tuple[str, str] | None, path: str) -> str:
    return kind[1] if kind else suffix_of(path) or "no suffix"
