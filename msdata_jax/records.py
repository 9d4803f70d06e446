"""What travels between the parts: the identity of a sample, what the planner knows of it, a block of samples.

A source is an endless stream of *positions* 0, 1, 2, ...; position `p` of a source with `n` records is in
epoch `p // n`. What one position yields is a pure function of (recipe, seed, source, position): usually one
sample, none when it is filtered out or bad and skipped, several when a transform splits it. `part` numbers
the samples of one position from 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

Sample: TypeAlias = dict[str, np.ndarray]
"""A transformed sample: `tokens` int32 `[tokens]`, optionally `patches` uint8 `[patches, patch_values]`.

`tokens` covers every place that the sample takes in a row. A place that shows an image patch holds
`IMAGE_TOKEN`; the k-th such place shows `patches[k]`.
"""

IMAGE_TOKEN = -1

MAX_SUBSTITUTES = 16
"""How many positions after a bad one are tried for a substitute under policy `replace`."""

BASE_COLUMNS = ("tokens", "patches", "num_bytes")
"""Metadata columns that every source has: places in a row, image patches, bytes on the wire."""


def info_dtype(user_columns: Sequence[str] = ()) -> np.dtype:
    """The record dtype of `SampleInfo`: the key of a sample and its metadata columns, all little-endian.

    Args:
        user_columns: names of further int64 columns, as a source's `measure` returns them.

    Returns:
        fields `source` i4, `part` i4, `position` i8, then `tokens`, `patches`, `num_bytes` and the user
        columns, each i8.
    """
    columns = [("source", "<i4"), ("part", "<i4"), ("position", "<i8")]
    columns += [(name, "<i8") for name in (*BASE_COLUMNS, *sorted(set(user_columns) - set(BASE_COLUMNS)))]
    return np.dtype(columns)


@dataclass(frozen=True, kw_only=True, slots=True)
class BadSample:
    """A position that yielded nothing because it could not be read or transformed.

    Attributes:
        position: in the source's stream.
        reason: why, in words; equal in every process unless `by_luck`.
        by_luck: a time-out or a crash said so, and another try might have gone well. Such a verdict is part
            of the state: whoever reads the block again takes it over.
    """

    position: int
    reason: str
    by_luck: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """What the positions `start <= p < stop` of one source yield, in order of (position, part).

    Attributes:
        infos: record array of `info_dtype`, one entry per sample, `source` filled with the source's index.
        samples: as many samples as infos.
        bad: positions that could not be read, in order. Under policy `raise` and `skip` they yield no
            sample; under `replace` they are listed and a substitute stands in their place.
        verdicts: reasons by position, of every verdict by luck that this block rests on, whether it was given
            or found. Under `replace` some may be behind `stop`: tried as a substitute and failed. The block
            read again with them is equal.
        read_seconds: that getting the records took, the rest of a block's time being their transforms; 0
            where it is not known. Not part of what the block is.
    """

    start: int
    stop: int
    infos: np.ndarray
    samples: Sequence[Sample] = field(repr=False)
    bad: Sequence[BadSample] = ()
    verdicts: Mapping[int, str] = field(default_factory=dict)
    read_seconds: float = field(default=0.0, compare=False, repr=False)


def default_measure(sample: Sample) -> Mapping[str, int]:
    """The base columns of a sample: its places in a row, its image patches, its bytes."""
    patches = sample.get("patches")
    return {
        "tokens": len(sample["tokens"]),
        "patches": 0 if patches is None else len(patches),
        "num_bytes": sum(value.nbytes for value in sample.values()),
    }
