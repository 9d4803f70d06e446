"""Threads for background work. They are daemons: a reader that hangs keeps no process from ending."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable


class Workers:
    """Runs calls, first come first served, on threads that start when there is work for them.

    Args:
        num_workers: threads at most.
    """

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._threads: list[threading.Thread] = []
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def submit(self, call: Callable[[], None]) -> None:
        """Run `call`, which must not raise, on one of the threads."""
        self._calls.put(call)
        if len(self._threads) < self._num_workers:
            name = f"msdata-worker-{len(self._threads)}"
            self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
            self._threads[-1].start()

    def close(self, timeout_seconds: float) -> None:
        """Drop what has not begun, and wait for what has, but for no longer than `timeout_seconds`."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._calls.get_nowait()
        for _ in self._threads:
            self._calls.put(None)
        deadline = time.monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
