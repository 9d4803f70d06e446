"""Which sample comes next: the exact integer due-time merge.

Source `s` with weight `w_s` (integers that sum to `WEIGHT_SCALE`) has earned `credit_s + tick * w_s` after
`tick` units (samples, tokens, ...) were drawn in all. Its next sample, of `u` units behind `a` units already
drawn, is *due* at the first tick at which what it earned reaches the sample's middle, `a + u/2`. Samples come in order of
(due tick, source index). Each source therefore stays within about one of its own samples of its share, in
every prefix, for ever; nothing is random and nothing is rounded twice.

After a step of `T` units, `credit_s += T * w_s - WEIGHT_SCALE * units_s`: the credits sum to zero and carry
what a source is owed into the next step, also when the weights change there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from msdata_jax.errors import RecipeError

WEIGHT_SCALE = 1 << 24

Weights = Mapping[str, float]
Interpolation = Literal["step", "linear"]


def scale_weights(weights: Sequence[Fraction]) -> np.ndarray:
    """Integers that sum to `WEIGHT_SCALE` in the proportion of `weights`, by largest remainder.

    A weight above zero never becomes zero, so that no named source is silently left out.
    """
    total = sum(weights)
    shares = [weight * WEIGHT_SCALE / total for weight in weights]
    scaled = [max(int(share), 1) if share > 0 else 0 for share in shares]
    missing = WEIGHT_SCALE - sum(scaled)
    by_remainder = sorted(range(len(shares)), key=lambda i: (int(shares[i]) - shares[i], i))
    for place in by_remainder[: max(missing, 0)]:
        scaled[place] += 1
    if missing < 0:  # many tiny weights were raised to 1: the largest gives
        scaled[max(range(len(scaled)), key=lambda i: scaled[i])] += missing
    return np.array(scaled, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Shares of the sources over the steps.

    Attributes:
        knots: (first step, weights by source name), steps increasing from 0.
        interpolation: `step` keeps a knot's weights until the next; `linear` moves evenly between knots.
        unit: what the shares count: `samples`, `tokens`, or any metadata column.
        on_exhausted: `repeat` starts the source's next epoch; `stop` ends the data when a source that is
            due has no sample left.
    """

    knots: Sequence[tuple[int, Weights]]
    interpolation: Interpolation = "step"
    unit: str = "samples"
    on_exhausted: Literal["repeat", "stop"] = "repeat"

    def __post_init__(self) -> None:
        """Refuse weights and schedules that mean nothing."""
        if self.interpolation not in ("step", "linear"):
            raise RecipeError(f"interpolation is 'step' or 'linear', got {self.interpolation!r}")
        if self.on_exhausted not in ("repeat", "stop"):
            raise RecipeError(f"on_exhausted is 'repeat' or 'stop', got {self.on_exhausted!r}")
        steps = [step for step, _ in self.knots]
        if not steps or steps[0] != 0 or any(b <= a for a, b in zip(steps, steps[1:], strict=False)):
            raise RecipeError(f"a schedule's steps start at 0 and increase, got {steps}")
        for step, weights in self.knots:
            bad = {name: w for name, w in weights.items() if not 0 <= w < float("inf")}
            if bad:
                raise RecipeError(f"weights are finite and not negative; at step {step} got {bad}")
            if not any(weights.values()):
                raise RecipeError(f"some weight must be above zero; at step {step} got {dict(weights)}")

    def check(self, source_names: Sequence[str], columns: Sequence[str]) -> None:
        """Raise RecipeError where weights and sources do not match."""
        for step, weights in self.knots:
            unknown = sorted(set(weights) - set(source_names))
            missing = sorted(set(source_names) - set(weights))
            if unknown or missing:
                raise RecipeError(
                    f"mix() gives each source a weight (0 leaves one out); at step {step} "
                    f"unknown: {unknown}, without a weight: {missing}, sources: {list(source_names)}"
                )
        known = ("samples", "tokens", "patches", "num_bytes", *columns)
        if self.unit not in known:
            raise RecipeError(f"mix(unit=...) is one of {known}, got {self.unit!r}; a source's measure adds columns")

    def weights_at(self, step: int, source_names: Sequence[str]) -> np.ndarray:
        """Integer weights of `step` in the order of `source_names`; they sum to `WEIGHT_SCALE`."""
        place = max(i for i, (first, _) in enumerate(self.knots) if first <= step)
        first, now = self.knots[place]
        shares = _shares(now, source_names)
        if self.interpolation == "linear" and place + 1 < len(self.knots):
            after, then = self.knots[place + 1]
            part = Fraction(step - first, after - first)
            shares = [a + (b - a) * part for a, b in zip(shares, _shares(then, source_names), strict=True)]
        return scale_weights(shares)


def _shares(weights: Weights, source_names: Sequence[str]) -> list[Fraction]:
    exact = [Fraction(weights[name]) for name in source_names]
    total = sum(exact)
    return [value / total for value in exact]


@dataclass(frozen=True, kw_only=True)
class Draws:
    """The merged stream as far as it is certain.

    Attributes:
        source: source index of each draw, in order.
        index: which of the samples ahead of that source each draw is.
        limited_by: the source whose next, still unknown sample ends the certain part; None when there is none.
        ended_by: the source that has no sample left and is due next, under `stop`.
    """

    source: np.ndarray
    index: np.ndarray
    limited_by: int | None
    ended_by: int | None


def merge_by_due_time(
    weights: np.ndarray, credit: np.ndarray, units_ahead: Sequence[np.ndarray], ended: Sequence[bool]
) -> Draws:
    """Merge the known samples of all sources in order of due time, as far as unknown ones cannot come between.

    Args:
        weights: int64 `[sources]`, summing to `WEIGHT_SCALE`; sources of weight 0 are never drawn.
        credit: int64 `[sources]`, what each source is owed, in units x `WEIGHT_SCALE`.
        units_ahead: for each source the units (at least 1 each) of its next samples.
        ended: whether the samples ahead are the last ones of the source.
    """
    dues, sources, indices = [], [], []
    horizon: tuple[int, int] | None = None
    for s, units in enumerate(units_ahead):
        if weights[s] == 0:
            continue
        after = np.cumsum(units, dtype=np.int64)
        middle_twice = np.append(2 * after - units, 2 * (after[-1] if len(after) else 0) + 1)
        due = _ceil_div(WEIGHT_SCALE * middle_twice - 2 * credit[s], 2 * weights[s])
        end = (int(due[-1]), s)  # the earliest that a further sample, of one unit, could be due
        horizon = end if horizon is None else min(horizon, end)
        dues.append(due[:-1])
        sources.append(np.full(len(units), s, dtype=np.int64))
        indices.append(np.arange(len(units), dtype=np.int64))
    assert horizon is not None  # some weight is above zero
    due, source, index = np.concatenate(dues), np.concatenate(sources), np.concatenate(indices)
    tick, limit = horizon
    certain = (due < tick) | ((due == tick) & (source < limit))
    due, source, index = due[certain], source[certain], index[certain]
    order = np.lexsort((index, source, due))
    return Draws(
        source=source[order],
        index=index[order],
        limited_by=None if ended[limit] else limit,
        ended_by=limit if ended[limit] else None,
    )


def credit_after(weights: np.ndarray, credit: np.ndarray, units_drawn: np.ndarray) -> np.ndarray:
    """What each source is owed after a step that drew `units_drawn` `[sources]` of each; sums to zero."""
    return credit + int(units_drawn.sum()) * weights - WEIGHT_SCALE * units_drawn


def _ceil_div(numerator: np.ndarray, denominator: np.ndarray | np.integer) -> np.ndarray:
    return -(-numerator // denominator)
