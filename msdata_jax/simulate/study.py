"""A study: many simulated jobs, each strategy against the unbalanced one on the same samples."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

import numpy as np

from msdata_jax.errors import RecipeError
from msdata_jax.simulate.batches import BASELINES, Baseline, Batch, count, packed
from msdata_jax.simulate.cluster import (
    MODELS,
    PLACEMENTS,
    SYNCS,
    Assumptions,
    Cluster,
    Placement,
    Sync,
    Timing,
    evened,
)
from msdata_jax.simulate.distributions import DISTRIBUTIONS
from msdata_jax.simulate.memory import MemoryAssumptions, memory_rows
from msdata_jax.simulate.strategies import STRATEGIES, Strategy, group, place, work

MOST_GPUS = 2**17
MOST_CONTEXT = 2**20
MOST_STAGES = 2**10
MOST_TOKENS = 2**32
MOST_SAMPLES = 2**24
"""Of a simulated step: what still takes minutes and few GB."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Every combination of these is simulated.

    Attributes:
        gpus: sizes of the job, at most `MOST_GPUS`; each divides into data-parallel ranks
            (`Assumptions.ranks`).
        contexts: longest sample in tokens, from 256 to `MOST_CONTEXT`. The microbatches of a step over all
            ranks hold at most `MOST_TOKENS` of them, or `MOST_SAMPLES` samples (baseline `count`).
        distributions: names of `DISTRIBUTIONS`.
        baselines: names of `BASELINES`.
        syncs: names of `SYNCS`.
        placements: names of `PLACEMENTS`.
        models: names of `MODELS`.
        steps: steps of each combination; a row is about all of them.
        seed: of all random draws, at least 0. Equal seeds give equal rows, whatever else is in the study.
        assumptions: of the cluster.
    """

    gpus: Sequence[int] = (576, 1152, 2304, 4096)
    contexts: Sequence[int] = (4096, 8192, 16384, 32768)
    distributions: Sequence[str] = ("text_pile", "coyo", "mix")
    baselines: Sequence[Baseline] = BASELINES
    syncs: Sequence[Sync] = ("pipeline", "microbatch")
    placements: Sequence[Placement] = ("pipe",)
    models: Sequence[str] = ("llama-12b+vit-2b",)
    steps: int = 2
    seed: int = 0
    assumptions: Assumptions = field(default_factory=Assumptions)

    def __post_init__(self) -> None:
        """Refuse names that do not exist and numbers that mean nothing."""
        _check_names("distribution", self.distributions, DISTRIBUTIONS)
        _check_names("baseline", self.baselines, BASELINES)
        _check_names("sync", self.syncs, SYNCS)
        _check_names("placement", self.placements, PLACEMENTS)
        _check_names("models", self.models, MODELS)
        if not self.gpus or not self.contexts:
            raise RecipeError("a study has at least one number of GPUs and one context")
        if min(self.contexts) < 256 or max(self.contexts) > MOST_CONTEXT:
            raise RecipeError(
                f"a context is at least 256 tokens and at most {MOST_CONTEXT}, got {_list(self.contexts)}"
            )
        self._check_size()
        if self.steps < 1 or self.seed < 0:
            raise RecipeError(f"steps is at least 1 and seed at least 0, got {self.steps} and {self.seed}")

    @property
    def num_rows(self) -> int:
        """Rows of its result: a combination and strategy each."""
        lists = (self.gpus, self.contexts, self.distributions, self.baselines, self.syncs, self.placements)
        return math.prod(map(len, (*lists, self.models, STRATEGIES)))

    def _check_size(self) -> None:
        """Refuse what would run for hours before its first row."""
        a = self.assumptions
        if max(self.gpus) > MOST_GPUS:
            raise RecipeError(f"gpus is at most {MOST_GPUS}, got {_list(self.gpus)}")
        if a.pipeline_stages > MOST_STAGES:
            raise RecipeError(f"pipeline_stages is at most {MOST_STAGES}, got {a.pipeline_stages}")
        microbatches = max(a.ranks(gpus) for gpus in self.gpus) * a.microbatches
        for what, each, most, baseline in (
            ("tokens (ranks x microbatches x context)", max(self.contexts), MOST_TOKENS, "packed"),
            ("samples (ranks x microbatches x samples)", a.samples_per_microbatch, MOST_SAMPLES, "count"),
        ):
            if baseline in self.baselines and microbatches * each > most:
                raise RecipeError(
                    f"a simulated step has at most {most} {what}, got {microbatches} microbatches of {each}; "
                    "take fewer GPUs or microbatches"
                )


def _list(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _check_names(what: str, names: Sequence[str], known: Sequence[str] | Any) -> None:
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise RecipeError(f"{what} is one or more of {', '.join(known)}; got {', '.join(unknown) or 'none'}")


Row = dict[str, Any]


def run_study(study: Study, on_done: Callable[[int, int], None] = lambda done, total: None) -> dict[str, Any]:
    """Simulate all combinations.

    Args:
        study: what to simulate.
        on_done: told how many rows there are and how many there will be, as they come.

    Returns:
        `assumptions`; `rows`, one for each combination and strategy, with `speedup` over `vanilla` and
        `ideal_speedup`, that of equal work everywhere; `memory` (see `memory.loader_memory`); `summary`, the
        mean and the extreme speed-ups of each strategy and context, for each baseline and for `all` of them.
    """
    rows: list[Row] = []
    for row in simulate(study):
        rows.append(row)
        on_done(len(rows), study.num_rows)
    return {
        "assumptions": {
            "cluster": asdict(study.assumptions),
            "memory": asdict(MemoryAssumptions()),
            "steps": study.steps,
            "seed": study.seed,
        },
        "rows": rows,
        "memory": memory_rows([(gpus, study.assumptions.ranks(gpus)) for gpus in study.gpus]),
        "summary": summarise(rows),
    }


def simulate(study: Study) -> Iterator[Row]:
    """The rows of a study."""
    for distribution, baseline, context, gpus in product(
        study.distributions, study.baselines, study.contexts, study.gpus
    ):
        batches = [
            make_batch(study, distribution, baseline, context, gpus, step) for step in range(study.steps)
        ]
        named = {"gpus": gpus, "context": context, "distribution": distribution, "baseline": baseline}
        for models in study.models:
            yield from _rows(study, named, models, batches)


def make_batch(
    study: Study, distribution: str, baseline: Baseline, context: int, gpus: int, step: int
) -> Batch:
    """The samples of a step, a function of its arguments and the seed."""
    a = study.assumptions
    key = (list(DISTRIBUTIONS).index(distribution), BASELINES.index(baseline), context, gpus, step)
    rng = np.random.default_rng((study.seed, *key))
    num_microbatches = a.ranks(gpus) * a.microbatches
    if baseline == "packed":
        return packed(distribution, context, num_microbatches, rng)
    return count(distribution, context, num_microbatches, a.samples_per_microbatch, rng)


def _rows(study: Study, named: Row, models: str, batches: Sequence[Batch]) -> Iterator[Row]:
    flops = [MODELS[models].sample_flops(batch.samples) for batch in batches]
    groups = {
        strategy: [group(strategy, batch, f) for batch, f in zip(batches, flops, strict=True)]
        for strategy in STRATEGIES
    }
    for sync, placement in product(study.syncs, study.placements):
        cluster = Cluster(
            gpus=named["gpus"],
            models=MODELS[models],
            sync=sync,
            placement=placement,
            assumptions=study.assumptions,
        )
        timings = {s: time_strategy(s, cluster, batches, flops, groups[s]) for s in STRATEGIES}
        vanilla, ideal = (_seconds([pair[i] for pair in timings["vanilla"]]) for i in (0, 1))
        for strategy, pairs in timings.items():
            seconds = _seconds([timing for timing, _ in pairs])
            yield named | {
                "sync": sync,
                "placement": placement,
                "models": models,
                "strategy": strategy,
                "speedup": round(vanilla / seconds, 4),
                "ideal_speedup": round(vanilla / ideal, 4),
                "imbalance": round(float(np.mean([timing.imbalance for timing, _ in pairs])), 4),
                "step_seconds": round(seconds, 4),
            }


def time_strategy(
    strategy: Strategy,
    cluster: Cluster,
    batches: Sequence[Batch],
    flops: Sequence[np.ndarray],
    groups: Sequence[np.ndarray],
) -> list[tuple[Timing, Timing]]:
    """Timing of each step under a strategy, and with its work in equal parts."""
    timings = []
    for batch, cost, microbatch in zip(batches, flops, groups, strict=True):
        placed = place(strategy, microbatch, cost, cluster)
        done = work(strategy, batch, placed, cost, cluster)
        even = evened(done, cluster.assumptions.gpus_per_rank)
        timings.append((cluster.time_step(done), cluster.time_step(even)))
    return timings


def _seconds(timings: Sequence[Timing]) -> float:
    return sum(timing.seconds for timing in timings) / len(timings)


def summarise(rows: Sequence[Row]) -> list[Row]:
    """Mean, least and greatest speed-up of each strategy and context, for each baseline and for `all`."""
    summary = []
    baselines = sorted({row["baseline"] for row in rows})
    for baseline in ["all", *baselines] if len(baselines) > 1 else baselines:
        for strategy, context in product(STRATEGIES[1:], sorted({row["context"] for row in rows})):
            chosen = [
                row
                for row in rows
                if row["strategy"] == strategy
                and row["context"] == context
                and baseline in ("all", row["baseline"])
            ]
            speedups = [row["speedup"] for row in chosen]
            summary.append(
                {
                    "baseline": baseline,
                    "strategy": strategy,
                    "context": context,
                    "mean_speedup": round(float(np.mean(speedups)), 3),
                    "min_speedup": round(min(speedups), 3),
                    "max_speedup": round(max(speedups), 3),
                    "mean_ideal_speedup": round(float(np.mean([row["ideal_speedup"] for row in chosen])), 3),
                    "num_rows": len(chosen),
                }
            )
    return summary
