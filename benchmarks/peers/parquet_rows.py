"""Records of a mixture of Parquet files, for a reader with a share of every row group."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.peers.job import Job


def mixed_records(job: Job, share: int, shares: int) -> Iterator[bytes]:
    """Draw a source, take its next record, for ever.

    Args:
        job: the mixture.
        share: which of the readers this is.
        shares: how many readers there are; each takes rows of its own.
    """
    rng = np.random.default_rng([job.seed, share])
    readers = [records(job.path(source), share, shares, [job.seed, source.number]) for source in job.sources]
    while True:
        for index in rng.choice(len(readers), 1024, p=job.weights):
            yield next(readers[index])


def records(path: str, share: int, shares: int, seed: list[int]) -> Iterator[bytes]:
    """The share's rows of a file, for ever; row groups and their rows are shuffled alike for all shares."""
    from pyarrow import parquet

    rng = np.random.default_rng(seed)
    num_groups = parquet.read_metadata(path).num_row_groups
    while True:
        for group in rng.permutation(num_groups):
            column = _column(path, int(group))
            for row in rng.permutation(len(column))[share::shares]:
                yield column[int(row)].as_py()


def _column(path: str, group: int) -> Any:
    """The records of a row group. An open file holds the bytes that it read besides, so it is closed."""
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        return file.read_row_group(group, use_threads=False).column("record")
