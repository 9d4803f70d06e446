"""What a planner is told beside the job's messages: ranks that died, and that the job is to end early."""

import contextlib
import threading

from msdata_transport.run_folder import RunFolder

from msdata_jax.roles import messages as m
from msdata_jax.runtime.loop import RoleLoop

LOOK_SECONDS = 1.0
"""How often it looks whether the job is to end early."""


class Ear:
    """Listens to the run folder and passes on what it hears, in every session what was heard in those before.

    Args:
        folder: the job's run folder.
        guarded: whether guards report the deaths of their ranks there.

    Raises:
        OSError: the folder is gone.
    """

    def __init__(self, folder: RunFolder, *, guarded: bool) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._heard: list[m.RoleMessage] = []
        self._loop: RoleLoop | None = None
        self._over = threading.Event()
        self._deaths = contextlib.ExitStack()
        if guarded:
            listener = folder.listen_for_deaths(lambda rank, how: self._hear(m.Lost(rank=rank, why=how)))
            self._deaths.enter_context(contextlib.closing(listener))
        self._looking = threading.Thread(target=self._look, name="msdata-ear", daemon=True)
        self._looking.start()

    def attach(self, loop: RoleLoop) -> None:
        """Tell the planner's loop of this session from now on."""
        with self._lock:
            self._loop = loop
            for message in self._heard:
                loop.post(message)

    def close(self) -> None:
        """Hear no more."""
        self._over.set()
        self._deaths.close()
        self._looking.join()

    def _hear(self, message: m.RoleMessage) -> None:
        with self._lock:
            self._heard.append(message)
            if self._loop is not None:
                self._loop.post(message)

    def _look(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            if self._folder.is_asked_to_stop:
                self._hear(m.AskToStop())
                return
