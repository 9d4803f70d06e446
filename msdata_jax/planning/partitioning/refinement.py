"""Local search after a partition: exchange items where that lowers the dearest part.

First between many pairs of parts at once, then between the dearest part and others, one exchange at a time.
"""

from dataclasses import dataclass, replace

import numpy as np

from msdata_jax.planning.arrays import narrow
from msdata_jax.planning.partitioning.list_scheduling import dearest_first

PARTNERS = 8
"""Other parts to look at, the cheapest first, before the best exchange seen is good enough."""
ROUNDS = 8
"""Exchanges between all pairs at once; parts are then even but for what single exchanges still find."""
LOOKED_AT = 32
"""Items of a part that a round looks at, spread evenly over its costs."""
SEARCHES = 512
"""Usual bound of the work after the rounds: pairs of parts that are looked at."""
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
    searches: int = SEARCHES,
) -> np.ndarray:
    """Exchange items of the dearest part for cheaper ones of other parts while that lowers it.

    In `ROUNDS` rounds the dearest part exchanges an item with the cheapest one, the next dearest with the
    next cheapest, and so on. Then, of the exchanges of the dearest part with the cheapest parts, the one is
    taken after which the dearer of both parts is the cheapest: one item for one or, where no such helps and
    parts are small, two for two. Ends when nothing lowers the dearest part, when that is within 2**-17 of the
    mean, or after `searches` looks at a pair of parts.

    Args:
        costs: int64 `[items]`, each at least 0.
        part: int64 `[items]`, part of each item.
        num_parts: parts.
        move: also give items away, so that the parts' counts change.
        sizes: int64 `[items]`.
        cap: the parts' total size stays at most this.
        searches: bound of the work after the rounds; two for two count four times.

    Returns:
        int64 `[items]`: part of each item; the dearest part costs at most what it did.
    """
    parts = _parts(costs, part, num_parts, sizes, cap, fillers=2 * move)
    mean = -(-int(parts.load.sum()) // num_parts)
    least = max(mean + (mean >> 17), int(parts.cost.max(initial=0)))
    if _exchange_in_rounds(parts, least):
        parts = parts.sorted()
    while searches > 0 and int(parts.load.max()) > least:
        by_load = np.argsort(parts.load, kind="stable")
        found, tried = _find(parts, by_load, 1, searches)
        if found is None and np.diff(parts.first).max() <= PAIRS_UP_TO:
            found, more = _find(parts, by_load, 2, (searches - tried) // 4)
            tried += 4 * more
        if found is None:
            break
        parts.exchange(int(by_load[-1]), found)
        searches -= tried
    refined = np.empty(len(parts.item), dtype=np.int64)
    refined[parts.item] = parts.part_of_place
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

    @property
    def part_of_place(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.load)), np.diff(self.first))

    def sorted(self) -> "_Parts":
        order = _by_part_and_cost(self.part_of_place, self.cost)
        return replace(self, item=self.item[order], cost=self.cost[order], size=self.size[order])

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
    item = _by_part_and_cost(part, cost)
    first = np.searchsorted(part[item], np.arange(num_parts + 1))
    return _Parts(first=first, item=item, cost=cost[item], size=size[item], load=load, room=room)


def _by_part_and_cost(part: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """As `np.lexsort((cost, part))`, where the order of equal items means nothing; faster."""
    rising = dearest_first(cost)[::-1]
    return rising[np.argsort(narrow(part)[rising], kind="stable")]


def _exchange_in_rounds(parts: _Parts, least: int) -> bool:
    """Exchanges between pairs of parts, see `refine`; True if there were any: parts are then to be sorted.

    Args:
        parts: written.
        least: a part that costs no more needs no exchange.
    """
    exchanged = False
    count = np.diff(parts.first)[:, None]
    width = min(LOOKED_AT, int(count.max()))
    places = parts.first[:-1, None] + np.arange(width) * count // max(1, width)  # [parts, looked at]
    for _ in range(ROUNDS):
        by_load = np.argsort(parts.load, kind="stable")
        num_pairs = min(len(by_load) // 2, int(np.count_nonzero(parts.load > least)))
        if not num_pairs * width:
            break
        pairs = np.stack([by_load[::-1][:num_pairs], by_load[:num_pairs]])
        mine, theirs = _best_of_pairs(parts, places, pairs)
        helped = mine >= 0
        if not helped.any():
            break
        exchanged = True
        _exchange_pairs(parts, pairs[:, helped], mine[helped], theirs[helped])
    return exchanged


def _best_of_pairs(parts: _Parts, places: np.ndarray, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places int64 `[pairs]` of the items to exchange, of the dearer and the cheaper part; -1: none helps."""
    dear, cheap = pairs
    gap = (parts.load[dear] - parts.load[cheap])[:, None, None]
    mine, theirs = places[dear], places[cheap]
    moved = parts.cost[mine][:, :, None] - parts.cost[theirs][:, None]  # [pairs, mine, theirs]
    gain = np.minimum(moved, gap - moved)
    if parts.size.any():
        growth = parts.size[mine][:, :, None] - parts.size[theirs][:, None]
        gain[(growth > parts.room[cheap][:, None, None]) | (-growth > parts.room[dear][:, None, None])] = 0
    best = gain.reshape(len(dear), -1).argmax(axis=1)
    pair = np.arange(len(dear))
    i, j = np.divmod(best, places.shape[1])
    return np.where(gain[pair, i, j] > 0, mine[pair, i], -1), theirs[pair, j]


def _exchange_pairs(parts: _Parts, pairs: np.ndarray, mine: np.ndarray, theirs: np.ndarray) -> None:
    for held, amount in ((parts.load, parts.cost), (parts.room, -parts.size)):
        moved = amount[mine] - amount[theirs]
        held[pairs[0]] -= moved
        held[pairs[1]] += moved
    for values in (parts.item, parts.cost, parts.size):
        values[mine], values[theirs] = values[theirs], values[mine]


def _find(parts: _Parts, by_load: np.ndarray, count: int, most: int) -> tuple[_Exchange | None, int]:
    """The best exchange of `count` items of the dearest part, if any; and parts tried, up to `most`."""
    *others, dearest = by_load.tolist()
    given = parts.bundles(dearest, count)
    best, tried, gain = None, 0, 0
    for partner in others:
        gap = int(parts.load[dearest] - parts.load[partner])
        enough = min(gap // 2, int(parts.load[dearest] - parts.load[others[-1]]))
        if gap < 2 or tried >= most or (best and (gain >= enough or tried >= PARTNERS)):
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
