"""The `index.json` of MDS: what it says of each shard, checked before anything is done with it."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msdata_jax.errors import SourceError
from msdata_jax.sources.mds_columns import Columns, read_columns

_VERSION, _FORMAT = 2, "mds"
_COMPRESSIONS = ("gz", "zstd")
_OFFSET_BYTES = 4
_MAX_SHARD_BYTES = 2**32  # offsets are uint32
_HASHES = frozenset(name for name in hashlib.algorithms_guaranteed if not name.startswith("shake"))
_FORBIDDEN = frozenset('\\:?#%*"<>|')


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file of a shard.

    Attributes:
        name: its path from the folder of the index.
        num_bytes: its size.
        hashes: name and hexadecimal value of each hash that hashlib can compute.
    """

    name: str
    num_bytes: int
    hashes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard.

    Attributes:
        num_samples: in it.
        raw: the file of its samples.
        packed: the same file compressed; None where it is not.
        compression: `gz` or `zstd`; "" where it is not compressed.
        columns: of its samples.
    """

    num_samples: int
    raw: FileInfo
    packed: FileInfo | None
    compression: str
    columns: Columns


def read_index(content: bytes, path: str, wanted: Sequence[str] | None) -> list[Shard]:
    """The shards of an index.

    Args:
        content: of `index.json`.
        path: of it, for messages.
        wanted: names of the columns to decode; None for all.

    Raises:
        SourceError: it is damaged, or of a kind that is not read; says which shard and why.
    """
    try:
        index = json.loads(content.decode())
        _require(
            isinstance(index, dict) and isinstance(index.get("shards"), list), "it has no list of shards"
        )
        _require(index.get("version") == _VERSION, f"it has version {index.get('version')!r}, not {_VERSION}")
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path} is not an index of MDS: {error or type(error).__name__}") from error
    known: dict[str, Columns] = {}
    shards = []
    for number, entry in enumerate(index["shards"]):
        try:
            shards.append(_shard(entry, wanted, known))
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{path}, shard {number}: {error or type(error).__name__}") from error
    return shards


def _shard(entry: Any, wanted: Sequence[str] | None, known: dict[str, Columns]) -> Shard:
    _require(isinstance(entry, dict), "it is no object")
    kind = entry.get("version"), entry.get("format")
    _require(kind == (_VERSION, _FORMAT), f"it is {kind}, this reads {(_VERSION, _FORMAT)}")
    num_samples = entry.get("samples")
    _require(type(num_samples) is int and num_samples >= 0, f"it has {num_samples!r:.100} samples")
    raw = _file_info(entry.get("raw_data"))
    least = _OFFSET_BYTES * (num_samples + 2)
    _require(
        raw.num_bytes >= least, f"{num_samples} samples take {least} bytes at least, not {raw.num_bytes}"
    )
    compression = entry.get("compression")
    packed = entry.get("zip_data")
    _require((compression is None) == (packed is None), "it has either a compression or a compressed file")
    return Shard(
        num_samples=num_samples,
        raw=raw,
        packed=None if packed is None else _file_info(packed),
        compression="" if compression is None else _compression(compression),
        columns=_columns(entry, wanted, known),
    )


def _file_info(entry: Any) -> FileInfo:
    _require(isinstance(entry, dict), f"the description of a file is {entry!r:.100}")
    name, num_bytes, hashes = entry.get("basename"), entry.get("bytes"), entry.get("hashes") or {}
    _require(_stays_inside(name), f"the file name {name!r:.200} leads out of the folder, or is none")
    is_size = type(num_bytes) is int and 0 <= num_bytes < _MAX_SHARD_BYTES
    _require(is_size, f"{name} has {num_bytes!r:.100} bytes")
    is_named = isinstance(hashes, dict) and all(isinstance(value, str) for value in hashes.values())
    _require(is_named, f"{name} has the hashes {hashes!r:.100}")
    checked = tuple((key, value.lower()) for key, value in hashes.items() if key in _HASHES)
    return FileInfo(name, num_bytes, checked)


def _stays_inside(name: Any) -> bool:
    """Whether a name is a path downwards, made of plain names, on any system and in any URL."""
    return isinstance(name, str) and all(
        part not in ("", ".", "..") and part.isprintable() and not _FORBIDDEN.intersection(part)
        for part in name.split("/")
    )


def _compression(told: Any) -> str:
    """`zstd:7` -> `zstd`."""
    name = told.partition(":")[0] if isinstance(told, str) else None
    _require(
        name in _COMPRESSIONS,
        f"it is compressed by {told!r:.100}, this reads {' and '.join(_COMPRESSIONS)}; write it again",
    )
    return str(name)


def _columns(entry: dict[str, Any], wanted: Sequence[str] | None, known: dict[str, Columns]) -> Columns:
    """Shards are mostly alike; their columns are one object then."""
    lists = [entry.get(f"column_{what}") for what in ("names", "encodings", "sizes")]
    key = json.dumps(lists)
    if key not in known:
        _require(all(isinstance(each, list) for each in lists), "it has no columns")
        names, encodings, sizes = (each or [] for each in lists)
        are_words = all(isinstance(word, str) for word in (*names, *encodings))
        _require(are_words, f"its columns are {names!r:.100}, {encodings!r:.100}")
        known[key] = read_columns(names, encodings, sizes, wanted)
    return known[key]


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
