"""What the planner makes of a step's samples: each strategy gives every sample a microbatch of a rank.

The decisions are those of `msdata_jax.planning`: samples to microbatches by `partitioning.partition`,
microbatches to ranks and turns by `balancing.balance`.
"""

from typing import Literal

import numpy as np

from msdata_jax.planning.balancing import Balance, balance
from msdata_jax.planning.partitioning import loads, partition
from msdata_jax.simulate.batches import Batch
from msdata_jax.simulate.cluster import Cluster, Work

Strategy = Literal["vanilla", "backbone", "hybrid"]
"""`vanilla`: samples as they arrive. `backbone`: even work of the backbone. `hybrid`: even work of the
backbone and of the encoder, both at once."""

STRATEGIES: tuple[Strategy, ...] = ("vanilla", "backbone", "hybrid")


def objectives(strategy: Strategy, flops: np.ndarray) -> np.ndarray:
    """The rows of int64 `[2, samples]` (backbone, encoder) that a strategy evens out."""
    return flops if strategy == "hybrid" and flops[1].any() else flops[0]


def group(strategy: Strategy, batch: Batch, flops: np.ndarray) -> np.ndarray:
    """int64 `[samples]`: the microbatch of each sample, not yet given to a rank."""
    if strategy == "vanilla":
        return batch.microbatch
    sizes = None if batch.cap is None else batch.samples.tokens
    return partition(objectives(strategy, flops), batch.num_microbatches, sizes=sizes, cap=batch.cap)


def place(strategy: Strategy, microbatch: np.ndarray, flops: np.ndarray, cluster: Cluster) -> np.ndarray:
    """int64 `[samples]`: microbatches renumbered rank by rank, turn by turn, as the synchronisation asks."""
    if strategy == "vanilla":
        return microbatch
    ranks, turns = cluster.num_ranks, cluster.assumptions.microbatches
    costs = loads(objectives(strategy, flops), microbatch, ranks * turns)
    rules = Balance(
        method="lpt", objective=cluster.sync, microbatches=turns, pipeline_stages=cluster.num_stages
    )
    order = balance(costs, ranks, rules).order
    number = np.empty(ranks * turns, dtype=np.int64)
    number[order] = np.arange(ranks * turns)
    return number[microbatch]


def work(strategy: Strategy, batch: Batch, placed: np.ndarray, flops: np.ndarray, cluster: Cluster) -> Work:
    """What each rank has to do in each of its microbatches, and the busiest GPU of each in the encoder."""
    shape = (2, cluster.num_ranks, cluster.assumptions.microbatches)
    rank = placed // cluster.assumptions.microbatches
    return Work(
        microbatches=loads(flops, placed, shape[1] * shape[2]).reshape(shape),
        dearest_gpu=_dearest_gpu(strategy, batch, rank, flops[1], cluster),
    )


def _dearest_gpu(
    strategy: Strategy, batch: Batch, rank: np.ndarray, encoder: np.ndarray, cluster: Cluster
) -> np.ndarray:
    """int64 `[ranks]`: images go to GPUs of their rank in turn, or evenly where the encoder is balanced."""
    gpus = cluster.assumptions.gpus_per_rank
    dearest = np.zeros(cluster.num_ranks, dtype=np.int64)
    if cluster.placement != "phase" or not encoder.any():
        return dearest
    images = batch.samples.images
    cost = np.repeat(encoder // np.maximum(1, images), images)
    owner = np.repeat(rank, images)
    by_rank = np.split(cost[np.argsort(owner, kind="stable")], np.cumsum(np.bincount(owner))[:-1])
    for i, costs in enumerate(by_rank):
        if len(costs):
            in_turn = np.arange(len(costs)) % gpus
            gpu = partition(costs, gpus) if strategy == "hybrid" else in_turn
            dearest[i] = loads(costs, gpu, gpus).max()
    return dearest
