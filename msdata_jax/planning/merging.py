"""Which sample comes next: the exact integer due-time merge.

Two streams merge so: a stream of weight `w` has earned `credit + tick * w` after `tick` units (samples,
tokens, ...). Its next sample, of `u` units behind `a` drawn ones, is *due* at the first tick at which
what it earned reaches the sample's middle, `a + u/2`. Samples come in order of due tick, the lighter stream's
first where they are equal. Many sources merge two at a time, the two lightest first (as in a Huffman code),
each pair standing for one stream with the sum of its weights and credits.

(All sources merged at once would not keep their shares: one of weight 1/2 among a hundred small ones would be
drawn fifty times before the first of those is due.) Nothing is random and nothing is rounded twice.

After a step of `T` units, `credit_s += T * w_s - WEIGHT_SCALE * units_s`: the credits sum to zero and carry
what a source is owed into the next step, also when the weights change there. Cutting a stretch of equal
weights into steps changes nothing: all due ticks move by the same `T`.

How far a source strays from its share, in any prefix, while the weights stay: inside its pair a stream is off
by half of the longest sample at most, and up to a quarter of a unit because ticks are whole. A source has its
part of what its pairs are off, and in a Huffman tree these parts shrink at least like 1, 1, 1/2, 1/3, 1/5 ...
Together that is less than 1.68 of the longest sample and one unit; the worst seen is 1.3 longest samples.
Weights that change every few draws can do more, like the logarithm of the number of sources: no rule that
does not know the coming weights avoids that (the cup game; Dietz, Sleator 1987). With 306 sources on a ramp,
2.4 was seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from msdata_jax.planning.pairs import WEIGHT_SCALE as WEIGHT_SCALE
from msdata_jax.planning.pairs import draw_counts as draw_counts
from msdata_jax.planning.pairs import draw_in_turn, pairs_of

MOST_UNITS = 1 << 37
"""Units known ahead, of all sources together, stay below it: so nothing here leaves int64."""

DRAWS_IN_TURN = 4
"""Up to so many draws for each source are found in turn: there numpy's calls cost more than the draws."""

_SAMPLES_BEYOND = 4  # known samples of each source that a limited merge looks at beyond its share


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Draws between which no source gives its weight away.

    Attributes:
        start: number of draws before them.
        weights: int64 `[sources]`, summing to `WEIGHT_SCALE`, or all zero when every source is exhausted.
        credit: int64 `[sources]`, at their start.
        exhausted: bool `[sources]`, whose weight the others have.
    """

    start: int
    weights: np.ndarray
    credit: np.ndarray
    exhausted: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Draws:
    """The merged stream as far as it is certain, or wanted.

    Attributes:
        source: int64, source index of each draw, in order.
        index: int64, which of the samples ahead of that source each draw is.
        units: int64, of each draw.
        limited_by: the source whose next, still unknown sample ends the certain part; None if there is none.
        ended_by: the source that is due next, has no sample left and so ends the data. Both are None where
            the draws end at `limit_units`.
        phases: at least one, by start.
    """

    source: np.ndarray
    index: np.ndarray
    units: np.ndarray
    limited_by: int | None
    ended_by: int | None
    phases: Sequence[Phase]

    def after(self, num_draws: int) -> tuple[np.ndarray, np.ndarray]:
        """Where the stream stands when only the first `num_draws` draws are taken.

        A source is exhausted once a draw is taken in its stead; the cut before that draw leaves it as it was.

        Returns:
            credit, int64 `[sources]`, and exhausted, bool `[sources]`: arguments of the next merge.
        """
        phase = next((p for p in reversed(self.phases) if p.start < num_draws), self.phases[0])
        within = slice(phase.start, num_draws)
        drawn = _sums(self.units[within], self.source[within], len(phase.weights))
        return credit_after(phase.weights, phase.credit, drawn), phase.exhausted


def merge_by_due_time(
    weights: np.ndarray,
    credit: np.ndarray,
    units_ahead: Sequence[np.ndarray],
    ended: Sequence[bool],
    *,
    exhausted: np.ndarray | None = None,
    limit_units: int | None = None,
) -> Draws:
    """Merge the known samples of all sources by due time, as far as unknown ones cannot come between.

    A sample that is not known, or not there, counts as one of one unit: the earliest at which it may be due.

    Args:
        weights: int64 `[sources]`, summing to `WEIGHT_SCALE`; sources of weight 0 are never drawn.
        credit: int64 `[sources]`, what each source is owed, in units x `WEIGHT_SCALE`.
        units_ahead: for each source the units (at least 1 each) of its next samples; below `MOST_UNITS`
            in all.
        ended: whether the samples ahead are the last ones of the source.
        exhausted: None: the first source that is due and has no sample left ends the stream. Else bool
            `[sources]`, those without samples whose weight the others have; a source that is due and has
            none left joins them: its weight goes to the others in proportion to theirs, and so does what it
            is owed. The stream ends when no source of positive weight is left.
        limit_units: at least 1: stop at the draw with which the units reach it. The draws are then the same
            as the first ones without a limit, found sooner.
    """
    known = _known(units_ahead)
    gone = np.zeros(len(weights), dtype=bool) if exhausted is None else exhausted
    phases = [Phase(start=0, weights=_weights_left(weights, gone), credit=credit, exhausted=gone)]
    drawn = np.empty(0, dtype=np.int64)  # indices into known.units
    start = known.first[:-1]  # of the samples that are not drawn yet
    next_source: int | None = int(np.argmax(weights > 0))  # ends the data if there is nothing to merge
    while phases[-1].weights.any():
        now = phases[-1]
        missing = None if limit_units is None else limit_units - int(known.units[drawn].sum())
        part, next_source = _merge_sources(now, known, start, missing)
        drawn = np.concatenate([drawn, part])
        if exhausted is None or next_source is None or not ended[next_source]:
            break
        start = start + np.bincount(known.source[part], minlength=len(weights))
        units_drawn = _sums(known.units[part], known.source[part], len(weights))
        credit = credit_after(now.weights, now.credit, units_drawn)
        phases.append(_hand_on(weights, credit, now.exhausted, next_source, len(drawn)))
    ends = next_source is not None and ended[next_source]
    source = known.source[drawn]
    return Draws(
        source=source,
        index=drawn - known.first[source],
        units=known.units[drawn],
        limited_by=None if ends else next_source,
        ended_by=next_source if ends else None,
        phases=phases,
    )


def _hand_on(
    weights: np.ndarray, credit: np.ndarray, exhausted: np.ndarray, source: int, start: int
) -> Phase:
    """The phase after `source` turned out to have no sample left; its weights are zero if none has."""
    gone = exhausted.copy()
    gone[source] = True
    left = _weights_left(weights, gone)
    if left.any():
        owed, credit[source] = int(credit[source]), 0
        credit = credit + deal_out(owed, left)
    return Phase(start=start, weights=left, credit=credit, exhausted=gone)


def in_order_of_first_draw(weights: np.ndarray, credit: np.ndarray) -> np.ndarray:
    """int64 `[sources]`, all sources, those first that are drawn first where every sample is one unit.

    Light sources that the first draws, as many as there are sources, leave out follow by their index.
    """
    num_sources = len(weights)
    counts = draw_counts(weights.tolist(), credit.tolist(), num_sources)
    units = [np.ones(count + 1, dtype=np.int64) for count in counts]
    draws = merge_by_due_time(weights, credit, units, [False] * num_sources, limit_units=num_sources)
    return np.array([*dict.fromkeys([*draws.source.tolist(), *range(num_sources)])], dtype=np.int64)


def credit_after(weights: np.ndarray, credit: np.ndarray, units_drawn: np.ndarray) -> np.ndarray:
    """What each source is owed after a step that drew `units_drawn` `[sources]` of each; sums to zero."""
    return credit + int(units_drawn.sum()) * weights - WEIGHT_SCALE * units_drawn


def deal_out(amount: int, weights: np.ndarray) -> np.ndarray:
    """int64 `[sources]` that sum to `amount`, each within one of its proportion to `weights` (not all zero).

    Rounds the running sums, so that zero weights get nothing.
    """
    total = int(weights.sum())
    each, rest = divmod(amount, total)
    return each * weights + np.diff(rest * np.cumsum(weights) // total, prepend=0)


def _weights_left(weights: np.ndarray, exhausted: np.ndarray) -> np.ndarray:
    """Weights that sum to `WEIGHT_SCALE` again without the exhausted sources; all zero if none is left."""
    if not exhausted.any():
        return weights
    left = np.where(exhausted, 0, weights)
    return deal_out(WEIGHT_SCALE, left) if left.any() else left


def _sums(values: np.ndarray, source: np.ndarray, num_sources: int) -> np.ndarray:
    sums = np.zeros(num_sources, dtype=np.int64)
    np.add.at(sums, source, values)
    return sums


# --- the tree of pairs --------------------------------------------------------------------------------------


class _Known(NamedTuple):
    """The known samples of all sources, one source after the other.

    Attributes:
        units, source: int64 `[samples]`.
        half: int64 `[samples]`, half the units x `WEIGHT_SCALE`.
        before: int64 `[samples + 1]`, running sum of the units.
        first: int64 `[sources + 1]`, index of each source's first sample.
    """

    units: np.ndarray
    source: np.ndarray
    half: np.ndarray
    before: np.ndarray
    first: np.ndarray


def _known(units_ahead: Sequence[np.ndarray]) -> _Known:
    counts = [len(units) for units in units_ahead]
    units = np.concatenate(units_ahead).astype(np.int64, copy=False)
    before = np.zeros(len(units) + 1, dtype=np.int64)
    np.cumsum(units, out=before[1:])
    return _Known(
        units=units,
        source=np.repeat(np.arange(len(counts)), counts),
        half=units * (WEIGHT_SCALE // 2),
        before=before,
        first=np.cumsum([0, *counts]),
    )


class _Stream(NamedTuple):
    """One source, or several merged, as far as it is certain.

    Attributes:
        weight, credit: the sums over its sources.
        sample: int64, indices into `_Known.units`, in order.
        half: int64, half the units of each, x `WEIGHT_SCALE`.
        due: int64, the due tick of each.
        horizon: the first tick at which the next one, which is not known, may be due.
        next_source: whose that one is.
    """

    weight: int
    credit: int
    sample: np.ndarray
    half: np.ndarray
    due: np.ndarray
    horizon: int
    next_source: int


def _merge_sources(
    phase: Phase, known: _Known, start: np.ndarray, limit: int | None
) -> tuple[np.ndarray, int | None]:
    """The samples from `start` on in order, and the source that is due next, not known; None at `limit`."""
    stop = known.first[1:]
    share = stop if limit is None else _share(phase, known, start, limit)
    if int((share - start).sum()) <= DRAWS_IN_TURN * len(stop):
        weights, credit = phase.weights.tolist(), phase.credit.tolist()
        drawn, next_source = draw_in_turn(weights, credit, known.half, start.tolist(), stop.tolist(), limit)
        return np.array(drawn, dtype=np.int64), next_source
    if limit is None:
        return _merge_tree(phase, known, start, stop)
    for until in (np.minimum(share + _SAMPLES_BEYOND, stop), stop):
        samples, next_source = _merge_tree(phase, known, start, until)
        units = np.cumsum(known.units[samples])
        enough = int(np.searchsorted(units, limit)) + 1
        if enough <= len(samples):
            return samples[:enough], None
        if until[next_source] == stop[next_source]:
            break
    return samples, next_source


def _share(phase: Phase, known: _Known, start: np.ndarray, limit: int) -> np.ndarray:
    """int64 `[sources]`: index behind the samples that are a source's share of `limit` units."""
    earned = (min(limit, int(known.before[-1])) * phase.weights + phase.credit) // WEIGHT_SCALE
    return np.clip(np.searchsorted(known.before, known.before[start] + earned), start, known.first[1:])


def _merge_tree(phase: Phase, known: _Known, start: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, int]:
    """The samples `start[s] <= i < stop[s]` of all sources in order, and the source that is due next."""
    nodes = _sources(phase, known, start, stop)
    for pair, (first, second) in enumerate(pairs_of(tuple(phase.weights.tolist())), start=len(start)):
        nodes[pair] = _pair(nodes.pop(first), nodes.pop(second))  # what was merged is let go
    (merged,) = nodes.values()
    return merged.sample, merged.next_source


def _sources(phase: Phase, known: _Known, start: np.ndarray, stop: np.ndarray) -> dict[int, _Stream]:
    """A stream for each source of positive weight."""
    weights = np.maximum(phase.weights, 1)
    count = np.where(phase.weights > 0, stop - start, 0)
    end = np.cumsum(count)
    source = np.repeat(np.arange(len(count)), count)
    sample = np.arange(len(source)) + (start - end + count)[source]
    half = known.half[sample]
    rounded_up = weights - 1 - phase.credit - WEIGHT_SCALE * known.before[start]
    due = known.before[sample]
    due *= WEIGHT_SCALE
    due += half
    due += rounded_up[source]
    due //= weights[source]
    horizon = (known.before[start + count] * WEIGHT_SCALE + WEIGHT_SCALE // 2 + rounded_up) // weights
    columns = (column.tolist() for column in (phase.weights, phase.credit, horizon, end - count, end))
    return {
        s: _Stream(weight, credit, sample[a:b], half[a:b], due[a:b], first_after, s)
        for s, (weight, credit, first_after, a, b) in enumerate(zip(*columns, strict=True))
        if weight
    }


def _pair(first: _Stream, second: _Stream) -> _Stream:
    """Two streams in order of due tick, `first` before `second` where the ticks are equal."""
    count, other_count = len(first.due), len(second.due)
    if first.horizon <= second.horizon:
        next_source = first.next_source
        other_count = int(second.due.searchsorted(first.horizon, "left"))
    else:
        next_source = second.next_source
        count = int(first.due.searchsorted(second.horizon, "right"))
    order = np.concatenate([first.due[:count], second.due[:other_count]]).argsort(kind="stable")
    sample = np.concatenate([first.sample[:count], second.sample[:other_count]])[order]
    half = np.concatenate([first.half[:count], second.half[:other_count]])[order]
    weight, credit = first.weight + second.weight, first.credit + second.credit
    due = half.cumsum()
    total = 2 * int(due[-1]) if len(due) else 0
    due *= 2
    due -= half
    due += weight - 1 - credit
    due //= weight
    horizon = (total + WEIGHT_SCALE // 2 + weight - 1 - credit) // weight
    return _Stream(weight, credit, sample, half, due, horizon, next_source)
