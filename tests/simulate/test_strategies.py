import numpy as np
import pytest

from msdata_jax.simulate.batches import Batch, count, packed
from msdata_jax.simulate.cluster import MODELS, SYNCS, Assumptions, Cluster, Sync
from msdata_jax.simulate.distributions import Samples
from msdata_jax.simulate.strategies import STRATEGIES, Strategy, group, place, work

SMALL = Assumptions(tensor_parallel=2, pipeline_stages=2, microbatches=4)
GPUS, NUM_MICROBATCHES = 16, 16


def cluster(sync: Sync = "pipeline", placement="pipe") -> Cluster:
    return Cluster(
        gpus=GPUS, models=MODELS["llama-12b+vit-2b"], sync=sync, placement=placement, assumptions=SMALL
    )


def batches() -> list[Batch]:
    rng = np.random.default_rng(0)
    return [packed("mix", 4096, NUM_MICROBATCHES, rng), count("mix", 4096, NUM_MICROBATCHES, 8, rng)]


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("batch", batches(), ids=["packed", "count"])
def test_every_sample_has_one_place(batch: Batch, strategy: Strategy, sync: Sync) -> None:
    job = cluster(sync)
    flops = job.models.sample_flops(batch.samples)
    grouped = group(strategy, batch, flops)
    placed = place(strategy, grouped, flops, job)
    assert grouped.shape == placed.shape == (len(batch.samples),)
    assert set(placed.tolist()) <= set(range(NUM_MICROBATCHES))
    assert len(set(zip(grouped.tolist(), placed.tolist(), strict=True))) == len(set(grouped.tolist()))
    if batch.cap is not None:
        assert np.bincount(placed, weights=batch.samples.tokens).max() <= batch.cap
    done = work(strategy, batch, placed, flops, job)
    assert done.microbatches.shape == (2, 4, 4)
    np.testing.assert_array_equal(done.microbatches.sum(axis=(1, 2)), flops.sum(axis=1))
    heaviest = int(np.bincount(placed, weights=flops[0]).argmax())
    assert done.microbatches[0, heaviest // 4, heaviest % 4] == done.microbatches[0].max()


@pytest.mark.parametrize("batch", batches(), ids=["packed", "count"])
def test_each_strategy_evens_out_what_it_says(batch: Batch) -> None:
    job = cluster()
    flops = job.models.sample_flops(batch.samples)
    spread = {}
    for strategy in STRATEGIES:
        placed = place(strategy, group(strategy, batch, flops), flops, job)
        ranks = work(strategy, batch, placed, flops, job).microbatches.sum(axis=2)
        spread[strategy] = ranks.max(axis=1) / ranks.mean(axis=1)
    assert spread["backbone"][0] <= spread["vanilla"][0]
    assert spread["hybrid"].max() < spread["backbone"].max()
    assert spread["hybrid"].max() < spread["vanilla"].max()


def test_images_go_to_gpus_in_turn_or_evenly() -> None:
    # One rank of four GPUs gets images of 9, 1, 1, 1, 9, 1 hundred patches; the second rank gets none.
    hundreds = np.array([9, 1, 1, 1, 9, 1, 0, 0])
    samples = Samples(
        tokens=hundreds * 25 + 10, patches=hundreds * 100, images=(hundreds > 0).astype(np.int64)
    )
    placed = np.array([0, 0, 1, 1, 2, 3, 4, 7])
    batch = Batch(samples=samples, microbatch=placed, num_microbatches=8, cap=None)
    job = Cluster(
        gpus=8,
        models=MODELS["llama-12b+vit-2b"],
        sync="step",
        placement="phase",
        assumptions=SMALL,
    )
    flops = job.models.sample_flops(samples)
    large, small = flops[1][0], flops[1][1]
    expected = {"vanilla": [2 * large, 0], "backbone": [2 * large, 0], "hybrid": [large, 0]}
    for strategy, dearest in expected.items():
        assert work(strategy, batch, placed, flops, job).dearest_gpu.tolist() == dearest
    assert large > 4 * small


def test_images_of_a_sample_are_spread() -> None:
    samples = Samples(tokens=np.array([500]), patches=np.array([1600]), images=np.array([8]))
    batch = Batch(samples=samples, microbatch=np.array([0]), num_microbatches=4, cap=None)
    job = Cluster(gpus=4, models=MODELS["moe-25b+vit-1b"], sync="step", placement="phase", assumptions=SMALL)
    flops = job.models.sample_flops(samples)
    dearest = work("vanilla", batch, batch.microbatch, flops, job).dearest_gpu
    assert dearest.tolist() == [2 * (flops[1, 0] // 8)]
