"""Saving and restoring, as both versions of orbax do it: what is frozen, what is written, full or delta."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from msdata_jax.checkpoint.files import (
    FILE_NAME,
    BaseRef,
    digest_of,
    encode_delta,
    encode_full,
    step_of,
    stored_digest,
    write_file,
)
from msdata_jax.checkpoint.finding import COMMITTED, TEMPORARY, final_name, load_state
from msdata_jax.checkpoint.retention import KeepBases
from msdata_jax.data_state import DataState, Leaves
from msdata_jax.errors import CheckpointError

BLOCKS = "blocks"
"""Folder in an item, of transformed samples in flight (`Source.snapshot`)."""


class Checkpointed(Protocol):
    """What is saved and restored: a `DataLoader`."""

    def leaves(self) -> Mapping[str, bytes] | None:
        """The leaves of the state behind the last step delivered, which nothing changes any more.

        None on every training process but the first, which alone has and writes them.
        """
        ...

    def pin_blocks(self) -> None:
        """Let the loaders hold transformed samples in flight, where sources ask for that."""
        ...

    def save_blocks(self, folder: Path, step: int) -> Mapping[str, Any] | None:
        """Let them write what they hold for the state before `step`.

        Returns:
            `num_blocks`, `num_bytes`, and `error` where it failed, which is not raised.
        """
        ...

    def restore(
        self, state: DataState, *, accept_changes: bool = False, blocks: Path | None = None
    ) -> list[str]:
        """Go on from a state; on every training process. Returns sentences on what changed since.

        `blocks` is the folder that `save_blocks` wrote with it.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class _Base:
    """The full file that deltas may refer to.

    Attributes:
        file: where it is once its step is committed.
        marker: a file that must be there too, where orbax does not rename steps.
        ref: how deltas name it.
        leaves: of its state.
        num_bytes: of the file.
        num_deltas: that were written against it.
    """

    file: Path
    marker: Path | None
    ref: BaseRef
    leaves: Leaves
    num_bytes: int
    num_deltas: int = 0

    def serves(self, file: Path) -> bool:
        """Whether a delta at `file` would find it: in the same item of another step."""
        beside = (self.file.parents[2], self.file.parent.name) == (file.parents[2], file.parent.name)
        return beside and self.file != file

    def is_there(self) -> bool:
        """Whether its step was committed and is the one that was written."""
        committed = self.marker is None or self.marker.exists()
        return committed and stored_digest(self.file) == self.ref.digest


class Writer:
    """Writes states into the items of steps: a full, then deltas against it, then a full again.

    A save is a full where deltas are not asked for, every `full_every` saves, where a delta would pass half
    of a full, and wherever the base is not on disk as it was written: its save failed, or it was deleted. So
    a delta never builds on another delta, nor on a base that was not committed before.

    One save at a time, as orbax has it.
    """

    def __init__(self) -> None:
        self._base: _Base | None = None

    def write(self, item: Path, leaves: Leaves, *, full_every: int = 1) -> str:
        """Write the state of a step.

        Args:
            item: the item's directory, in the directory of its step as long as that is written.
            leaves: of the state.
            full_every: 1 for fulls alone.

        Returns:
            `full` or `delta`.

        Raises:
            CheckpointError: it cannot be written. The next one is a full.
        """
        base, self._base = self._base, None  # whatever fails from here on, the next save is a full
        final = item.parent.with_name(final_name(item.parent.name)) / final_name(item.name) / FILE_NAME
        step = step_of(leaves)
        delta = self._delta(base, final, leaves, step, full_every)
        if base is not None and delta is not None:
            write_file(item / FILE_NAME, delta)
            self._base = replace(base, num_deltas=base.num_deltas + 1)
            return "delta"
        data = encode_full(leaves, step)
        write_file(item / FILE_NAME, data)
        if full_every > 1:
            in_place = TEMPORARY not in item.parent.name
            self._base = _Base(
                file=final,
                marker=final.parent.parent / COMMITTED if in_place else None,
                ref=BaseRef(where=final.parent.parent.name, digest=digest_of(data)),
                leaves=leaves,
                num_bytes=len(data),
            )
        return "full"

    def forget(self) -> None:
        """The next save is a full: the stream goes on from elsewhere."""
        self._base = None

    def _delta(
        self, base: _Base | None, final: Path, leaves: Leaves, step: int, full_every: int
    ) -> bytes | None:
        """The bytes of a delta, where there should be one."""
        if base is None or base.num_deltas + 1 >= full_every:
            return None
        if not base.serves(final) or not base.is_there():
            return None
        data = encode_delta(leaves, step, base.ref, base.leaves)
        return data if 2 * len(data) <= base.num_bytes else None


class Saver:
    """One item of a manager: freezes the state at a save, and restores it."""

    def __init__(self) -> None:
        self._writer = Writer()

    def freeze(
        self, directory: str, loader: Checkpointed, bases: KeepBases | None
    ) -> Callable[[], None] | None:
        """Take the state of the last step delivered; on every training process, while `save` blocks.

        Args:
            directory: of the item; need not be there yet.
            loader: whose state it is.
            bases: keeps the bases of deltas; without one, every save is a full.

        Returns:
            what writes the state once the directory is there, on any thread; None where another process does.

        Raises:
            CheckpointError: the directory is not in a file system, or retention would collect bases.
        """
        item = local_path(directory)
        leaves = loader.leaves()
        if bases is not None:
            bases.begin(item.parent)
        if leaves is None:
            return None
        loader.pin_blocks()
        frozen, full_every = dict(leaves), 1 if bases is None else bases.full_every

        def write() -> None:
            self._writer.write(item, frozen, full_every=full_every)
            saved = loader.save_blocks(item / BLOCKS, step_of(frozen))
            if saved is not None and saved["error"]:
                print(  # noqa: T201
                    f"msdata: {item.parent.name}: samples in flight were not saved and will be read again: "
                    f"{saved['error']}",
                    file=sys.stderr,
                )

        return write

    def restore(self, directory: str, loader: Checkpointed, *, accept_changes: bool) -> list[str]:
        """Read the state on this process and let the loader go on from it; returns what changed since."""
        item = local_path(directory)
        state, blocks = load_state(item), item / BLOCKS
        self._writer.forget()
        return loader.restore(
            state, accept_changes=accept_changes, blocks=blocks if blocks.is_dir() else None
        )


def local_path(directory: str) -> Path:
    """The path of a directory in a file system.

    Raises:
        CheckpointError: it is in an object store.
    """
    if "://" in directory:
        raise CheckpointError(
            f"the state of the data is written to a file system, and {directory} is in an object store; "
            "mount the bucket (gcsfuse, s3fs) and give the manager that path"
        )
    return Path(directory).absolute()
