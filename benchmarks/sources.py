"""Memory of 100 text sources on 4 training processes: loader ranks, against readers in every trainer.

The job is real: under mpiexec 1 planner, 3 loaders and 4 training processes (JAX, one CPU device each) take
30 steps of 100 Parquet files, mixed evenly, tokenized by the loaders. Counted are the data ranks: planner and
loaders, as whole processes. The alternative runs on the same files in the same run: each training process
opens all 100 sources and holds its share of one block of each, either in one process or in two (the worker
processes of a data-loading library). `whole` counts those processes with Python, numpy and the recipe;
`added` only what they grew by afterwards, which is what a loader inside the trainer's own process adds.

PSS counts a page that several processes share once. `readers per source` is how many processes have it open;
the run fails where that is not the number of the source's loaders.
"""

import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import jobs, text_data
from benchmarks.headline import headline

NUM_SOURCES, LOADERS, TRAINERS = 100, 3, 4
BLOCK_SIZE = 16


def run(quick: bool) -> dict[str, Any]:
    """One row for the job, the others for the alternatives; `quick` leaves out two processes a trainer."""
    workers = (1,) if quick else (1, 2)
    docs_per_source = 256 if quick else 1024
    return measure(
        NUM_SOURCES, LOADERS, TRAINERS, docs_per_source=docs_per_source, steps=30, workers_per_trainer=workers
    )


def headlines(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Memory of all data ranks."""
    ours, *others = result["rows"]
    beside = {row["way"]: row["total_pss_mb"] for row in others}
    return [headline(f"MB of data ranks, {NUM_SOURCES} sources", ours["total_pss_mb"], beside=beside)]


def measure(
    num_sources: int,
    loaders: int,
    trainers: int,
    *,
    docs_per_source: int,
    steps: int,
    workers_per_trainer: Sequence[int],
) -> dict[str, Any]:
    """All ways on the same files.

    Raises:
        AssertionError: a source is open on more or fewer ranks than its loaders, or a data rank loaded JAX.
    """
    with jobs.data_folder() as folder:
        _say(f"writing {num_sources} Parquet files of {docs_per_source} documents")
        write_data(folder, num_sources, docs_per_source, rows=8 * trainers)
        _say(f"starting 1 planner, {loaders} loaders, {trainers} training processes")
        report = jobs.launch(folder, loaders=loaders, trainers=trainers, steps=steps)
        check_readers(report["figures"], num_sources, loaders)
        rows = [_job_row(report)]
        notes = [
            f"{num_sources} sources of {docs_per_source} documents in row groups of "
            f"{text_data.PARQUET_GROUP_RECORDS}, {trainers} training processes, {report['steps']} steps of "
            f"{sum(report['samples'].values()) / report['steps']:.0f} samples",
            "data ranks loaded no jax, torch, orbax or tensorflow",
        ]
        for workers in workers_per_trainer:
            _say(f"starting {workers * trainers} processes that each open every source")
            processes = jobs.read_every_source(folder, workers * trainers)
            rows += _alternative_rows(processes, workers)
            notes.append(_growth(processes, workers, num_sources))
    return {"name": "sources", "rows": rows, "notes": notes}


def write_data(folder: Path, num_sources: int, docs_per_source: int, rows: int) -> None:
    """Sources of equal weight."""
    names = [f"source{number:03d}" for number in range(num_sources)]
    dealt = text_data.deal(text_data.blocks(), num_sources, docs_per_source)
    text_data.write_job(
        folder,
        dict(zip(names, dealt, strict=True)),
        dict.fromkeys(names, ".parquet"),
        weights=dict.fromkeys(names, 1),
        unit="samples",
        seq_len=1024,
        rows=rows,
        block_size=BLOCK_SIZE,
    )


def readers_per_source(figures: dict[str, Any]) -> Counter[int]:
    """How many loader ranks have each source open, by its number."""
    return Counter(int(source) for loader in figures["loaders"] for source in loader["open_files"])


def check_readers(figures: dict[str, Any], num_sources: int, loaders: int) -> None:
    """The promise: a source is open on its loaders alone, and data ranks load no heavy library."""
    readers = readers_per_source(figures)
    assert sorted(readers) == list(range(num_sources)), f"sources without a reader: {readers}"
    # With fewer sources than loaders the loaders are dealt to the sources in turn.
    expected = {source: max(1, len(range(source, loaders, num_sources))) for source in readers}
    assert dict(readers) == expected, f"readers {dict(readers)}, loaders {expected}"
    heavy = [rank["heavy_modules"] for rank in (figures["planner"], *figures["loaders"])]
    assert not any(heavy), f"data ranks loaded {heavy}"


def _job_row(report: dict[str, Any]) -> dict[str, Any]:
    figures = report["figures"]
    ranks = [figures["planner"], *figures["loaders"]]
    return {
        "way": "msdata: planner and loader ranks",
        "processes": len(ranks),
        "readers_per_source": max(readers_per_source(figures).values()),
        "readers": sum(readers_per_source(figures).values()),
        "open_files": sum(sum(loader["open_files"].values()) for loader in figures["loaders"]),
        "total_pss_mb": round(sum(rank["pss_mb"] for rank in ranks), 1),
        "pss_mb_of_each": [rank["pss_mb"] for rank in ranks],
    }


def _alternative_rows(processes: list[dict[str, Any]], workers: int) -> list[dict[str, Any]]:
    counts = {
        "processes": len(processes),
        "readers_per_source": len(processes),
        "readers": sum(each["readers"] for each in processes),
        "open_files": sum(each["open_files"] for each in processes),
    }
    whole = [each["pss_mb"] for each in processes]
    added = [round(each["pss_mb"] - each["before_mb"], 1) for each in processes]
    return [
        {
            "way": f"every trainer opens every source in {workers} process{'es' * (workers > 1)}: {name}",
            **counts,
            "total_pss_mb": round(sum(each), 1),
            "pss_mb_of_each": each,
        }
        for name, each in (("whole", whole), ("added", added))
    ]


def _growth(processes: list[dict[str, Any]], workers: int, num_sources: int) -> str:
    first = statistics.mean(each["first_mb"] - each["before_mb"] for each in processes)
    others = statistics.mean(each["pss_mb"] - each["first_mb"] for each in processes)
    return (
        f"opening every source in {workers} process{'es' * (workers > 1)} a trainer: a process grows by "
        f"{first:.0f} MB for pyarrow, tokenizers and the first source, and by "
        f"{others / max(num_sources - 1, 1):.2f} MB for each other source (footer and decoded row groups)"
    )


def _say(text: str) -> None:
    print(f"sources: {text}", file=sys.stderr)
