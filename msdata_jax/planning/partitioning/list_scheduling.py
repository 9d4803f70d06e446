"""Graham's list scheduling (1969): items in a given order, each to the part that is then the cheapest.

Exact and in integers throughout: the result is that of the plain loop, ties to the first part.
"""

import heapq

import numpy as np

NEVER = 1 << 62
"""More than any load: stands for the load of a part that may take nothing more."""
SHORT_ROUND = 32
"""Items in a round below which a heap is faster than numpy."""


def dearest_first(costs: np.ndarray) -> np.ndarray:
    """int64 `[items]`: indices by falling cost, equal costs by rising index.

    Args:
        costs: int64 `[items]`, each at least 0.
    """
    bits = len(costs).bit_length()
    if not len(costs) or int(costs.max()) >> (63 - bits):
        return np.argsort(-costs, kind="stable")
    last = len(costs) - 1
    keys = (costs << bits) | np.arange(last, -1, -1)  # unique, so that the fastest sort is good enough
    keys.sort()
    return last - (keys[::-1] & ((1 << bits) - 1))


def list_schedule(costs: np.ndarray, loads: np.ndarray, limit: int | None = None) -> np.ndarray:
    """Give each item, in order, to the cheapest part that is not full; ties to the first part.

    While costs fall, most parts take one item before any of them is the cheapest again, so that a whole
    round of parts is dealt at once; where rounds are short a heap goes on.

    Args:
        costs: int64 `[items]`, each at least 0, in the order of dealing.
        loads: int64 `[parts]`, each at least 0: what the parts cost before.
        limit: items that a part may take, at least `items / parts`; None for any number.

    Returns:
        int64 `[items]`: part of each item.
    """
    num_parts = len(loads)
    bits = (num_parts - 1).bit_length()
    left = np.full(num_parts, len(costs) if limit is None else limit, dtype=np.int64)
    if (int(loads.max()) + int(costs.sum())) >> (62 - bits):
        heap = sorted((load << bits) + part for part, load in enumerate(loads.tolist()))
        return np.array(_stretch(heap, [cost << bits for cost in costs.tolist()], left, bits), dtype=np.int64)
    part = np.empty(len(costs), dtype=np.int64)
    shifted = costs << bits
    keys = np.sort((loads << bits) + np.arange(num_parts))  # load and part in one number
    done = 0
    while done < len(costs):
        dealt = _round(keys, shifted[done:], left, bits)
        part[done : done + len(dealt)] = dealt
        done += len(dealt)
        keys = keys[: np.searchsorted(keys, NEVER)]
        if len(dealt) < SHORT_ROUND:
            heap = keys.tolist()
            dealt = _stretch(heap, shifted[done : done + max(num_parts, 256)].tolist(), left, bits)
            part[done : done + len(dealt)] = dealt
            done += len(dealt)
            keys = np.sort(np.array(heap, dtype=np.int64))
    return part


def _round(keys: np.ndarray, costs: np.ndarray, left: np.ndarray, bits: int) -> np.ndarray:
    """Parts of the next items: one item to each of the cheapest parts, until one would be the cheapest again.

    Writes `keys` (full parts get `NEVER`) and `left`, what each part may still take.
    """
    width = min(len(keys), len(costs))
    part = keys[:width] & ((1 << bits) - 1)
    after = keys[:width] + costs[:width]
    after[left[part] == 1] = NEVER
    in_turn = keys[1:width] < np.minimum.accumulate(after[:-1])
    dealt = width if in_turn.all() else int(in_turn.argmin()) + 1
    keys[:dealt] = after[:dealt]
    keys.sort()
    left[part[:dealt]] -= 1
    return part[:dealt]


def _stretch(heap: list[int], costs: list[int], left: np.ndarray, bits: int) -> list[int]:
    """Parts of the next items, one by one. Writes `heap` (full parts leave) and `left`."""
    room = left.tolist()
    dealt = []
    for cost in costs:
        key = heap[0]
        part = key & ((1 << bits) - 1)
        dealt.append(part)
        room[part] -= 1
        if room[part]:
            heapq.heapreplace(heap, key + cost)
        else:
            heapq.heappop(heap)
    left[:] = room
    return dealt


def equal_count_schedule(costs: np.ndarray, num_parts: int) -> np.ndarray:
    """List scheduling with the same number of items in each part.

    With equal counts, costs less a constant have the same balance, and the plain order goes wrong just by
    that constant: a part with a giant waits until the others have caught up, though it must still take light
    items to its count. So what an item costs above the lightest is dealt, and also what it costs above
    the lightest fiftieth (less for the lighter ones: nothing); the better result is taken.

    Args:
        costs: int64 `[items]`, each at least 0, falling; the items divide by `num_parts`.
        num_parts: parts.

    Returns:
        int64 `[items]`: part of each item.
    """
    if not len(costs):
        return np.empty(0, dtype=np.int64)
    best, least = np.empty(0, dtype=np.int64), -1
    for light in (costs[-1], costs[-1 - len(costs) // 50]):
        above = np.maximum(costs - light, 0)
        part = list_schedule(above, np.zeros(num_parts, dtype=np.int64), len(costs) // num_parts)
        makespan = int(sums(costs, part, num_parts).max())
        if least < 0 or makespan < least:
            best, least = part, makespan
    return best


def sums(values: np.ndarray, part: np.ndarray, num_parts: int) -> np.ndarray:
    """int64 `[num_parts]`: total of each part; 0 where a part is empty."""
    total = np.zeros(num_parts, dtype=np.int64)
    np.add.at(total, part, values)
    return total
