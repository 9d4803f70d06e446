"""Data checkpoints in orbax v1, `training.Checkpointer`: a stateful checkpointable."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from msdata_jax.checkpoint.retention import KeepBases
from msdata_jax.checkpoint.writer import Checkpointed, Saver
from msdata_jax.errors import CheckpointError

if TYPE_CHECKING:
    from etils import epath
    from orbax.checkpoint.experimental.v1.path import PathAwaitingCreation

_DIRECTORY_SECONDS = 60
"""How long orbax may take to make a step's directory once the save has failed."""


class DataCheckpointable:
    """A `DataLoader` as `save_checkpointables` and `load_checkpointables` take it. Make one for a job.

    Args:
        loader: a `DataLoader`; to load, one that delivered nothing yet.
        bases: the policy of the checkpointer; saves are deltas between fulls then. Without it every save is a
            full, which any retention may keep or delete.
        accept_changes: at a load, go on with a recipe or data that changed, where that can be.

    Attributes:
        changes: sentences on what changed, from the last load.
    """

    def __init__(
        self, loader: Checkpointed, bases: KeepBases | None = None, *, accept_changes: bool = False
    ) -> None:
        self.changes: list[str] = []
        self._loader, self._bases, self._accept_changes = loader, bases, accept_changes
        self._saver = Saver()

    async def save(self, directory: "PathAwaitingCreation") -> Awaitable[None]:
        """Freeze the state; what is returned writes it when the directory is there."""
        try:
            write = self._saver.freeze(os.fspath(directory.path), self._loader, self._bases)
        except CheckpointError:
            # Else orbax's threads of other items wait for the directory, and the end of the process for them.
            with contextlib.suppress(Exception):
                await asyncio.wait_for(directory.await_creation(), _DIRECTORY_SECONDS)
            raise

        async def finish() -> None:
            await directory.await_creation()
            if write is not None:
                write()

        return finish()

    async def load(self, directory: "epath.Path") -> Awaitable[None]:
        """Let the loader go on from the state, at once: its thread is the one that calls."""
        self.changes = self._saver.restore(
            os.fspath(directory), self._loader, accept_changes=self._accept_changes
        )

        async def done() -> None:
            pass

        return done()
