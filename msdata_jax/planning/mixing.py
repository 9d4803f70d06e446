"""Which sample comes next: the exact integer due-time merge.

Two streams merge so: a stream of weight `w` has earned `credit + tick * w` after `tick` units (samples,
tokens, ...). Its next sample, of `u` units behind `a` drawn ones, is *due* at the first tick at which
what it earned reaches the sample's middle, `a + u/2`. Samples come in order of due tick, the lighter stream's
first where they are equal. Many sources merge two at a time, the two lightest first (as in a Huffman code),
each pair standing for one stream with the sum of its weights and credits.

Every pair keeps its proportion to about half a sample, and each source stays within one and a half samples of
its share, in every prefix, for ever. (All sources merged at once would not: one of weight 1/2 among a hundred
small ones would be drawn fifty times before the first of those is due.) Nothing is random and nothing is
rounded twice.

After a step of `T` units, `credit_s += T * w_s - WEIGHT_SCALE * units_s`: the credits sum to zero and carry
what a source is owed into the next step, also when the weights change there.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

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
    by_remainder = sorted(range(len(shares)), key=lambda i: (scaled[i] - shares[i], i))
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
        if not steps or steps[0] != 0 or any(b <= a for a, b in pairwise(steps)):
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
            raise RecipeError(
                f"mix(unit=...) is one of {known}, got {self.unit!r}; a source's measure adds columns"
            )

    def weights_at(self, step: int, source_names: Sequence[str]) -> np.ndarray:
        """Integer weights of `step` in the order of `source_names`; they sum to `WEIGHT_SCALE`. Read-only."""
        place = max(i for i, (first, _) in enumerate(self.knots) if first <= step)
        first, now = self.knots[place]
        weights = tuple(now[name] for name in source_names)
        if self.interpolation == "step" or place + 1 == len(self.knots):
            return _weights_between(weights, weights, Fraction(0))
        after, then = self.knots[place + 1]
        later = tuple(then[name] for name in source_names)
        return _weights_between(weights, later, Fraction(step - first, after - first))


@lru_cache(maxsize=16)  # a step asks many times, and exact fractions are slow
def _weights_between(now: tuple[float, ...], then: tuple[float, ...], part: Fraction) -> np.ndarray:
    shares = zip(_shares(now), _shares(then), strict=True)
    weights = scale_weights([a + (b - a) * part for a, b in shares])
    weights.setflags(write=False)
    return weights


def _shares(weights: Sequence[float]) -> list[Fraction]:
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    return [value / total for value in exact]


@dataclass(frozen=True, kw_only=True)
class Draws:
    """The merged stream as far as it is certain.

    Attributes:
        source: int64, source index of each draw, in order.
        index: int64, which of the samples ahead of that source each draw is.
        limited_by: the source whose next, still unknown sample ends the certain part; None if there is none.
        ended_by: the source that has no sample left and is due next, under `stop`.
    """

    source: np.ndarray
    index: np.ndarray
    limited_by: int | None
    ended_by: int | None


def merge_by_due_time(
    weights: np.ndarray, credit: np.ndarray, units_ahead: Sequence[np.ndarray], ended: Sequence[bool]
) -> Draws:
    """Merge the known samples of all sources by due time, as far as unknown ones cannot come between.

    Args:
        weights: int64 `[sources]`, summing to `WEIGHT_SCALE`; sources of weight 0 are never drawn.
        credit: int64 `[sources]`, what each source is owed, in units x `WEIGHT_SCALE`.
        units_ahead: for each source the units (at least 1 each) of its next samples.
        ended: whether the samples ahead are the last ones of the source.
    """
    lightest = [
        (int(weights[s]), s, _one_source(s, int(weights[s]), int(credit[s]), units))
        for s, units in enumerate(units_ahead)
        if weights[s] > 0
    ]
    heapq.heapify(lightest)
    while len(lightest) > 1:
        weight, s, first = heapq.heappop(lightest)
        other_weight, other, second = heapq.heappop(lightest)
        heapq.heappush(lightest, (weight + other_weight, min(s, other), _merge(first, second)))
    merged = lightest[0][2]
    return Draws(
        source=merged.source,
        index=merged.index,
        limited_by=None if ended[merged.next_source] else merged.next_source,
        ended_by=merged.next_source if ended[merged.next_source] else None,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stream:
    """One source, or several merged, as far as it is certain.

    Attributes:
        weight, credit: the sums over its sources.
        units, source, index: int64, of each sample in order; as in `Draws`.
        next_source: the source of the first sample that is not known.
    """

    weight: int
    credit: int
    units: np.ndarray
    source: np.ndarray
    index: np.ndarray
    next_source: int

    def due_ticks(self) -> tuple[np.ndarray, int]:
        """When each known sample is due, and the first unknown one at the earliest (if it has one unit)."""
        after = np.cumsum(self.units)
        total = int(after[-1]) if len(after) else 0
        due = _ceil_div(WEIGHT_SCALE * (2 * after - self.units) - 2 * self.credit, 2 * self.weight)
        return due, _ceil_div(WEIGHT_SCALE * (2 * total + 1) - 2 * self.credit, 2 * self.weight)


def _one_source(source: int, weight: int, credit: int, units: np.ndarray) -> _Stream:
    return _Stream(
        weight=weight,
        credit=credit,
        units=units.astype(np.int64),
        source=np.full(len(units), source, dtype=np.int64),
        index=np.arange(len(units), dtype=np.int64),
        next_source=source,
    )


def _merge(first: _Stream, second: _Stream) -> _Stream:
    """Two streams in order of due tick, `first` before `second` where the ticks are equal."""
    (due, horizon), (other_due, other_horizon) = first.due_ticks(), second.due_ticks()
    if horizon <= other_horizon:
        next_source, count, other_count = (
            first.next_source,
            len(due),
            np.searchsorted(other_due, horizon, "left"),
        )
    else:
        next_source, count, other_count = (
            second.next_source,
            np.searchsorted(due, other_horizon, "right"),
            len(other_due),
        )
    order = np.argsort(np.concatenate([due[:count], other_due[:other_count]]), kind="stable")

    def together(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.concatenate([a[:count], b[:other_count]])[order]

    return _Stream(
        weight=first.weight + second.weight,
        credit=first.credit + second.credit,
        units=together(first.units, second.units),
        source=together(first.source, second.source),
        index=together(first.index, second.index),
        next_source=next_source,
    )


def credit_after(weights: np.ndarray, credit: np.ndarray, units_drawn: np.ndarray) -> np.ndarray:
    """What each source is owed after a step that drew `units_drawn` `[sources]` of each; sums to zero."""
    return credit + int(units_drawn.sum()) * weights - WEIGHT_SCALE * units_drawn


def _ceil_div(numerator: Any, denominator: int) -> Any:
    """Rounded up, of an int or of int64 values."""
    return -(-numerator // denominator)
