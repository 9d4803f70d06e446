"""Which arrays a folder of Zarr v2, Zarr v3 or N5 has: by the metadata files, with no library."""

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from msdata_jax.errors import SourceError
from msdata_jax.sources.storage import is_inside

_MAX_METADATA_BYTES = 16 << 20
_MAX_ARRAYS = 1024
_MARKERS = (".zarray", "zarr.json", "attributes.json", ".zgroup")


@dataclass(frozen=True)
class ArrayFolder:
    """An array on disk: its folder without links on the way, and the driver of tensorstore for it."""

    path: str
    driver: str


def find_arrays(path: str, name: str) -> Mapping[str, ArrayFolder]:
    """The array at `path` under `name`, or the arrays right inside the group there under their own names.

    Args:
        path: a folder, or the metadata file in it.
        name: for a single array.

    Raises:
        SourceError: there is no array, an array is a link that leaves the folder, or metadata are no JSON or
            too large.
    """
    if os.path.basename(path) in _MARKERS and not os.path.isdir(path):
        path = os.path.dirname(path) or "."
    root = os.path.realpath(path)
    if driver := _driver_of(root):
        return {name: ArrayFolder(root, driver)}
    names = _list_folders(path, root)
    arrays = {
        each: ArrayFolder(f"{root}/{each}", driver)
        for each in names
        if (driver := _driver_of(f"{root}/{each}"))
    }
    if not arrays:
        raise SourceError(f"{path} is a group without arrays right inside it; it has {names[:8]}")
    if len(arrays) > _MAX_ARRAYS:
        raise SourceError(f"{path} has more than {_MAX_ARRAYS} arrays; give the folder of one group")
    for each, array in arrays.items():
        if not is_inside(os.path.realpath(array.path), root):
            raise SourceError(
                f"{path}: {each} is a link that leaves the folder, to {os.path.realpath(array.path)}; copy "
                "the array, or give the folder that holds it"
            )
    return arrays


def _list_folders(path: str, root: str) -> list[str]:
    try:
        with os.scandir(root) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except OSError as error:
        raise SourceError(f"{path} cannot be listed: {error.strerror}") from error


def _driver_of(folder: str) -> str | None:
    """The driver of tensorstore for the array in a folder; None where there is none."""
    if _read_json(f"{folder}/.zarray") is not None:
        return "zarr"
    if (_read_json(f"{folder}/zarr.json") or {}).get("node_type") == "array":
        return "zarr3"
    if "dimensions" in (_read_json(f"{folder}/attributes.json") or {}):
        return "n5"
    return None


def _read_json(path: str) -> dict | None:
    """The object in a file, None where there is no such file."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise SourceError(f"{path} is no file; metadata of an array are in one")
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
