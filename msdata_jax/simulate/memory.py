"""Host memory of a data layer: one loader for each rank, against loaders of sources and constructors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MemoryAssumptions:
    """What a process holds, in MB; measured with pyarrow and numpy, rounded.

    Attributes:
        process_mb: interpreter and libraries of a loader process.
        batch_mb: a batch that was made ahead.
        buffer_mb: samples that a source loader keeps until they are delivered.
        loaders_per_worker: source loaders for each worker that the ranks would have had together; fewer,
            since they are not idle by turns. Never fewer than there are sources.
    """

    process_mb: float = 300
    batch_mb: float = 256
    buffer_mb: float = 64
    loaders_per_worker: float = 0.6


def loader_memory(
    *,
    ranks: int,
    gpus: int,
    sources: int,
    workers: int,
    reader_mb: float,
    assumptions: MemoryAssumptions | None = None,
) -> dict[str, float]:
    """Memory of both designs.

    A loader of a rank is a process and W worker processes, each with all S sources open (m MB a reader) and
    two batches made ahead: `(W + 1) process + W S m + 2 W batch`. Disaggregated, each source loader has one
    source open, each rank a constructor with three batches, and there is one planner: `loaders (process + m +
    buffer) + ranks (process + 3 batch) + process`.

    Args:
        ranks: data-parallel ranks.
        gpus: GPUs of the job.
        sources: S, sources of the mixture.
        workers: W, worker processes of a rank's loader.
        reader_mb: m, MB that an open reader of a source holds.
        assumptions: sizes of processes and batches.

    Returns:
        `source_loaders`; `loader_of_rank_gb` and `disaggregated_gb`, GB of the whole job; `ratio` of both;
        and `ratio_of_gpu`, where each GPU has a loader of its own instead of each rank.
    """
    a = assumptions or MemoryAssumptions()
    loader = (workers + 1) * a.process_mb + workers * sources * reader_mb + 2 * workers * a.batch_mb
    source_loaders = max(sources, math.ceil(a.loaders_per_worker * ranks * workers))
    disaggregated = source_loaders * (a.process_mb + reader_mb + a.buffer_mb)
    disaggregated += ranks * (a.process_mb + 3 * a.batch_mb) + a.process_mb
    return {
        "source_loaders": source_loaders,
        "loader_of_rank_gb": round(ranks * loader / 1000, 1),
        "disaggregated_gb": round(disaggregated / 1000, 1),
        "ratio": round(ranks * loader / disaggregated, 1),
        "ratio_of_gpu": round(gpus * loader / disaggregated, 1),
    }


SOURCES = (5, 50, 306)
WORKERS = (4,)
READER_MB = (9, 61)
"""MB of an open Parquet reader: 9 with row groups of 4 MiB, 61 with 32 MiB; one of tar or JSONL holds about
1."""


def memory_rows(gpus_and_ranks: Sequence[tuple[int, int]]) -> list[dict[str, float]]:
    """`loader_memory` of jobs, each `(gpus, ranks)`, for usual sources, workers and readers."""
    return [
        {"gpus": gpus, "sources": sources, "workers": workers, "reader_mb": reader_mb}
        | loader_memory(ranks=ranks, gpus=gpus, sources=sources, workers=workers, reader_mb=reader_mb)
        for gpus, ranks in gpus_and_ranks
        for sources in SOURCES
        for workers in WORKERS
        for reader_mb in READER_MB
    ]
