"""Which arrays a folder of Zarr v2, Zarr v3 or N5 has: by the metadata files, with no library."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from msdata_jax.errors import SourceError

_MAX_METADATA_BYTES = 16 << 20
_MAX_ARRAYS = 1024
_MARKERS = (".zarray", "zarr.json", "attributes.json", ".zgroup")


@dataclass(frozen=True)
class ArrayFolder:
    """An array on disk: its folder, tensorstore's driver for it, and its metadata as JSON."""

    path: str
    driver: str
    metadata: str


def find_arrays(path: str, name: str) -> Mapping[str, ArrayFolder]:
    """The array at `path` under `name`, or the arrays right inside the group there under their own names.

    Args:
        path: a folder, or the metadata file in it.
        name: for a single array.

    Raises:
        SourceError: there is no array, or metadata are no JSON or too large.
    """
    if os.path.basename(path) in _MARKERS and not os.path.isdir(path):
        path = os.path.dirname(path) or "."
    if array := _array_at(path):
        return {name: array}
    try:
        names = sorted(entry.name for entry in os.scandir(path) if entry.is_dir())
    except OSError as error:
        raise SourceError(f"{path} cannot be listed: {error.strerror}") from error
    arrays = {}
    for each in names:
        if array := _array_at(os.path.join(path, each)):
            arrays[each] = array
            if len(arrays) > _MAX_ARRAYS:
                raise SourceError(f"{path} has more than {_MAX_ARRAYS} arrays; give the folder of one group")
    if not arrays:
        raise SourceError(f"{path} is a group without arrays right inside it; it has {names[:8]}")
    return arrays


def _array_at(folder: str) -> ArrayFolder | None:
    if found := _read_json(os.path.join(folder, ".zarray")):
        return ArrayFolder(folder, "zarr", _as_text(found))
    found = _read_json(os.path.join(folder, "zarr.json"))
    if found and found.get("node_type") == "array":
        return ArrayFolder(folder, "zarr3", _as_text(found))
    found = _read_json(os.path.join(folder, "attributes.json"))
    if found and "dimensions" in found:
        return ArrayFolder(folder, "n5", _as_text(found))
    return None


def _read_json(path: str) -> dict | None:
    try:
        with open(path, "rb") as stream:
            text = stream.read(_MAX_METADATA_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    if len(text) > _MAX_METADATA_BYTES:
        raise SourceError(f"{path} has more than {_MAX_METADATA_BYTES} bytes, too many for metadata")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path} is damaged, no JSON: {error}; write the array again") from error
    if not isinstance(found, dict):
        raise SourceError(f"{path} is damaged, no JSON object; write the array again")
    return found


def _as_text(found: dict) -> str:
    return json.dumps(found, sort_keys=True)
