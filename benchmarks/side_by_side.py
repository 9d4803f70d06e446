"""Speed, waits, mixture and balance of our loader and of other loaders, on one mixture and CPU budget.

Every loader feeds the same training processes from the same records: many text sources of log-normal weights
and lengths, and a fifth of the samples JPEGs that are decoded, scaled from 256 to 224 and cut into patches.
Each training process has as many worker processes in every loader; ours has as many data processes in all,
planner included, and in rows of its own only two loaders. `data_processes` counts launchers and helpers, too.
`floor` reads and transforms the same mixture in one process; `ceiling` gets batches that are ready in memory,
which is what the measuring costs.

`cpu_ms_per_sample` counts all processes, training processes included. Waits are for a batch in steps that
take 0.1 s besides. `mix_error` is the total variation between the shares of the samples and the weights, and
`mix_error_of_draws` what independent draws would give; `duplicates` are samples seen again before all of
their source were; `imbalance` is the mean over the steps of the most any training process has of the summed
squared lengths, over what each has on average. Times are rough on a machine that others use: trust
`cpu_ms_per_sample` more.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.headline import headline
from benchmarks.peers import data, measure, registry
from benchmarks.peers.job import Cell
from benchmarks.peers.registry import BOUND_NAMES, PEERS, QUICK_PEERS, Peer, take_ours
from benchmarks.peers.runs import Run, interleaved

BATCH_SIZE = 16
RECORDS_PER_SOURCE = 2048
ROUNDS_OF_DRAWS = 20
GOALS = (
    ("samples a second", "samples_per_second", None),
    ("CPU ms a sample", "cpu_ms_per_sample", 0.6),
    ("seconds to the first batch", "first_batch_seconds", 2.0),
    ("ms waited for a batch, median, steps of 100 ms", "wait_ms_p50", 0.1),
    ("ms waited for a batch, 95 of 100", "wait_ms_p95", 0.9),
    ("mixture: total variation from its weights", "mix_error", 0.004),
    ("balance: max over mean of summed squared lengths", "imbalance", 1.05),
)
"""Headlines: what they say, the column, and the most that is meant to be."""


def run(quick: bool) -> dict[str, Any]:
    """A row for each loader and format."""
    if quick:
        return compare(QUICK_PEERS, texts=16, images=2, trainers=2, workers=1, rounds=1, fast=30, paced=10)
    return compare(PEERS, texts=64, images=8, trainers=4, workers=2, rounds=5, fast=60, paced=24)


def headlines(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each figure of ours, of the better of our rows, beside all others."""
    rows = [row for row in result["rows"] if "samples_per_second" in row]
    found = []
    for figure, column, limit in GOALS:
        values: dict[str, float] = {}
        for row in rows:
            on_threads = "" if row["workers"] or row["peer"] in BOUND_NAMES else " on threads"
            values[f"{row['peer']} {row['format']}{on_threads}"] = row[column]
        best = max if column == "samples_per_second" else min
        ours = best(take_ours(values), default=None)
        found.append(headline(figure, ours, beside=values, at_most=limit))
    return found


def compare(
    peers: Sequence[Peer],
    *,
    rounds: int,
    texts: int,
    images: int,
    records_per_source: int = RECORDS_PER_SOURCE,
    folder: Path | None = None,
    **cell: Any,
) -> dict[str, Any]:
    """All loaders on one mixture of so many sources of texts and of images; `cell` as in `Cell`."""
    sources = data.mixture(texts, images, records_per_source, even=False)
    mixture = Cell(
        folder=folder or data.cache_folder(),
        sources=sources,
        batch_size=BATCH_SIZE,
        mean_tokens=data.mean_tokens(sources),
        warm_up=6,
        **cell,
    )
    runnable, absent = registry.split([*registry.BOUNDS, *peers])
    found, failures = interleaved(runnable, mixture, rounds)
    rows = [describe(peer, runs) for peer, runs in found.items()]
    return {
        "name": "side_by_side",
        "rows": [*rows, *failures, *absent],
        "notes": _notes(mixture, rounds, runnable),
    }


def describe(peer: Peer, runs: Sequence[Run]) -> dict[str, Any]:
    """The row of a loader: medians of its runs, and the lowest and the highest speed."""
    figures = [figures_of(each) for each in runs]
    speeds = [each["samples_per_second"] for each in figures]
    return {
        "peer": peer.name,
        "format": peer.format,
        "trainers": runs[0].job.trainers,
        "workers": runs[0].job.workers,
        "data_processes": runs[0].processes,
        **{name: measure.median([each[name] for each in figures], 4) for name in figures[0]},
        "samples_per_second_spread": measure.spread(speeds, 1),
    }


def figures_of(run: Run) -> dict[str, float]:
    """What a run says."""
    fast = run.phases["fast"]
    seconds = max(report["seconds"] for report in fast)
    waits = np.array([report["waits"] for report in run.phases["paced"]])
    content = [report["samples"] for report in run.phases["content"]]
    lengths = [report["lengths"] for report in run.phases["content"]]
    first = 1 + run.job.warm_up
    taken = [length for steps in lengths for step in steps[first : first + run.job.fast] for length in step]
    samples = len(taken)
    return {
        "samples_per_second": samples / seconds,
        "tokens_per_second": sum(taken) / seconds,
        "cpu_ms_per_sample": 1000 * run.cpu_seconds / samples,
        "first_batch_seconds": max(report["seconds"] for report in run.phases["first"]),
        "wait_ms_p50": 1000 * float(np.percentile(waits, 50)),
        "wait_ms_p95": 1000 * float(np.percentile(waits, 95)),
        **contents(content, run.job),
        "imbalance": imbalance(lengths),
    }


def contents(content: Sequence[Sequence[Sequence[Sequence[int]]]], cell: Cell) -> dict[str, float]:
    """Mixture and repetitions of what all training processes got.

    Args:
        content: source and number of each sample, by training process and step.
        cell: the mixture that was asked for.

    Raises:
        AssertionError: a sample that no source has.
    """
    drawn = Counter(tuple(sample) for steps in content for samples in steps for sample in samples)
    num_samples = drawn.total()
    by_source, distinct = Counter[int](), Counter[int]()
    for (source, _), count in drawn.items():
        by_source[source] += count
        distinct[source] += 1
    sizes = {source.number: source.num_records for source in cell.sources}
    unknown = [sample for sample in drawn if not 0 <= sample[1] < sizes.get(sample[0], 0)]
    assert not unknown, f"samples that no source has: {unknown[:5]}"
    shares = np.array([by_source[source.number] for source in cell.sources]) / num_samples
    return {
        "num_samples": num_samples,
        "mix_error": variation(shares, cell.weights),
        "mix_error_of_draws": error_of_draws(cell.weights, num_samples),
        "duplicates": sum(
            by_source[each] - distinct[each] for each in sizes if by_source[each] <= sizes[each]
        ),
    }


def variation(shares: np.ndarray, weights: np.ndarray) -> float:
    """Total variation distance: 0 where shares are the weights, 1 where they have nothing in common."""
    return float(np.abs(shares - weights).sum() / 2)


def error_of_draws(weights: np.ndarray, num_samples: int) -> float:
    """The mean total variation of independent draws."""
    rng = np.random.default_rng(0)
    counts = rng.multinomial(num_samples, weights, ROUNDS_OF_DRAWS)
    return float(np.mean([variation(each / num_samples, weights) for each in counts]))


def imbalance(lengths: Sequence[Sequence[Sequence[int]]]) -> float:
    """Mean over the steps of max / mean over training processes of the summed squared lengths.

    Args:
        lengths: of each sample in tokens, by training process and step.
    """
    costs = np.array([[sum(length**2 for length in step) for step in steps] for steps in lengths], np.float64)
    return float((costs.max(axis=0) / costs.mean(axis=0)).mean())


def _notes(cell: Cell, rounds: int, peers: Sequence[Peer]) -> list[str]:
    return [
        f"medians of {rounds} interleaved runs, and the lowest and the highest speed",
        f"{len(cell.sources)} sources, batches of {cell.batch_size} for each training process (ours packs as "
        f"many on average), {cell.fast} steps as fast as they come, {cell.paced} with a pause of "
        f"{cell.pause_seconds} s",
        f"left out: {registry.left_out(peers)}",
        registry.versions(peers),
    ]
