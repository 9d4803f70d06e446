"""Speed and CPU time per sample of the loader in one process and as a job, against reading alone.

The mixture is real text (Python's standard library): top-level blocks in Parquet, docstrings and whole
modules in JSONL, mixed by tokens, tokenized by a BPE of 8192 entries, cut at 1024 tokens and packed into rows
of 1024. The trainer takes steps as fast as they come and computes nothing. The floor is
`SourceReader.read_block` alone in a loop, on one thread of one process, with the same transforms and as many
samples of each source: what no loader can do without. Two loaders each way; the job has a planner and a
trainer process besides.

Rounds of all ways are interleaved; figures are medians. CPU time is that of all processes of a way, after the
warm-up. Ratios are to the floor of the same round: more than 1 in `cpu_ratio` is overhead; more than 1 in
`speed_ratio` is the gain from several cores. On a machine that others use, trust `cpu_ratio` more.
"""

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import jobs, text_data
from benchmarks.headline import headline

SOURCES = {"blocks": ".parquet", "docstrings": ".jsonl", "modules": ".jsonl"}
WEIGHTS = {"blocks": 0.5, "docstrings": 0.1, "modules": 0.4}
SEQ_LEN, ROWS, LOADERS, WARM_UP, BLOCK_SIZE = 1024, 32, 2, 10, 16
WAYS = ("floor: reading alone", "in one process", "a job under mpiexec")


def run(quick: bool) -> dict[str, Any]:
    """One row for each way."""
    num_rounds, steps = (2, 30) if quick else (5, 150)
    with jobs.data_folder() as folder:
        print("throughput: writing the sources and training the tokenizer", file=sys.stderr)
        write_data(folder)
        rounds = []
        for number in range(num_rounds):
            print(f"throughput: round {number + 1} of {num_rounds}", file=sys.stderr)
            rounds.append(one_round(folder, steps))
    return {
        "name": "throughput",
        "rows": [summarize(way, rounds) for way in WAYS],
        "notes": [
            f"medians of {num_rounds} rounds of {steps} steps; {LOADERS} loaders",
            "samples are those after cutting at 1024 tokens",
        ],
    }


def headlines(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """CPU time over that of reading alone."""
    ratio = {row["way"]: row["cpu_ratio"] for row in result["rows"]}
    ours = ratio.pop("a job under mpiexec")
    return [headline("CPU over that of reading alone, text", ours, beside=ratio)]


def write_data(folder: Path) -> None:
    """The three sources."""
    documents = {
        "blocks": text_data.blocks()[:8000],
        "docstrings": text_data.docstrings()[:8000],
        "modules": text_data.modules()[:800],
    }
    text_data.write_job(
        folder,
        documents,
        SOURCES,
        weights=WEIGHTS,
        unit="tokens",
        seq_len=SEQ_LEN,
        rows=ROWS,
        block_size=BLOCK_SIZE,
    )


def one_round(folder: Path, steps: int) -> dict[str, dict[str, float]]:
    """Rates of each way, by its name."""
    job = jobs.launch(folder, loaders=LOADERS, trainers=1, steps=steps, warm_up=WARM_UP)
    floor = jobs.read_floor(folder, job["samples"])
    alone = jobs.run_in_process(folder, loaders=LOADERS, steps=steps, warm_up=WARM_UP)
    rates = [_rates(each) for each in (floor, alone, job)]
    for each in rates:
        each["cpu_ratio"] = each["cpu_ms_per_sample"] / rates[0]["cpu_ms_per_sample"]
        each["speed_ratio"] = each["tokens_per_second"] / rates[0]["tokens_per_second"]
    return dict(zip(WAYS, rates, strict=True))


def _rates(report: dict[str, Any]) -> dict[str, float]:
    samples = report["samples"]
    num_samples = samples if isinstance(samples, int) else sum(samples.values())
    return {
        "samples_per_second": num_samples / report["seconds"],
        "tokens_per_second": report["tokens"] / report["seconds"],
        "cpu_ms_per_sample": 1000 * report["cpu_seconds"] / num_samples,
        "cpu_us_per_token": 1e6 * report["cpu_seconds"] / report["tokens"],
    }


def summarize(way: str, rounds: Sequence[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """The median of each figure, and the lowest and highest speed."""
    ours = [each[way] for each in rounds]
    speeds = [each["tokens_per_second"] for each in ours]
    medians = {name: round(statistics.median(each[name] for each in ours), 4) for name in ours[0]}
    return {"way": way, **medians, "tokens_per_second_range": [round(min(speeds)), round(max(speeds))]}
