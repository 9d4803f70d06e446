import numpy as np
import pytest
from hypothesis import given
from strategies import pipeline_times

from msdata_jax.simulate.pipeline import one_forward_one_backward


def played_in_time(forward: np.ndarray, backward: np.ndarray) -> float:
    """Seconds of one rank, by looking again and again for the pass that can start first."""
    num_stages, num_microbatches = forward.shape
    to_do = []
    for stage in range(num_stages):
        warm_up = min(num_stages - 1 - stage, num_microbatches)
        kinds = "F" * warm_up + "FB" * (num_microbatches - warm_up) + "B" * warm_up
        counts = {"F": 0, "B": 0}
        passes = []
        for kind in kinds:
            passes.append((kind, counts[kind]))
            counts[kind] += 1
        to_do.append(passes)
    ended: dict[tuple[str, int, int], float] = {}
    free = [0.0] * num_stages
    while any(to_do):
        possible = []
        for stage, passes in enumerate(to_do):
            if passes:
                kind, m = passes[0]
                neighbour = (kind, stage - 1 if kind == "F" else stage + 1, m)
                at_the_edge = not 0 <= neighbour[1] < num_stages
                if at_the_edge or neighbour in ended:
                    possible.append((max(free[stage], 0.0 if at_the_edge else ended[neighbour]), stage))
        start, stage = min(possible)
        kind, m = to_do[stage].pop(0)
        free[stage] = ended[kind, stage, m] = start + (forward if kind == "F" else backward)[stage, m]
    return max(free)


@given(pipeline_times())
def test_equals_a_played_pipeline(times: tuple[np.ndarray, np.ndarray]) -> None:
    forward, backward = times
    expected = [played_in_time(forward[:, :, r], backward[:, :, r]) for r in range(forward.shape[2])]
    np.testing.assert_array_equal(one_forward_one_backward(forward, backward), expected)


@given(pipeline_times())
def test_bounds(times: tuple[np.ndarray, np.ndarray]) -> None:
    forward, backward = times
    seconds = one_forward_one_backward(forward, backward)
    assert np.all(seconds >= (forward + backward).sum(axis=1).max(axis=0))  # of the busiest stage
    assert np.all(seconds >= (forward + backward).sum(axis=0).max(axis=0))  # of the slowest microbatch
    assert np.all(seconds <= (forward + backward).sum(axis=(0, 1)))  # one pass at a time
    assert np.all(one_forward_one_backward(forward + 1, backward) > seconds)


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (1, 5), (4, 1), (4, 3), (8, 16)])
def test_equal_microbatches(stages: int, microbatches: int) -> None:
    forward = np.full((stages, microbatches, 2), 1.0)
    seconds = one_forward_one_backward(forward, 2 * forward)
    np.testing.assert_array_equal(seconds, [3.0 * (microbatches + stages - 1)] * 2)
