"""One step's content, from metadata: draw, pack, and say what waits. Never sees the mesh."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from msdata_jax.errors import BadSampleError
from msdata_jax.plan import StepPlan
from msdata_jax.planning.mixing import Draws, Mixture, credit_after, merge_by_due_time
from msdata_jax.planning.packing import Pack, assign_rows
from msdata_jax.records import info_dtype


@dataclass(frozen=True, kw_only=True)
class StreamState:
    """Where in the function training stands: all that step `step` needs of the steps before.

    Attributes:
        step: the next step.
        credit: int64 `[sources]`, what the mixture owes each source.
        last_position: int64 `[sources]`, position of the last sample drawn; -1 before the first.
        last_part: int64 `[sources]`, its part.
        carry: SampleInfo records drawn but not delivered yet, oldest first.
    """

    step: int
    credit: np.ndarray
    last_position: np.ndarray
    last_part: np.ndarray
    carry: np.ndarray


def initial_state(num_sources: int, columns: Sequence[str] = ()) -> StreamState:
    """The state before step 0."""
    return StreamState(
        step=0,
        credit=np.zeros(num_sources, dtype=np.int64),
        last_position=np.full(num_sources, -1, dtype=np.int64),
        last_part=np.full(num_sources, -1, dtype=np.int64),
        carry=np.empty(0, dtype=info_dtype(columns)),
    )


@dataclass(frozen=True, kw_only=True)
class NeedMore:
    """The step cannot be composed until more samples of `source` are known."""

    source: int


@dataclass(frozen=True, kw_only=True)
class EndOfData:
    """No further step: `source` has no sample left and the mixture says `stop`."""

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
class Rules:
    """What decides a step's content: the mixture, the rows' shape, and what samples cost.

    `cost` turns SampleInfo records into int64 `[samples]`.
    """

    mixture: Mixture
    pack: Pack
    cost: Callable[[np.ndarray], np.ndarray]


def compose(
    rules: Rules,
    state: StreamState,
    source_names: Sequence[str],
    ahead: Sequence[np.ndarray],
    ended: Sequence[bool],
) -> Composed | NeedMore | EndOfData:
    """Decide what step `state.step` delivers; arguments and errors as in `DGraph.compose`."""
    weights = rules.mixture.weights_at(state.step, source_names)
    units = [_units(infos, rules.mixture.unit) for infos in ahead]
    draws = merge_by_due_time(weights, state.credit, units, ended)
    lengths = [_places(infos, rules.pack) for infos in ahead]
    num_draws = _num_draws(rules.pack, state, draws, lengths)
    if num_draws is None:
        if draws.limited_by is not None:
            return NeedMore(source=draws.limited_by)
        num_draws = len(draws.source)
    source, index = draws.source[:num_draws], draws.index[:num_draws]
    drawn = np.bincount(source, minlength=len(ahead))
    fresh = np.empty(num_draws, dtype=state.carry.dtype)
    for s in np.unique(source).tolist():
        fresh[source == s] = ahead[s][index[source == s]]
    _refuse_oversize(rules.pack, state.step, fresh, source_names)
    plan, carry = _pack(rules, state, fresh)
    if not len(plan.samples):
        assert draws.ended_by is not None
        return EndOfData(source=draws.ended_by)
    units_drawn = np.array([int(u[:n].sum()) for u, n in zip(units, drawn, strict=True)], dtype=np.int64)
    last_position, last_part = state.last_position.copy(), state.last_part.copy()
    for s in np.flatnonzero(drawn).tolist():
        last_position[s] = ahead[s]["position"][drawn[s] - 1]
        last_part[s] = ahead[s]["part"][drawn[s] - 1]
    after = StreamState(
        step=state.step + 1,
        credit=credit_after(weights, state.credit, units_drawn),
        last_position=last_position,
        last_part=last_part,
        carry=carry,
    )
    return Composed(plan=plan, state=after, drawn=drawn)


def _num_draws(pack: Pack, state: StreamState, draws: Draws, lengths: Sequence[np.ndarray]) -> int | None:
    """How many draws fill the pool; None when the certain ones do not."""
    missing_tokens = pack.pool_tokens - int(_places(state.carry, pack).sum())
    missing_segments = pack.pool_segments - len(state.carry)
    if missing_tokens <= 0 or missing_segments <= 0:
        return 0
    stacked = np.concatenate(lengths) if lengths else np.empty(0, dtype=np.int64)
    first = np.cumsum([0, *(len(each) for each in lengths)])
    drawn = stacked[first[draws.source] + draws.index]  # 0 for those that will be dropped
    enough = 1 + min(
        int(np.searchsorted(np.cumsum(drawn), missing_tokens)),
        int(np.searchsorted(np.cumsum(drawn > 0), missing_segments)),
    )
    return enough if enough <= len(drawn) else None


def _refuse_oversize(pack: Pack, step: int, fresh: np.ndarray, source_names: Sequence[str]) -> None:
    if pack.oversize == "drop":
        return
    too_long = (fresh["tokens"] > pack.seq_len) & (pack.oversize == "raise")
    too_many = fresh["patches"] > pack.patches_per_row
    for infos, column, bound, name, way_out in (
        (fresh[too_long], "tokens", pack.seq_len, "seq_len", "'truncate' or 'drop'"),
        (fresh[too_many], "patches", pack.patches_per_row, "patches_per_row", "'drop'"),
    ):
        if len(infos):
            first = infos[0]
            raise BadSampleError(
                f"step {step}: source {source_names[first['source']]!r}, position {first['position']}, "
                f"part {first['part']} has {first[column]} {column}, more than pack({name}={bound}); "
                f"split or truncate it in the source's transforms, or say pack(oversize={way_out})"
            )


def _pack(rules: Rules, state: StreamState, fresh: np.ndarray) -> tuple[StepPlan, np.ndarray]:
    """The plan, and the samples that wait for the next step."""
    pack = rules.pack
    fits = (_places(fresh, pack) > 0) & (fresh["patches"] <= pack.patches_per_row)
    dropped, pool = fresh[~fits], np.concatenate([state.carry, fresh[fits]])
    length = _places(pool, pack)
    costs = rules.cost(_as_used(pool, length))
    row = assign_rows(pack, length, pool["patches"], costs, len(state.carry))
    placed = np.flatnonzero(row >= 0)
    row[placed] = shuffled_rows(state.step, pack.rows)[row[placed]]
    placed = placed[np.lexsort((placed, row[placed]))]
    row, length, costs = row[placed], length[placed], costs[placed]
    row_start = np.searchsorted(row, row)  # index of the first segment of the same row
    before = np.cumsum(length) - length
    row_cost = np.zeros(pack.rows, dtype=np.int64)
    np.add.at(row_cost, row, costs)
    plan = StepPlan(
        step=state.step,
        samples=pool[placed],
        row=row.astype(np.int32),
        offset=(before - before[row_start]).astype(np.int32),
        start=np.zeros(len(placed), dtype=np.int32),
        length=length.astype(np.int32),
        num_rows=pack.rows,
        seq_len=pack.seq_len,
        patches_per_row=pack.patches_per_row,
        row_cost=row_cost,
        order=np.arange(pack.rows, dtype=np.int32),
        num_groups=1,
        num_microbatches=1,
        dropped=dropped,
    )
    waits = np.ones(len(pool), dtype=bool)
    waits[placed] = False
    return plan, pool[waits]


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


def _units(infos: np.ndarray, unit: str) -> np.ndarray:
    if unit == "samples":
        return np.ones(len(infos), dtype=np.int64)
    return np.maximum(infos[unit], 1)


def _places(infos: np.ndarray, pack: Pack) -> np.ndarray:
    """Places that each sample takes in a row: 0 for those that are dropped."""
    tokens = infos["tokens"].astype(np.int64)
    if pack.oversize == "truncate":
        return np.minimum(tokens, pack.seq_len)
    if pack.oversize == "drop":
        return np.where((tokens > pack.seq_len) | (infos["patches"] > pack.patches_per_row), 0, tokens)
    return tokens


def _as_used(infos: np.ndarray, length: np.ndarray) -> np.ndarray:
    """The records with `tokens` cut to what is used, for the cost functions."""
    if np.array_equal(infos["tokens"], length):
        return infos
    used = infos.copy()
    used["tokens"] = length
    return used
