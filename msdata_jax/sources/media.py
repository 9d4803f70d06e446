"""What the decoders of images, sound and video share: encoded bytes out of a record, patches into it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from msdata_jax.errors import BadSampleError
from msdata_jax.records import IMAGE_TOKEN


def take_bytes(record: Mapping[str, Any], names: Sequence[str], what: str) -> tuple[bytes, dict[str, Any]]:
    """The first of `names` that the record has, and the record without it.

    Args:
        record: a mapping with `bytes` (as in Hugging Face's Parquet files) will do as a value.
        names: what the bytes may be called, in order.
        what: what the bytes are, with its article, for the message.

    Raises:
        BadSampleError: no such name, or no bytes there.
    """
    name = next((name for name in names if name in record), None)
    if name is None:
        raise BadSampleError(f"no {' or '.join(names)} in the record, which has {sorted(record)}")
    value = record[name]
    if isinstance(value, Mapping):
        value = value.get("bytes")
    if not isinstance(value, bytes):
        raise BadSampleError(f"{name!r} is {type(value).__name__}; {what} is the bytes of its file")
    return value, {key: each for key, each in record.items() if key != name}


def put_patches_first(record: Mapping[str, Any], patches: np.ndarray) -> dict[str, Any]:
    """The record with `patches` and an IMAGE_TOKEN for each before what it has of both.

    Raises:
        BadSampleError: patches of another width are there already.
    """
    tokens = np.full(len(patches), IMAGE_TOKEN, np.int32)
    if record.get("tokens") is not None:
        tokens = np.concatenate([tokens, np.asarray(record["tokens"], np.int32)])
    present = record.get("patches")
    if present is not None:
        if np.shape(present)[1:] != patches.shape[1:]:
            raise BadSampleError(
                f"the record has patches of {np.shape(present)[1:]} values, and these have "
                f"{patches.shape[1:]}; all patches of a recipe are as wide as pack(patch_values=...) says"
            )
        patches = np.concatenate([patches, present])
    return {**record, "tokens": tokens, "patches": patches}
