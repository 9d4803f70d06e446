"""LitData: chunks of its own, a StreamingDataset for each source in a CombinedStreamingDataset.

As its documentation advises: chunks of 64 MB, which a source of the benchmark fits into, and
`StreamingDataLoader` with `iterate_over_all=False` for weights that hold.
"""

# pyright: reportMissingImports=false
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import torchvision_operators, work
from benchmarks.peers.job import Job


def imports() -> None:
    import torch

    torch.set_num_threads(1)
    torchvision_operators.declare()
    import litdata  # noqa: F401


def write(records: Sequence[bytes], path: Path) -> None:
    torchvision_operators.declare()
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(path), chunk_bytes="64MB")
    for number, record in enumerate(records):
        writer[number] = {"record": record}
    writer.done()
    writer.merge(1)


def batches(job: Job, rank: int) -> Iterator[Any]:
    from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset

    datasets = [
        StreamingDataset(job.path(source), shuffle=True, drop_last=False, seed=job.seed)
        for source in job.sources
    ]
    mixture = CombinedStreamingDataset(
        datasets, weights=job.weights.tolist(), seed=job.seed, iterate_over_all=False
    )
    loader = StreamingDataLoader(
        mixture, batch_size=job.batch_size, num_workers=job.workers, collate_fn=_collate
    )
    return itertools.chain.from_iterable(itertools.repeat(loader))


def _collate(samples: Sequence[dict[str, bytes]]) -> dict[str, Any]:
    return work.collate_records([sample["record"] for sample in samples])
