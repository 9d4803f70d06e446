"""List scheduling where the parts' total size (tokens, say) is capped."""

import numpy as np

from msdata_jax.planning.partitioning.list_scheduling import NEVER, list_schedule, sums
from msdata_jax.planning.partitioning.vector_scheduling import one_by_one


def capped_schedule(costs: np.ndarray, num_parts: int, sizes: np.ndarray, cap: int) -> np.ndarray | None:
    """Each item, in order, to the cheapest part with room for it; then what found no room.

    An item left over pushes another one out: the smallest that makes room for it and fits in some other
    part, there where least room is left. If that fails, all items are placed anew by size alone, largest
    first, each where it leaves least room (best-fit decreasing, Johnson 1973).

    Args:
        costs: int64 `[objectives, items]`, each at least 0, in the order of dealing.
        num_parts: parts.
        sizes: int64 `[items]`, each from 0 to `cap`.
        cap: largest total size of a part.

    Returns:
        int64 `[items]`: part of each item; None where no way was found.
    """
    part = _while_all_have_room(costs, num_parts, sizes, cap)
    done = len(part)
    loads = np.stack([sums(values[:done], part, num_parts) for values in costs])
    room = cap - sums(sizes[:done], part, num_parts)
    left = np.full(num_parts, len(sizes) + 1, dtype=np.int64)
    part = np.concatenate([part, one_by_one(costs[:, done:], loads, left, sizes[done:], room)])
    if _push_out(part, sizes, room):
        return part
    return _best_fit(sizes, num_parts, cap)


def _while_all_have_room(costs: np.ndarray, num_parts: int, sizes: np.ndarray, cap: int) -> np.ndarray:
    """Parts of the first items, as long as no cap is met."""
    if len(costs) > 1:
        return np.empty(0, dtype=np.int64)
    part = list_schedule(costs[0], np.zeros(num_parts, dtype=np.int64))
    order = np.argsort(part, kind="stable")
    filled = np.cumsum(sizes[order])
    before = np.concatenate([[0], filled])[np.searchsorted(part[order], part[order])]
    over = order[filled - before > cap]
    return part[: int(over.min())] if len(over) else part


def _push_out(part: np.ndarray, sizes: np.ndarray, room: np.ndarray) -> bool:
    """Place the items whose part is -1, the largest first; False if one has no place.

    Writes `part` and `room`.
    """
    waiting = np.flatnonzero(part < 0)
    for item in waiting[np.argsort(-sizes[waiting], kind="stable")].tolist():
        pushed = _to_push_out(part, sizes, room, int(sizes[item]))
        if pushed is None:
            return False
        holder = int(part[pushed])
        fits = room >= sizes[pushed]
        fits[holder] = False
        target = int(np.where(fits, room, NEVER).argmin())
        part[pushed], part[item] = target, holder
        room[target] -= sizes[pushed]
        room[holder] += sizes[pushed] - sizes[item]
    return True


def _to_push_out(part: np.ndarray, sizes: np.ndarray, room: np.ndarray, size: int) -> int | None:
    """The smallest item that leaves room for `size` in its part and fits in another part."""
    widest = int(room.argmax())
    elsewhere = np.full(len(room), room[widest])
    elsewhere[widest] = np.delete(room, widest).max(initial=-1)
    placed = np.flatnonzero(part >= 0)
    holder, own = part[placed], sizes[placed]
    possible = placed[(own >= size - room[holder]) & (own <= elsewhere[holder])]
    return int(possible[sizes[possible].argmin()]) if len(possible) else None


def _best_fit(sizes: np.ndarray, num_parts: int, cap: int) -> np.ndarray | None:
    part = np.empty(len(sizes), dtype=np.int64)
    room = np.full(num_parts, cap, dtype=np.int64)
    for item in np.argsort(-sizes, kind="stable").tolist():
        target = int(np.where(room >= sizes[item], room, NEVER).argmin())
        if room[target] < sizes[item]:
            return None
        part[item] = target
        room[target] -= sizes[item]
    return part
