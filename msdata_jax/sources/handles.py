"""A bounded number of open files: the least recently used is closed first, one in use never."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from msdata_jax.errors import SourceError
from msdata_jax.sources.protocol import Handle


@dataclass
class _Entry:
    handle: Handle
    num_users: int = 0
    is_dropped: bool = False


class Handles:
    """Open handles by number.

    Args:
        open_handle: opens the handle of a number.
        max_open: how many stay open while nobody uses them, at least 1.
    """

    def __init__(self, open_handle: Callable[[int], Handle], max_open: int) -> None:
        self._open_handle = open_handle
        self._max_open = max_open
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = False

    def __len__(self) -> int:
        return len(self._entries)

    @contextmanager
    def using(self, number: int) -> Iterator[Handle]:
        """The handle of `number`, open until the block ends.

        Raises:
            SourceError: the handles were closed.
        """
        with self._lock:
            if self._closed:
                raise SourceError("the source is closed; open a new SourceReader to read on")
            entry = self._entries.get(number)
            if entry is None:
                entry = self._entries[number] = _Entry(self._open_handle(number))
            self._entries.move_to_end(number)
            entry.num_users += 1
            self._close_idle(self._max_open)
        try:
            yield entry.handle
        finally:
            with self._lock:
                entry.num_users -= 1
                if entry.is_dropped and entry.num_users == 0:
                    entry.handle.close()
                self._close_idle(0 if self._closed else self._max_open)

    def drop(self) -> None:
        """Open anew from now on: close what is idle now, and what is in use as soon as it no longer is."""
        with self._lock:
            self._close_idle(0)
            while self._entries:
                self._entries.popitem()[1].is_dropped = True

    def close(self) -> None:
        """Close what is idle now, and what is in use as soon as it no longer is."""
        with self._lock:
            self._closed = True
            self._close_idle(0)

    def _close_idle(self, max_open: int) -> None:
        surplus = len(self._entries) - max_open
        idle = [number for number, entry in self._entries.items() if entry.num_users == 0]
        for number in idle[: max(0, surplus)]:
            self._entries.pop(number).handle.close()
