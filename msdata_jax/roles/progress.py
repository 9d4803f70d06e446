"""How far the training processes are, and what follows for all of them. Values only."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

KEPT_WAITS = 4096


class Progress:
    """Of each constructor: the steps that it has, those that its trainer took, and whether it left.

    Args:
        constructors: their ranks.

    Attributes:
        visible: steps up to it are complete on every training process that is still there.
        released: steps up to it were taken on every one.
        first: the step before which all stood at first; its wait is the job's start.
        left: figures of those that left, by rank.
        waited_seconds: time that each trainer waited for steps in all, the first one left out, by rank.
        waits: seconds of the last of these waits, of all trainers.
    """

    def __init__(self, constructors: Iterable[int]) -> None:
        self._complete = dict.fromkeys(constructors, -1)
        self._delivered = dict(self._complete)
        self.visible = self.released = -1
        self.first = 0
        self.left: dict[int, Mapping[str, Any]] = {}
        self.waited_seconds = dict.fromkeys(self._complete, 0.0)
        self.waits: deque[float] = deque(maxlen=KEPT_WAITS)

    def begin(self, step: int) -> None:
        """All stand before `step`."""
        self._complete = dict.fromkeys(self._complete, step - 1)
        self._delivered = dict(self._complete)
        self.visible = self.released = step - 1
        self.first = step

    def complete(self, rank: int, step: int) -> None:
        """A constructor has steps up to `step`."""
        self._complete[rank] = max(self._complete[rank], step)

    def deliver(self, rank: int, step: int, wait_seconds: float = 0.0) -> None:
        """A trainer took `step`, after waiting for it so long."""
        self._delivered[rank] = step
        self.complete(rank, step)
        if step > self.first:
            self.waited_seconds[rank] += wait_seconds
            self.waits.append(wait_seconds)

    @property
    def slowest(self) -> int:
        """The last step that every trainer took."""
        return min(self._delivered.values())

    @property
    def all_left(self) -> bool:
        """Whether nobody wants anything any more."""
        return len(self.left) == len(self._delivered)

    def having(self, step: int) -> list[int]:
        """Those that are known to have a step."""
        return [rank for rank, complete in self._complete.items() if complete >= step]

    def show(self) -> int | None:
        """The step up to which all are visible now, where that is further than before."""
        there = [step for rank, step in self._complete.items() if rank not in self.left]
        visible = min(there, default=self.visible)
        if visible <= self.visible:
            return None
        self.visible = visible
        return visible

    def release(self) -> int | None:
        """The step up to which all were taken now, where that is further than before."""
        if self.slowest <= self.released:
            return None
        self.released = self.slowest
        self.visible = max(self.visible, self.released)
        return self.released
