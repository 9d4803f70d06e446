"""The end of the transforms: a record becomes a `Sample`, or it is told what is missing."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from msdata_jax.errors import BadSampleError
from msdata_jax.records import IMAGE_TOKEN, Sample


def to_sample(record: Mapping[str, Any]) -> Sample:
    """Keep `tokens` and `patches`, in the types that travel.

    Raises:
        BadSampleError: no tokens, tokens that are no int32 ids, or patches that do not fit their places.
    """
    if record.get("tokens") is None:
        raise BadSampleError(
            f"the transforms leave no 'tokens' but {sorted(record)}; end them with Tokenize, Patchify or one "
            "of your own that adds int tokens"
        )
    sample = {"tokens": _tokens(record["tokens"])}
    num_places = int(np.count_nonzero(sample["tokens"] == IMAGE_TOKEN))
    patches = record.get("patches")
    if patches is not None and len(patches):
        sample["patches"] = _patches(patches)
    num_patches = len(sample.get("patches", ()))
    if num_patches != num_places:
        raise BadSampleError(
            f"{num_places} places of tokens hold IMAGE_TOKEN ({IMAGE_TOKEN}) and there are {num_patches} "
            "patches; each place shows one patch"
        )
    return sample


def _tokens(value: Any) -> np.ndarray:
    tokens = np.asarray(value) if len(value) else np.zeros(0, np.int32)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise BadSampleError(f"tokens are 1-D integers, got {tokens.dtype} of shape {tokens.shape}")
    if tokens.size and not (tokens.min() >= IMAGE_TOKEN and tokens.max() < 2**31):
        raise BadSampleError(
            f"tokens are ids from 0 to 2**31 - 1, or IMAGE_TOKEN; got {tokens.min()} to {tokens.max()}"
        )
    return np.ascontiguousarray(tokens, np.int32)


def _patches(value: Any) -> np.ndarray:
    patches = np.asarray(value)
    if patches.ndim != 2 or patches.dtype != np.uint8:
        raise BadSampleError(f"patches are uint8 [patches, values], got {patches.dtype} of {patches.shape}")
    return np.ascontiguousarray(patches)
