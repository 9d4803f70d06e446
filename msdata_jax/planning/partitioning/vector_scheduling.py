"""List scheduling of items with several costs at once, and of items whose sizes a part has room for.

Several objectives (work of the backbone and of the encoder) are made comparable by the share of the total
that each item has; an item goes where the largest of a part's shares stays smallest.
"""

import numpy as np

from msdata_jax.planning.partitioning.list_scheduling import NEVER

FEWEST_PARTS = 16
"""Parts from which on two objectives are dealt in rounds; with fewer, rounds are too short to pay."""
FEW_A_PART, EXACT_ITEMS = 8, 2048
"""Up to so many items a part, and in all, are dealt one by one all the same: rounds match them less well."""


def shares(costs: np.ndarray) -> np.ndarray:
    """Each item's share of every objective's total, in units of 2**-40, rounded down.

    Args:
        costs: int64 `[objectives, items]`, each at least 0, each total within int64.

    Returns:
        int64 `[objectives, items]`; 0 where an objective's total is 0.
    """
    result = np.zeros_like(costs)
    for objective, values in enumerate(costs):
        total = int(values.sum())
        shift = max(0, total.bit_length() - 42)  # so that a value times 2**20 stays within int64
        if total:
            whole, rest = np.divmod((values >> shift) << 20, (total >> shift) + (shift > 0))
            result[objective] = (whole << 20) + (rest << 20) // ((total >> shift) + (shift > 0))
    return result


def falling_order(costs: np.ndarray, sizes: np.ndarray | None = None) -> np.ndarray:
    """int64 `[items]`: by falling sum, then by falling costs, size, and rising index."""
    keys = [-costs.sum(axis=0), *-costs] if sizes is None else [-costs.sum(axis=0), *-costs, -sizes]
    return np.lexsort(keys[::-1])


def one_by_one(
    costs: np.ndarray, loads: np.ndarray, left: np.ndarray, sizes: np.ndarray, room: np.ndarray
) -> np.ndarray:
    """Each item, in order, to the part whose largest load stays smallest, among those with room.

    Args:
        costs: int64 `[objectives, items]`.
        loads: int64 `[objectives, parts]`, written; `NEVER` for parts that may take nothing more.
        left: int64 `[parts]`, items that the parts may still take; written.
        sizes: int64 `[items]`.
        room: int64 `[parts]`, size that the parts may still take; written.

    Returns:
        int64 `[items]`: part of each item, -1 where none has room; ties to the first part.
    """
    part, still = [], left.tolist()
    sized = bool(sizes.any())
    after, worst = np.empty_like(loads), np.empty_like(loads[0])
    by_objective = tuple(after)
    for cost, size in zip(np.ascontiguousarray(costs.T)[:, :, None], sizes.tolist(), strict=True):
        np.add(loads, cost, out=after)
        if len(by_objective) == 2:
            np.maximum(*by_objective, out=worst)
        else:
            after.max(axis=0, out=worst)
        if sized:
            worst[room < size] = NEVER
        chosen = int(worst.argmin())
        if sized and worst[chosen] >= NEVER:
            part.append(-1)
            continue
        part.append(chosen)
        loads[:, chosen] = after[:, chosen]
        still[chosen] -= 1
        if sized:
            room[chosen] -= size
        if not still[chosen]:
            loads[:, chosen] = NEVER
    left[:] = still
    return np.array(part, dtype=np.int64)


def vector_schedule(costs: np.ndarray, num_parts: int, limit: int | None = None) -> np.ndarray:
    """List scheduling of several objectives: of two and many items in rounds (see `_round`), else one by one.

    Args:
        costs: int64 `[objectives, items]` in `shares`, in `falling_order`.
        num_parts: parts.
        limit: items that a part may take, at least `items / num_parts`; None for any number.

    Returns:
        int64 `[items]`: part of each item.
    """
    count = costs.shape[1]
    loads = np.zeros((len(costs), num_parts), dtype=np.int64)
    left = np.full(num_parts, count if limit is None else limit, dtype=np.int64)
    few = count <= min(FEW_A_PART * num_parts, EXACT_ITEMS)
    if len(costs) != 2 or num_parts < FEWEST_PARTS or few:
        room, sizes = np.zeros(num_parts, dtype=np.int64), np.zeros(count, dtype=np.int64)
        return one_by_one(costs, loads, left, sizes, room)
    part = np.empty(count, dtype=np.int64)
    done = 0
    while done < count:
        dealt = _round(costs[:, done:], loads, left)
        part[done : done + len(dealt)] = dealt
        done += len(dealt)
    return part


def _round(costs: np.ndarray, loads: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Parts of the next items of two objectives, one item to each part that takes part in the round.

    Those are the parts that list scheduling would soon come to: they are, by their larger load, less than an
    item above the lowest, or among the lowest quarter. As the items of a round cost about the same in sum,
    they can be matched: the one with most of the first objective goes to the part that lacks most of it.
    Seen together, items find better parts than one by one.
    """
    larger = np.maximum(*loads)  # `NEVER` where a part is full
    by_load = np.argsort(larger, kind="stable")
    rising = larger[by_load]
    lowest_quarter = min(max(1, len(left) // 4), int(np.count_nonzero(left)))
    level = max(int(rising[0] + costs[:, 0].max()), int(rising[lowest_quarter - 1]))
    takers = by_load[: min(int(np.searchsorted(rising, level, side="right")), costs.shape[1])]
    items = costs[:, : len(takers)]
    by_lack = takers[np.argsort(loads[0, takers] - loads[1, takers], kind="stable")]
    part = np.empty(len(takers), dtype=np.int64)
    part[np.argsort(items[1] - items[0], kind="stable")] = by_lack
    loads[:, part] += items
    left[part] -= 1
    loads[:, part[left[part] == 0]] = NEVER
    return part
