"""The tree of pairs in which sources merge (see `merging`): draws one after the other, and counts."""

import heapq
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

WEIGHT_SCALE = 1 << 24
_HALF = WEIGHT_SCALE // 2


@lru_cache(maxsize=16)
def pairs_of(weights: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """The tree: which two nodes each pair joins. Nodes are the sources, then the pairs in this order."""
    lightest = [(weight, s, s) for s, weight in enumerate(weights) if weight]  # weight, lowest source, node
    heapq.heapify(lightest)
    pairs = []
    while len(lightest) > 1:
        weight, lowest, first = heapq.heappop(lightest)
        other, other_lowest, second = heapq.heappop(lightest)
        heapq.heappush(lightest, (weight + other, min(lowest, other_lowest), len(weights) + len(pairs)))
        pairs.append((first, second))
    return tuple(pairs)


# --- one draw after the other -------------------------------------------------------------------------------

_Due = tuple[int, int, int]
"""Of a stream's next sample: the due tick, `half`, and which it is; `~source` where it is not known."""


def draw_in_turn(
    weights: Sequence[int],
    credit: Sequence[int],
    half: np.ndarray,
    start: Sequence[int],
    stop: Sequence[int],
    limit: int | None,
) -> tuple[list[int], int | None]:
    """The first draws, each found down the tree of pairs: for few draws of many sources.

    Args:
        weights: of each source, not all zero.
        credit: of each source.
        half: int64 `[samples]`, half the units of all known samples, x `WEIGHT_SCALE`.
        start: index of each source's first sample.
        stop: index behind each source's last one.
        limit: stop at the draw with which the units reach it; None for no limit.

    Returns:
        Indices into `half`, and the source that is due next and not known; None at `limit`.
    """
    weight, owed, streams = [*weights], [*credit], []
    for s, (first, last) in enumerate(zip(start, stop, strict=True)):
        streams.append(_of_source(weight[s], owed[s], half, range(first, last), s))
    pairs = pairs_of(tuple(weights))
    for one, other in pairs:
        weight.append(weight[one] + weight[other])
        owed.append(owed[one] + owed[other])
        streams.append(_of_pair(weight[-1], owed[-1], streams[one], streams[other]))
    merged = streams[-1 if pairs else int(np.argmax(weights))]
    drawn, left = [], math.inf if limit is None else limit * _HALF  # of halves, as sizes are
    for _, size, sample in merged:
        if sample < 0:
            return drawn, ~sample
        drawn.append(sample)
        left -= size
        if left <= 0:
            break
    return drawn, None


def _of_source(weight: int, credit: int, half: np.ndarray, samples: range, source: int) -> Iterator[_Due]:
    """The samples of a source, then the one that is not known: it counts as one of one unit."""
    earned = weight - 1 - credit  # rounds due ticks up
    for sample in samples:
        size = half.item(sample)
        yield (earned + size) // weight, size, sample
        earned += 2 * size
    yield (earned + _HALF) // weight, _HALF, ~source


def _of_pair(weight: int, credit: int, first: Iterator[_Due], second: Iterator[_Due]) -> Iterator[_Due]:
    """Two streams in order of due tick, `first` before `second` where the ticks are equal.

    What comes behind a sample that is not known means nothing.
    """
    earned = weight - 1 - credit
    mine, other = next(first), next(second)
    while True:
        if mine[0] <= other[0]:
            _, size, sample = mine
            yield (earned + size) // weight, size, sample
            mine = next(first)
        else:
            _, size, sample = other
            yield (earned + size) // weight, size, sample
            other = next(second)
        earned += 2 * size


# --- counts without the order -------------------------------------------------------------------------------


def draw_counts(weights: Sequence[int], credit: Sequence[int], num_draws: int) -> list[int]:
    """How many of the first `num_draws` draws each source gets, where every sample is one unit and none ends.

    Descends the tree of pairs: `O(sources)`, whatever `num_draws` is. Plain integers, so nothing overflows.
    Arguments as of `merging.merge_by_due_time`.
    """
    pairs = pairs_of(tuple(weights))
    nodes = list(zip(weights, credit, strict=True))
    for first, second in pairs:
        nodes.append((nodes[first][0] + nodes[second][0], nodes[first][1] + nodes[second][1]))
    counts = [0] * len(nodes)
    counts[-1 if pairs else int(np.argmax(weights))] = num_draws  # the node that stands for all
    for node, (first, second) in reversed(list(enumerate(pairs, start=len(weights)))):
        counts[first] = _count_of_first(nodes[first], nodes[second], counts[node])
        counts[second] = counts[node] - counts[first]
    return counts[: len(weights)]


def _count_of_first(first: tuple[int, int], second: tuple[int, int], num_draws: int) -> int:
    """How many of a pair's first draws are of its first stream; streams are (weight, credit)."""
    (weight, credit), (other_weight, other_credit) = first, second

    def is_drawn(draw: int) -> bool:
        """Whether the first stream's draw and those of the second that are due before it are enough."""
        due = -((2 * credit - WEIGHT_SCALE * (2 * draw + 1)) // (2 * weight))
        earlier = (2 * ((due - 1) * other_weight + other_credit) + WEIGHT_SCALE) // (2 * WEIGHT_SCALE)
        return draw + max(earlier, 0) < num_draws

    # What it has earned when the pair has earned `num_draws`; the count is beside it.
    earned = weight * (WEIGHT_SCALE * num_draws - credit - other_credit) // (weight + other_weight) + credit
    count = min(max(earned // WEIGHT_SCALE, 0), num_draws)
    while count > 0 and not is_drawn(count - 1):
        count -= 1
    while count < num_draws and is_drawn(count):
        count += 1
    return count
