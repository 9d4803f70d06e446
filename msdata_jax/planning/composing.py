"""One step's content, from metadata: draw, pack, and say what waits. Never sees the mesh."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from msdata_jax.plan import StepPlan
from msdata_jax.planning.merging import Draws, merge_by_due_time
from msdata_jax.planning.mixing import Mixture
from msdata_jax.planning.packing import Pack, assign_rows
from msdata_jax.planning.pieces import (
    Pieces,
    cut,
    gather,
    join,
    join_records,
    measure_units,
    no_pieces,
    pieces_in_order,
    unfinished,
)
from msdata_jax.planning.refusals import (
    refuse_large_units,
    refuse_oversize,
    refuse_to_drop_all,
    refuse_units,
)
from msdata_jax.planning.regrouping import regroup
from msdata_jax.records import info_dtype


@dataclass(frozen=True, kw_only=True)
class StreamState:
    """Where in the function training stands: all that step `step` needs of the steps before.

    Attributes:
        step: the next step.
        credit: int64 `[sources]`, what the mixture owes each source.
        exhausted: bool `[sources]`, sources that ran out and gave their weight to the others.
        last_position: int64 `[sources]`, position of the last sample drawn; -1 before the first.
        last_part: int64 `[sources]`, its part.
        carry: what was drawn and not delivered yet, oldest first.
        ended: the data ended: nothing more is drawn, whatever the weights of later steps.
        gathered: steps of the next window that are composed and wait for the others; see `DGraph.regroup`.
        pending: steps of the current window, regrouped and not delivered yet.
    """

    step: int
    credit: np.ndarray
    exhausted: np.ndarray
    last_position: np.ndarray
    last_part: np.ndarray
    carry: Pieces
    ended: bool = False
    gathered: tuple[StepPlan, ...] = ()
    pending: tuple[StepPlan, ...] = ()

    @property
    def next_composed(self) -> int:
        """The first step that is not composed yet: inside a window, later than `step`."""
        return self.step + len(self.gathered) + len(self.pending)

    def composed_ahead(self) -> list[np.ndarray]:
        """SampleInfo records drawn for later steps: carried, or in composed steps, dropped ones too."""
        plans = (*self.gathered, *self.pending)
        return [self.carry.infos, *(plan.samples for plan in plans), *(plan.dropped for plan in plans)]


def initial_state(num_sources: int, columns: Sequence[str] = ()) -> StreamState:
    """The state before step 0."""
    return StreamState(
        step=0,
        credit=np.zeros(num_sources, dtype=np.int64),
        exhausted=np.zeros(num_sources, dtype=bool),
        last_position=np.full(num_sources, -1, dtype=np.int64),
        last_part=np.full(num_sources, -1, dtype=np.int64),
        carry=no_pieces(info_dtype(columns)),
    )


@dataclass(frozen=True, kw_only=True)
class NeedMore:
    """The step cannot be composed until more samples of `source` are known."""

    source: int


@dataclass(frozen=True, kw_only=True)
class EndOfData:
    """No further step: `source` has no sample left and the mixture does not go on without it."""

    source: int


@dataclass(frozen=True, kw_only=True)
class Composed:
    """A step's content.

    Attributes:
        plan: with its rows in order of content; `place` gives them their order on the mesh.
        state: for the next step.
        drawn: int64 `[sources]`, samples taken from each stream.
    """

    plan: StepPlan
    state: StreamState
    drawn: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """A step of a window is composed, and waits for the others: ask again with this state.

    Attributes:
        state: of the same step, further on in the streams.
        drawn: int64 `[sources]`, samples taken from each stream.
    """

    state: StreamState
    drawn: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What decides a step's content: the mixture, the rows' shape, and what samples cost.

    `costs` turns SampleInfo records into int64 `[samples]` each: backbone, encoder, memory.
    """

    mixture: Mixture
    pack: Pack
    costs: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]
    regrouped_steps: int = 1


def compose(
    rules: Rules,
    state: StreamState,
    source_names: Sequence[str],
    ahead: Sequence[np.ndarray],
    ended: Sequence[bool],
) -> Composed | Gathered | NeedMore | EndOfData:
    """Decide what step `state.step` delivers; arguments and errors as in `DGraph.compose`."""
    if rules.regrouped_steps == 1:
        return _compose_one(rules, state, source_names, ahead, ended)
    if state.pending:
        return _first_pending(state, drawn=np.zeros(len(ahead), dtype=np.int64))
    composed = _compose_one(rules, replace(state, step=state.next_composed), source_names, ahead, ended)
    if isinstance(composed, NeedMore) or (isinstance(composed, EndOfData) and not state.gathered):
        return composed
    if isinstance(composed, EndOfData):  # the last window is a short one
        whole = replace(state, gathered=(), pending=regroup(state.gathered))
        return _first_pending(whole, drawn=np.zeros(len(ahead), dtype=np.int64))
    gathered = (*state.gathered, composed.plan)
    after = replace(composed.state, step=state.step, gathered=gathered)
    if len(gathered) < rules.regrouped_steps:
        return Gathered(state=after, drawn=composed.drawn)
    return _first_pending(replace(after, gathered=(), pending=regroup(gathered)), drawn=composed.drawn)


def _first_pending(state: StreamState, drawn: np.ndarray) -> Composed:
    plan, *pending = state.pending
    return Composed(plan=plan, state=replace(state, step=plan.step + 1, pending=tuple(pending)), drawn=drawn)


def _compose_one(
    rules: Rules,
    state: StreamState,
    source_names: Sequence[str],
    ahead: Sequence[np.ndarray],
    ended: Sequence[bool],
) -> Composed | NeedMore | EndOfData:
    if state.ended:
        ahead, ended = [infos[:0] for infos in ahead], [True] * len(ahead)
    draws, infos, pieces, filled = _draw_pool(rules, state, source_names, ahead, ended)
    if filled is None or filled[1]:
        refuse_to_drop_all(rules.mixture, rules.pack, state.step, pieces[0], len(draws.source))
    if filled is None and draws.limited_by is not None:
        return NeedMore(source=draws.limited_by)
    sample, start, length = pieces
    if filled is None:
        bucket = _fullest_bucket(rules.pack, np.concatenate([state.carry.length, length]))
        num_draws = len(draws.source)
    else:
        bucket, num_pieces = filled
        num_draws = int(sample[num_pieces - 1]) + 1 if num_pieces else 0
    drawn = np.bincount(draws.source[:num_draws], minlength=len(ahead))
    infos = infos[:num_draws]
    refuse_oversize(rules.pack, state.step, infos, source_names)
    num_pieces = int(np.searchsorted(sample, num_draws))
    sample = sample[:num_pieces]
    all_whole = np.array_equal(sample, np.arange(num_draws))  # none split, none dropped: spare a copy
    fresh = Pieces(
        infos=infos if all_whole else infos.take(sample),
        start=start[:num_pieces],
        length=length[:num_pieces],
        unit=np.full(num_pieces, -1, dtype=np.int64),
    )
    plan, carry = _pack(rules, state, fresh, bucket, is_last=filled is None)
    if not len(plan.samples):
        assert draws.ended_by is not None
        return EndOfData(source=draws.ended_by)
    is_dropped = np.ones(num_draws, dtype=bool)
    is_dropped[sample] = False
    return Composed(
        plan=replace(plan, dropped=infos.take(np.flatnonzero(is_dropped))),
        state=replace(_state_after(state, draws, infos, carry), ended=filled is None),
        drawn=drawn,
    )


def _draw_pool(
    rules: Rules,
    state: StreamState,
    source_names: Sequence[str],
    ahead: Sequence[np.ndarray],
    ended: Sequence[bool],
) -> tuple[Draws, np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray], tuple[int, int] | None]:
    """The draws, their records, the pieces that they are packed in, and which bucket is full.

    See `cut` and `_fill_pool` for the last two.
    """
    mixture, pack = rules.mixture, rules.pack
    refuse_units(mixture.unit, ahead, source_names)
    units = _units(ahead, mixture.unit)
    # Most of what is known ahead is for later steps: look at about a step's worth first.
    places_ahead = int(np.concatenate([infos["tokens"] for infos in ahead]).sum())
    shape = max(pack.shapes, key=lambda each: each.rows * each.seq_len)
    share = Fraction(5 * (shape.rows + 1) * shape.seq_len, 4 * max(places_ahead, 1))
    a_step = 1 + int(share * int(np.concatenate(units).sum()))
    for limit in (a_step, None):
        draws = merge_by_due_time(
            mixture.weights_at(state.step, source_names),
            state.credit,
            units,
            ended,
            exhausted=state.exhausted if mixture.on_exhausted == "renormalize" else None,
            limit_units=limit,
        )
        infos = _drawn_infos(draws, ahead)
        pieces = cut(pack, infos["tokens"].astype(np.int64), infos["patches"].astype(np.int64))
        filled = _fill_pool(pack, state.carry.length, pieces[2], len(source_names))
        if filled is not None or draws.limited_by is not None or draws.ended_by is not None:
            break
    return draws, infos, pieces, filled


def _state_after(state: StreamState, draws: Draws, infos: np.ndarray, carry: Pieces) -> StreamState:
    """Behind the first draws, whose SampleInfo records are `infos`."""
    last_first = infos[::-1]
    drawn, last = np.unique(draws.source[: len(infos)][::-1], return_index=True)
    last_position, last_part = state.last_position.copy(), state.last_part.copy()
    last_position[drawn], last_part[drawn] = last_first["position"][last], last_first["part"][last]
    credit, exhausted = draws.after(len(infos))
    return replace(
        state,
        step=state.step + 1,
        credit=credit,
        exhausted=exhausted,
        last_position=last_position,
        last_part=last_part,
        carry=carry,
    )


def _drawn_infos(draws: Draws, ahead: Sequence[np.ndarray]) -> np.ndarray:
    """SampleInfo records of the draws in order; each source's are its first ones ahead."""
    count = np.bincount(draws.source, minlength=len(ahead))
    drawn = [known[:n] for known, n in zip(ahead, count.tolist(), strict=True) if n]
    records = join_records(drawn or [ahead[0][:0]])
    first = np.cumsum(count) - count
    return records.take(first[draws.source] + draws.index)


def _fill_pool(
    pack: Pack, carried: np.ndarray, fresh: np.ndarray, num_sources: int
) -> tuple[int, int] | None:
    """The bucket that is full first, and the number of fresh pieces that fill it; None where none is full.

    Args:
        pack: the shapes.
        carried: int64, lengths of carried pieces.
        fresh: int64, lengths of the pieces that may be drawn, in order.
        num_sources: of the recipe.
    """
    first: tuple[int, int] | None = None
    rows_beyond = 1 + (num_sources if pack.together else 0)  # the last of each source may have to wait
    one_bucket = len(pack.shapes) == 1
    for bucket, shape in enumerate(pack.shapes):
        mine = np.arange(len(fresh)) if one_bucket else np.flatnonzero(pack.bucket_of(fresh) == bucket)
        waiting = carried if one_bucket else carried[pack.bucket_of(carried) == bucket]
        missing_places = pack.pool_places(shape, rows_beyond) - int(waiting.sum())
        missing_segments = pack.pool_segments(shape, rows_beyond) - len(waiting)
        if missing_places <= 0 or missing_segments <= 0:
            return bucket, 0
        enough = min(int(np.searchsorted(np.cumsum(fresh[mine]), missing_places)), missing_segments - 1)
        if enough < len(mine):
            end = int(mine[enough]) + 1
            first = min(first or (bucket, end), (bucket, end), key=lambda each: each[1])
    return first


def _fullest_bucket(pack: Pack, lengths: np.ndarray) -> int:
    """Which bucket's rows are filled most, when no more is drawn."""
    places = [int(lengths[pack.bucket_of(lengths) == b].sum()) for b in range(len(pack.shapes))]
    fill = [Fraction(n, shape.rows * shape.seq_len) for n, shape in zip(places, pack.shapes, strict=True)]
    return max(range(len(fill)), key=lambda bucket: fill[bucket])


def _pack(
    rules: Rules, state: StreamState, fresh: Pieces, bucket: int, *, is_last: bool
) -> tuple[StepPlan, Pieces]:
    """The plan, and what waits for the next step."""
    pack, shape = rules.pack, rules.pack.shapes[bucket]
    pool = join([state.carry, fresh])
    candidates, chosen = np.arange(len(pool)), pool
    if len(pack.shapes) > 1:
        candidates = np.flatnonzero(pack.bucket_of(pool.length) == bucket)
        chosen = pool.take(candidates)
    num_carried = int(np.searchsorted(candidates, len(state.carry)))
    costs = rules.costs(chosen.used_infos())
    unit = gather(pack, chosen)
    units = measure_units(chosen, unit, costs[0] + costs[1])
    may_go, num_carried_units = slice(None), int(unit[:num_carried].max(initial=-1)) + 1
    if pack.together is not None:
        pool = replace(pool, unit=unit)
        refuse_large_units(pack, state.step, units)
        may_go = is_last | ~unfinished(chosen, unit)
        num_carried_units = int(np.count_nonzero(may_go[:num_carried_units]))
    row_of_unit = np.full(len(units.length), -1, dtype=np.int64)
    row_of_unit[may_go] = assign_rows(pack, shape, units.take(may_go), num_carried_units)
    row_of_unit = np.where(row_of_unit >= 0, shuffled_rows(state.step, shape.rows)[row_of_unit], -1)
    placed = pieces_in_order(unit, row_of_unit)
    row = row_of_unit[unit[placed]]
    samples = chosen.take(placed)
    first = np.flatnonzero(np.diff(row, prepend=-1))  # of each row that is not empty
    before = np.cumsum(samples.length) - samples.length
    none = np.zeros(shape.rows, dtype=np.int64)
    sums = [_sum_by_row(each[placed], row, first, shape.rows) if each.any() else none for each in costs]
    plan = StepPlan(
        step=state.step,
        samples=samples.infos,
        row=row.astype(np.int32),
        offset=(before - np.repeat(before[first], np.diff(first, append=len(row)))).astype(np.int32),
        start=samples.start.astype(np.int32),
        length=samples.length.astype(np.int32),
        num_rows=shape.rows,
        seq_len=shape.seq_len,
        patches_per_row=pack.patches_per_row,
        row_cost=sums[0],
        row_encoder_cost=sums[1],
        row_memory=sums[2],
        order=np.arange(shape.rows, dtype=np.int32),
        num_groups=1,
        num_microbatches=1,
        dropped=pool.infos[:0],
    )
    waits = np.ones(len(pool), dtype=bool)
    waits[candidates[placed]] = False
    return plan, pool.take(waits)


def _sum_by_row(values: np.ndarray, row: np.ndarray, first: np.ndarray, num_rows: int) -> np.ndarray:
    """int64 `[num_rows]`: sums of int64 `values`, whose rows are in order; exact, as float sums are not.

    Args:
        values: int64 `[segments]`.
        row: int64 `[segments]`, increasing.
        first: int64 `[rows that are not empty]`, the first segment of each.
        num_rows: rows.
    """
    sums = np.zeros(num_rows, dtype=np.int64)
    if len(row):
        sums[row[first]] = np.add.reduceat(values, first)
    return sums


def shuffled_rows(step: int, num_rows: int) -> np.ndarray:
    """int64 `[num_rows]`: a permutation, another one each step, that knows nothing of what rows cost.

    Packing leaves like rows beside each other (a row of many short samples nearly always holds an early one),
    so that rows dealt out in turn would always be dearer for the same groups. Sorts by the finaliser of
    splitmix64 (Steele, Lea, Flood 2014) over (step, row).
    """
    keys = np.arange(num_rows, dtype=np.uint64) + (np.uint64(step) << np.uint64(32))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        keys = (keys ^ (keys >> np.uint64(shift))) * np.uint64(factor)
    order = np.argsort(keys ^ (keys >> np.uint64(31)), kind="stable")
    number = np.empty(num_rows, dtype=np.int64)
    number[order] = np.arange(num_rows)
    return number


def _units(ahead: Sequence[np.ndarray], unit: str) -> list[np.ndarray]:
    """int64 for each source: what the mixture counts of its samples, at least 1."""
    if unit == "samples":
        ones = np.ones(max(len(infos) for infos in ahead), dtype=np.int64)
        return [ones[: len(infos)] for infos in ahead]
    return [np.maximum(infos[unit], 1) for infos in ahead]
