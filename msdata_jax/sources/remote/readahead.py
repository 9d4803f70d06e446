"""A few threads of this process that fetch what will be asked for. They end when there is nothing to do."""

import os
import queue
import threading
from collections.abc import Callable

MAX_THREADS = 8
_MAX_WAITING = 4 * MAX_THREADS
_IDLE_SECONDS = 1.0


class ReadAhead:
    """Runs tasks in at most `MAX_THREADS` threads; what waits is bounded too, the rest is left out."""

    def __init__(self) -> None:
        self._tasks: queue.Queue[tuple[str, Callable[[], None]]] = queue.Queue(_MAX_WAITING)
        self._keys: set[str] = set()
        self._num_threads = 0
        self._num_idle = 0
        self._lock = threading.Lock()

    def offer(self, key: str, task: Callable[[], None]) -> bool:
        """Run a task soon, which raises nothing; False where too much waits, or the same key does."""
        with self._lock:
            if key in self._keys:
                return False
            try:
                self._tasks.put_nowait((key, task))
            except queue.Full:
                return False
            self._keys.add(key)
            if self._num_idle < self._tasks.qsize() and self._num_threads < MAX_THREADS:
                threading.Thread(target=self._run, name="msdata-read-ahead", daemon=True).start()
                self._num_threads += 1
        return True

    def _run(self) -> None:
        while True:
            with self._lock:
                self._num_idle += 1
            try:
                key, task = self._tasks.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    self._num_idle -= 1
                    if self._tasks.empty():
                        self._num_threads -= 1
                        return
                continue
            with self._lock:
                self._num_idle -= 1
            try:
                task()
            finally:
                with self._lock:
                    self._keys.discard(key)


_of_process: tuple[int, ReadAhead] | None = None


def read_ahead() -> ReadAhead:
    """The one of this process; a forked child has its own."""
    global _of_process  # noqa: PLW0603 - the threads are the process's
    if _of_process is None or _of_process[0] != os.getpid():
        _of_process = (os.getpid(), ReadAhead())
    return _of_process[1]
