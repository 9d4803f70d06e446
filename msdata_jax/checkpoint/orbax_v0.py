"""Data checkpoints in `orbax.checkpoint.CheckpointManager`: arguments for saving and restoring."""

import asyncio
import contextlib
import os
from dataclasses import dataclass
from typing import Any

import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint.future import CommitFutureAwaitingContractedSignals, Future

from msdata_jax.checkpoint.files import FILE_NAME, read_head
from msdata_jax.checkpoint.retention import KeepBases
from msdata_jax.checkpoint.writer import Checkpointed, Saver, local_path
from msdata_jax.errors import CheckpointError

_DIRECTORY_SECONDS = 60
"""How long orbax may take to make a step's directory once the save has failed."""


class DataHandler(ocp.AsyncCheckpointHandler):
    """Saves and restores a data stream. orbax makes one for each item; see `DataSave` and `DataRestore`."""

    def __init__(self) -> None:
        self._saver = Saver()

    async def async_save(self, directory: epath.Path, args: "DataSave") -> list[Future]:
        """Freeze the state; a thread writes it when the directory is there."""
        try:
            write = self._saver.freeze(os.fspath(directory), args.loader, args.bases)
        except CheckpointError:
            # Else orbax's threads of other items wait for the directory, and the end of the process for them.
            made = CommitFutureAwaitingContractedSignals(_nothing(), timeout_secs=_DIRECTORY_SECONDS)
            with contextlib.suppress(Exception):
                await asyncio.to_thread(made.result)
            raise
        if write is None:
            return []

        async def run() -> None:
            write()

        return [CommitFutureAwaitingContractedSignals(run(), name="data_state_save")]

    def save(self, directory: epath.Path, args: "DataSave") -> None:
        """The same, done when it returns."""
        write = self._saver.freeze(os.fspath(directory), args.loader, args.bases)
        if write is not None:
            write()

    def restore(self, directory: epath.Path, args: "DataRestore") -> list[str]:
        """Let the loader go on from the state; returns sentences on what changed since."""
        return self._saver.restore(os.fspath(directory), args.loader, accept_changes=args.accept_changes)

    def metadata(self, directory: epath.Path) -> dict[str, Any]:
        """What the state file says of itself."""
        head = read_head(local_path(os.fspath(directory)) / FILE_NAME)
        base = head.base.where if head.base else None
        return {"kind": head.kind, "step": head.step, "base": base, "bytes": head.file_bytes}


async def _nothing() -> None:
    pass


@ocp.args.register_with_handler(DataHandler, for_save=True)
@dataclass
class DataSave(ocp.args.CheckpointArgs):
    """Save the state behind the last step delivered. On every training process; the first one writes.

    Attributes:
        loader: a `DataLoader`.
        bases: the policy of the manager; saves are deltas between fulls then. Without it every save is a
            full, which any retention may keep or delete.

    Raises:
        CheckpointError: an earlier save is done and its manager did not ask `bases`. It is told here where it
            can be: an error within the save leaves threads of orbax behind, for its other items.
    """

    loader: Checkpointed
    bases: KeepBases | None = None

    def __post_init__(self) -> None:
        """Check the manager."""
        if self.bases is not None:
            self.bases.check_asked()


@ocp.args.register_with_handler(DataHandler, for_restore=True)
@dataclass
class DataRestore(ocp.args.CheckpointArgs):
    """Go on behind the step that was saved. On every training process, before the first batch.

    `CheckpointManager.restore` then returns sentences on what changed since, for this item.

    Attributes:
        loader: a `DataLoader` that delivered nothing yet.
        accept_changes: go on with a recipe or data that changed, where that can be.
    """

    loader: Checkpointed
    accept_changes: bool = False
