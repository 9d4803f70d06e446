"""Hugging Face datasets: streamed Parquet, `interleave_datasets`, torch's DataLoader.

As its documentation advises: files enough that their number divides by the training processes and their
workers ("split_dataset_by_node"), so that each reads files of its own.
"""

# pyright: reportMissingImports=false
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.peers import work
from benchmarks.peers.job import Job


def imports() -> None:
    import datasets  # noqa: F401
    import torch
    import torch.utils.data

    torch.set_num_threads(1)


def batches(job: Job, rank: int) -> Iterator[Any]:
    import datasets
    from datasets.distributed import split_dataset_by_node
    from torch.utils.data import DataLoader

    streams = [
        datasets.load_dataset(
            "parquet", data_files=f"{job.path(source)}/*.parquet", split="train", streaming=True
        )
        for source in job.sources
    ]
    mixture = datasets.interleave_datasets(
        streams, probabilities=job.weights.tolist(), seed=job.seed, stopping_strategy="all_exhausted"
    )
    mine = split_dataset_by_node(mixture, rank=rank, world_size=job.trainers)
    return iter(DataLoader(mine, batch_size=job.batch_size, num_workers=job.workers, collate_fn=_collate))


def _collate(samples: Sequence[dict[str, bytes]]) -> dict[str, Any]:
    return work.collate_records([sample["record"] for sample in samples])
