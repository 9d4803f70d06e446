"""SPDL: a pipeline of stages on threads of the training process, over ArrayRecord.

As its documentation advises: stages that hold Python's lock for long get few threads, and the sink keeps a
few batches ready. It leaves mixing to its user: draws are computed ahead.
"""

# pyright: reportMissingImports=false
from collections.abc import Iterator
from typing import Any

from benchmarks.peers import blend, work
from benchmarks.peers.job import Job

BATCHES_READY = 2


def imports() -> None:
    import spdl.pipeline  # noqa: F401


def batches(job: Job, rank: int) -> Iterator[Any]:
    from array_record.python.array_record_data_source import ArrayRecordDataSource
    from spdl.pipeline import PipelineBuilder

    files = [ArrayRecordDataSource(job.path(source)) for source in job.sources]
    drawn = blend.draws(job, rank, (job.steps + BATCHES_READY + 2) * job.batch_size).tolist()
    pipeline = (
        PipelineBuilder()
        .add_source(drawn)
        .pipe(lambda draw: work.decode(files[draw[0]][draw[1]]), concurrency=2, output_order="input")
        .aggregate(job.batch_size)
        .pipe(work.collate)
        .add_sink(BATCHES_READY)
        .build(num_threads=2)
    )
    with pipeline.auto_stop():
        yield from pipeline
