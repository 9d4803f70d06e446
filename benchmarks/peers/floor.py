"""Reading and transforming the mixture in one process: the work that no loader can do without."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from benchmarks.peers import work
from benchmarks.peers.job import Job
from benchmarks.peers.parquet_rows import mixed_records


def imports() -> None:
    import pyarrow.parquet  # noqa: F401


def batches(job: Job, rank: int) -> Iterator[Any]:
    records = mixed_records(job, rank, job.trainers)
    while True:
        yield work.collate([work.decode(record) for record in islice(records, job.batch_size)])
