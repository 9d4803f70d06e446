"""What a step cannot be composed of: samples that fit no row, and columns that count nothing."""

from collections.abc import Sequence

import numpy as np

from msdata_jax.errors import BadSampleError, RecipeError
from msdata_jax.planning.merging import MOST_UNITS
from msdata_jax.planning.mixing import Mixture
from msdata_jax.planning.packing import Pack, Units

MOST_DROPPED = 1 << 16
"""Samples in turn that may be dropped at the start of a step, where the data are endless."""


def refuse_units(unit: str, infos: Sequence[np.ndarray], source_names: Sequence[str]) -> None:
    """Raise RecipeError where a column cannot be what the mixture counts."""
    if unit == "samples":
        return
    for known, name in zip(infos, source_names, strict=True):
        if known[unit].min(initial=0) < 0:
            worst = known[known[unit].argmin()]
            raise RecipeError(
                f"mix(unit={unit!r}) counts what is at least 0; source {name!r} measured {worst[unit]} at "
                f"position {worst['position']}: mend its measure, or count in another unit"
            )
    if sum(int(known[unit].max(initial=0)) * len(known) for known in infos) < MOST_UNITS:
        return
    total = sum(sum(known[unit].tolist()) for known in infos)
    if total >= MOST_UNITS:
        raise RecipeError(
            f"mix(unit={unit!r}) is exact while the samples known ahead count less than {MOST_UNITS} "
            f"together, got {total}; count in a larger unit"
        )


def refuse_oversize(pack: Pack, step: int, infos: np.ndarray, source_names: Sequence[str]) -> None:
    if pack.oversize == "drop":
        return
    tokens, patches = infos["tokens"], infos["patches"]
    too_long = (tokens > pack.seq_len) & (pack.oversize == "raise")
    mixed = (tokens > pack.seq_len) & (pack.oversize == "split") & (patches > 0)
    for wrong, has, bound, way_out in (
        (too_long, "tokens", f"pack(seq_len={pack.seq_len})", "'truncate', 'split' or 'drop'"),
        (
            patches > pack.patches_per_row,
            "patches",
            f"pack(patches_per_row={pack.patches_per_row})",
            "'drop'",
        ),
        (mixed, "tokens", f"pack(seq_len={pack.seq_len}), and patches, which cannot be split", "'drop'"),
    ):
        if wrong.any():
            first = infos[wrong][0]
            raise BadSampleError(
                f"step {step}: source {source_names[first['source']]!r}, position {first['position']}, "
                f"part {first['part']} has {first[has]} {has}, more than {bound}; "
                f"split or truncate it in the source's transforms, or say pack(oversize={way_out})"
            )


def refuse_large_units(pack: Pack, step: int, units: Units) -> None:
    caps = (
        ("places", units.length, pack.seq_len),
        ("patches", units.patches, pack.patches_per_row),
        ("samples", units.segments, pack.segments_per_row or pack.seq_len),
    )
    for name, size, cap in caps:
        if size.max(initial=0) > cap:
            raise BadSampleError(
                f"step {step}: samples that stay together by pack(together={pack.together!r}) have "
                f"{size.max()} {name}; a row holds {cap}: take them apart in the source's transforms"
            )


def refuse_to_drop_all(mixture: Mixture, pack: Pack, step: int, sample: np.ndarray, num_draws: int) -> None:
    """Raise BadSampleError where a step's first draws are all dropped: of endless data it may never be full.

    Args:
        mixture: the mixture.
        pack: the shapes.
        step: the step.
        sample: int64 `[pieces]`, which draw each piece is of.
        num_draws: draws that are certain.
    """
    num_dropped = int(sample[0]) if len(sample) else num_draws
    if mixture.on_exhausted == "repeat" and num_dropped >= MOST_DROPPED:
        raise BadSampleError(
            f"step {step}: none of {MOST_DROPPED} samples in turn fits a row of {pack.seq_len} places and "
            f"{pack.patches_per_row} patches; make rows longer, or split or truncate samples in the sources' "
            "transforms"
        )
