"""The samples of a step as a training job without a planner would group them: the baselines."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from msdata_jax.simulate.distributions import Samples, draw, join

Baseline = Literal["packed", "count"]
"""How samples become microbatches without a planner.

`packed`: samples are concatenated in order of arrival, and a new microbatch begins where the context is full.
`count`: a fixed number of samples each, of whatever length, without padding.
"""

BASELINES: tuple[Baseline, ...] = ("packed", "count")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A step's samples in order of arrival.

    Attributes:
        samples: all of them.
        microbatch: int64 `[samples]`, the microbatch of each without a planner, numbered over all ranks: rank
            `r` has the `r`-th equal stretch of them. No sample is left over.
        num_microbatches: over all ranks.
        cap: tokens that a microbatch can hold; None where nothing limits them.
    """

    samples: Samples
    microbatch: np.ndarray
    num_microbatches: int
    cap: int | None


def packed(distribution: str, context: int, num_microbatches: int, rng: np.random.Generator) -> Batch:
    """Next-fit: a sample that does not fit behind the ones before opens the next microbatch.

    Args:
        distribution: name of a distribution.
        context: tokens that a microbatch holds.
        num_microbatches: over all ranks.
        rng: the source of all randomness.
    """
    samples = draw(distribution, context, 4 * num_microbatches, rng)
    starts = _next_fit(samples.tokens, context)
    while len(starts) <= num_microbatches:
        per_microbatch = len(samples) / len(starts)
        missing = 1.1 * per_microbatch * (num_microbatches + 1 - len(starts))
        samples = join([samples, draw(distribution, context, int(missing) + 8, rng)])
        starts = _next_fit(samples.tokens, context)
    sizes = np.diff(starts[: num_microbatches + 1])
    return Batch(
        samples=samples[: starts[num_microbatches]],
        microbatch=np.repeat(np.arange(num_microbatches), sizes),
        num_microbatches=num_microbatches,
        cap=context,
    )


def _next_fit(tokens: np.ndarray, context: int) -> list[int]:
    """First sample of each microbatch, and the first behind the last full one."""
    ends = np.cumsum(tokens)
    starts = [0]
    while starts[-1] < len(tokens):
        before = ends[starts[-1]] - tokens[starts[-1]]
        starts.append(int(np.searchsorted(ends, before + context, side="right")))
    return starts[:-1]  # the last one may not be full


def count(
    distribution: str,
    context: int,
    num_microbatches: int,
    samples_per_microbatch: int,
    rng: np.random.Generator,
) -> Batch:
    """A fixed number of samples in each microbatch; arguments as in `packed`."""
    samples = draw(distribution, context, num_microbatches * samples_per_microbatch, rng)
    return Batch(
        samples=samples,
        microbatch=np.repeat(np.arange(num_microbatches), samples_per_microbatch),
        num_microbatches=num_microbatches,
        cap=None,
    )
