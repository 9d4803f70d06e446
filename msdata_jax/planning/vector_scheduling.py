"""List scheduling of items with several costs at once, and of items whose sizes a part has room for.

Several objectives (work of the backbone and of the encoder) are made comparable by the share of the total
that each item has; an item goes where the largest of a part's shares stays smallest.
"""

import numpy as np

from msdata_jax.planning.list_scheduling import NEVER, SHORT_ROUND

SHARE_BITS = 40
EXACT_ITEMS = 8192
"""Up to so many items, each looks at all parts."""
EXACT_FIRST, EXACT_LAST = 4, 16
"""Of more, so many a part do of the dearest, and of the lightest, which level what the rounds left."""
BLOCKS = 4


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
    """List scheduling of several objectives.

    Exact for up to `EXACT_ITEMS` items. Of more, with two objectives, those between the dearest and the
    lightest are dealt in rounds (see `_rounds`).

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
    room, sizes = np.zeros(num_parts, dtype=np.int64), np.zeros(count, dtype=np.int64)
    part = np.empty(count, dtype=np.int64)
    done = count if count <= EXACT_ITEMS or len(costs) != 2 else min(count, EXACT_FIRST * num_parts)
    part[:done] = one_by_one(costs[:, :done], loads, left, sizes[:done], room)
    dealt = _rounds(costs[:, done : max(done, count - EXACT_LAST * num_parts)], loads, left)
    part[done : done + len(dealt)] = dealt
    done += len(dealt)
    part[done:] = one_by_one(costs[:, done:], loads, left, sizes[done:], room)
    return part


def _rounds(costs: np.ndarray, loads: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Parts of the next items of two objectives, one item a part and round, while enough parts can take one.

    Parts far above the mean wait. Items of a round, which cost about the same in sum, go in `BLOCKS` to parts
    of about the same load: those with most of the first objective to the parts that lack most of it.
    """
    num_parts = loads.shape[1]
    level = mean = (1 << SHARE_BITS) // num_parts
    enough = max(SHORT_ROUND, num_parts // 8)
    dealt = [np.empty(0, dtype=np.int64)]
    done, count = 0, costs.shape[1]
    while done < count and np.count_nonzero(left) >= enough:
        open_parts = np.flatnonzero(loads.max(axis=0) < level)
        if len(open_parts) < enough:
            level += mean // 16 + 1
            continue
        held = loads[:, open_parts]
        by_sum = np.argsort(held.sum(axis=0), kind="stable")[: count - done]
        items = costs[:, done : done + len(by_sum)]
        block = np.arange(len(by_sum)) // -(-len(by_sum) // BLOCKS)
        takers = open_parts[by_sum[np.lexsort(((held[0] - held[1])[by_sum], block))]]
        given = np.lexsort((items[1] - items[0], block))
        chosen = np.empty(len(by_sum), dtype=np.int64)
        chosen[given] = takers
        loads[:, chosen] += items
        left[chosen] -= 1
        loads[:, chosen[left[chosen] == 0]] = NEVER
        dealt.append(chosen)
        done += len(chosen)
    return np.concatenate(dealt)
