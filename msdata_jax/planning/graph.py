"""DGraph: a step's strategy as a chain of declarative primitives.

Nothing runs until `compose` and `place` are called, once per step, on metadata. `compose` decides what the
step delivers and never sees the mesh; `place` decides where it goes.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from msdata_jax.errors import BadSampleError, RecipeError
from msdata_jax.plan import StepPlan
from msdata_jax.planning.balancing import METHODS, Method, balance
from msdata_jax.planning.costs import Cost, sample_costs
from msdata_jax.planning.mixing import Draws, Mixture, Weights, credit_after, merge_by_due_time
from msdata_jax.planning.packing import Oversize, Pack, assign_rows
from msdata_jax.planning.place_tree import Axes, ClientPlaceTree
from msdata_jax.records import info_dtype

ContextLayout = Literal["contiguous", "zigzag"]


@dataclass(frozen=True, kw_only=True)
class Distribute:
    """How rows spread over the mesh."""

    axis: Axes
    microbatches: int = 1
    context_axis: Axes = None
    context_layout: ContextLayout = "contiguous"


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


@dataclass(frozen=True)
class DGraph:
    """A strategy; each primitive returns a new graph.

    Example:
        >>> graph = (
        ...     DGraph()
        ...     .mix({"web": 3, "code": 1}, unit="tokens")
        ...     .pack(seq_len=2048, rows=64)
        ...     .distribute("dp")
        ...     .balance("lpt")
        ... )
        >>> print(graph)
        mix(tokens: web 0.75, code 0.25; repeat)
        pack(64 rows of 2048 places, best_fit, oversize raise)
        distribute(dp, 1 microbatches)
        balance(lpt)
    """

    mixture: Mixture | None = None
    packing: Pack | None = None
    backbone_cost: Cost | None = None
    encoder_cost: Cost | None = None
    distribution: Distribute = field(default_factory=lambda: Distribute(axis=None))
    balancing: Method = "none"
    broadcast_axes: tuple[str, ...] = ()

    # --- primitives -------------------------------------------------------------------------------------

    def mix(
        self,
        weights: Weights | Sequence[tuple[int, Weights]],
        *,
        unit: str = "samples",
        interpolation: Literal["step", "linear"] = "step",
        on_exhausted: Literal["repeat", "stop"] = "repeat",
    ) -> "DGraph":
        """Say which share of the stream each source has.

        Args:
            weights: weights by source name, or a schedule `[(first step, weights), ...]` from step 0.
            unit: what the shares count: `samples`, `tokens`, or any metadata column.
            interpolation: between the steps of a schedule: `step` or `linear`.
            on_exhausted: `repeat` goes on with the source's next epoch; `stop` ends the data.

        Raises:
            RecipeError: negative weights, all zero, steps out of order, unknown names for the options.
        """
        schedule = [(0, weights)] if isinstance(weights, Mapping) else weights
        # Plain numbers, so that numpy scalars neither change `describe` nor the exact fractions.
        knots = [
            (int(step), {name: w if isinstance(w, int) else float(w) for name, w in each.items()})
            for step, each in schedule
        ]
        mixture = Mixture(knots=knots, unit=unit, interpolation=interpolation, on_exhausted=on_exhausted)
        return replace(self, mixture=mixture)

    def pack(  # noqa: PLR0913 - keyword-only, the fields of Pack
        self,
        *,
        seq_len: int,
        rows: int,
        patches_per_row: int = 0,
        patch_values: int = 768,
        max_segments_per_row: int | None = None,
        method: Literal["best_fit", "balanced"] = "best_fit",
        oversize: Oversize = "raise",
    ) -> "DGraph":
        """Give the step its static shape; see `Pack` for the arguments and `RecipeError`s."""
        pack = Pack(
            seq_len=seq_len,
            rows=rows,
            patches_per_row=patches_per_row,
            patch_values=patch_values,
            max_segments_per_row=max_segments_per_row,
            method=method,
            oversize=oversize,
        )
        return replace(self, packing=pack)

    def cost(self, *, backbone: Cost | None = None, encoder: Cost | None = None) -> "DGraph":
        """Say what a sample costs: formulas from `msdata_jax.costs`, or functions of SampleInfo records.

        A row costs the sum over its samples. Without this primitive a sample costs its places.
        """
        return replace(self, backbone_cost=backbone, encoder_cost=encoder)

    def distribute(
        self,
        axis: Axes,
        *,
        microbatches: int = 1,
        context_axis: Axes = None,
        context_layout: ContextLayout = "contiguous",
    ) -> "DGraph":
        """Spread the rows over a mesh axis (or several, as in a PartitionSpec entry).

        Args:
            axis: the data-parallel axis; the spec of every batch field cuts its rows along it.
            microbatches: equal stretches of each group's rows, in the order in which the trainer takes them.
            context_axis: the axis that cuts the places of a row, where there is one.
            context_layout: `contiguous`, or `zigzag`: the row is cut into `2 n` chunks and part `i` of `n`
                shows chunks `i` and `2n - 1 - i`, so that every part has the same causal work.

        Raises:
            RecipeError: no microbatch, an unknown layout, or zigzag without a context axis.
        """
        if microbatches < 1:
            raise RecipeError(f"distribute(microbatches=...) is at least 1, got {microbatches}")
        if context_layout not in ("contiguous", "zigzag"):
            raise RecipeError(f"context_layout is 'contiguous' or 'zigzag', got {context_layout!r}")
        if context_layout == "zigzag" and context_axis is None:
            raise RecipeError("context_layout='zigzag' needs the context_axis that cuts a row's places")
        distribute = Distribute(
            axis=axis, microbatches=microbatches, context_axis=context_axis, context_layout=context_layout
        )
        return replace(self, distribution=distribute)

    def balance(self, method: Method = "lpt") -> "DGraph":
        """Even out the cost of the data-parallel groups (`lpt`, `snake`, `none`); see `balancing.balance`."""
        if method not in METHODS:
            raise RecipeError(f"balance(method) is one of {METHODS}, got {method!r}")
        return replace(self, balancing=method)

    def broadcast_at(self, *axes: str) -> "DGraph":
        """Feed processes that differ along these axes only through one of them, by host messages."""
        return replace(self, broadcast_axes=tuple(axes))

    # --- what Recipe needs ------------------------------------------------------------------------------

    def check(self, source_names: Sequence[str], columns: Sequence[str]) -> None:
        """Raise RecipeError where the graph is incomplete or does not fit the sources."""
        if self.mixture is None or self.packing is None:
            missing = "mix" if self.mixture is None else "pack"
            raise RecipeError(f"a strategy needs mix(...) and pack(...); {missing}(...) is missing")
        self.mixture.check(source_names, columns)

    def describe(self) -> str:
        """A text that is equal for equal strategies, in every process; functions enter by their names."""
        return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(self))

    def __str__(self) -> str:
        """The chain, a primitive a line."""
        lines = []
        if self.mixture:
            lines += [_mix_text(self.mixture)]
        if self.packing:
            p = self.packing
            lines += [f"pack({p.rows} rows of {p.seq_len} places, {p.method}, oversize {p.oversize})"]
        if self.backbone_cost or self.encoder_cost:
            lines += [f"cost(backbone={self.backbone_cost}, encoder={self.encoder_cost})"]
        if self.distribution.axis:
            lines += [f"distribute({self.distribution.axis}, {self.distribution.microbatches} microbatches)"]
        if self.balancing != "none":
            lines += [f"balance({self.balancing})"]
        if self.broadcast_axes:
            lines += [f"broadcast_at({', '.join(self.broadcast_axes)})"]
        return "\n".join(lines)

    # --- the decision -----------------------------------------------------------------------------------

    def check_mesh(self, tree: ClientPlaceTree) -> None:
        """Raise RecipeError where the rows do not divide over the mesh, or an axis is not there."""
        pack, spread = _given(self.packing), self.distribution
        parts = tree.axis_size(spread.axis) * spread.microbatches
        if pack.rows % parts:
            raise RecipeError(
                f"pack(rows={pack.rows}) does not divide by {tree.axis_size(spread.axis)} groups along "
                f"{spread.axis!r} x {spread.microbatches} microbatches = {parts}"
            )
        chunks = tree.axis_size(spread.context_axis) * (2 if spread.context_layout == "zigzag" else 1)
        if pack.seq_len % chunks:
            raise RecipeError(
                f"pack(seq_len={pack.seq_len}) does not divide by {chunks} context-parallel chunks "
                f"along {spread.context_axis!r} ({spread.context_layout})"
            )

    def compose(
        self,
        state: StreamState,
        source_names: Sequence[str],
        ahead: Sequence[np.ndarray],
        ended: Sequence[bool],
    ) -> Composed | NeedMore | EndOfData:
        """Decide what step `state.step` delivers.

        Args:
            state: where the stream stands.
            source_names: in the recipe's order.
            ahead: for each source the SampleInfo records behind the last drawn one, as far as known.
            ended: whether those are the source's last.

        Raises:
            BadSampleError: a sample is too long for a row and the pack says `raise`, or has too many
                patches for one and the pack does not say `drop`.
        """
        mixture, pack = _given(self.mixture), _given(self.packing)
        weights = mixture.weights_at(state.step, source_names)
        units = [_units(infos, mixture.unit) for infos in ahead]
        draws = merge_by_due_time(weights, state.credit, units, ended)
        lengths = [_places(infos, pack) for infos in ahead]
        num_draws = self._num_draws(state, draws, lengths)
        if num_draws is None:
            if draws.limited_by is not None:
                return NeedMore(source=draws.limited_by)
            num_draws = len(draws.source)
        source, index = draws.source[:num_draws], draws.index[:num_draws]
        drawn = np.bincount(source, minlength=len(ahead))
        fresh = np.empty(num_draws, dtype=state.carry.dtype)
        for s in np.unique(source).tolist():
            fresh[source == s] = ahead[s][index[source == s]]
        self._refuse_oversize(state.step, fresh, source_names)
        plan, carry = self._pack(state, fresh)
        if not len(plan.samples):
            return EndOfData(source=_given(draws.ended_by))
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

    def _num_draws(self, state: StreamState, draws: Draws, lengths: Sequence[np.ndarray]) -> int | None:
        """How many draws fill the pool; None when the certain ones do not."""
        pack = _given(self.packing)
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

    def _refuse_oversize(self, step: int, fresh: np.ndarray, source_names: Sequence[str]) -> None:
        pack = _given(self.packing)
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

    def _pack(self, state: StreamState, fresh: np.ndarray) -> tuple[StepPlan, np.ndarray]:
        pack = _given(self.packing)
        fits = (_places(fresh, pack) > 0) & (fresh["patches"] <= pack.patches_per_row)
        dropped, pool = fresh[~fits], np.concatenate([state.carry, fresh[fits]])
        length = _places(pool, pack)
        costs = sample_costs(_as_used(pool, length), self.backbone_cost, self.encoder_cost)
        row = assign_rows(pack, length, pool["patches"], costs, len(state.carry))
        placed = np.flatnonzero(row >= 0)
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

    def place(self, plan: StepPlan, tree: ClientPlaceTree) -> StepPlan:
        """Give the rows of a composed step their order on the mesh; a pure function of both."""
        spread = self.distribution
        num_groups = tree.axis_size(spread.axis)
        groups = balance(plan.row_cost, num_groups, self.balancing)
        if spread.microbatches > 1:
            groups = np.stack(
                [rows[balance(plan.row_cost[rows], spread.microbatches, self.balancing)] for rows in groups]
            )
        return replace(
            plan,
            order=groups.reshape(-1).astype(np.int32),
            num_groups=num_groups,
            num_microbatches=spread.microbatches,
        )


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


def _mix_text(mixture: Mixture) -> str:
    def shares(weights: Weights) -> str:
        total = sum(weights.values())
        return ", ".join(f"{name} {weight / total:.3g}" for name, weight in weights.items())

    knots = [shares(weights) for _, weights in mixture.knots]
    if len(knots) > 1:
        knots = [f"from step {step} {text}" for (step, _), text in zip(mixture.knots, knots, strict=True)]
    return f"mix({mixture.unit}: {'; '.join(knots)}; {mixture.on_exhausted})"


def _given(value: Any) -> Any:
    """The value of a part that `check` has found to be there."""
    assert value is not None
    return value
