"""Threads for background work. They are daemons: a reader that hangs keeps no process from ending."""

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

_Call: TypeAlias = Callable[[], None]


class Workers:
    """Runs calls on threads that start when there is work for them: what is due first, then what came first.

    Args:
        num_workers: threads at most.
    """

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._threads: list[threading.Thread] = []
        self._calls: list[tuple[int, int, _Call]] = []  # a heap
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._num_idle = 0
        self._closed = False

    def submit(self, call: _Call, due: int = 0) -> None:
        """Run `call`, which must not raise, on one of the threads."""
        with self._changed:
            heapq.heappush(self._calls, (due, next(self._numbers), call))
            self._start_threads()
            self._changed.notify()

    def resize(self, num_workers: int) -> None:
        """Have so many threads at most, at least 1; one too many ends behind the call that it is at."""
        with self._changed:
            self._num_workers = max(num_workers, 1)
            self._start_threads()
            self._changed.notify_all()

    @property
    def num_waiting(self) -> int:
        """Calls that have not begun."""
        return len(self._calls)

    def close(self, timeout_seconds: float) -> None:
        """Drop what has not begun, and wait for what has, but for no longer than `timeout_seconds`."""
        with self._changed:
            self._calls.clear()
            self._closed = True
            self._changed.notify_all()
            threads = list(self._threads)
        deadline = time.monotonic() + timeout_seconds
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _start_threads(self) -> None:
        while len(self._threads) < self._num_workers and len(self._calls) > self._num_idle:
            name = f"msdata-worker-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            self._num_idle += 1
            thread.start()

    def _work(self) -> None:
        while (call := self._next_call()) is not None:
            call()
            with self._changed:
                self._num_idle += 1

    def _next_call(self) -> _Call | None:
        """Wait for a call, as one of the idle; None where this thread is to end."""
        with self._changed:
            while not (self._calls or self._closed or len(self._threads) > self._num_workers):
                self._changed.wait()
            self._num_idle -= 1
            if self._closed or len(self._threads) > self._num_workers:
                self._threads.remove(threading.current_thread())
                return None
            return heapq.heappop(self._calls)[-1]
