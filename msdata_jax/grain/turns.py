"""One DataLoader at a time, closed in the background.

The data ranks of a job feed one DataLoader after another, so the iterators of a job take turns: the one that
reads has the open DataLoader, and whoever reads next closes that first and opens its own where it stands. All
training processes must take the same turns. In a process that is alone nobody shares, and each iterator has a
`Turns` of its own.
"""

import contextlib
import threading
import weakref
from typing import Protocol

from msdata_jax.errors import JobFailed, MSDataError
from msdata_jax.loader import DataLoader

CLOSE_SECONDS = 0.5
"""How long `close` of an iterator waits. What takes longer goes on in the background."""


class Holder(Protocol):
    """An iterator that may have a DataLoader open."""

    def let_go(self) -> None:
        """Close the DataLoader; at once, without waiting."""
        ...


class Turns:
    """Who has the open DataLoader, and which one is being closed. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holder: weakref.ref[Holder] | None = None
        self._closings: list[_Closing] = []

    def take(self, holder: Holder) -> None:
        """Let nobody but `holder` have an open DataLoader: wait until that of the one before is closed.

        Raises:
            MSDataError: another training process did not close it in time.
        """
        with self._lock:
            before = self._holder() if self._holder is not None else None
            if before is not None and before is not holder:
                before.let_go()
            self.wait()
            self._holder = weakref.ref(holder)

    def close(self, loader: DataLoader) -> None:
        """Close the DataLoader of the holder; returns at once."""
        closing = _Closing(loader)
        closing.begin()
        self._closings.append(closing)  # without the lock: the garbage collector may call from any thread

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Whether none is being closed any more, waiting for each for at most so long.

        Raises:
            MSDataError: it could not be closed; said once. A failed job is not told here: whoever reads hears
                of it.
        """
        for closing in list(self._closings):
            if closing is threading.current_thread():
                continue  # the garbage collector runs anywhere
            closing.wait(timeout_seconds)
            if closing.is_alive():
                return False
            with contextlib.suppress(ValueError):  # another thread was first
                self._closings.remove(closing)
                if closing.error is not None and not isinstance(closing.error, JobFailed):
                    raise closing.error
        return True


class _Closing(threading.Thread):
    """Closes a DataLoader, which may take as long as a source, or another training process, does."""

    def __init__(self, loader: DataLoader) -> None:
        super().__init__(name="msdata-close", daemon=True)
        self._loader: DataLoader | None = loader
        self.error: MSDataError | None = None

    def begin(self) -> None:
        """Start; or close right here where the interpreter is ending and starts no thread any more."""
        try:
            self.start()
        except RuntimeError:
            self.run()

    def wait(self, timeout_seconds: float | None) -> None:
        """Wait for it, behind `begin`."""
        if self.ident is not None:  # else it was closed right there
            self.join(timeout_seconds)

    def run(self) -> None:
        loader, self._loader = self._loader, None  # it goes while this thread is still known as one
        assert loader is not None
        try:
            loader.close()
        except MSDataError as error:
            self.error = error.with_traceback(None)


def wait_for_closings() -> None:
    """Wait until nothing is being closed any more, also of iterators that are gone.

    At the interpreter's end: a thread that is in JAX then would bring the process down.
    """
    for thread in threading.enumerate():
        if isinstance(thread, _Closing) and thread is not threading.current_thread():
            thread.join()
