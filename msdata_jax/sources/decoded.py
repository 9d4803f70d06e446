"""Decoded data that are kept to be read again: bounded in bytes for a source, and over all of a process."""

import itertools
import os
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Protocol

from msdata_jax.sources.handles import read_count

DECODED_MB_VARIABLE = "MSDATA_DECODED_MB"
DEFAULT_DECODED_MB = 512


class Decoded(Protocol):
    """What is kept."""

    @property
    def nbytes(self) -> int:
        """The memory that it holds."""
        ...


class DecodedBudget:
    """The bytes that several sources may keep together; the least recently used of any source goes first."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.lock = threading.Lock()
        self.clock = itertools.count()
        self._members: weakref.WeakSet[DecodedGroups] = weakref.WeakSet()

    @property
    def num_bytes(self) -> int:
        """What all sources keep now."""
        return sum(member.num_bytes for member in self._members)

    def add(self, member: "DecodedGroups") -> None:
        """Count a source from now on, as long as it lives."""
        self._members.add(member)

    def shrink(self) -> None:
        """Drop what was used longest ago until the rest fits. The caller holds the lock."""
        while self.num_bytes > self.max_bytes:
            min((m for m in self._members if len(m)), key=lambda m: m.oldest).pop()


class DecodedGroups:
    """What one source keeps, by key: as much as fits, and at most `max_groups` where that is set.

    Args:
        max_bytes: of this source, at least 0; the group that was used last stays even where it has more.
        budget: shared with other sources, and never exceeded; None for that of the process.
    """

    def __init__(self, max_bytes: int, budget: DecodedBudget | None = None) -> None:
        self._budget = shared_budget() if budget is None else budget
        self.max_bytes = min(max_bytes, self._budget.max_bytes)
        self.max_groups = sys.maxsize
        self.num_bytes = 0
        self._groups: OrderedDict[Hashable, tuple[int, Any]] = OrderedDict()
        self._budget.add(self)

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def oldest(self) -> int:
        """When the group was used that was used longest ago, by the budget's clock."""
        return next(iter(self._groups.values()))[0]

    def get(self, key: Hashable) -> Any:
        """The group, or None."""
        with self._budget.lock:
            if key not in self._groups:
                return None
            _, group = self._groups[key]
            self._groups[key] = next(self._budget.clock), group
            self._groups.move_to_end(key)
            return group

    def put(self, key: Hashable, group: Decoded) -> None:
        """Keep a group, and drop others until the bytes fit."""
        with self._budget.lock:
            if key in self._groups or group.nbytes > self._budget.max_bytes:
                return
            self._groups[key] = next(self._budget.clock), group
            self.num_bytes += group.nbytes
            while len(self._groups) > 1 and (
                self.num_bytes > self.max_bytes or len(self._groups) > self.max_groups
            ):
                self.pop()
            self._budget.shrink()

    def pop(self) -> None:
        """Drop what was used longest ago. The caller holds the budget's lock."""
        self.num_bytes -= self._groups.popitem(last=False)[1][1].nbytes


_BUDGETS: dict[int, DecodedBudget] = {}


def shared_budget() -> DecodedBudget:
    """The budget of this process, 512 MB or what MSDATA_DECODED_MB says; a forked child has one of its own.

    Raises:
        SourceError: MSDATA_DECODED_MB is no number of at least 1.
    """
    pid = os.getpid()
    if pid not in _BUDGETS:
        megabytes = read_count(os.environ, DECODED_MB_VARIABLE, DEFAULT_DECODED_MB)
        _BUDGETS.setdefault(pid, DecodedBudget(megabytes << 20))
    return _BUDGETS[pid]
