from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msdata_jax.errors import RecipeError
from msdata_jax.simulate.cluster import (
    MODELS,
    PLACEMENTS,
    SYNCS,
    Assumptions,
    Cluster,
    Models,
    Placement,
    Sync,
    Work,
    evened,
)
from msdata_jax.simulate.distributions import Samples

ROUND = Assumptions(
    tensor_parallel=2,
    pipeline_stages=2,
    microbatches=2,
    peak_flops_per_second=1e6,  # one MFLOP a second
    backbone_mfu=1.0,
    encoder_mfu=0.5,
    exchange_overlap=1.0,  # hidden
)
BOTH = MODELS["llama-12b+vit-2b"]


def cluster(
    sync: Sync, placement: Placement, assumptions: Assumptions = ROUND, models: Models = BOTH
) -> Cluster:
    return Cluster(gpus=8, models=models, sync=sync, placement=placement, assumptions=assumptions)


def make_work(backbone: list[list[float]], encoder: list[list[float]], dearest_gpu: list[float]) -> Work:
    return Work(microbatches=np.array([backbone, encoder]), dearest_gpu=np.array(dearest_gpu))


TEXT = make_work([[12, 24], [36, 12]], [[0, 0], [0, 0]], [0, 0])


def test_step_waits_for_the_rank_with_most_work() -> None:
    timing = cluster("step", "pipe").time_step(TEXT)
    assert timing.seconds == pytest.approx(48 / 4)  # of 4 GPUs of the second rank
    assert timing.imbalance == pytest.approx(48 / 42)


def test_pipeline_waits_for_the_slowest_pipeline() -> None:
    # Stages of 2 GPUs do half a microbatch each: 3 and 6 s, 9 and 3 s; a third of it forward.
    # Second rank: stage 1 is forward from 3 to 6, backward until 12; stage 0 then goes backward for 6 and 2.
    timing = cluster("pipeline", "pipe").time_step(TEXT)
    assert timing.seconds == pytest.approx(12 + 6 + 2)
    assert timing.imbalance == pytest.approx(48 / 42)


def test_microbatch_waits_for_the_slowest_of_each() -> None:
    timing = cluster("microbatch", "pipe").time_step(TEXT)
    slowest = make_work([[36, 24], [36, 24]], [[0, 0], [0, 0]], [0, 0])
    assert timing.seconds == pytest.approx(cluster("pipeline", "pipe").time_step(slowest).seconds)
    assert timing.imbalance == pytest.approx(60 / 42)


EQUAL = make_work([[12, 12], [12, 12]], [[4, 4], [4, 4]], [3, 5])


@pytest.mark.parametrize("sync", ["pipeline", "microbatch"])
def test_encoder_placements(sync: Sync) -> None:
    # A microbatch is 12 s of backbone and 8 s of encoder on one GPU, and passes 2 stages in 2 + 1 turns.
    assert cluster(sync, "pipe").time_step(EQUAL).seconds == pytest.approx(3 * (20 / 2) / 2)
    assert cluster(sync, "phase").time_step(EQUAL).seconds == pytest.approx(3 * (12 / 2) / 2 + 5 / 0.5)
    # Stage 0 takes 7 s, stage 1 takes 3 s: forward 7/3, stage 1 both ways, backward twice 14/3.
    assert cluster(sync, "stage0").time_step(EQUAL).seconds == pytest.approx(7 / 3 + 3 + 2 * 14 / 3)


def test_exchange_of_gradients() -> None:
    slow = Assumptions(nic_bytes_per_second=1e9, exchange_bytes_per_parameter=4, exchange_overlap=0.25)
    next_to_nothing = make_work([[1e-9]] * 2, [[0]] * 2, [0, 0])
    job = Cluster(gpus=64, models=BOTH, sync="step", placement="pipe", assumptions=slow)
    # 13.3G parameters over 32 GPUs, 4 bytes each, half of them of the other rank, three quarters not hidden.
    assert job.time_step(next_to_nothing).seconds == pytest.approx(13.3e9 / 32 * 4 / 2 / 1e9 * 0.75)


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_evened_work(sync: Sync, placement: Placement) -> None:
    work = make_work([[12, 24], [36, 12]], [[0, 8], [2, 2]], [4, 4])
    even = evened(work, 4)
    np.testing.assert_allclose(even.microbatches, [[[21, 21]] * 2, [[3, 3]] * 2])
    np.testing.assert_allclose(even.dearest_gpu, [1.5, 1.5])
    job = cluster(sync, placement)
    assert job.time_step(even).imbalance == pytest.approx(1)
    assert job.time_step(even).seconds < job.time_step(work).seconds


@given(st.lists(st.integers(1, 100), min_size=8, max_size=8), st.sampled_from(["pipe", "stage0"]))
def test_no_plan_beats_equal_parts_without_a_pipeline(flops: list[int], placement: Placement) -> None:
    work = Work(microbatches=np.array(flops).reshape(2, 2, 2), dearest_gpu=np.zeros(2))
    job = cluster("step", placement)
    assert job.time_step(work).seconds >= job.time_step(evened(work, 4)).seconds * (1 - 1e-9)


def test_cheap_microbatches_at_both_ends_fill_a_pipeline_sooner() -> None:
    deep = replace(ROUND, tensor_parallel=1, pipeline_stages=4, microbatches=8)
    job = cluster("pipeline", "pipe", deep)
    pyramid = make_work([[1, 2, 3, 4, 4, 3, 2, 1]] * 2, [[0] * 8] * 2, [0, 0])
    assert job.time_step(pyramid).seconds < job.time_step(evened(pyramid, 4)).seconds


def test_flops_of_models() -> None:
    samples = Samples(
        tokens=np.array([1000, 1000]), patches=np.array([0, 2000]), images=np.array([0, 2], dtype=np.int64)
    )
    backbone, encoder = MODELS["llama-12b+vit-1b"].sample_flops(samples)
    weights = 45 * (4 * 4608**2 + 3 * 4608 * 12288)
    np.testing.assert_allclose(backbone, 3 * (2 * weights * 1000 + 2 * 45 * 4608 * 1000**2) / 1e6, rtol=1e-5)
    weights = 40 * (4 * 1408**2 + 2 * 1408 * 6144) + 768 * 1408
    np.testing.assert_allclose(
        encoder, [0, 3 * (2 * weights * 2000 + 4 * 40 * 1408 * 2 * 1000**2) / 1e6], rtol=1e-5
    )


@pytest.mark.parametrize(
    ("name", "backbone", "encoder"), [("llama-12b+vit-1b", 11.5e9, 1.0e9), ("moe-25b+vit-2b", 4.0e9, 1.8e9)]
)
def test_parameters_that_a_token_meets(name: str, backbone: float, encoder: float) -> None:
    one = Samples(tokens=np.array([1]), patches=np.array([1]), images=np.array([1]))
    flops = MODELS[name].sample_flops(one)[:, 0] * 1e6
    np.testing.assert_allclose(flops / 6, [backbone, encoder], rtol=0.03)


def test_refusals() -> None:
    assert [Assumptions().ranks(gpus) for gpus in (576, 1152, 2304, 4096)] == [18, 36, 72, 128]
    with pytest.raises(RecipeError, match=r"4 x 8 = 32, got 600"):
        Assumptions().ranks(600)
    with pytest.raises(RecipeError, match=r"microbatches is greater than 0, got 0"):
        Assumptions(microbatches=0)
    with pytest.raises(RecipeError, match=r"encoder_mfu is a share, at most 1, got 1.5"):
        Assumptions(encoder_mfu=1.5)
