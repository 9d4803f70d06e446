"""From what a sample costs to what a step needs: the demand of every source over the run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from msdata_jax.errors import RecipeError
from msdata_jax.scaling.profile import Profile, SourceProfile

UNKNOWN_LOCK_SHARE = 0.5
"""Taken for a source whose threads were not measured."""


@dataclass(frozen=True, kw_only=True)
class SourceNeed:
    """What one source needs.

    Moments are some steps of the run, the same for all sources; between them the mixture moves.

    Attributes:
        name: of the source.
        threads: for each moment, seconds that one worker thread takes for the samples of a step.
        cpus: for each moment, CPU-seconds of a step, for sending too.
        sends: for each moment, seconds that the thread of a loader that sends takes for a step.
        mean: mean over the moments of `threads`.
        seconds_per_sample: that one worker thread takes; None where it was not measured.
        lock_share: as in `SourceProfile`, 0 to 1.
        reader_bytes: of an open reader.
        library_bytes: of the libraries that it loads.
        block_bytes: of a block.
        isolate: one reader for each thread.
    """

    name: str
    threads: tuple[float, ...]
    cpus: tuple[float, ...]
    sends: tuple[float, ...]
    seconds_per_sample: float | None = None
    lock_share: float = 0.0
    reader_bytes: int = 0
    library_bytes: int = 0
    block_bytes: int = 0
    isolate: bool = False

    @property
    def mean(self) -> float:
        """Seconds of a worker thread for a step, over the moments."""
        return float(np.mean(self.threads))

    @property
    def worst(self) -> float:
        """The same at the moment at which it is most."""
        return max(self.threads)


def samples_per_step(
    weights: np.ndarray,
    units: Sequence[float] | np.ndarray,
    tokens: Sequence[float] | np.ndarray,
    *,
    places: float,
    most_samples: float,
) -> np.ndarray:
    """How many samples of each source a step draws.

    Args:
        weights: `[moments, sources]`, the mixture's.
        units: for each source what a sample is worth in the mixture's unit, above 0; 1 for samples.
        tokens: mean tokens of each source's samples, above 0.
        places: tokens that a step holds.
        most_samples: samples that it may hold whatever their length.

    Returns:
        float64 `[moments, sources]`.
    """
    share = np.asarray(weights, np.float64) / np.asarray(units, np.float64)
    share /= share.sum(axis=1, keepdims=True)
    mean_tokens = (share * np.asarray(tokens, np.float64)).sum(axis=1, keepdims=True)
    return share * np.minimum(places / mean_tokens, most_samples)


def needs_of(
    profile: Profile, names: Sequence[str], samples: np.ndarray
) -> tuple[list[SourceNeed], list[str]]:
    """What each source needs, and sentences about those that were not measured.

    Args:
        profile: of some of the sources; the others are taken for the mean of those.
        names: of all sources, in the recipe's order.
        samples: `[moments, sources]`, samples of a step.

    Raises:
        RecipeError: no source of `names` was measured.
    """
    measured = stand_ins(profile, names)
    missing = [name for name in names if profile.of(name) is None]
    notes = [f"not measured, taken for the mean of the others: {', '.join(missing)}"] if missing else []
    needs = [
        SourceNeed(
            name=name,
            threads=tuple((column * measured[name].wall_seconds).tolist()),
            cpus=tuple((column * (measured[name].cpu_seconds + measured[name].send_seconds)).tolist()),
            sends=tuple((column * measured[name].send_seconds).tolist()),
            seconds_per_sample=None if name in missing else measured[name].wall_seconds,
            lock_share=_lock_share(measured[name]),
            reader_bytes=measured[name].reader_bytes,
            library_bytes=measured[name].library_bytes,
            block_bytes=measured[name].block_bytes,
            isolate=measured[name].isolate,
        )
        for name, column in zip(names, np.asarray(samples, np.float64).T, strict=True)
    ]
    return needs, notes


def stand_ins(profile: Profile, names: Sequence[str]) -> Mapping[str, SourceProfile]:
    """The figures of each source; for those without, the mean of the others.

    Raises:
        RecipeError: there are none at all.
    """
    found = {name: each for name in names if (each := profile.of(name)) is not None}
    if not found:
        raise RecipeError("none of the recipe's sources is in the profile: run `msdata profile` for it")
    known = list(found.values())

    def mean(name: str) -> float:
        return float(np.mean([getattr(each, name) for each in known]))

    columns = sorted(set.intersection(*(set(each.means) for each in known)))
    stranger = {
        **{name: mean(name) for name in ("wall_seconds", "cpu_seconds", "send_seconds", "sample_bytes")},
        **{name: round(mean(name)) for name in ("reader_bytes", "library_bytes", "block_bytes")},
        "means": {column: float(np.mean([each.means[column] for each in known])) for column in columns},
        "lock_share": float(np.mean([_lock_share(each) for each in known])),
    }
    return {name: found.get(name) or SourceProfile(name=name, **stranger) for name in names}


def _lock_share(source: SourceProfile) -> float:
    return UNKNOWN_LOCK_SHARE if source.lock_share is None else source.lock_share
