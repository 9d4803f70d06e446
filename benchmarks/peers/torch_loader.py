"""torch.utils.data.DataLoader with worker processes.

As its documentation advises: an iterable dataset cuts its data by `get_worker_info` ("Multi-process data
loading") and keeps Arrow tables rather than Python objects, so that workers do not copy memory on access; a
map-style dataset takes a sampler, and fetches a batch by `__getitems__`. `prefetch_factor` is 2.
"""

from collections.abc import Iterator
from typing import Any

from benchmarks.peers import blend, work
from benchmarks.peers.job import Job
from benchmarks.peers.parquet_rows import mixed_records


def imports() -> None:
    import torch
    import torch.utils.data

    torch.set_num_threads(1)


def batches(job: Job, rank: int) -> Iterator[Any]:
    if job.format == "parquet":
        return _iterate_parquet(job, rank)
    return _iterate_arrayrecord(job, rank)


def _iterate_parquet(job: Job, rank: int) -> Iterator[Any]:
    from torch.utils import data

    class Mixture(data.IterableDataset):
        def __iter__(self) -> Iterator[bytes]:
            worker = data.get_worker_info()
            number, count = (worker.id, worker.num_workers) if worker else (0, 1)
            return mixed_records(job, rank * count + number, job.trainers * count)

    return iter(
        data.DataLoader(
            Mixture(), batch_size=job.batch_size, num_workers=job.workers, collate_fn=work.collate_records
        )
    )


def _iterate_arrayrecord(job: Job, rank: int) -> Iterator[Any]:
    from torch.utils import data

    class Mixture(data.Dataset):
        """Records of all files; they are opened by the worker that reads, since threads do not fork."""

        source: Any = None

        def __init__(self) -> None:
            self.first = [0]
            for source in job.sources:
                self.first.append(self.first[-1] + source.num_records)

        def __len__(self) -> int:
            return self.first[-1]

        def __getitems__(self, indices: list[int]) -> list[bytes]:
            if self.source is None:
                from array_record.python.array_record_data_source import ArrayRecordDataSource

                self.source = ArrayRecordDataSource([job.path(source) for source in job.sources])
            return self.source.__getitems__(indices)

    mixture = Mixture()
    drawn = blend.draws(job, rank, job.steps * job.batch_size)
    indices = [mixture.first[source] + record for source, record in drawn.tolist()]
    return iter(
        data.DataLoader(
            mixture,
            batch_size=job.batch_size,
            num_workers=job.workers,
            sampler=indices,
            collate_fn=work.collate_records,
        )
    )
