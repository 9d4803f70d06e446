"""grain: MapDataset.mix over ArrayRecord, or IterDataset.mix over Parquet.

As its documentation advises: mix random-access datasets, cut by process before transforming, read on
threads, and use `mp_prefetch` where transforms hold Python's lock. Without worker processes the threads are
those of the training process.
"""

from collections.abc import Iterator
from typing import Any

from benchmarks.peers import work
from benchmarks.peers.job import Job, Source

READ_THREADS = 4


def imports() -> None:
    import grain.sources  # noqa: F401
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # as absl.app.run does; worker processes want grain's flags


def batches(job: Job, rank: int) -> Iterator[Any]:
    import grain

    options = grain.ReadOptions(num_threads=READ_THREADS, prefetch_buffer_size=2 * job.batch_size)
    dataset = _mixture(job)[rank :: job.trainers].map(work.decode).to_iter_dataset(options)
    dataset = dataset.batch(job.batch_size, batch_fn=work.collate)
    if job.workers:
        processes = grain.MultiprocessingOptions(num_workers=job.workers, per_worker_buffer_size=2)
        dataset = dataset.mp_prefetch(processes)
    return iter(dataset)


def _mixture(job: Job) -> Any:
    import grain
    from grain.sources import ArrayRecordDataSource

    def shuffled(source: Source) -> Any:
        records: Any = ArrayRecordDataSource(job.path(source))
        return grain.MapDataset.source(records).seed(job.seed + source.number).shuffle().repeat()

    datasets = [shuffled(source) for source in job.sources]
    return grain.MapDataset.mix(datasets, job.weights.tolist())
