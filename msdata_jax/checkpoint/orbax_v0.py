"""Data checkpoints in `orbax.checkpoint.CheckpointManager`: arguments for saving and restoring."""

import os
from dataclasses import dataclass
from typing import Any

import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint.future import CommitFutureAwaitingContractedSignals, Future

from msdata_jax.checkpoint.files import FILE_NAME, read_head
from msdata_jax.checkpoint.retention import KeepBases
from msdata_jax.checkpoint.writer import Checkpointed, Saver, local_path


class DataHandler(ocp.AsyncCheckpointHandler):
    """Saves and restores a data stream. orbax makes one for each item; see `DataSave` and `DataRestore`."""

    def __init__(self) -> None:
        self._saver = Saver()

    async def async_save(self, directory: epath.Path, args: "DataSave") -> list[Future]:
        """Freeze the state; a thread writes it when the directory is there."""
        write = self._saver.freeze(os.fspath(directory), args.loader, args.bases)
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


@ocp.args.register_with_handler(DataHandler, for_save=True)
@dataclass
class DataSave(ocp.args.CheckpointArgs):
    """Save the state behind the last step delivered. On every training process; the first one writes.

    Attributes:
        loader: a `DataLoader`.
        bases: the policy of the manager; saves are deltas between fulls then. Without it every save is a
            full, which any retention may keep or delete.
    """

    loader: Checkpointed
    bases: KeepBases | None = None


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
