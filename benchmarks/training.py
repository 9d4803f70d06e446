"""Training steps with balanced ranks and without: their time, waiting and speed, by context and regime.

Real JAX training steps of a small transformer on real text (Python's standard library, a byte a token),
mixed, packed and placed by the library's DataLoader. The model's time follows the work: its loops run over
blocks of 128 places, and leave out padding and all pairs of blocks that no segment of a row connects
(`training_job/model.py`), so attention costs the sum of the squares of the segments' lengths. It is narrow
(64 wide), so that attention outgrows the rest from about 2k places on, as in a model of 12B beyond 58k.

The same recipe is run without `balance` and with it, by costs that are measured first and fitted
(`costs.fitted`). Both get the same rows, which is checked byte for byte; only their places differ. Modes:
`packed` rows; `unpacked`, one sample a row, padding computed by nobody; `hybrid`, packed text and pictures
with an encoder. Synchronisation, as in `msdata simulate`: `step`: ranks wait once a step (hybrid: once behind
the encoder and once behind the backbone); `microbatch`: in every microbatch; `pipeline`: once a step, each
rank a 1F1B pipeline of 4 equal stages.

Two kinds of rows. *Composed*: a machine of two cores cannot run eight ranks side by side, so every row of
every rank is timed alone (one process, one thread, CPU seconds of forward and backward, the least of several
rounds), and the step time is composed by the rule of the synchronisation. The exchange itself and the
optimizer, equal for all ranks, are left out. `simulated_gain` is what the simulator's cluster makes of the
same placement, from the cost formula in FLOP. *Wall-clock*: two training processes under mpiexec beside a
planner and a loader, with a sum of gradients over both for every synchronisation; seconds are those of
the clock, waiting is measured, and `computed_gain` composes the step from the seconds that each process
computed. Where the machine is busy with other work those seconds are too.
"""

import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks import jobs
from benchmarks.headline import headline
from benchmarks.training_job.recipes import Balanced, Job, write_texts
from msdata_jax.cli.mpiexec import command_line
from msdata_jax.simulate.cluster import Assumptions, Cluster, Model, Models, Work
from msdata_jax.simulate.pipeline import one_forward_one_backward

Sync = Literal["step", "microbatch", "pipeline"]
SYNCS: tuple[Sync, ...] = ("step", "microbatch", "pipeline")
HERE = Path(__file__).parent
STAGES = 4
FORWARD_SHARE = 1 / 3
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"
DEADLINE_SECONDS = 1800.0

Row = dict[str, Any]


def run(quick: bool) -> dict[str, Any]:
    """A row for each context, mode and synchronisation, and the jobs measured by the clock."""
    with jobs.data_folder() as folder:
        write_texts(folder)
        cases, settings = quick_cases() if quick else full_cases()
        say(f"timing every row of {len(cases)} cases")
        composed = [row for each in measure(folder, cases, settings) for row in compose_rows(each)]
        launched = []
        for job, sync in quick_launches() if quick else full_launches():
            say(f"two processes, {job.mode} rows of {job.context}, waiting in every {sync}")
            launched.append(launch_row(folder, job, sync, steps=4 if quick else 8))
    return {
        "name": "training",
        "rows": composed + launched,
        "notes": [
            "composed: seconds on one thread of CPU time, each row of each rank timed alone; imbalance is "
            "the step by fitted costs over the even step; bound_seconds is the step of even ranks and "
            "microbatches, which an uneven pipeline can beat",
            "wait_percent: share of the step that the mean rank waits for others",
            "wall: seconds of the clock, two processes that wait for each other",
        ],
    }


def headlines(result: Mapping[str, Any]) -> list[Row]:
    """The gain of each case and synchronisation, and how far uneven ones stay from the bound."""
    composed = [row for row in result["rows"] if "gain" in row]
    gains: dict[str, dict[int, float]] = {}
    for row in composed:
        gains.setdefault(f"{row['mode']}, synchronised by {row['sync']}", {})[row["context"]] = row["gain"]
    found = []
    for case, by_context in gains.items():
        *shorter, longest = sorted(by_context)
        found.append(
            headline(
                f"step time without balance over with it, {case}, context {longest}",
                by_context[longest],
                beside={f"context {context}": by_context[context] for context in shorter},
            )
        )
    uneven = [row["percent_above_bound"] for row in composed if row["imbalance_without"] > 1.5]
    if uneven:
        most = "% over the even step, where it was over 1.5 times: the worst"
        beside = {f"median of {len(uneven)}": statistics.median(uneven)}
        found.append(headline(most, max(uneven), beside=beside, at_most=5))
    return found


def say(what: str) -> None:
    print(f"training: {what}", file=sys.stderr)


def quick_cases() -> tuple[list[Job], Row]:
    """Packed, unpacked at two contexts, and pictures, on four ranks."""
    sizes: dict[str, Any] = {"ranks": 4, "microbatches": 4, "stages": STAGES}
    cases = [Job(mode="packed", context=2048, rows=1, **sizes)]
    cases += [Job(mode="unpacked", context=context, rows=2, **sizes) for context in (1024, 2048)]
    cases.append(Job(mode="hybrid", context=2048, rows=1, **sizes))
    return cases, {"steps": 1, "repeats": 3, "row_lengths": [2048]}


def full_cases() -> tuple[list[Job], Row]:
    """Contexts up to 8k on eight ranks."""
    sizes: dict[str, Any] = {"ranks": 8, "microbatches": 4, "stages": STAGES}
    contexts = (2048, 4096, 8192)
    cases = [Job(mode="packed", context=context, rows=2, **sizes) for context in contexts]
    cases += [Job(mode="unpacked", context=context, rows=8, **sizes) for context in contexts]
    cases.append(Job(mode="hybrid", context=2048, rows=2, **sizes))
    return cases, {"steps": 1, "repeats": 3, "row_lengths": [512, 2048, 8192]}


def quick_launches() -> list[tuple[Job, Sync]]:
    """One job."""
    return [(Job(mode="unpacked", context=2048, ranks=2, microbatches=4, rows=2), "step")]


def full_launches() -> list[tuple[Job, Sync]]:
    """Both modes; two processes have no pipelines."""
    packed = Job(mode="packed", context=4096, ranks=2, microbatches=4, rows=1)
    unpacked = replace(packed, mode="unpacked", rows=4)
    return [(packed, "step"), (unpacked, "microbatch")]


# --- composed steps -----------------------------------------------------------------------------------------


def measure(folder: Path, cases: Sequence[Job], settings: Mapping[str, Any]) -> list[Row]:
    """What `training_job/measure.py` finds, in a process of its own: JAX there is of one thread."""
    balanced: list[Balanced] = ["none", *SYNCS]
    asked = {**settings, "balanced": balanced, "jobs": [asdict(job) for job in cases]}
    (folder / "measure.json").write_text(json.dumps(asked))
    run_script([sys.executable, str(HERE / "training_job" / "measure.py"), str(folder)], folder)
    return json.loads((folder / "measured.json").read_text())


def run_script(line: Sequence[str], folder: Path) -> None:
    """Run a script of `training_job` with one thread for JAX, which keeps its programs in the folder.

    Raises:
        JobProblem: it failed, or it took longer than the deadline.
    """
    environment = jobs.environment(folder)
    paths = [str(HERE.parent), *filter(None, [environment.get("PYTHONPATH")])]
    jobs.run_line(
        line,
        {
            **environment,
            "PYTHONPATH": os.pathsep.join(paths),
            "XLA_FLAGS": f"{environment.get('XLA_FLAGS', '')} {ONE_THREAD}".strip(),
            "JAX_COMPILATION_CACHE_DIR": str(folder / "programs"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1",
        },
        seconds=DEADLINE_SECONDS,
    )


def compose_rows(case: Mapping[str, Any]) -> list[Row]:
    """A row for each synchronisation, out of what was measured of a case."""
    if any(samples != case["samples"]["none"] for samples in case["samples"].values()):
        raise AssertionError("balancing changed the samples of a step; it may only move rows")
    return [compose_row(case, sync) for sync in SYNCS]


def compose_row(case: Mapping[str, Any], sync: Sync) -> Row:
    """The figures of one synchronisation, sums over the steps."""
    job = Job(**case["job"])
    stages = job.stages if sync == "pipeline" else 1
    without, balanced = (placed(case, "seconds", name) for name in ("none", sync))
    times = [sum(step_seconds(each, sync, stages) for each in steps) for steps in (without, balanced)]
    bound = sum(step_seconds(evened(each), sync, stages) for each in without)
    by_cost = [imbalance(placed(case, "fitted", name), sync) for name in ("none", sync)]
    waits = [wait_percent(steps, sync, stages) for steps in (without, balanced)]
    simulated = [simulate(placed(case, "flops", name), sync, stages) for name in ("none", sync)]
    num_steps, tokens = len(without), sum(case["tokens"])
    return {
        "context": job.context,
        "mode": job.mode,
        "sync": sync,
        "imbalance_without": round(by_cost[0], 3),
        "imbalance_with": round(by_cost[1], 3),
        "step_seconds_without": round(times[0] / num_steps, 4),
        "step_seconds_with": round(times[1] / num_steps, 4),
        "wait_percent_without": round(waits[0], 1),
        "wait_percent_with": round(waits[1], 1),
        "tokens_per_second_without": round(tokens / times[0]),
        "tokens_per_second_with": round(tokens / times[1]),
        "gain": round(times[0] / times[1], 3),
        "simulated_gain": round(simulated[0] / simulated[1], 3),
        "bound_seconds": round(bound / num_steps, 4),
        "percent_above_bound": round(100 * (times[1] / bound - 1), 2),
    }


def placed(case: Mapping[str, Any], what: str, balanced: str) -> list[np.ndarray]:
    """`[2, ranks, microbatches]` (backbone, encoder) of each step, as the ranks get their rows."""
    job = Job(**case["job"])
    return [
        np.asarray(values)[:, order].reshape(2, job.ranks, job.microbatches, -1).sum(axis=3)
        for values, order in zip(case[what], case["orders"][balanced], strict=True)
    ]


def step_seconds(work: np.ndarray, sync: Sync, stages: int) -> float:
    """How long a step takes.

    Args:
        work: seconds `[2, ranks, microbatches]`, of the backbone and of the encoder.
        sync: where ranks wait for one another. Under `step` they do behind the encoder and behind the
            backbone; otherwise one follows the other without waiting.
        stages: equal stages of a rank's pipeline, for `pipeline`.
    """
    if sync == "step":
        return float(work.sum(axis=2).max(axis=1).sum())
    total = work.sum(axis=0)
    if sync == "microbatch":
        return float(total.max(axis=0).sum())
    return float(pipeline_seconds(total, stages).max())


def pipeline_seconds(total: np.ndarray, stages: int) -> np.ndarray:
    """Seconds of each rank's 1F1B pipeline, from those of its microbatches `[ranks, microbatches]`."""
    each = np.broadcast_to(total.T / stages, (stages, *total.T.shape))
    return one_forward_one_backward(each * FORWARD_SHARE, each * (1 - FORWARD_SHARE))


def evened(work: np.ndarray) -> np.ndarray:
    """The same work in equal microbatches on equal ranks."""
    return np.broadcast_to(work.mean(axis=(1, 2), keepdims=True), work.shape)


def imbalance(steps: Sequence[np.ndarray], sync: Sync) -> float:
    """What the ranks wait for over the mean rank, mean over the steps; of a pipeline, the dearest rank."""
    rule: Sync = "microbatch" if sync == "microbatch" else "step"
    return float(
        np.mean([step_seconds(each, rule, 1) / step_seconds(evened(each), rule, 1) for each in steps])
    )


def wait_percent(steps: Sequence[np.ndarray], sync: Sync, stages: int) -> float:
    """Share of all steps that the mean rank waits for others; the bubble of its pipeline is none."""
    own = [
        pipeline_seconds(each.sum(axis=0), stages) if sync == "pipeline" else each.sum(axis=(0, 2))
        for each in steps
    ]
    total = sum(step_seconds(each, sync, stages) for each in steps)
    return 100 * (1 - float(sum(each.mean() for each in own)) / total)


def simulate(steps: Sequence[np.ndarray], sync: Sync, stages: int) -> float:
    """Seconds that the simulator's cluster takes for MFLOP `[2, ranks, microbatches]` of each step."""
    ranks, microbatches = steps[0].shape[1:]
    free = Model(cost=lambda infos: infos["tokens"], num_parameters=0.0)  # no exchange
    cluster = Cluster(
        gpus=ranks * stages,
        models=Models(backbone=free, encoder=free),
        sync=sync,
        placement="pipe",
        assumptions=Assumptions(
            tensor_parallel=1, pipeline_stages=stages, microbatches=microbatches, encoder_mfu=0.4
        ),
    )
    total = 0.0
    for work in steps:
        phases = [np.stack([each, np.zeros_like(each)]) for each in work] if sync == "step" else [work]
        for phase in phases:
            if phase.any():
                done = Work(microbatches=phase, dearest_gpu=np.zeros(ranks, dtype=np.int64))
                total += cluster.time_step(done).seconds
    return total


# --- launched jobs ------------------------------------------------------------------------------------------


def launch_row(folder: Path, job: Job, sync: Sync, steps: int) -> Row:
    """A job without balancing and one with it, by the clock."""
    without = launch(folder, job, sync, steps)
    balanced = launch(folder, replace(job, balanced=sync), sync, steps)
    return wall_row(job, sync, without, balanced)


def launch(folder: Path, job: Job, sync: Sync, steps: int) -> list[list[Row]]:
    """What each process of `training_job/train.py` reports of its steps."""
    (folder / "job.json").write_text(json.dumps(asdict(job)))
    options = ("--steps", str(steps), "--microbatches", str(job.microbatches), "--sync", sync)
    script = HERE / "training_job"
    train = (str(script / "train.py"), *options)
    run_script(command_line(loaders=1, trainers=job.ranks, recipe=script / "recipe.py", train=train), folder)
    return [json.loads((folder / f"trained-{rank}.json").read_text()) for rank in range(job.ranks)]


def wall_row(
    job: Job, sync: Sync, without: Sequence[Sequence[Row]], balanced: Sequence[Sequence[Row]]
) -> Row:
    """The figures of two jobs that took the same samples, step by step."""
    for step, other in zip(zip(*without, strict=True), zip(*balanced, strict=True), strict=True):
        if all_samples(step) != all_samples(other):
            raise AssertionError("balancing changed the samples of a step; it may only move rows")
    seconds = [sum(step["seconds"] for step in ranks[0]) for ranks in (without, balanced)]
    computed = [computing(ranks) for ranks in (without, balanced)]
    composed = [sum(step_seconds(work, sync, 1) for work in steps) for steps in computed]
    busy = [sum(float(work.sum()) for work in steps) / job.ranks for steps in computed]
    tokens, num_steps = sum(step["tokens"] for step in without[0]), len(without[0])
    costs = [np.array([step["group_costs"] for step in ranks[0]]) for ranks in (without, balanced)]
    uneven = [float((each.max(axis=1) / each.mean(axis=1)).mean()) for each in costs]
    return {
        "context": job.context,
        "mode": job.mode,
        "wall_clock_of": sync,
        "processes": job.ranks,
        "imbalance_without": round(uneven[0], 3),
        "imbalance_with": round(uneven[1], 3),
        "wall_step_seconds_without": round(seconds[0] / num_steps, 4),
        "wall_step_seconds_with": round(seconds[1] / num_steps, 4),
        "wait_percent_without": round(100 * (1 - busy[0] / seconds[0]), 1),
        "wait_percent_with": round(100 * (1 - busy[1] / seconds[1]), 1),
        "tokens_per_second_without": round(tokens / seconds[0]),
        "tokens_per_second_with": round(tokens / seconds[1]),
        "wall_gain": round(seconds[0] / seconds[1], 3),
        "computed_gain": round(composed[0] / composed[1], 3),
    }


def all_samples(step: Sequence[Row]) -> list[list[int]]:
    """Samples of a step over all processes, sorted."""
    return sorted(key for rank in step for key in rank["samples"])


def computing(ranks: Sequence[Sequence[Row]]) -> list[np.ndarray]:
    """`[2, ranks, microbatches]` of each step; there is no encoder."""
    steps = [np.array([step["computing"] for step in each]) for each in zip(*ranks, strict=True)]
    return [np.stack([each, np.zeros_like(each)]) for each in steps]
