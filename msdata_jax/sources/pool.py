"""The child processes of one source: as many as there are reads at once."""

import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from msdata_jax.errors import SourceError
from msdata_jax.sources.child import Child, ChildDied, Limit
from msdata_jax.sources.serving import raise_error

_OPEN_TRIES = 2
_MIN_REOPEN_SECONDS = 60.0


class ChildPool:
    """Children that have the source open. They are started when needed and kept until `close`.

    Args:
        name: the source's name.
        start: starts a child, which first of all says how many records the source has.
    """

    def __init__(self, name: str, start: Callable[[], Child]) -> None:
        self._name = name
        self._start = start
        # A child is killed when the thread that forked it ends, so one thread forks all of them, and lasts.
        self._forker = ThreadPoolExecutor(1, thread_name_prefix=f"fork {name}")
        self._lock = threading.Lock()
        self._children: set[Child] = set()
        self._idle: list[Child] = []
        self._is_closed = False
        self._past_retries = 0
        self._open_seconds: float | None = None
        weakref.finalize(self, _kill_all, self._children)

    @property
    def num_open_files(self) -> int:
        """In all children, as of their last replies."""
        with self._lock:
            return sum(child.num_open_files for child in self._children)

    @property
    def num_retries(self) -> int:
        """In all children, those that are gone too."""
        with self._lock:
            return self._past_retries + sum(child.num_retries for child in self._children)

    def open_first(self) -> int:
        """Start a child; returns how many records the source has."""
        begin = time.monotonic()
        child, num_records = self._open()
        self._open_seconds = time.monotonic() - begin
        self._give(child)
        return num_records

    def ask(self, request: list[Any], dtype: np.dtype, limit: Limit | None) -> dict[str, Any]:
        """What a child that nobody uses replies.

        Raises:
            ChildDied: it died.
            SourceError: it could not, or the reader is closed.
        """
        child = self._take()
        try:
            child.ask(request)
            header = child.receive(dtype, limit)
        except BaseException:
            self._drop(child)
            self._refuse_if_closed()
            raise
        self._give(child)
        raise_error(header)
        return header

    def close(self) -> None:
        """End all children. Those that are asked something are released by whoever asks."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        self._forker.shutdown()
        _kill_all(self._children)
        for child in idle:
            self._drop(child)

    def _take(self) -> Child:
        while True:
            self._refuse_if_closed()
            with self._lock:
                child = self._idle.pop() if self._idle else None
            if child is None:
                return self._open()[0]
            if child.is_alive:
                return child
            self._drop(child)

    def _give(self, child: Child) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.append(child)
                return
        self._drop(child)

    def _drop(self, child: Child) -> None:
        child.kill()
        child.release()
        with self._lock:
            self._past_retries += child.num_retries
            self._children.discard(child)

    def _open(self) -> tuple[Child, int]:
        """A child with its source open, and how many records that has."""
        how = ""
        for _ in range(_OPEN_TRIES):
            child = self._fork()
            try:
                header = child.receive(np.dtype(np.uint8), self._open_limit())
                raise_error(header)
                return child, header["value"]
            except ChildDied as death:
                self._drop(child)
                how = death.how
            except BaseException:
                self._drop(child)
                raise
            self._refuse_if_closed()
        raise SourceError(
            f"source {self._name!r}: the child process that opens it {how}, {_OPEN_TRIES} times; open it "
            "without isolate=True to see where"
        )

    def _open_limit(self) -> Limit | None:
        """None for the first child; the next ones may take longer, but not for ever."""
        if self._open_seconds is None:
            return None
        seconds = max(_MIN_REOPEN_SECONDS, 10 * self._open_seconds)
        return lambda _: seconds

    def _fork(self) -> Child:
        try:
            return self._forker.submit(self._fork_and_keep).result()
        except OSError as error:
            raise SourceError(
                f"source {self._name!r}: no child process can be started ({error.strerror}); give the job "
                "more processes or memory, or set isolate=False"
            ) from error
        except RuntimeError:  # the forker takes nothing more
            self._refuse_if_closed()
            raise

    def _fork_and_keep(self) -> Child:
        child = self._start()
        with self._lock:
            self._children.add(child)
        return child

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise SourceError("the source is closed; open a new IsolatedReader to read on")


def _kill_all(children: set[Child]) -> None:
    for child in list(children):
        child.kill()
