"""Local search after a partition of two objectives: exchanges that lower the sum of both dearest parts."""

from dataclasses import dataclass

import numpy as np

from msdata_jax.planning.partitioning.list_scheduling import sums
from msdata_jax.planning.partitioning.refinement import PARTNERS, SEARCHES
from msdata_jax.planning.partitioning.vector_scheduling import falling_order, shares

GOOD_ENOUGH_BITS = 10
"""The search ends at less than 2**-10 above what no partition is below."""
FULL = np.iinfo(np.int64).max
CELLS = 1 << 10
"""Pairs of items that are compared in the time of one look at a pair of small parts."""


def refine_two(  # noqa: PLR0913
    costs: np.ndarray,
    part: np.ndarray,
    num_parts: int,
    *,
    move: bool,
    sizes: np.ndarray,
    cap: int,
    searches: int = SEARCHES,
) -> np.ndarray:
    """Exchange items of the dearest part of either objective while the sum of both dearest parts falls.

    Partners are tried `PARTNERS` at a time, those first that have least of both objectives, until some
    exchange of one item for one helps; of those tried together the one is taken after which the sum is
    the lowest and, of several such, the two parts' own dearest costs. Ends when nothing helps, when the sum
    is nearly what no partition is below, or after `searches` looks at a pair of parts, of which one counts
    for two, and one at large parts for more.

    Args:
        costs: int64 `[2, items]`, each at least 0, totals below 2**62.
        part: int64 `[items]`, part of each item.
        num_parts: parts.
        move: also give items away, so that the parts' counts change.
        sizes: int64 `[items]`.
        cap: the parts' total size stays at most this.
        searches: bound of the work.

    Returns:
        int64 `[items]`: part of each item; the sum of both dearest parts is at most what it was.
    """
    even = np.maximum(-(-costs.sum(axis=1) // num_parts), costs.max(axis=1, initial=0))
    enough = int(even.sum()) + (int(even.sum()) >> GOOD_ENOUGH_BITS)
    if sum(int(sums(values, part, num_parts).max()) for values in costs) <= enough:
        return part
    parts = _Parts.of(costs, part, num_parts, move=move, sizes=sizes, cap=cap)
    while searches > 0 and parts.makespan > enough:
        by_load = np.argsort(shares(parts.load).sum(axis=0), kind="stable")
        dearest = list(dict.fromkeys(parts.load.argmax(axis=1).tolist()))
        found = None
        for start in range(0, num_parts, PARTNERS):
            tried = [parts.best(p, by_load[start : start + PARTNERS]) for p in dearest]
            searches -= sum(2 * PARTNERS + cells // CELLS for _, cells in tried)
            found = min((each for each, _ in tried if each), key=lambda each: each.after, default=None)
            if found or searches <= 0:
                break
        if found is None:
            break
        parts.exchange(found)
    refined = np.empty(costs.shape[1], dtype=np.int64)
    for number, members in enumerate(parts.members):
        refined[members] = number
    return refined


@dataclass(frozen=True)
class _Exchange:
    """Item `mine` of part `giver` for `theirs` of part `partner`; `after` is to be low, the sum first."""

    after: tuple[int, int]
    giver: int
    partner: int
    mine: int
    theirs: int


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """The state of the search; `exchange` writes it.

    `costs` int64 `[2, items + 1]` and `size` end with an item of nothing: an item exchanged for it is given
    away. `members` are the parts' items, `load` int64 `[2, parts]` their cost, `room` the size left to them.
    """

    costs: np.ndarray
    size: np.ndarray
    members: list[np.ndarray]
    load: np.ndarray
    room: np.ndarray
    move: bool

    @classmethod
    def of(
        cls, costs: np.ndarray, part: np.ndarray, num_parts: int, *, move: bool, sizes: np.ndarray, cap: int
    ) -> "_Parts":
        falling = falling_order(costs, sizes)  # so that the order of the items decides nothing
        order = falling[np.argsort(part[falling], kind="stable")]
        return cls(
            costs=np.pad(costs, ((0, 0), (0, 1))),
            size=np.append(sizes, 0),
            members=np.split(order, np.searchsorted(part[order], np.arange(1, num_parts))),
            load=np.stack([sums(values, part, num_parts) for values in costs]),
            room=cap - sums(sizes, part, num_parts),
            move=move,
        )

    @property
    def makespan(self) -> int:
        return int(self.load.max(axis=1).sum())

    def best(self, giver: int, partners: np.ndarray) -> tuple[_Exchange | None, int]:
        """The best exchange with one of these parts, if any lowers the makespan; pairs of items compared."""
        partners = partners[partners != giver]
        nothing = np.full(int(self.move), len(self.size) - 1)
        mine = np.append(self.members[giver], nothing)
        theirs = [np.append(self.members[p], nothing) for p in partners.tolist()]
        partner = np.repeat(partners, [len(each) for each in theirs])
        theirs = np.concatenate([nothing[:0], *theirs])
        if not len(mine) or not len(theirs):
            return None, 0
        total = np.zeros((len(mine), len(theirs)), dtype=np.int64)
        own = np.zeros_like(total)
        for cost, load in zip(self.costs, self.load, strict=True):
            moved = cost[mine][:, None] - cost[theirs]
            dearer = np.maximum(load[giver] - moved, load[partner] + moved)
            own += dearer
            total += np.maximum(dearer, _dearest_besides(load, giver, partner))
        growth = self.size[mine][:, None] - self.size[theirs]
        total[(growth > self.room[partner]) | (-growth > self.room[giver])] = FULL
        lowest = int(total.min())
        if lowest >= self.makespan:
            return None, total.size
        place = int(np.where(total == lowest, own, FULL).argmin())
        i, j = divmod(place, len(theirs))
        after = (lowest, int(own[i, j]))
        return _Exchange(after, giver, int(partner[j]), int(mine[i]), int(theirs[j])), total.size

    def exchange(self, chosen: _Exchange) -> None:
        nothing = len(self.size) - 1
        for p, gone, come, sign in (
            (chosen.giver, chosen.mine, chosen.theirs, 1),
            (chosen.partner, chosen.theirs, chosen.mine, -1),
        ):
            kept = self.members[p][self.members[p] != gone]
            self.members[p] = kept if come == nothing else np.append(kept, come)
            self.load[:, p] -= sign * (self.costs[:, chosen.mine] - self.costs[:, chosen.theirs])
            self.room[p] += sign * (self.size[chosen.mine] - self.size[chosen.theirs])


def _dearest_besides(load: np.ndarray, giver: int, partner: np.ndarray) -> np.ndarray:
    """int64 as `partner`: the dearest of all parts but the giver and that partner; at least 0."""
    others = load.copy()
    others[giver] = 0
    first = int(others.argmax())
    dearest = int(others[first])
    others[first] = 0
    return np.where(partner == first, int(others.max()), dearest)
