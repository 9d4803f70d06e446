"""MosaicML Streaming: MDS, a Stream with a proportion for each source, torch's DataLoader.

As its documentation advises: `batch_size` is given to the dataset, `StreamingDataLoader` reads it, shards
have the default size, and what an earlier run left in shared memory is cleaned up first.
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
    import streaming  # noqa: F401


def write(records: Sequence[bytes], path: Path) -> None:
    torchvision_operators.declare()
    from streaming import MDSWriter

    with MDSWriter(out=str(path), columns={"record": "bytes"}) as writer:
        for record in records:
            writer.write({"record": record})


def batches(job: Job, rank: int) -> Iterator[Any]:
    from streaming import Stream, StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()  # by all training processes together
    streams = [
        Stream(local=job.path(source), proportion=weight)
        for source, weight in zip(job.sources, job.weights.tolist(), strict=True)
    ]
    dataset = StreamingDataset(
        streams=streams, shuffle=True, shuffle_seed=job.seed, batch_size=job.batch_size, num_canonical_nodes=1
    )
    loader = StreamingDataLoader(
        dataset, batch_size=job.batch_size, num_workers=job.workers, collate_fn=_collate
    )
    return itertools.chain.from_iterable(itertools.repeat(loader))


def _collate(samples: Sequence[dict[str, bytes]]) -> dict[str, Any]:
    return work.collate_records([sample["record"] for sample in samples])
