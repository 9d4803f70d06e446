"""Going on with other sources or another mixture: what carries over, and what changed, in words."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from msdata_jax.errors import RecipeError
from msdata_jax.planning.composing import StreamState
from msdata_jax.planning.merging import deal_out
from msdata_jax.planning.mixing import Mixture, exact_shares, shares_text
from msdata_jax.recipe import without_addresses

_Shares: TypeAlias = Mapping[str, Fraction]


def carry_credits(
    credit: np.ndarray, before: Sequence[str], after: Sequence[str], weights: np.ndarray
) -> np.ndarray:
    """What each source is owed when the sources change from `before` to `after`.

    Sources that stay keep their credit, by name, and new ones start at 0. What the removed ones were owed
    goes to those that stay, in proportion to `weights`; to the new ones where none that stays has a weight.

    Args:
        credit: int64 `[before]`, summing to zero, in units of the mixture: where the unit changes, start
            from zeros instead.
        before: names of the sources that were, each once.
        after: names of the sources that are.
        weights: int64 `[after]`, not negative, not all zero.

    Returns:
        int64 `[after]`, summing to zero.
    """
    owed = dict(zip(before, credit.tolist(), strict=True))
    carried = np.array([owed.pop(name, 0) for name in after], dtype=np.int64)
    staying = np.where([name in before for name in after], weights, 0)
    return carried + deal_out(sum(owed.values()), staying if staying.any() else weights)


def carry_state(
    state: StreamState,
    before_names: Sequence[str],
    before: Mixture,
    after_names: Sequence[str],
    after: Mixture,
) -> tuple[StreamState, list[str]]:
    """The state to go on with when sources or mixture changed, and what changed, in words.

    Each source goes on behind its last sample, new ones begin at their first; samples of removed sources that
    were carried are left out. Where nothing changed, the state is the same; else data that had ended go on.

    Args:
        state: where the stream stood.
        before_names: sources until then.
        before: mixture until then.
        after_names: sources from now on.
        after: mixture from now on.

    Raises:
        RecipeError: weights and sources do not match; or the sources change while steps are composed ahead.
    """
    changes = describe_changes(before_names, before, after_names, after, state.step)
    ahead = (*state.gathered, *state.pending)
    if list(before_names) != list(after_names) and ahead:
        raise RecipeError(
            f"steps up to {ahead[-1].step} are composed already, of the sources "
            f"{list(before_names)}; change them at step {ahead[-1].step + 1}, where regroup begins "
            "anew"
        )
    place_after = {name: place for place, name in enumerate(after_names)}
    place = np.array([place_after.get(name, -1) for name in before_names], dtype=np.int64)
    source = place[state.carry.infos["source"]]
    stays = source >= 0
    carry = state.carry.take(stays)
    carry.infos["source"] = source[stays]
    for old in np.unique(state.carry.infos["source"][~stays]).tolist():
        count = int(np.count_nonzero(state.carry.infos["source"] == old))
        changes.append(left_out_text(count, str(before_names[old])))

    def follow(values: np.ndarray, first: int | bool) -> np.ndarray:
        """Values of the sources, by name; `first` for new ones."""
        carried = np.full(len(after_names), first, dtype=values.dtype)
        carried[place[place >= 0]] = values[place >= 0]
        return carried

    credit = np.zeros(len(after_names), dtype=np.int64)
    if before.unit == after.unit:
        weights = after.weights_at(state.step, after_names)
        credit = carry_credits(state.credit, before_names, after_names, weights)
    carried = replace(
        state,
        credit=credit,
        exhausted=follow(state.exhausted, first=False),
        last_position=follow(state.last_position, first=-1),
        last_part=follow(state.last_part, first=-1),
        carry=carry,
        ended=state.ended and not changes,
    )
    return carried, changes


def left_out_text(count: int, source: str) -> str:
    """A sentence on samples that are not carried over."""
    what = "sample" if count == 1 else "samples"
    return (
        f"{count} {what} of source {source!r} that waited for a row {'is' if count == 1 else 'are'} left out"
    )


def describe_changes(
    before_names: Sequence[str],
    before: Mixture,
    after_names: Sequence[str],
    after: Mixture,
    step: int,
) -> list[str]:
    """Sentences on how sources and mixture differ from `step` on; none where nothing does.

    Two functions of one name count as the same schedule, as far as their weights of `step` show.

    Raises:
        RecipeError: weights and sources do not match, on either side.
    """
    sides = (before_names, before), (after_names, after)
    shares, new_shares = (_shares(names, mixture, step) for names, mixture in sides)
    return [
        *_source_changes(shares, new_shares, step),
        *_order_change(before_names, after_names),
        *_schedule_change(sides, step),
        *_group_changes(before, after),
        *(
            f"mix({option}=...) changes from {old!r} to {new!r}"
            for option in ("unit", "on_exhausted")
            if (old := getattr(before, option)) != (new := getattr(after, option))
        ),
    ]


def _shares(names: Sequence[str], mixture: Mixture, step: int) -> _Shares:
    return dict(zip(names, mixture.shares_at(step, names), strict=True))


def _source_changes(shares: _Shares, new_shares: _Shares, step: int) -> Iterator[str]:
    for name, share in new_shares.items():
        if name not in shares:
            yield f"source {name!r} is added with a share of {float(share):.6g}"
    for name, share in shares.items():
        if name not in new_shares:
            yield f"source {name!r} is removed; its share was {float(share):.6g}"
        elif share != new_shares[name]:
            old, new = _distinct(share, new_shares[name])
            yield f"source {name!r}: its share at step {step} changes from {old} to {new}"


def _distinct(share: Fraction, other: Fraction) -> tuple[str, str]:
    """Two different numbers as texts that differ, too."""
    texts = f"{float(share):.6g}", f"{float(other):.6g}"
    longer = repr(float(share)), repr(float(other))
    return next((each for each in (texts, longer) if each[0] != each[1]), (str(share), str(other)))


def _order_change(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    old = [name for name in before if name in after]
    new = [name for name in after if name in before]
    if old != new:
        yield f"the order of the sources, which decides who is first at ties, changes from {old} to {new}"


def _schedule_change(sides: Sequence[tuple[Sequence[str], Mixture]], step: int) -> Iterator[str]:
    """The first later step at which the shares differ in another way than they do at `step`."""
    (_, before), (_, after) = sides
    if isinstance(before.knots, Sequence) and isinstance(after.knots, Sequence):
        first = {knot for knots in (before.knots, after.knots) for knot, _ in knots}
        # Between these steps both sides stay, or move evenly.
        steps = sorted({s for knot in first for s in (knot - 1, knot, knot + 1) if s > step} | {step + 1})
        now = [_shares(names, mixture, step) for names, mixture in sides]
        for later in steps:
            then = [_shares(names, mixture, later) for names, mixture in sides]
            if then[0] != then[1] and then != now:
                yield f"the schedule of the weights differs from step {later} on"
                return
    elif (old := _schedule_text(before)) != (new := _schedule_text(after)):
        yield f"the schedule of the weights changes from step {step} on: it was {old}, and is {new}"


def _schedule_text(mixture: Mixture) -> str:
    if isinstance(mixture.knots, Sequence):
        return "knots"
    return without_addresses(repr(mixture.knots))


def _group_changes(before: Mixture, after: Mixture) -> Iterator[str]:
    for name in sorted({*before.groups, *after.groups}):
        old, new = before.groups.get(name), after.groups.get(name)
        if old is None and new is not None:
            yield f"group {name!r} is added: {shares_text(new, {})}"
        elif new is None and old is not None:
            yield f"group {name!r} is removed; it held {shares_text(old, {})}"
        elif old and new and exact_shares(old, {}) != exact_shares(new, {}):
            yield f"group {name!r} changes from {shares_text(old, {})} to {shares_text(new, {})}"
