"""Which record each draw of a mixture takes, computed ahead, for loaders that leave mixing to their user."""

import numpy as np

from benchmarks.peers.job import Job


def draws(job: Job, rank: int, count: int) -> np.ndarray:
    """The draws of one training process: every `trainers`-th one, over all of which a source repeats late.

    Args:
        job: the mixture.
        rank: of the training process.
        count: draws of this process.

    Returns:
        int64 `[count, 2]`: index of the source, and of the record in it.
    """
    rng = np.random.default_rng(job.seed)
    sources = rng.choice(len(job.sources), count * job.trainers, p=job.weights)
    records = np.empty_like(sources)
    for index, source in enumerate(job.sources):
        places = np.flatnonzero(sources == index)
        passes = -(-len(places) // source.num_records)
        orders = [rng.permutation(source.num_records) for _ in range(passes)]
        records[places] = np.concatenate([*orders, np.empty(0, np.int64)])[: len(places)]
    return np.stack([sources, records], axis=1)[rank :: job.trainers]
