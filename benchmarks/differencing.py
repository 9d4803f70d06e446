"""Karmarkar-Karp as public RLHF training code has it: an object for each set of each state.

Rewritten here from its description, so that the planner can be compared with it on the same costs: every item
begins as a state of `num_parts` sets, all but one of them empty; a heap gives the two states of largest
spread; they merge set by set, the dearest with the cheapest, and go back. Its time and memory grow with
`items * num_parts`.
"""

import heapq
from collections.abc import Sequence


class ItemSet:
    """Items of one part, and what they cost."""

    def __init__(self) -> None:
        self.total = 0
        self.items: list[int] = []

    def add(self, item: int, cost: int) -> None:
        self.total += cost
        self.items.append(item)

    def absorb(self, other: "ItemSet") -> None:
        self.total += other.total
        self.items.extend(other.items)


class State:
    """A partition of some items, its sets the dearest first."""

    def __init__(self, item: int, cost: int, num_parts: int) -> None:
        self.sets = [ItemSet() for _ in range(num_parts)]
        self.sets[0].add(item, cost)

    @property
    def spread(self) -> int:
        """The dearest set less the cheapest."""
        return self.sets[0].total - self.sets[-1].total

    def merge(self, other: "State") -> None:
        for mine, theirs in zip(self.sets, reversed(other.sets), strict=True):
            mine.absorb(theirs)
        self.sets.sort(key=lambda each: each.total, reverse=True)

    def __lt__(self, other: "State") -> bool:
        """The larger spread first, as a heap gives its least; of equal ones, the one with the dearest set."""
        if self.spread != other.spread:
            return self.spread > other.spread
        return self.sets[0].total > other.sets[0].total


def object_karmarkar_karp(costs: Sequence[int], num_parts: int) -> list[list[int]]:
    """Items of each part.

    Args:
        costs: at least one, each at least 0.
        num_parts: parts, at least 1.
    """
    states = [State(item, cost, num_parts) for item, cost in enumerate(costs)]
    heapq.heapify(states)
    while len(states) > 1:
        state = heapq.heappop(states)
        state.merge(heapq.heappop(states))
        heapq.heappush(states, state)
    return [each.items for each in states[0].sets]
