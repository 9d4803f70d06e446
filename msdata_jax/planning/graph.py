"""DGraph: a step's strategy as a chain of declarative primitives.

Nothing runs until `compose` and `place` are called, once per step, on metadata. `compose` decides what the
step delivers and never sees the mesh; `place` decides where it goes.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from msdata_jax.errors import RecipeError
from msdata_jax.plan import StepPlan
from msdata_jax.planning.balancing import METHODS, Method, balance
from msdata_jax.planning.composing import Composed as Composed
from msdata_jax.planning.composing import EndOfData as EndOfData
from msdata_jax.planning.composing import NeedMore as NeedMore
from msdata_jax.planning.composing import Rules, compose
from msdata_jax.planning.composing import StreamState as StreamState
from msdata_jax.planning.composing import initial_state as initial_state
from msdata_jax.planning.costs import Cost, sample_costs
from msdata_jax.planning.mixing import Mixture, Weights
from msdata_jax.planning.packing import Oversize, Pack
from msdata_jax.planning.place_tree import Axes, ClientPlaceTree

ContextLayout = Literal["contiguous", "zigzag"]


@dataclass(frozen=True, kw_only=True)
class Distribute:
    """How rows spread over the mesh."""

    axis: Axes
    microbatches: int = 1
    context_axis: Axes = None
    context_layout: ContextLayout = "contiguous"


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
        return compose(
            Rules(mixture=_given(self.mixture), pack=_given(self.packing), cost=self._costs),
            state,
            source_names,
            ahead,
            ended,
        )

    def _costs(self, infos: np.ndarray) -> np.ndarray:
        return sample_costs(infos, self.backbone_cost, self.encoder_cost)

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
