"""Local search after a partition: exchange items where that lowers the dearest part."""

from dataclasses import dataclass

import numpy as np

PARTNERS = 8
"""Other parts to look at, the cheapest first, before the best exchange seen is good enough."""
SEARCHES_PER_PART = 8
"""Usual bound of the work: pairs of parts looked at, for each part."""
PAIRS_UP_TO = 24
"""Items of a part up to which two are exchanged for two where one for one does not help."""


def refine(  # noqa: PLR0913
    costs: np.ndarray,
    part: np.ndarray,
    num_parts: int,
    *,
    move: bool,
    sizes: np.ndarray,
    cap: int,
    searches: int | None = None,
) -> np.ndarray:
    """Exchange items of the dearest part for cheaper ones of other parts while that lowers it.

    Of the exchanges with the cheapest parts, the one is taken after which the dearer of both parts is the
    cheapest: one item for one or, where no such helps and parts are small, two for two. Ends when nothing
    lowers the dearest part, or after `searches` looks at a pair of parts.

    Args:
        costs: int64 `[items]`, each at least 0.
        part: int64 `[items]`, part of each item.
        num_parts: parts.
        move: also give items away, so that the parts' counts change.
        sizes: int64 `[items]`.
        cap: the parts' total size stays at most this.
        searches: bound of the work; None for `SEARCHES_PER_PART * num_parts`.

    Returns:
        int64 `[items]`: part of each item; the dearest part costs at most what it did.
    """
    parts = _parts(costs, part, num_parts, sizes, cap, fillers=2 * move)
    mean = -(-int(parts.load.sum()) // num_parts)
    least = max(mean + (mean >> 18), int(parts.cost.max(initial=0)))
    searches = SEARCHES_PER_PART * num_parts if searches is None else searches
    while searches > 0 and int(parts.load.max()) > least:
        by_load = np.argsort(parts.load, kind="stable")
        found, tried = _find(parts, by_load, 1)
        if found is None and np.diff(parts.first).max() <= PAIRS_UP_TO:
            found, more = _find(parts, by_load, 2)
            tried += 4 * more
        if found is None:
            break
        parts.exchange(int(by_load[-1]), found)
        searches -= tried
    refined = np.empty(len(parts.item), dtype=np.int64)
    refined[parts.item] = np.repeat(np.arange(num_parts), np.diff(parts.first))
    return refined[: len(costs)]


@dataclass(frozen=True)
class _Bundles:
    """Sets of items of one part, by rising cost: places `[items of a set, sets]`, cost and size `[sets]`."""

    places: np.ndarray
    cost: np.ndarray
    size: np.ndarray


@dataclass(frozen=True)
class _Exchange:
    """The items at places `mine` of the dearest part for those at `theirs`: lowers the dearer by `gain`."""

    gain: int
    partner: int
    mine: np.ndarray
    theirs: np.ndarray


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """The state of the search; `exchange` writes its arrays, all int64.

    `item`, `cost` and `size` hold the items part by part, each part's by rising cost: those of part `p` at
    places `first[p]` to `first[p + 1]`. `load` and `room` are the parts' cost and the size left to them.
    """

    first: np.ndarray
    item: np.ndarray
    cost: np.ndarray
    size: np.ndarray
    load: np.ndarray
    room: np.ndarray

    def bundles(self, part: int, count: int) -> _Bundles:
        """All sets of one or two items of a part."""
        start, stop = int(self.first[part]), int(self.first[part + 1])
        if count == 1:
            return _Bundles(np.arange(start, stop)[None], self.cost[start:stop], self.size[start:stop])
        places = start + np.stack(np.triu_indices(stop - start, 1))
        cost, size = self.cost[places].sum(axis=0), self.size[places].sum(axis=0)
        order = np.argsort(cost, kind="stable")
        return _Bundles(places[:, order], cost[order], size[order])

    def exchange(self, dearest: int, chosen: _Exchange) -> None:
        mine, theirs = chosen.mine, chosen.theirs
        for held, amount in ((self.load, self.cost), (self.room, -self.size)):
            moved = int((amount[mine] - amount[theirs]).sum())
            held[dearest] -= moved
            held[chosen.partner] += moved
        for values in (self.item, self.cost, self.size):
            values[mine], values[theirs] = values[theirs], values[mine]
        for part in (dearest, chosen.partner):
            stretch = slice(int(self.first[part]), int(self.first[part + 1]))
            order = np.argsort(self.cost[stretch], kind="stable")
            for values in (self.item, self.cost, self.size):
                values[stretch] = values[stretch][order]


def _parts(
    costs: np.ndarray, part: np.ndarray, num_parts: int, sizes: np.ndarray, cap: int, *, fillers: int
) -> _Parts:
    """With `fillers` items of no cost in each part: an item exchanged for a filler is given away."""
    nothing = np.zeros(num_parts * fillers, dtype=np.int64)
    cost, size = np.concatenate([costs, nothing]), np.concatenate([sizes, nothing])
    part = np.concatenate([part, np.repeat(np.arange(num_parts), fillers)])
    load, room = np.zeros(num_parts, dtype=np.int64), np.full(num_parts, cap, dtype=np.int64)
    np.add.at(load, part, cost)
    np.subtract.at(room, part, size)
    item = np.lexsort((cost, part))
    first = np.searchsorted(part[item], np.arange(num_parts + 1))
    return _Parts(first=first, item=item, cost=cost[item], size=size[item], load=load, room=room)


def _find(parts: _Parts, by_load: np.ndarray, count: int) -> tuple[_Exchange | None, int]:
    """The best exchange of `count` items of the dearest part, if any helps; and how many parts were tried."""
    *others, dearest = by_load.tolist()
    given = parts.bundles(dearest, count)
    best, tried, gain = None, 0, 0
    for partner in others:
        gap = int(parts.load[dearest] - parts.load[partner])
        enough = min(gap // 2, int(parts.load[dearest] - parts.load[others[-1]]))
        if gap < 2 or (best and (gain >= enough or tried >= PARTNERS)):
            break
        tried += 1
        found = _best_exchange(parts, given, parts.bundles(partner, count), (dearest, partner))
        if found and found.gain > gain:
            best, gain = found, found.gain
    return best, tried


def _best_exchange(
    parts: _Parts, given: _Bundles, taken: _Bundles, pair: tuple[int, int]
) -> _Exchange | None:
    """For each set of one part the two of the other whose cost is next to half the gap below; the best."""
    if not len(given.cost) or not len(taken.cost):
        return None
    gap = int(parts.load[pair[0]] - parts.load[pair[1]])
    above = np.searchsorted(taken.cost, given.cost - gap // 2)
    choice = np.stack([np.minimum(above, len(taken.cost) - 1), np.maximum(above - 1, 0)])  # [2, given]
    moved = given.cost - taken.cost[choice]
    gain = np.minimum(moved, gap - moved)
    growth = given.size - taken.size[choice]  # of the other part
    gain[(growth > parts.room[pair[1]]) | (-growth > parts.room[pair[0]])] = 0
    side, mine = divmod(int(gain.argmax()), len(given.cost))
    if gain[side, mine] <= 0:
        return None
    theirs = choice[side, mine]
    return _Exchange(int(gain[side, mine]), pair[1], given.places[:, mine], taken.places[:, theirs])
