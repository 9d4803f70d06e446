"""CPU time of planning a step (compose, place) and imbalance of lpt, snake and none, by size of the step.

Metadata only, as the planner sees it: three sources whose lengths are lognormal (medians 250, 700 and 1500
tokens, sigma 1.2), mixed by tokens into rows of 16384 places, costed as a causal transformer of 24 layers of
width 1024, whose attention makes long samples dear. Times are of one thread, medians over the steps after the
first. The alternative that each method is measured against is
`none`, in the same steps: rows go to data-parallel groups in the order in which they were packed.

`imbalance` is the dearest group's cost over the mean group's, mean over steps; 1 is perfect.
"""

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import msdata_jax as msd
from msdata_jax.plan import StepPlan
from msdata_jax.planning.balancing import METHODS
from msdata_jax.planning.graph import Composed, initial_state
from msdata_jax.planning.place_tree import ClientPlaceTree, MeshLayout
from msdata_jax.records import info_dtype
from msdata_jax.runtime.report import mean_imbalance

SEQ_LEN = 16384
MEDIAN_TOKENS = {"web": 250, "code": 700, "books": 1500}
WEIGHTS = {"web": 0.5, "code": 0.3, "books": 0.2}
NAMES = tuple(MEDIAN_TOKENS)
SIZES = ((64, 8), (256, 32), (1024, 128), (2048, 512))
"""(rows of the global batch, data-parallel groups)."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Composed steps and what each took."""

    plans: Sequence[StepPlan]
    milliseconds: Sequence[float]


def run(quick: bool) -> dict[str, Any]:
    """One row for each size and method."""
    rows = []
    for num_rows, num_groups in SIZES[:3] if quick else SIZES:
        num_steps = max(5, (6 if quick else 30) * 256 // (256 + num_rows))
        print(f"planner: {num_rows} rows over {num_groups} groups, {num_steps} steps", file=sys.stderr)
        rows += _measure(num_rows, num_groups, num_steps)
    return {
        "name": "planner",
        "rows": rows,
        "notes": [
            "compose is the same work for every method: it packs samples into rows and knows no groups",
            "every group gets as many rows as any other, so few rows a group leave little to choose",
        ],
    }


def _measure(num_rows: int, num_groups: int, num_steps: int) -> list[dict[str, Any]]:
    graph = _graph(num_rows)
    steps = _compose(graph, num_steps + 1)
    tree = ClientPlaceTree(
        MeshLayout(axis_names=("dp",), axis_sizes=(num_groups,), process_of_device=tuple(range(num_groups)))
    )
    rows = []
    for method in METHODS:
        balanced = graph.balance(method)
        placed = [_timed(balanced.place, plan, tree) for plan in steps.plans]
        costs = [plan.group_costs() for plan, _ in placed]
        rows.append(
            {
                "rows": num_rows,
                "groups": num_groups,
                "samples_per_step": round(statistics.mean(len(plan.samples) for plan in steps.plans)),
                "fill": round(statistics.mean(plan.fill for plan in steps.plans), 4),
                "balance": method,
                "compose_cpu_ms": round(statistics.median(steps.milliseconds[1:]), 2),
                "place_cpu_ms": round(statistics.median([each for _, each in placed][1:]), 3),
                "imbalance": round(mean_imbalance(costs), 4),
            }
        )
    return rows


def _graph(num_rows: int) -> msd.DGraph:
    return (
        msd.DGraph()
        .mix(WEIGHTS, unit="tokens")
        .pack(seq_len=SEQ_LEN, rows=num_rows, oversize="truncate")
        .cost(backbone=msd.costs.transformer(num_layers=24, d_model=1024))
        .distribute("dp")
    )


def _compose(graph: msd.DGraph, num_steps: int) -> Steps:
    """Consecutive steps, each with two steps of samples known ahead, as in a job."""
    assert graph.packing is not None
    rng = np.random.default_rng(0)
    wanted = 2 * (graph.packing.rows + 1) * SEQ_LEN
    state = initial_state(len(NAMES))
    ahead = [np.empty(0, info_dtype()) for _ in NAMES]
    next_position = [0] * len(NAMES)
    plans, milliseconds = [], []
    for _ in range(num_steps):
        for source, name in enumerate(NAMES):
            while ahead[source]["tokens"].sum() < wanted * WEIGHTS[name] + SEQ_LEN:
                block = _block(rng, source, next_position[source])
                next_position[source] += len(block)
                ahead[source] = np.concatenate([ahead[source], block])
        composed, taken = _timed(graph.compose, state, NAMES, ahead, [False] * len(NAMES))
        if not isinstance(composed, Composed):
            raise RuntimeError(f"a step could not be composed of {wanted} tokens ahead: {composed}")
        ahead = [infos[count:] for infos, count in zip(ahead, composed.drawn.tolist(), strict=True)]
        state = composed.state
        plans.append(composed.plan)
        milliseconds.append(taken)
    return Steps(plans=plans, milliseconds=milliseconds)


def _block(rng: np.random.Generator, source: int, start: int, size: int = 256) -> np.ndarray:
    """SampleInfo records of consecutive positions; lengths are lognormal, at most one row."""
    infos = np.zeros(size, info_dtype())
    infos["source"] = source
    infos["position"] = np.arange(start, start + size)
    lengths = MEDIAN_TOKENS[NAMES[source]] * rng.lognormal(sigma=1.2, size=size)
    infos["tokens"] = np.clip(lengths, 8, SEQ_LEN)
    infos["num_bytes"] = 4 * infos["tokens"]
    return infos


def _timed(call: Any, *arguments: Any) -> tuple[Any, float]:
    """What a call returns, and the milliseconds of this thread that it took."""
    begin = time.thread_time()
    result = call(*arguments)
    return result, 1000 * (time.thread_time() - begin)
