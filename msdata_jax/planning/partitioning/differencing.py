"""The largest differencing method (Karmarkar and Karp 1982), for many parts.

A *state* is a partition of some items into `num_parts` sets; its *spread* is the dearest set less the
cheapest. At first each item is a state of its own. The two states of largest spread are merged, the dearest
set of one with the cheapest of the other and so on, until one is left. Equal spreads: the state made last
goes first, and of the items the first in order.

States hold only the sets that have items, dearest first, so that one of a few items is cheap however many
parts there are; and items that follow each other into one state are taken at once.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from msdata_jax.planning.arrays import numbered_by_first


@dataclass(frozen=True)
class _State:
    """`total` int64 `[sets]`, falling; `item` int64 `[sets]`, one item that stands for each set."""

    total: np.ndarray
    item: np.ndarray


class _Merging:
    """The states left, and what has been merged.

    `costs` are the items' costs, falling; those from `taken` on are still states of their own.
    `standing_for[i]` leads, in a few steps, from item `i` to the item that stands for its set.
    """

    def __init__(self, costs: np.ndarray, num_parts: int) -> None:
        self.costs = costs
        self._costs = costs.tolist()
        self.num_parts = num_parts
        self.taken = 0
        self.standing_for = np.arange(len(costs))
        self._states: list[tuple[int, int, _State]] = []
        self._made = 0

    def __len__(self) -> int:
        """States left."""
        return len(self._states) + len(self.costs) - self.taken

    @property
    def next_item(self) -> int:
        """Spread of the dearest item that is a state of its own; -1 if none is."""
        return int(self.costs[self.taken]) if self.taken < len(self.costs) else -1

    @property
    def next_state(self) -> int:
        """Largest spread of the other states; -1 if there are none."""
        return -self._states[0][0] if self._states else -1

    def spread(self, state: _State) -> int:
        full = len(state.total) == self.num_parts
        return int(state.total[0]) - (int(state.total[-1]) if full else 0)

    def push(self, state: _State) -> None:
        self._made += 1
        heapq.heappush(self._states, (-self.spread(state), -self._made, state))

    def pop(self) -> _State:
        """The state of largest spread."""
        if self.next_state >= self.next_item:
            return heapq.heappop(self._states)[2]
        return self.take(1)

    def take(self, count: int) -> _State:
        """The next items as one state, each a set."""
        items = np.arange(self.taken, self.taken + count)
        self.taken += count
        return _State(self.costs[items], items)

    def merge(self, one: _State, other: _State) -> _State:
        """The dearest set of one with the cheapest of the other, and so on."""
        overlap = max(0, len(one.total) + len(other.total) - self.num_parts)
        alone, alone_too = len(one.total) - overlap, len(other.total) - overlap
        self.standing_for[other.item[alone_too:][::-1]] = one.item[alone:]
        total = np.concatenate([one.total, other.total[:alone_too]])
        total[alone : len(one.total)] += other.total[alone_too:][::-1]
        order = np.argsort(-total, kind="stable")
        return _State(total[order], np.concatenate([one.item, other.item[:alone_too]])[order])

    def add_items(self, state: _State) -> _State:
        """Merge with the next item, and with those after it while it is the same two spreads that lead.

        `state` has the largest spread, and the next item the largest after it.
        """
        sets = len(state.total)
        if sets < self.num_parts:
            following = self.costs[self.taken : self.taken + self.num_parts - sets]
            return self.merge(state, self.take(int(np.searchsorted(-following, -self.next_state))))
        heap = [(cost, item) for cost, item in zip(state.total.tolist(), state.item.tolist(), strict=True)]
        heap.reverse()  # rising, so it is a heap
        top, others = int(state.total[0]), self.next_state
        while self.taken < len(self._costs):
            cost, (cheapest, item) = self._costs[self.taken], heap[0]
            if not top - cheapest >= cost > others:
                break
            self.standing_for[self.taken] = item
            self.taken += 1
            top = max(top, cheapest + cost)
            heapq.heapreplace(heap, (cheapest + cost, item))
        heap.sort(reverse=True)
        total, items = zip(*heap, strict=True)
        return _State(np.array(total, dtype=np.int64), np.array(items, dtype=np.int64))


def largest_differencing(costs: np.ndarray, num_parts: int) -> np.ndarray:
    """Partition by largest differencing.

    Args:
        costs: int64 `[items]`, each at least 0, falling.
        num_parts: parts.

    Returns:
        int64 `[items]`: part of each item; parts are numbered by their first item.
    """
    if num_parts == 1 or not len(costs):
        return np.zeros(len(costs), dtype=np.int64)
    merging = _Merging(costs, num_parts)
    state = merging.pop()
    while len(merging):
        if merging.next_item > merging.next_state:
            state = merging.add_items(state)
        else:
            state = merging.merge(state, merging.pop())
        if merging.spread(state) < max(merging.next_item, merging.next_state):
            merging.push(state)
            state = merging.pop()
    return _numbered(merging.standing_for)


def balanced_differencing(costs: np.ndarray, num_parts: int) -> np.ndarray:
    """The same with equal counts: starts from states of `num_parts` items, neighbours in order.

    Args:
        costs: int64 `[items]`, each at least 0, falling; the items divide by `num_parts`.
        num_parts: parts.

    Returns:
        int64 `[items]`: part of each item; parts are numbered by their first item.
    """
    merging = _Merging(costs, num_parts)
    states = [merging.take(num_parts) for _ in range(len(costs) // num_parts)]
    for state in reversed(states):  # of equal spreads the last is merged first
        merging.push(state)
    while len(merging) > 1:
        merging.push(merging.merge(merging.pop(), merging.pop()))
    return _numbered(merging.standing_for)


def _numbered(standing_for: np.ndarray) -> np.ndarray:
    """Parts by their first item."""
    root = standing_for
    while not np.array_equal(further := root[root], root):
        root = further
    return numbered_by_first(root)
