"""DGraph: a step's strategy as a chain of declarative primitives.

Nothing runs until `compose` and `place` are called, once per step, on metadata. `compose` decides what the
step delivers and never sees the mesh; `place` decides where it goes.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from msdata_jax.errors import RecipeError
from msdata_jax.plan import StepPlan
from msdata_jax.planning import describing
from msdata_jax.planning.balancing import OBJECTIVES, Balance, Objective, balance
from msdata_jax.planning.checking import broken_on_mesh, broken_rules
from msdata_jax.planning.composing import Composed as Composed
from msdata_jax.planning.composing import EndOfData as EndOfData
from msdata_jax.planning.composing import Gathered as Gathered
from msdata_jax.planning.composing import NeedMore as NeedMore
from msdata_jax.planning.composing import Rules, compose
from msdata_jax.planning.composing import StreamState as StreamState
from msdata_jax.planning.composing import initial_state as initial_state
from msdata_jax.planning.costs import Cost, check_columns, cost_parts
from msdata_jax.planning.encoder_slots import always_enough, fill_slots
from msdata_jax.planning.mixing import Interpolation, Mixture, OnExhausted, Weights
from msdata_jax.planning.packing import Method as PackMethod
from msdata_jax.planning.packing import Pack, Shape
from msdata_jax.planning.partitioning import METHODS, Method
from msdata_jax.planning.place_tree import Axes, ClientPlaceTree, MeshLayout
from msdata_jax.recipe import without_addresses
from msdata_jax.records import info_dtype

ContextLayout = Literal["contiguous", "zigzag", "zigzag_document"]
CONTEXT_LAYOUTS: tuple[ContextLayout, ...] = ("contiguous", "zigzag", "zigzag_document")


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What each target weighs in the loss; see `DGraph.loss`."""

    per: Literal["tokens", "segments"] = "tokens"
    sources: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Distribute:
    """How rows spread over the mesh; see `DGraph.distribute`."""

    axis: Axes
    group_size: int | None = None
    microbatches: int = 1
    context_axis: Axes = None
    context_layout: ContextLayout = "contiguous"
    pipeline_axis: str | None = None
    encoder_axis: Axes = None
    patches_per_slot: int | None = None


@dataclass(frozen=True, kw_only=True)
class Balancing:
    """How costs are evened out; see `DGraph.balance`."""

    method: Method = "none"
    objective: Objective = "step"
    refine: bool = True


@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """Who feeds whom; see `DGraph.broadcast_at`."""

    axes: tuple[str, ...] = ()
    via: Literal["host", "device"] = "host"


@dataclass(frozen=True)
class DGraph:
    """A strategy; each primitive returns a new graph.

    Examples:
        >>> graph = (
        ...     DGraph()
        ...     .mix({"web": 3, "code": 1}, unit="tokens")
        ...     .pack(seq_len=2048, rows=64)
        ...     .distribute("dp")
        ...     .balance("lpt")
        ... )
        >>> print(graph)
        mix          by tokens: web 0.75, code 0.25; repeat
        pack         64 rows of 2048 places, best_fit; oversize: raise
        distribute   rows over dp
        balance      lpt, objective step
    """

    mixture: Mixture | None = None
    packing: Pack | None = None
    losses: Loss = field(default_factory=Loss)
    regrouped_steps: int = 1
    backbone_cost: Cost | None = None
    encoder_cost: Cost | None = None
    memory_cost: Cost | None = None
    distribution: Distribute = field(default_factory=lambda: Distribute(axis=None))
    balancing: Balancing = field(default_factory=Balancing)
    broadcast: Broadcast = field(default_factory=Broadcast)

    # --- primitives that decide what a step delivers ---------------------------------------------------

    def mix(
        self,
        weights: Weights | Sequence[tuple[int, Weights]] | Callable[[int], Weights],
        *,
        unit: str = "samples",
        interpolation: Interpolation = "step",
        on_exhausted: OnExhausted = "repeat",
        groups: Mapping[str, Weights] | None = None,
    ) -> "DGraph":
        """Say which share of the stream each source has.

        Args:
            weights: weights by source (or group) name; a schedule `[(first step, weights), ...]` from step 0;
                or a function of the step that returns weights, which must be pure.
            unit: what the shares count: `samples`, `tokens`, or any metadata column.
            interpolation: between the steps of a schedule: `step` or `linear`.
            on_exhausted: `repeat` goes on with the source's next epoch; `stop` ends the data; `renormalize`
                gives the source's share to the others, and ends the data with the last of them.
            groups: weights inside a name of `weights`: `{"text": {"web": 3, "books": 1}}` splits the share of
                `text`; groups may hold groups.

        Raises:
            RecipeError: negative weights, all zero, steps out of order, groups that overlap, unknown options.
        """
        if not callable(weights):
            schedule = [(0, weights)] if isinstance(weights, Mapping) else weights
            weights = [(_whole("a schedule's step", step), plain_weights(each)) for step, each in schedule]
        inner = {name: plain_weights(each) for name, each in (groups or {}).items()}
        mixture = Mixture(
            knots=weights, unit=unit, interpolation=interpolation, on_exhausted=on_exhausted, groups=inner
        )
        return replace(self, mixture=mixture)

    def pack(self, *, seq_len: int, rows: int, method: PackMethod = "best_fit", **options: Any) -> "DGraph":
        """Several samples to a row, all steps of one shape.

        Args:
            seq_len: places in a row.
            rows: rows of the global batch.
            method: `best_fit`, `first_fit` or `balanced`; see `Pack`.
            options: `patches_per_row`, `patch_values`, `max_segments_per_row`, `oversize`, `together`; see
                `Pack`.

        Raises:
            RecipeError: see `Pack`.
        """
        return self._with_shapes({seq_len: rows}, method, options)

    def pad(self, *, seq_len: int, rows: int, **options: Any) -> "DGraph":
        """One sample to a row, padded to `seq_len`; options as in `pack`."""
        return self._with_shapes({seq_len: rows}, "pad", options)

    def bucket(self, rows: Mapping[int, int], *, method: PackMethod = "best_fit", **options: Any) -> "DGraph":
        """A few shapes: samples go to the shortest rows that hold them, and a step is of one bucket.

        Args:
            rows: rows of the global batch by places in a row, such as `{512: 64, 2048: 16}`.
            method: how a bucket's rows are filled; `pad` gives each sample a row.
            options: as in `pack`.
        """
        return self._with_shapes(rows, method, options)

    def _with_shapes(
        self, rows: Mapping[int, int], method: PackMethod, options: Mapping[str, Any]
    ) -> "DGraph":
        unknown = sorted(set(options) - set(Pack.__dataclass_fields__) | {"shapes"} & set(options))
        if unknown:
            raise RecipeError(
                f"pack, pad and bucket take seq_len, rows and "
                f"{sorted(set(Pack.__dataclass_fields__) - {'shapes'})}; they take no {unknown}"
            )
        if not isinstance(rows, Mapping):
            raise RecipeError(f"bucket() takes rows by places, as in {{512: 64, 2048: 16}}; got {rows!r}")
        sizes = [(_whole("seq_len", seq_len), _whole("rows", count)) for seq_len, count in rows.items()]
        shapes = tuple(Shape(seq_len=seq_len, rows=count) for seq_len, count in sorted(sizes))
        return replace(self, packing=Pack(shapes=shapes, method=method, **options))

    def loss(
        self, *, per: Literal["tokens", "segments"] = "tokens", sources: Mapping[str, float] | None = None
    ) -> "DGraph":
        """Say what each target weighs in the loss, which `loss_mask` then shows.

        Args:
            per: `tokens` weighs every target 1; `segments` lets the targets of each segment weigh 1 together,
                so that long samples count no more than short ones.
            sources: factors by source; 1 for those that are not named.

        Raises:
            RecipeError: an unknown `per`, or a factor that is negative or not finite.
        """
        if per not in ("tokens", "segments"):
            raise RecipeError(f"loss(per=...) is 'tokens' or 'segments', got {per!r}")
        factors = plain_weights(sources or {})
        bad = {name: factor for name, factor in factors.items() if not 0 <= factor < float("inf")}
        if bad:
            raise RecipeError(f"loss(sources=...) are finite factors, not negative; got {bad}")
        return replace(self, losses=Loss(per=per, sources=factors))

    def regroup(self, *, steps: int) -> "DGraph":
        """Deal the rows of every `steps` consecutive steps by cost, so that dear rows meet their like.

        For giants: rows dearer than a mean rank, which no placement can even out. **This changes which step
        a sample is in** (by less than `steps` steps), still as a pure function of recipe, seed and step.

        Raises:
            RecipeError: `steps` is below 1.
        """
        if steps < 1:
            raise RecipeError(f"regroup(steps=...) is at least 1, got {steps}")
        return replace(self, regrouped_steps=steps)

    def cost(
        self, *, backbone: Cost | None = None, encoder: Cost | None = None, memory: Cost | None = None
    ) -> "DGraph":
        """Say what a sample costs: formulas from `msdata_jax.costs`, or functions of SampleInfo records.

        A row costs the sum over its samples. Without this primitive a sample costs its places.

        Args:
            backbone: work in the model that sees all places.
            encoder: work in the model that sees the patches.
            memory: bytes of activations; reported, not balanced.

        Raises:
            RecipeError: a cost is not callable.
        """
        for name, cost in (("backbone", backbone), ("encoder", encoder), ("memory", memory)):
            if cost is not None and not callable(cost):
                raise RecipeError(
                    f"cost({name}=...) is a formula of msdata_jax.costs or a function of SampleInfo records, "
                    f"got {cost!r}"
                )
        return replace(self, backbone_cost=backbone, encoder_cost=encoder, memory_cost=memory)

    # --- primitives that decide where it goes ----------------------------------------------------------

    def distribute(  # noqa: PLR0913 - keyword-only, the fields of Distribute
        self,
        axis: Axes,
        *,
        group_size: int | None = None,
        microbatches: int = 1,
        context_axis: Axes = None,
        context_layout: ContextLayout = "contiguous",
        pipeline_axis: str | None = None,
        encoder_axis: Axes = None,
        patches_per_slot: int | None = None,
    ) -> "DGraph":
        """Spread the rows over a mesh axis (or several, as in a PartitionSpec entry).

        Args:
            axis: the data-parallel axis; the spec of every batch field cuts its rows along it. `world`
                stands for all axes of the mesh.
            group_size: costs are evened out over aligned groups of so many ranks first, then inside each; for
                ranks that wait for one another more often than for the rest.
            microbatches: equal stretches of each rank's rows, in the order in which the trainer takes them.
            context_axis: the axis that cuts the places of a row, where there is one.
            context_layout: `contiguous`; `zigzag`: the row is cut into `2 n` chunks and part `i` of `n`
                shows chunks `i` and `2n - 1 - i`, so that every part has the same causal work;
                `zigzag_document`: so is every segment on its own, which is even where attention stays inside
                segments.
            pipeline_axis: the axis of pipeline stages; processes that hold middle stages only get no samples.
            encoder_axis: spread images over these axes (`world`: all) by their encoder cost, apart from the
                rows of their samples. `patches` then is `[slots, patches_per_slot, values]`, a slot for each
                part, and `patch_index` counts in the slots one after the other. None: images stay with rows.
            patches_per_slot: patches in a slot; None for as many as any step needs. A step that needs more
                ends the data with an error.

        Raises:
            RecipeError: no microbatch or group, an unknown layout, or zigzag without a context axis.
        """
        for name, value in (
            ("microbatches", microbatches),
            ("group_size", group_size),
            ("patches_per_slot", patches_per_slot),
        ):
            if value is not None and value < 1:
                raise RecipeError(f"distribute({name}=...) is at least 1, got {value}")
        if context_layout not in CONTEXT_LAYOUTS:
            raise RecipeError(f"context_layout is one of {CONTEXT_LAYOUTS}, got {context_layout!r}")
        if context_layout != "contiguous" and context_axis is None:
            raise RecipeError(
                f"context_layout={context_layout!r} needs the context_axis that cuts a row's places"
            )
        distribute = Distribute(
            axis=axis,
            group_size=group_size,
            microbatches=microbatches,
            context_axis=context_axis,
            context_layout=context_layout,
            pipeline_axis=pipeline_axis,
            encoder_axis=encoder_axis,
            patches_per_slot=patches_per_slot,
        )
        return replace(self, distribution=distribute)

    def balance(
        self, method: Method = "lpt", *, objective: Objective = "step", refine: bool = True
    ) -> "DGraph":
        """Even out the cost of the data-parallel ranks; see `balancing.balance`.

        Args:
            method: `lpt`, `karmarkar_karp`, `snake`, or `none`.
            objective: when ranks wait for one another: once a `step`; in a `pipeline`; at every `microbatch`.
            refine: swap rows between ranks afterwards, as long as that helps.

        Raises:
            RecipeError: an unknown method or objective.
        """
        if method not in METHODS:
            raise RecipeError(f"balance(method) is one of {METHODS}, got {method!r}")
        if objective not in OBJECTIVES:
            raise RecipeError(f"balance(objective=...) is one of {OBJECTIVES}, got {objective!r}")
        return replace(self, balancing=Balancing(method=method, objective=objective, refine=refine))

    def broadcast_at(self, *axes: str, via: Literal["host", "device"] = "host") -> "DGraph":
        """Feed processes that differ along these axes only through one of them.

        Args:
            axes: mesh axes.
            via: `host` relays samples between processes; `device` completes the arrays by a collective on the
                devices, on the training thread.

        Raises:
            RecipeError: an unknown `via`.
        """
        if via not in ("host", "device"):
            raise RecipeError(f"broadcast_at(via=...) is 'host' or 'device', got {via!r}")
        return replace(self, broadcast=Broadcast(axes=tuple(axes), via=via))

    # --- what Recipe needs ------------------------------------------------------------------------------

    def check(self, source_names: Sequence[str], columns: Sequence[str]) -> None:
        """Raise RecipeError where the graph is incomplete or does not fit the sources."""
        if self.mixture is None or self.packing is None:
            missing = "mix(...)" if self.mixture is None else "pack(...), pad(...) or bucket(...)"
            raise RecipeError(f"a strategy needs a mixture and a shape of its rows; {missing} is missing")
        self.mixture.check(source_names, columns)
        for cost in (self.backbone_cost, self.encoder_cost, self.memory_cost):
            check_columns(cost, columns)
        self._costs(_probe(self.packing, columns))
        for rule in broken_rules(self, source_names, columns):
            raise RecipeError(rule)

    def describe(self) -> str:
        """A text that is equal for equal strategies, in every process; functions enter by their names."""
        return without_addresses(repr(self))

    def describe_content(self) -> str:
        """What decides a step's content besides the mixture: rows and costs, as `describe` does."""
        names = ("packing", "regrouped_steps", "backbone_cost", "encoder_cost")
        return without_addresses(", ".join(f"{name}={getattr(self, name)!r}" for name in names))

    def __str__(self) -> str:
        """The chain, a primitive a line."""
        return "\n".join(f"{name:<12} {text}" for name, text in describing.lines(self))

    def to_mermaid(self) -> str:
        """The chain as a Mermaid flowchart, which GitHub and many documents draw."""
        return describing.mermaid(self)

    # --- the decision -----------------------------------------------------------------------------------

    def place_tree(self, layout: MeshLayout) -> ClientPlaceTree:
        """The tree of a mesh under this strategy."""
        return ClientPlaceTree(layout, self.broadcast.axes, self.distribution.pipeline_axis)

    def row_axes(self, tree: ClientPlaceTree) -> Axes:
        """The mesh axes that cut rows."""
        return tree.axes(self.distribution.axis)

    def slots(self, tree: ClientPlaceTree, num_rows: int) -> tuple[int, int]:
        """Slots of the encoder's batch and patches in each, for steps of `num_rows`; zeros where none."""
        spread, patches_per_row = self.distribution, _given(self.packing).patches_per_row
        if spread.encoder_axis is None:
            return 0, 0
        num_slots = tree.axis_size(tree.axes(spread.encoder_axis))
        enough = always_enough(num_rows, patches_per_row, num_slots)
        return num_slots, spread.patches_per_slot or enough

    def check_mesh(self, tree: ClientPlaceTree) -> None:
        """Raise RecipeError where rows or places do not divide over the mesh, or axes clash or miss."""
        for rule in broken_on_mesh(self, tree):
            raise RecipeError(rule)

    def compose(
        self,
        state: StreamState,
        source_names: Sequence[str],
        ahead: Sequence[np.ndarray],
        ended: Sequence[bool],
    ) -> Composed | Gathered | NeedMore | EndOfData:
        """Decide what step `state.step` delivers, or get on with it.

        Args:
            state: where the stream stands.
            source_names: in the recipe's order.
            ahead: for each source the SampleInfo records behind the last drawn one, as far as known.
            ended: whether those are the source's last.

        Raises:
            BadSampleError: a sample is too long for a row and the pack says `raise`, or has too many
                patches for one and the pack does not say `drop`.
            RecipeError: a cost function failed, or a scheduled weight.
        """
        rules = Rules(
            mixture=_given(self.mixture),
            pack=_given(self.packing),
            costs=self._costs,
            regrouped_steps=self.regrouped_steps,
        )
        return compose(rules, state, source_names, ahead, ended)

    def state_before(
        self, step: int, source_names: Sequence[str], columns: Sequence[str] = ()
    ) -> StreamState:
        """The state before any step, without going through the steps before it.

        For steps that each take as many samples, in units of samples, and carry none: `pad` with one shape,
        `mix(unit="samples", on_exhausted="repeat")`. Exact where each position yields one sample: no filter,
        split or skipped record. See `Mixture.draws_before` for what it costs.

        Raises:
            RecipeError: the steps before decide more than that.
        """
        self.check(source_names, columns)
        pack, mixture = _given(self.packing), _given(self.mixture)
        rules = {
            "pad(...) with one shape": pack.method == "pad" and len(pack.shapes) == 1,
            "mix(unit='samples')": mixture.unit == "samples",
            "mix(on_exhausted='repeat')": mixture.on_exhausted == "repeat",
            "oversize='truncate' or 'raise'": pack.oversize in ("truncate", "raise"),
            "no regroup(...)": self.regrouped_steps == 1,
        }
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise RecipeError(
                f"step {step} follows from the steps before it; going there at once needs {', '.join(broken)}"
            )
        drawn, credit = mixture.draws_before(step, pack.shapes[0].rows, source_names)
        start = initial_state(len(source_names), columns)
        last_part = np.where(drawn > 0, 0, -1)
        return replace(start, step=step, credit=credit, last_position=drawn - 1, last_part=last_part)

    def _costs(self, infos: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return cost_parts(infos, self.backbone_cost, self.encoder_cost, self.memory_cost)

    def balance_rules(self, tree: ClientPlaceTree) -> Balance:
        """What `balance` minimises on a mesh."""
        spread, balancing = self.distribution, self.balancing
        return Balance(
            method=balancing.method,
            objective=balancing.objective,
            refine=balancing.refine,
            microbatches=spread.microbatches,
            group_size=spread.group_size,
            pipeline_stages=tree.axis_size(spread.pipeline_axis),
        )

    def place(self, plan: StepPlan, tree: ClientPlaceTree) -> StepPlan:
        """Give the rows of a composed step their order on the mesh; a pure function of both.

        Raises:
            RecipeError: the images of the step do not fit `distribute(patches_per_slot=...)`.
        """
        ranks = tree.axis_size(self.row_axes(tree))
        num_slots, patches_per_slot = self.slots(tree, plan.num_rows)
        if num_slots:
            used = plan.samples.copy()
            used["tokens"] = plan.length
            encoder = self._costs(used)[1] if self.encoder_cost else used["patches"]
            plan = fill_slots(plan, encoder.astype(np.int64), num_slots, patches_per_slot)
        balanced = balance(plan.phase_costs, ranks, self.balance_rules(tree))
        return replace(
            plan,
            order=balanced.order.astype(np.int32),
            num_groups=ranks,
            num_microbatches=self.distribution.microbatches,
            balanced_by=balanced.method,
            note=balanced.note,
        )


def _probe(pack: Pack, columns: Sequence[str]) -> np.ndarray:
    """SampleInfo records of the least and the largest samples, to see what costs make of them."""
    infos = np.ones(3, dtype=info_dtype(columns))
    infos["tokens"] = [1, pack.seq_len, pack.seq_len]
    infos["patches"] = [0, 0, pack.patches_per_row]
    return infos


def plain_weights(weights: Weights) -> dict[str, float]:
    """Plain numbers, so that numpy scalars neither change `describe` nor the exact fractions."""
    if not isinstance(weights, Mapping):
        raise RecipeError(f"weights are numbers by name, as in {{'web': 3, 'code': 1}}; got {weights!r}")
    try:
        return {name: w if isinstance(w, int) else float(w) for name, w in weights.items()}
    except (TypeError, ValueError):
        raise RecipeError(f"weights are numbers by name; got {dict(weights)}") from None


def _whole(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise RecipeError(f"{name} is a whole number, got {value!r}") from None


def _given(value: Any) -> Any:
    """The value of a part that `check` has found to be there."""
    assert value is not None
    return value
