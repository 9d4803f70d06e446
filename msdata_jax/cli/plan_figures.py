"""Figures of planned steps, as plain values: of one step, and of a whole dry run."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from msdata_jax.dry_run import DryRun, PlannedStep
from msdata_jax.plan import StepPlan
from msdata_jax.planning.balancing import Balance, objective_value
from msdata_jax.planning.giants import dominance, num_giants, over_mean
from msdata_jax.planning.packing import Pack

MAX_LENGTHS = 200_000
"""Sample lengths of a source that are kept for the histogram."""

MOST_STEPS_WAITED = 255
"""Longer waits count as this."""


def step_figures(plan: StepPlan) -> dict[str, Any]:
    """What a plan alone tells: fill, and costs of ranks, microbatches and rows over their mean."""
    total = plan.phase_costs.sum(axis=0)
    work = plan.row_cost + plan.row_encoder_cost
    shape = (plan.num_groups, plan.num_microbatches, -1)
    microbatches = total[plan.order].reshape(shape).sum(axis=2)
    encoder = plan.row_encoder_cost[plan.order].reshape(plan.num_groups, -1).sum(axis=1)
    return {
        "step": plan.step,
        "rows": plan.num_rows,
        "seq_len": plan.seq_len,
        "segments": len(plan.samples),
        "tokens": int(plan.length.sum()),
        "fill": plan.fill,
        "imbalance_unbalanced": over_mean(plan.group_costs(np.arange(plan.num_rows))),
        "imbalance": over_mean(plan.group_costs()),
        "dominance": float(dominance(total, plan.num_groups)),
        "giants": num_giants(total, plan.num_groups),
        "microbatch_spread": over_mean(microbatches),
        "encoder_share": int(encoder.sum()) / max(int(work.sum()), 1),
        "encoder_imbalance": over_mean(encoder),
        "row_memory_bytes": int(plan.row_memory.max(initial=0)),
        "cut": plan.num_cut,
        "dropped": len(plan.dropped),
        "balanced_by": plan.balanced_by,
        "note": plan.note,
        "digest": plan.digest,
    }


@dataclass(kw_only=True)
class DryRunFigures:
    """What a dry run gathers over its steps.

    Attributes:
        run: the dry run.
        steps: figures of each step.
        worst: the plan of the step whose objective is furthest from even work.
        lengths: for each source the tokens of the samples drawn, the first `MAX_LENGTHS` of them.
        would_balance: where the strategy leaves rows as they are, imbalances that `lpt` would bring.
        lost_to_patches, lost_to_segments: share of the empty places that are in rows whose patches are more
            than half used, or that hold as many segments as they may.
    """

    run: DryRun
    steps: list[dict[str, Any]] = field(default_factory=list)
    worst: StepPlan | None = None
    lengths: list[np.ndarray] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)
    would_balance: list[float] = field(default_factory=list)
    lost_to_patches: float = 0.0
    lost_to_segments: float = 0.0

    def mean(self, name: str) -> float:
        """Mean of a figure over the steps."""
        return float(np.mean([step[name] for step in self.steps])) if self.steps else 0.0

    def most(self, name: str) -> float:
        """The largest value of a figure over the steps."""
        return max((step[name] for step in self.steps), default=0)


def gather(
    run: DryRun, num_steps: int, on_step: Callable[[PlannedStep], None] = lambda _: None
) -> DryRunFigures:
    """Run `num_steps` steps; `on_step` sees each. Raises what `DryRun.steps` raises."""
    figures = DryRunFigures(run=run)
    rules = run.graph.balance_rules(run.tree)
    sources = _SourceFigures(run)
    empty = np.zeros(3, dtype=np.int64)
    pack = run.graph.packing
    assert pack is not None
    worst = -1.0
    for planned in run.steps(num_steps):
        plan = planned.plan
        values = step_figures(plan) | _objective(plan, rules) | _planner_time(planned)
        values["carried"] = len(planned.in_flight.carried)
        figures.steps.append(values)
        if values["objective"] > worst:
            worst, figures.worst = values["objective"], plan
        if rules.method == "none" and plan.num_groups > 1:
            other = run.graph.balance("lpt", objective=rules.objective).place(plan, run.tree)
            figures.would_balance.append(over_mean(other.group_costs()))
        empty += _empty_places(plan, pack)
        sources.add(planned)
        on_step(planned)
    figures.sources, figures.lengths = sources.summary(), sources.lengths()
    all_empty, by_patches, by_segments = empty.tolist()
    figures.lost_to_patches = by_patches / max(all_empty, 1)
    figures.lost_to_segments = by_segments / max(all_empty, 1)
    return figures


def _empty_places(plan: StepPlan, pack: Pack) -> np.ndarray:
    """int64 `[3]`: empty places; those in rows short of room for patches; those in rows full of segments."""

    def by_row(values: np.ndarray) -> np.ndarray:
        return np.bincount(plan.row, weights=values, minlength=plan.num_rows)

    empty = plan.seq_len - by_row(plan.length)
    patches, segments = by_row(plan.samples["patches"]), by_row(np.ones_like(plan.row))
    of_patches = empty[2 * patches > pack.patches_per_row].sum() if pack.patches_per_row else 0
    limit = pack.segments_per_row
    of_segments = empty[segments >= limit].sum() if limit else 0
    return np.array([empty.sum(), of_patches, of_segments], dtype=np.int64)


def _objective(plan: StepPlan, rules: Balance) -> dict[str, float]:
    """What the ranks wait for, over what it would be if all work were in equal parts."""
    costs = plan.phase_costs
    mean = float(costs.sum()) / plan.num_groups
    if rules.objective == "pipeline":
        mean *= 1 + (rules.pipeline_stages - 1) / rules.microbatches
    orders = {"objective": plan.order, "objective_unbalanced": np.arange(plan.num_rows)}
    return {
        name: objective_value(costs, order, plan.num_groups, rules) / mean if mean else 1.0
        for name, order in orders.items()
    }


def _planner_time(planned: PlannedStep) -> dict[str, float]:
    return {
        "compose_ms": round(1000 * planned.compose_seconds, 3),
        "place_ms": round(1000 * planned.place_seconds, 3),
    }


class _SourceFigures:
    """Counts by source over the steps."""

    def __init__(self, run: DryRun) -> None:
        self._run = run
        num_sources = len(run.recipe.sources)
        self._counts: dict[str, np.ndarray] = {
            name: np.zeros(num_sources, dtype=np.int64)
            for name in ("samples", "tokens", "units", "delivered", "dropped", "cut", "too_long", "longest")
        }
        self._waits = [np.zeros(1, dtype=np.int64) for _ in range(num_sources)]  # segments by steps waited
        self._lengths: list[list[np.ndarray]] = [[] for _ in range(num_sources)]
        self._weights = np.zeros(num_sources)
        self._last_keys: deque[np.ndarray] = deque(maxlen=MOST_STEPS_WAITED + 1)
        self._last_drawn = np.full(num_sources, -1, dtype=np.int64)
        self._carried = np.zeros(num_sources, dtype=np.int64)

    def add(self, planned: PlannedStep) -> None:
        plan, drawn = planned.plan, planned.drawn
        graph = self._run.graph
        assert graph.mixture is not None
        assert graph.packing is not None
        unit = graph.mixture.unit
        units = np.ones(len(drawn), dtype=np.int64) if unit == "samples" else np.maximum(drawn[unit], 1)
        is_long = (drawn["tokens"] > graph.packing.seq_len).astype(np.int64)
        self._add("samples", drawn, np.ones(len(drawn), dtype=np.int64))
        self._add("tokens", drawn, drawn["tokens"])
        self._add("units", drawn, units)
        self._add("too_long", drawn, is_long)
        self._add("delivered", plan.samples, plan.length)
        self._add("cut", plan.samples, (plan.length < plan.samples["tokens"]).astype(np.int64))
        self._add("dropped", plan.dropped, np.ones(len(plan.dropped), dtype=np.int64))
        np.maximum.at(self._counts["longest"], drawn["source"], drawn["tokens"])
        self._weights += planned.weights / planned.weights.sum() * int(units.sum())
        last_keys = self._last_keys[-1].copy() if self._last_keys else np.full(len(self._weights), -1)
        np.maximum.at(last_keys, drawn["source"], _key(drawn))
        self._last_keys.append(last_keys)
        self._last_drawn = planned.in_flight.last_drawn
        self._carried = np.bincount(planned.in_flight.carried["source"], minlength=len(self._weights))
        for source, kept in enumerate(self._lengths):
            if sum(map(len, kept)) < MAX_LENGTHS:
                kept.append(drawn["tokens"][drawn["source"] == source])
        self._add_waits(plan)

    def _add(self, name: str, infos: np.ndarray, values: np.ndarray) -> None:
        np.add.at(self._counts[name], infos["source"], values)

    def _add_waits(self, plan: StepPlan) -> None:
        """A sample was drawn in the first step whose last drawn sample is not before it."""
        history = np.stack(self._last_keys)  # [steps, sources]
        for source in range(len(self._weights)):
            keys = _key(plan.samples[plan.samples["source"] == source])
            waited = len(history) - 1 - np.searchsorted(history[:, source], keys)
            counts = np.bincount(np.maximum(waited, 0), minlength=len(self._waits[source]))
            counts[: len(self._waits[source])] += self._waits[source]
            self._waits[source] = counts

    def lengths(self) -> list[np.ndarray]:
        """Tokens of the samples that each source gave."""
        nothing = np.empty(0, dtype=np.int64)
        return [np.concatenate([nothing, *each])[:MAX_LENGTHS] for each in self._lengths]

    def summary(self) -> list[dict[str, Any]]:
        """Plain values, a source each."""
        return [self._of(source, name) for source, name in enumerate(self._run.recipe.source_names)]

    def _of(self, source: int, name: str) -> dict[str, Any]:
        counts = {key: int(values[source]) for key, values in self._counts.items()}
        waits = self._waits[source]
        segments = max(int(waits.sum()), 1)
        return {
            "name": name,
            "asked_percent": _percent(self._weights, source),
            "realised_percent": _percent(self._counts["units"], source),
            "percent_of_tokens": _percent(self._counts["delivered"], source),
            "samples": counts["samples"],
            "mean_tokens": counts["tokens"] / max(counts["samples"], 1),
            "longest": counts["longest"],
            "too_long": counts["too_long"],
            "cut": counts["cut"],
            "dropped": counts["dropped"],
            "bad": self._run.streams[source].num_bad,
            "epochs": (int(self._last_drawn[source]) + 1) / self._run.num_records[source],
            "waited_percent": 100 * int(waits[1:].sum()) / segments,
            "longest_wait_steps": int(np.flatnonzero(waits).max(initial=0)),
            "waiting_at_end": int(self._carried[source]),
        }


def _key(infos: np.ndarray) -> np.ndarray:
    """int64: samples of a source in the order of the stream."""
    return (infos["position"] << 20) + infos["part"]


def _percent(values: np.ndarray, source: int) -> float:
    return 100 * float(values[source]) / max(float(values.sum()), 1e-12)


def as_json(figures: DryRunFigures, *, recipe: str, mesh: str, advice: list[str]) -> Mapping[str, Any]:
    """All figures as one object."""
    graph = figures.run.graph
    assert graph.mixture is not None
    return {
        "recipe": recipe,
        "fingerprint": figures.run.recipe.fingerprint(),
        "mesh": mesh,
        "strategy": str(graph),
        "mix_unit": graph.mixture.unit,
        "objective": graph.balancing.objective,
        "steps": figures.steps,
        "sources": figures.sources,
        "advice": advice,
    }
