"""How long a pipeline takes for microbatches of unequal times."""

from functools import cache

import numpy as np


def one_forward_one_backward(forward: np.ndarray, backward: np.ndarray) -> np.ndarray:
    """Seconds that a 1F1B pipeline takes for microbatches of unequal times.

    Stage `s` of `S` does `S - 1 - s` forward passes, then forward and backward in turn, then the backward
    passes left (PipeDream-Flush; Narayanan et al., arXiv 2104.04473, section 2.2). A pass starts as soon as
    its stage is free and the pass that it needs has ended; sending takes no time.

    Args:
        forward: float64 `[stages, microbatches, ranks]`, seconds.
        backward: the same of the backward passes.

    Returns:
        float64 `[ranks]`.
    """
    num_stages, num_microbatches, num_ranks = forward.shape
    free = np.zeros((num_stages, num_ranks))
    forward_end, backward_end = np.zeros_like(forward), np.zeros_like(forward)
    for stage, microbatch, is_backward in _passes(num_stages, num_microbatches):
        start = free[stage]
        if is_backward and stage < num_stages - 1:
            start = np.maximum(start, backward_end[stage + 1, microbatch])
        elif not is_backward and stage > 0:
            start = np.maximum(start, forward_end[stage - 1, microbatch])
        seconds, ends = (backward, backward_end) if is_backward else (forward, forward_end)
        free[stage] = ends[stage, microbatch] = start + seconds[stage, microbatch]
    return free.max(axis=0)


@cache
def _passes(num_stages: int, num_microbatches: int) -> tuple[tuple[int, int, bool], ...]:
    """(stage, microbatch, is_backward) of all passes, each after those that it needs."""
    waiting = [_passes_of_stage(stage, num_stages, num_microbatches) for stage in range(num_stages)]
    done: list[tuple[int, int, bool]] = []
    ended: set[tuple[int, int, bool]] = set()
    while any(waiting):
        for stage, passes in enumerate(waiting):
            while passes and _needs(stage, *passes[0], num_stages=num_stages) <= ended:
                microbatch, is_backward = passes.pop(0)
                done.append((stage, microbatch, is_backward))
                ended.add(done[-1])
    return tuple(done)


def _passes_of_stage(stage: int, num_stages: int, num_microbatches: int) -> list[tuple[int, bool]]:
    warm_up = min(num_stages - 1 - stage, num_microbatches)
    passes = [(m, False) for m in range(warm_up)]
    for m in range(num_microbatches - warm_up):
        passes += [(warm_up + m, False), (m, True)]
    return passes + [(m, True) for m in range(num_microbatches - warm_up, num_microbatches)]


def _needs(stage: int, microbatch: int, is_backward: bool, *, num_stages: int) -> set[tuple[int, int, bool]]:
    neighbour = stage + 1 if is_backward else stage - 1
    return {(neighbour, microbatch, is_backward)} if 0 <= neighbour < num_stages else set()
