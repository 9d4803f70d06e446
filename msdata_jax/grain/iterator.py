"""`MSDatasetIterator`: reads the steps of a recipe, says where it stands and goes where it is told."""

import asyncio
import contextlib
import json
import os
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import grain

from msdata_jax.checkpoint.files import FILE_NAME
from msdata_jax.checkpoint.writer import Saver, local_path
from msdata_jax.data_state import DataState
from msdata_jax.errors import CheckpointError, JobFailed, MSDataError
from msdata_jax.grain.position import NO_DIGEST, Position
from msdata_jax.grain.turns import CLOSE_SECONDS, Turns, wait_for_closings
from msdata_jax.loader import DataLoader
from msdata_jax.runtime.ending import run_first_at_exit
from msdata_jax.runtime.job import current_job

if TYPE_CHECKING:
    from etils import epath

POSITION_FILE = "position.json"
"""What `save` writes besides the state: one file, read by any number of processes."""


@dataclass(frozen=True, kw_only=True)
class Bookmark:
    """A saved state to go on from, and how.

    Attributes:
        state: as in `DataLoader.restore`.
        accept_changes: as there.
        blocks: as there.
    """

    state: DataState
    accept_changes: bool = False
    blocks: Path | None = None

    def restore(self, loader: DataLoader) -> list[str]:
        """Let the loader go on from it."""
        return loader.restore(self.state, accept_changes=self.accept_changes, blocks=self.blocks)


Open: TypeAlias = Callable[[Position, Bookmark | None], DataLoader]


class MSDatasetIterator(grain.DatasetIterator[dict[str, Any]]):
    """Iterates over an `MSDataset`; made by `iter(dataset)`. One thread at a time, but for `close`.

    Its state is a step and digests (`Position`), at hand at once. A DataLoader is opened by the first read,
    and by the first one behind a move. Then the step before is delivered once more, unseen, and its plan must
    be what the state says: data that changed are noticed as far as they changed that step.

    It may be given to `checkpoint.DataSave`, `DataRestore` and `DataCheckpointable` in the place of a
    DataLoader, as far as no stage behind it holds elements back; those save the whole state of the stream.

    Args:
        open_loader: opens a DataLoader for a position.
        start: where to begin.
        turns: who else shares the data ranks.
    """

    def __init__(self, open_loader: Open, start: Position, turns: Turns) -> None:
        super().__init__()
        self._open, self._turns = open_loader, turns
        self._position = start
        self._loader: DataLoader | None = None
        self._ended: DataLoader | None = None  # one that closed itself, since its data ended
        self._bookmark: Bookmark | None = None
        self._known: tuple[int, Mapping[str, bytes] | None] | None = None  # a step, and the state before it
        self._saver = Saver()
        self._lock = threading.Lock()  # of `_loader`, which `close` takes from any thread

    # --- reading ------------------------------------------------------------------------------------------

    def __next__(self) -> dict[str, Any]:
        """The next step's batch.

        Raises:
            StopIteration: the data ended, at the same step on every training process.
            CheckpointError: the step before is not the one that the position was saved behind.
            ValueError: the iterator is closed, or was closed meanwhile.
            BadSampleError, JobFailed, MSDataError: as `DataLoader.__next__`.
        """
        loader = self._opened()
        while loader.next_step < self._position.step:
            self._pass_step_before(loader)
        batch = self._take(loader)
        self._stand_behind(loader)
        return batch

    def _opened(self) -> DataLoader:
        self._assert_not_closed()
        if self._loader is None:
            self._turns.take(self)
            self._set_loader(self._open(self._position, self._bookmark_for(self._position.step)))
        assert self._loader is not None
        return self._loader

    def _set_loader(self, loader: DataLoader) -> None:
        _close_at_exit(self, self._turns)
        with self._lock:
            self._loader = loader
        if self._closed:  # while it was opened
            self.let_go()
            self._assert_not_closed()

    def _bookmark_for(self, step: int) -> Bookmark | None:
        mark = self._bookmark
        return mark if mark is not None and mark.state.step <= step else None

    def _take(self, loader: DataLoader) -> dict[str, Any]:
        called_back = _called_back_by_prefetch()
        try:
            batch = loader.take(lambda: self._closed or self._loader is not loader or called_back())
        except StopIteration:
            self._ended = loader
            raise
        except MSDataError:
            self._assert_not_closed()
            raise
        if batch is None:
            self._assert_not_closed()
            raise MSDataError(
                f"reading step {self._position.step} was given up: the iterator was moved, or the thread "
                "that prefetches was told to end; nothing is lost, the step comes with the next read"
            )
        return batch

    def _pass_step_before(self, loader: DataLoader) -> None:
        """Deliver a step unseen; the one before the position must be what it was.

        Raises:
            StopIteration: somebody asked the data to end before.
            CheckpointError: that step is not what it was, or is not there.
        """
        position = self._position
        try:
            self._take(loader)
        except StopIteration:
            if loader.stopped:
                raise
            raise CheckpointError(
                f"the position is before step {position.step}; the data end at step {loader.next_step} now"
            ) from None
        found = loader.last_step.content_digest
        if loader.next_step == position.step and found != position.plan_digest:
            self.let_go()
            raise CheckpointError(
                f"the position is behind a step {position.step - 1} with the plan {position.plan_digest}, "
                f"and that step's plan is {found} now: the data are not what they were. Go on with the data "
                "that were; or restore a data checkpoint, DataRestore(iterator, accept_changes=True)"
            )

    def _stand_behind(self, loader: DataLoader) -> None:
        last = loader.last_step
        self._position = replace(self._position, step=last.step + 1, plan_digest=last.content_digest)
        self._known = last.step + 1, loader.leaves()

    def start_prefetch(self) -> None:
        """Open the DataLoader and let it make steps ready."""
        self._opened().start_prefetch()

    # --- where it stands ----------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Where it stands (`Position.to_state`)."""
        return self._position.to_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Go where a state says, forward or back; at any time, on every training process alike.

        Raises:
            CheckpointError: it is no state of this recipe.
        """
        position = Position.from_state(state)
        position.check_recipe(self._position.recipe)
        self._move(position)

    def _get_next_index(self) -> int:
        return self._position.step

    def _set_next_index(self, index: int) -> None:
        if index < 0:
            raise ValueError(f"steps count from 0, got {index}")
        if index != self._position.step:
            self._move(replace(self._position, step=index, plan_digest=NO_DIGEST))

    def _move(self, position: Position) -> None:
        if position != self._position:
            self.let_go()
            self._position, self._known = position, None

    @property
    def loader(self) -> DataLoader:
        """The DataLoader, opened where it is not: for its figures, its last step, and `request_stop`."""
        return self._opened()

    # --- data checkpoints: `checkpoint.writer.Checkpointed` -----------------------------------------------

    def leaves(self) -> Mapping[str, bytes] | None:
        """As `DataLoader.leaves`, of the step that was delivered last; also while another iterator is read.

        Raises:
            CheckpointError: nothing was delivered here yet.
        """
        if self._known is None or self._known[0] != self._position.step:
            raise CheckpointError(
                f"there is no whole state before step {self._position.step} yet: it is known when a step was "
                "delivered, or a data checkpoint restored. get_state() says the position at any time"
            )
        return self._known[1]

    def pin_blocks(self) -> None:
        """As `DataLoader.pin_blocks`."""
        if self._loader is not None:
            self._loader.pin_blocks()

    def save_blocks(self, folder: Path, step: int) -> Mapping[str, Any] | None:
        """As `DataLoader.save_blocks`."""
        return None if self._loader is None else self._loader.save_blocks(folder, step)

    def restore(
        self, state: DataState, *, accept_changes: bool = False, blocks: Path | None = None
    ) -> list[str]:
        """Go on from a whole state, at any time, on every training process alike.

        Returns and raises what `DataLoader.restore` does.
        """
        self._assert_not_closed()
        self.let_go()
        self._turns.take(self)
        mark = Bookmark(state=state, accept_changes=accept_changes, blocks=blocks)
        position = replace(self._position, step=0, plan_digest=NO_DIGEST)
        loader = self._open(position, None)
        try:
            sentences = mark.restore(loader)
        except BaseException:
            self._turns.close(loader)
            raise
        self._set_loader(loader)
        self._bookmark = mark
        self._position = replace(position, step=state.step)
        self._known = state.step, loader.leaves()
        return sentences

    async def save(self, directory: Any) -> Awaitable[None]:
        """Save for orbax v1: the position, and the whole state where it is known, by the first process alone.

        The files are of no number of processes.
        """
        position = json.dumps(self.get_state())
        write: Callable[[], None] | None = None
        with contextlib.suppress(CheckpointError):
            write = self._saver.freeze(os.fspath(directory.path), self, None)

        async def finish() -> None:
            made = local_path(os.fspath(await directory.await_creation()))
            if _is_first_process():
                await asyncio.to_thread((made / POSITION_FILE).write_text, position)
            if write is not None:
                await asyncio.to_thread(write)

        return finish()

    async def load(self, directory: "epath.Path") -> Awaitable[None]:
        """Go where `save` was, on any number of processes; from the whole state where there is one.

        Raises:
            CheckpointError: nothing of ours was saved there.
        """
        folder = local_path(os.fspath(directory))
        if not (folder / POSITION_FILE).is_file():
            raise CheckpointError(
                f"{folder} holds no {POSITION_FILE}: it was not saved by an MSDataset's iterator. Restore "
                "what DataSave wrote with DataRestore(iterator), and what grain wrote with its "
                "CheckpointRestore"
            )
        state = json.loads((folder / POSITION_FILE).read_text())
        self.set_state(state)
        if (folder / FILE_NAME).is_file():
            self._saver.restore(os.fspath(directory), self, accept_changes=False)
            self._position = Position.from_state(state)

        async def done() -> None:
            pass

        return done()

    # --- the end ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close; from any thread. Returns within a second, also while another thread waits for a step.

        That read ends with ValueError. What takes longer to close, such as a source that hangs or another
        training process that reads on, goes on in the background.

        Raises:
            MSDataError: the DataLoader was closed within that time and says that this went wrong.
        """
        if self._closed:
            return
        self._closed = True
        self.let_go()
        self._turns.wait(CLOSE_SECONDS)

    def let_go(self) -> None:
        """Close the DataLoader, at once and without waiting; the next read opens another one."""
        with self._lock:  # until it is known to be closing: whoever takes the turn waits for that
            loader, self._loader = self._loader, None
            if loader is not None and loader is not self._ended:
                self._turns.close(loader)

    def __del__(self) -> None:
        """Leave nothing open, and say nothing."""
        if "_lock" in self.__dict__ and not sys.is_finalizing():
            self._closed = True
            self.let_go()

    def __str__(self) -> str:
        return f"MSDatasetIterator(step={self._position.step})"


def _called_back_by_prefetch() -> Callable[[], bool]:
    """Whether grain's ThreadPrefetch wants the thread that reads back: it waits for that one, then closes us.

    grain hands its thread an event by the name of `should_stop` for that. Where it does not, nobody is called
    back, and grain waits for the step.
    """
    target = getattr(threading.current_thread(), "_target", None)
    event = (getattr(target, "keywords", None) or {}).get("should_stop")
    return event.is_set if isinstance(event, threading.Event) else lambda: False


def _is_first_process() -> bool:
    job = current_job()
    return job is None or job.process_index == 0


_iterators: "weakref.WeakSet[MSDatasetIterator]" = weakref.WeakSet()
_all_turns: "weakref.WeakSet[Turns]" = weakref.WeakSet()


def _close_at_exit(iterator: MSDatasetIterator, turns: Turns) -> None:
    """Loops that never close their iterator leave the job in order all the same."""
    if not _all_turns:  # behind `initialize`, whose own part at exit then comes later
        run_first_at_exit(_close_all)
    _iterators.add(iterator)
    _all_turns.add(turns)


def _close_all() -> None:
    try:
        with contextlib.suppress(JobFailed):  # whoever read has heard of it
            for iterator in list(_iterators):
                iterator.close()
            for turns in list(_all_turns):
                turns.wait()
    finally:
        wait_for_closings()
