"""Which share each source has at each step: weights that follow a schedule, and groups of sources.

Shares are exact fractions until `weights_at` makes them integers that sum to `WEIGHT_SCALE`; `merging` turns
those into an order of samples.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np

from msdata_jax.errors import RecipeError
from msdata_jax.planning.merging import WEIGHT_SCALE as WEIGHT_SCALE
from msdata_jax.planning.merging import Draws as Draws
from msdata_jax.planning.merging import credit_after as credit_after
from msdata_jax.planning.merging import draw_counts
from msdata_jax.planning.merging import merge_by_due_time as merge_by_due_time

Weights: TypeAlias = Mapping[str, float]
Schedule: TypeAlias = Callable[[int], Weights]
Interpolation = Literal["step", "linear"]
OnExhausted = Literal["repeat", "stop", "renormalize"]

_REMEMBERED = 16  # exact fractions are slow, and a step's weights are asked for many times


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

    A weight's name is a source or a group. A group's share is split among its members, which are sources or
    groups, by weights of its own; what is in a group has no weight beside it.

    Attributes:
        knots: (first step, weights by name), steps increasing from 0; or a function of the step that returns
            the step's weights by name. It must return the same whenever and in whatever process it is asked.
        groups: for each group's name the weights of its members, the same at all steps.
        interpolation: `step` keeps a knot's weights until the next; `linear` moves evenly between knots.
        unit: what the shares count: `samples`, `tokens`, or any metadata column.
        on_exhausted: what happens when a source that is due has no sample left. `repeat`: its next epoch
            starts. `stop`: the data end. `renormalize`: the others get its weight, in proportion to theirs;
            the data end when no source of positive weight has a sample left.

    Raises:
        RecipeError: steps that do not increase from 0; weights that are not finite, negative or all zero; an
            unknown option; a name in two groups, or a group inside itself.
    """

    knots: Sequence[tuple[int, Weights]] | Schedule
    groups: Mapping[str, Weights] = field(default_factory=dict)
    interpolation: Interpolation = "step"
    unit: str = "samples"
    on_exhausted: OnExhausted = "repeat"
    _remembered: dict[Any, np.ndarray] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse weights and schedules that mean nothing."""
        _check_option("interpolation", self.interpolation, ("step", "linear"))
        _check_option("on_exhausted", self.on_exhausted, ("repeat", "stop", "renormalize"))
        _check_groups(self.groups)
        if not isinstance(self.knots, Sequence):
            if self.interpolation != "step":
                raise RecipeError(
                    f"interpolation={self.interpolation!r} is between knots; {_name(self.knots)} gives the "
                    "weights of each step itself: leave interpolation out"
                )
            return
        steps = [step for step, _ in self.knots]
        if not steps or steps[0] != 0 or any(b <= a for a, b in pairwise(steps)):
            raise RecipeError(f"a schedule's steps start at 0 and increase, got {steps}")
        for step, weights in self.knots:
            _check_weights(weights, f"at step {step}")

    def check(self, source_names: Sequence[str], columns: Sequence[str]) -> None:
        """Raise RecipeError where weights, groups and unit do not match sources and metadata columns.

        A function is asked for step 0 here; what it returns for later steps is checked when they come.
        """
        if both := sorted(set(self.groups) & set(source_names)):
            raise RecipeError(f"a group needs a name that no source has, got {both}; rename the groups")
        for group, members in self.groups.items():
            if unknown := sorted(set(members) - set(self.groups) - set(source_names)):
                raise RecipeError(
                    f"a group holds sources and groups; group {group!r} has unknown members: {unknown}, "
                    f"sources: {list(source_names)}, groups: {list(self.groups)}"
                )
        for step in [step for step, _ in self.knots] if isinstance(self.knots, Sequence) else [0]:
            self.shares_at(step, source_names)
        known = ("samples", "tokens", "patches", "num_bytes", *columns)
        if self.unit not in known:
            raise RecipeError(
                f"mix(unit=...) is one of {known}, got {self.unit!r}; a source's measure adds columns"
            )

    def weights_at(self, step: int, source_names: Sequence[str]) -> np.ndarray:
        """Integer weights of `step` in the order of `source_names`, summing to `WEIGHT_SCALE`.

        Returns:
            int64 `[sources]`, read-only.

        Raises:
            RecipeError: what a function returned for this step is not finite, negative, all zero, or has
                other names than the sources and groups.
        """
        key = (self._stretch(step)[0], *source_names)
        if key not in self._remembered:
            weights = scale_weights(self.shares_at(step, source_names))
            weights.setflags(write=False)
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            self._remembered[key] = weights
        return self._remembered[key]

    def shares_at(self, step: int, source_names: Sequence[str]) -> list[Fraction]:
        """The exact shares behind `weights_at`, summing to 1; raises the same."""
        if not isinstance(self.knots, Sequence):
            where = f"from {_name(self.knots)} at step {step}"
            return self._split(_ask(self.knots, step, where), source_names, where)
        place = bisect_right(self.knots, step, key=lambda knot: knot[0]) - 1
        first, now = self.knots[place]
        shares = self._split(now, source_names, f"at step {first}")
        if self.interpolation == "step" or place + 1 == len(self.knots):
            return shares
        after, then = self.knots[place + 1]
        later = self._split(then, source_names, f"at step {after}")
        part = Fraction(step - first, after - first)
        return [a + (b - a) * part for a, b in zip(shares, later, strict=True)]

    def draws_before(
        self, step: int, draws_per_step: int, source_names: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where the stream stands before `step`, when each step before it took `draws_per_step` draws.

        Exactly what merging step by step gives, for `unit="samples"` and sources that do not end. Constant
        weights take `O(sources)`, for any number of steps. Linear ramps and functions take that for each
        step, because each step has weights of its own.

        Returns:
            draws of each source and its credit, int64 `[sources]` each.

        Raises:
            RecipeError: the unit is not `samples`, so that draws differ; or as `weights_at`.
        """
        if self.unit != "samples":
            raise RecipeError(
                f"draws can be counted without their samples under unit='samples' only, got {self.unit!r}; "
                "go through the steps one by one"
            )
        drawn = credit = [0] * len(source_names)
        first = 0
        while first < step:
            stop = min(self._stretch(first)[1] or step, step)
            weights, num_draws = (
                self.weights_at(first, source_names).tolist(),
                draws_per_step * (stop - first),
            )
            counts = draw_counts(weights, credit, num_draws)
            drawn = [before + count for before, count in zip(drawn, counts, strict=True)]
            credit = [
                owed + num_draws * weight - WEIGHT_SCALE * count
                for owed, weight, count in zip(credit, weights, counts, strict=True)
            ]
            first = stop
        return np.array(drawn, dtype=np.int64), np.array(credit, dtype=np.int64)

    def describe(self) -> str:
        """The shares as text, groups in brackets."""
        if not isinstance(self.knots, Sequence):
            groups = [f"{name} ({shares_text(members, {})})" for name, members in self.groups.items()]
            return " with ".join([f"weights from the function {_name(self.knots)}", *groups])
        texts = [(step, shares_text(weights, self.groups)) for step, weights in self.knots]
        if len(texts) == 1:
            return texts[0][1]
        joined = "; ".join(f"from step {step} {text}" for step, text in texts)
        return joined + (", moving evenly between" if self.interpolation == "linear" else "")

    def _stretch(self, step: int) -> tuple[int, int | None]:
        """The steps around `step` that are known to have its weights: the first, and the next that is not."""
        if not isinstance(self.knots, Sequence):
            return step, step + 1
        place = bisect_right(self.knots, step, key=lambda knot: knot[0]) - 1
        if place + 1 == len(self.knots):
            return self.knots[place][0], None
        return (
            (step, step + 1)
            if self.interpolation == "linear"
            else (self.knots[place][0], self.knots[place + 1][0])
        )

    def _split(self, weights: Weights, source_names: Sequence[str], where: str) -> list[Fraction]:
        """Shares of the sources, from weights of sources and groups."""
        inside = {member for members in self.groups.values() for member in members}
        named = {*source_names, *self.groups} - inside
        unknown, missing = sorted(set(weights) - named), sorted(named - set(weights))
        if unknown or missing:
            groups = f", groups: {dict(self.groups)}; what is in a group has no weight beside it"
            raise RecipeError(
                f"mix() gives each source a weight (0 leaves one out); {where} "
                f"{f'unknown: {unknown}, ' if unknown else ''}"
                f"{f'without a weight: {missing}, ' if missing else ''}sources: {list(source_names)}"
                f"{groups if self.groups else ''}"
            )
        shares = exact_shares(weights, self.groups)
        return [shares[name] for name in source_names]


def shares_text(weights: Weights, groups: Mapping[str, Weights]) -> str:
    """Each name with its share of its level, the members of a group in brackets behind it."""
    total = sum(weights.values())
    texts = []
    for name, weight in weights.items():
        inner = f" ({shares_text(groups[name], groups)})" if name in groups else ""
        texts.append(f"{name} {weight / total:.3g}{inner}")
    return ", ".join(texts)


def exact_shares(weights: Weights, groups: Mapping[str, Weights]) -> dict[str, Fraction]:
    """Shares of the sources, summing to 1: what a group has is split by its own weights."""
    exact = {name: Fraction(weight) for name, weight in weights.items()}
    total = sum(exact.values())
    shares: dict[str, Fraction] = {}
    for name, weight in exact.items():
        inner = exact_shares(groups[name], groups) if name in groups else {name: Fraction(1)}
        shares |= {source: weight / total * part for source, part in inner.items()}
    return shares


def _check_option(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise RecipeError(f"{name} is one of {known}, got {value!r}")


def _check_weights(weights: Weights, where: str) -> None:
    bad = {name: w for name, w in weights.items() if not 0 <= w < float("inf")}
    if bad:
        raise RecipeError(f"weights are finite and not negative; {where} got {bad}")
    if not any(weights.values()):
        raise RecipeError(f"some weight must be above zero; {where} got {dict(weights)}")


def _check_groups(groups: Mapping[str, Weights]) -> None:
    group_of: dict[str, str] = {}
    for group, members in groups.items():
        _check_weights(members, f"in group {group!r}")
        for member in members:
            if member in group_of:
                raise RecipeError(
                    f"a name is in one group; {member!r} is in {group_of[member]!r} and {group!r}: "
                    "take it out of one"
                )
            group_of[member] = group
    for group in groups:
        above = group
        for _ in groups:  # a group has as many groups around it, at most
            above = group_of.get(above, "")
            if above == group:
                raise RecipeError(f"a group is not inside itself; {group!r} is, through {group_of[group]!r}")


def _ask(schedule: Schedule, step: int, where: str) -> Weights:
    try:
        weights = schedule(step)
    except Exception as error:
        raise RecipeError(
            f"a schedule returns weights for every step; {where} came {type(error).__name__}: {error}"
        ) from error
    return _plain(weights, where)


def _plain(weights: Any, where: str) -> Weights:
    """What a function returned, checked, as plain numbers: numpy's would not become exact fractions."""
    if not isinstance(weights, Mapping):
        raise RecipeError(f"a schedule returns weights by name; {where} got {weights!r}")
    try:
        plain = {name: w if isinstance(w, int) else float(w) for name, w in weights.items()}
    except (TypeError, ValueError):
        raise RecipeError(f"weights are numbers by name; {where} got {dict(weights)}") from None
    _check_weights(plain, where)
    return plain


def _name(function: Schedule) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)
