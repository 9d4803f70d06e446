# pyright: strict
"""A run folder on a file system that all hosts of a job see: files in place of sockets and locks.

`MSDATA_RUN_FOLDER_SHARED=1` beside `MSDATA_RUN_FOLDER` says that it is one. Besides the files that
`run_folder` lists:

| file | made by | says |
|---|---|---|
| `died-3` | guard of rank 3 | that rank ended; how, as text |
| `kill-3` | planner | the guard of rank 3 is to kill it |
| `vital-4` | guard of rank 4 | that rank is vital and goes on; not locked, as not every file system can |

Whoever listens looks once a second. A network file system may show a file some seconds late.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Generator

from msdata_transport.run_folder import MAX_HOW, RunFolder

VARIABLE = "MSDATA_RUN_FOLDER_SHARED"
LOOK_SECONDS = 1.0


class SharedRunFolder(RunFolder):
    """As `RunFolder`, for ranks on several hosts."""

    is_shared = True

    @classmethod
    @contextlib.contextmanager
    def fresh(cls, parent: str | os.PathLike[str], name: str) -> "Generator[SharedRunFolder]":
        """Make a new folder `name-...` in `parent`, which all hosts see; it is removed in the end.

        Raises:
            OSError: the parent cannot be made or written to.
        """
        import shutil
        import tempfile

        os.makedirs(parent, exist_ok=True)
        path = tempfile.mkdtemp(prefix=f"{name}-", dir=os.path.abspath(parent))
        try:
            yield cls(path)
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def listen_for_deaths(self, callback: Callable[[int, str], object]) -> "SharedListener":
        return SharedListener(self.path, callback)

    def report_death(self, rank: int, how: str, timeout_seconds: float = 0.0) -> bool:
        try:
            self._write(f"died-{rank}", how[:MAX_HOW].encode())
        except OSError:
            return False
        return True

    def listen_as_guard(self, rank: int) -> None:
        return None

    def told(self, rank: int) -> str | None:
        if os.path.exists(self._file(f"kill-{rank}")):
            return "kill"
        return "done" if self.is_over else None

    def kill(self, rank: int) -> bool:
        try:
            self._write(f"kill-{rank}", b"")
        except OSError:
            return False
        return True

    def done(self) -> None:
        """The outcome says it."""

    def hold_vital(self, rank: int) -> None:
        with contextlib.suppress(OSError):
            self._write(f"vital-{rank}", b"")

    def find_unguarded(self) -> None:
        return None

    @property
    def num_vital(self) -> int:
        """How many vital ranks go on; -1 where nobody can tell."""
        try:
            return sum(name.startswith("vital-") for name in os.listdir(self.path))
        except OSError:
            return -1


class SharedListener:
    """A thread that looks for reports of deaths. Made by `SharedRunFolder.listen_for_deaths`."""

    def __init__(self, path: str, callback: Callable[[int, str], object]) -> None:
        self._path = path
        self._callback = callback
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="msdata-deaths", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more; a call that is under way ends first."""
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        known: set[str] = set()
        while not self._over.wait(LOOK_SECONDS):
            with contextlib.suppress(OSError):
                new = {name for name in os.listdir(self._path) if name.startswith("died-")} - known
                for name in sorted(new):
                    with open(os.path.join(self._path, name), "rb") as file:
                        how = file.read(MAX_HOW).decode(errors="replace")
                    known.add(name)
                    self._callback(int(name.removeprefix("died-")), how)
