"""Loaders that scale themselves, against fixed sizes: wait for data, and memory, of the same threads.

Eight Parquet sources; a sample of one takes 100 times as long to transform as one of the others. The mixture
gives that one 4 % of the samples, then 40 %, then 4 % again. Loaders of one worker thread each feed one
training process that takes 100 ms a step. Where the cost is `wait`, a dear sample waits for 20 ms, and keeps
2.6 of four loaders busy while the mixture swings; where it is `cpu`, it computes for 10 ms, and keeps 1.3 of
two loaders busy. A quick run leaves `cpu` out.

`fixed, even`: each source on one loader, as many on each. `fixed, for the slowest`: every source on every
loader, the size that the dear source needs. `scaled`: begins as `fixed, even`, and scales itself.

A row is the median run. `wait_percent` is the wait for data over the time of all steps but the first ten;
`swing_wait_percent` the same of the steps in which the dear source has 40 %. `loaders_pss_mb` is the memory
of the loaders, the mean over the run.
"""

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import jobs
from benchmarks.headline import headline
from msdata_jax.observing.files import read_lines
from msdata_jax.scaling.decision_log import Round, replay
from msdata_jax.scaling.partition import Partition
from msdata_jax.scaling.policy import Hysteresis

JOB = Path(__file__).parent / "scaling_job"
LOADERS = {"wait": 4, "cpu": 2}
"""By what a sample costs."""
DOES = {"wait": "wait", "cpu": "compute"}
"""What a sample does, in words, by what it costs."""
STEP_SECONDS = 0.1
WARM_UP = 10
NAMES = ("dear", *(f"cheap{i}" for i in range(7)))
RECORDS, TOKENS, GROUP = 4096, 512, 2048


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How long a run is, and when its mixture swings."""

    steps: int
    swing_at: int
    swing_stop: int


FULL = Shape(steps=500, swing_at=150, swing_stop=300)
QUICK = Shape(steps=120, swing_at=50, swing_stop=100)
SIZES = {
    "fixed, even": ("--scaling", "off"),
    "fixed, for the slowest": ("--scaling", "off", "--partition", "everywhere.json"),
    "scaled": ("--scaling", "auto", "--partition", "off"),
}


def run(quick: bool) -> dict[str, Any]:
    """One row for each size; `quick` takes one shorter run of each instead of the median of three."""
    shape, runs, costs = (QUICK, 1, ("wait",)) if quick else (FULL, 3, tuple(LOADERS))
    notes = [
        f"{shape.steps} steps of {1000 * STEP_SECONDS:.0f} ms, swing from step {shape.swing_at} to "
        f"{shape.swing_stop}; bytes of all batches equal in all {len(costs) * runs * len(SIZES)} runs"
    ]
    rows, digests = [], set()
    for cost in costs:
        with jobs.data_folder() as folder:
            write_data(folder, LOADERS[cost])
            results = {
                size: [run_one(folder, cost, size, shape, number) for number in range(runs)] for size in SIZES
            }
        digests |= {each["digest"] for found in results.values() for each in found}
        rows += [_row(cost, size, found) for size, found in results.items()]
        notes += [_compare(cost, *rows[-len(SIZES) :])]
        notes += [f"{cost}: {note}" for note in results["scaled"][0]["decided"]]
    if len(digests) != 1:
        raise jobs.JobProblem(f"batches differ between sizes: {sorted(digests)}")
    return {"name": "scaling", "rows": rows, "notes": notes}


def headlines(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Waiting and memory of each size, by what a sample costs."""
    found = []
    for cost in dict.fromkeys(row["cost"] for row in result["rows"]):
        mine = {row["size"]: row for row in result["rows"] if row["cost"] == cost}
        for figure, column in (
            ("% of the time waited for data", "wait_percent"),
            ("MB of loaders", "loaders_pss_mb"),
        ):
            values = {size: row[column] for size, row in mine.items()}
            ours = values.pop("scaled")
            goal = 2.0 if column == "wait_percent" else None
            found.append(headline(f"{figure}, samples that {DOES[cost]}", ours, beside=values, at_most=goal))
    return found


def _compare(cost: str, even: dict[str, Any], slowest: dict[str, Any], scaled: dict[str, Any]) -> str:
    return (
        f"{cost}: fixed, even waits {even['wait_percent'] / max(scaled['wait_percent'], 0.01):.0f} times as "
        f"long as scaled; fixed, for the slowest takes "
        f"{slowest['loaders_pss_mb'] / scaled['loaders_pss_mb']:.2f} times its memory"
    )


def _row(cost: str, size: str, found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    middle = sorted(found, key=lambda each: each["wait_percent"])[len(found) // 2]
    return {
        "cost": cost,
        "size": size,
        **{name: middle[name] for name in ("wait_percent", "swing_wait_percent", "steps_per_second")},
        "wait_percent_worst": max(each["wait_percent"] for each in found),
        "loaders_pss_mb": round(statistics.median(each["loaders_pss_mb"] for each in found), 1),
    }


def run_one(folder: Path, cost: str, size: str, shape: Shape, number: int) -> dict[str, Any]:
    """One job: its waits, its memory, and what was decided.

    Args:
        folder: of the data.
        cost: a name in `LOADERS`.
        size: a name in `SIZES`.
        shape: of the run.
        number: of the run, for its folder.
    """
    record = folder / f"record-{size.replace(', ', '-').replace(' ', '-')}-{number}"
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    launch = ["--loaders", str(LOADERS[cost]), "--threads", "1", "--max-threads", "1"]
    launch += ["--record", str(record)]
    launch += [str(folder / each) if each.endswith(".json") else each for each in SIZES[size]]
    train = [str(JOB / "train.py"), str(report), str(shape.steps), str(STEP_SECONDS)]
    line = [
        sys.executable,
        "-m",
        "msdata_jax",
        "launch",
        *launch,
        str(JOB / "recipe.py"),
        "--",
        *train,
    ]
    settings = {"MSDATA_BENCH_SWING": f"{shape.swing_at},{shape.swing_stop}", "MSDATA_BENCH_COST": cost}
    print(f"scaling: {cost}, {size}, run {number + 1}", file=sys.stderr, flush=True)
    jobs.run_line(line, jobs.environment(folder) | settings, report=report)
    return {
        **_waits(json.loads(report.read_text()), shape),
        **_memory(record, LOADERS[cost]),
        "decided": _decided(record),
    }


def _waits(report: dict[str, Any], shape: Shape) -> dict[str, Any]:
    waits, begins = np.array(report["waits"]), np.array([*report["begins"], report["end"]])

    def percent(first: int, stop: int) -> float:
        return round(100 * float(waits[first:stop].sum() / (begins[stop] - begins[first] + waits[first])), 2)

    seconds = begins[-1] - begins[WARM_UP]
    return {
        "wait_percent": percent(WARM_UP, shape.steps),
        "swing_wait_percent": percent(shape.swing_at, shape.swing_stop),
        "steps_per_second": round((shape.steps - WARM_UP) / float(seconds), 2),
        "digest": report["digest"],
    }


def _memory(record: Path, num_loaders: int) -> dict[str, float]:
    """Memory of the loaders, the mean over the lines of a record."""
    sums: list[float] = []
    for line in read_lines(record / "metrics.jsonl"):
        loaders = [each for each in line["ranks"].values() if each["role"] == "loader" and each["pss_mb"]]
        if len(loaders) == num_loaders:
            sums.append(sum(each["pss_mb"] for each in loaders))
    if not sums:
        raise jobs.JobProblem(f"{record} has no line with the memory of {num_loaders} loaders")
    return {"loaders_pss_mb": statistics.mean(sums)}


def _decided(record: Path) -> list[str]:
    """What was decided, and when; each decision is made again from what was seen."""
    lines = [line for line in read_lines(record / "decisions.jsonl") if "decisions" in line]
    rounds = [Round.from_plain(line) for line in lines]
    for each, again in replay(rounds, Hysteresis(lookahead_seconds=4.0)):
        if tuple(again) != each.decisions:
            raise jobs.JobProblem(f"replaying {record} decides {again}, not {each.decisions}")
    return [
        f"step {each.observation.step}: {decision.kind} {NAMES[decision.source]} on rank {decision.loader} "
        f"({decision.why})"
        for each in rounds
        for decision in each.decisions
    ]


def write_data(folder: Path, num_loaders: int) -> None:
    """A Parquet file of numbers for each source, and the partition with every source on every loader."""
    import pyarrow as pa
    from pyarrow import parquet

    random = np.random.default_rng(0)
    for name in NAMES:
        tokens = random.integers(0, 1 << 15, (RECORDS, TOKENS), dtype=np.int32)
        column = pa.FixedSizeListArray.from_arrays(pa.array(tokens.reshape(-1)), TOKENS)
        table = pa.table({"tokens": column.cast(pa.list_(pa.int32()))})
        parquet.write_table(table, folder / f"{name}.parquet", row_group_size=GROUP, compression="none")
    count = len(NAMES)
    everywhere = Partition(
        sources=NAMES,
        loaders=num_loaders,
        threads=(1,) * num_loaders,
        affinity=(tuple(range(num_loaders)),) * count,
        tiers=("ranks",) * count,
        steps_per_second=1 / STEP_SECONDS,
        needs=(0.0,) * count,
        worst_needs=(0.0,) * count,
        cpus=float(num_loaders),
        utilisation=(0.0,) * num_loaders,
        memory_bytes=(0,) * num_loaders,
    )
    (folder / "everywhere.json").write_text(json.dumps(everywhere.to_json()))
