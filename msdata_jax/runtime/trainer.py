"""The training process's side: a thread that runs the data constructor, and the steps it hands over."""

import contextlib
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msdata_transport import Endpoint

from msdata_jax.errors import JobFailed, MSDataError
from msdata_jax.roles import messages as m
from msdata_jax.roles.data_constructor import DataConstructor
from msdata_jax.roles.effects import Deliver, EndStream, Saved, Show
from msdata_jax.runtime.ending import end_badly
from msdata_jax.runtime.loop import FAILURE_SECONDS, RoleLoop
from msdata_jax.runtime.observing import NoObserver

STOP_SECONDS = 0.1
"""How often a trainer that waits for a step looks whether it was told not to."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step as the trainer gets it.

    Attributes:
        expect: its plan, cut to this process.
        batch: the arrays.
        states: what changed in the state to go on with; on the first training process alone.
    """

    expect: m.Expect
    batch: Mapping[str, Any]
    states: Sequence[m.StateAfter]


class TrainerSide:
    """Runs a `DataConstructor` on a thread of its own.

    Args:
        role: the constructor.
        endpoint: owned by that thread from now on.
        emit: turns the rows of a step into the batch that the trainer gets, on that thread, ahead of its use.
        session: number of this session in a job of several ranks, which may hold another one after it. None
            for a process that is alone. In a job the whole process ends some seconds after a rank failed, for
            a trainer may be stuck in a collective with a rank that is gone; and what fails on that thread
            itself is shown.
        observer: told what the constructor does.
    """

    def __init__(
        self,
        role: DataConstructor,
        endpoint: Endpoint,
        emit: Callable[[Mapping[str, np.ndarray]], Mapping[str, Any]],
        *,
        session: int | None,
        observer: NoObserver | None = None,
    ) -> None:
        self._observer = observer or NoObserver()
        self._emit, self._in_job = emit, session is not None
        self._steps: queue.SimpleQueue[Step | EndStream] = queue.SimpleQueue()
        self._blocks_saved: queue.SimpleQueue[Saved] = queue.SimpleQueue()
        self._ready: deque[Step] = deque()  # complete here, maybe not everywhere
        self._loop = RoleLoop(
            role,
            endpoint,
            session=session or 0,
            on_deliver=self._deliver,
            on_show=self._let_have,
            on_saved=self._blocks_saved.put,
            on_end=self._steps.put,
            on_failure=self._show,
            observer=self._observer,
        )
        self._begun = False
        self._ended: EndStream | None = None
        self._failure: JobFailed | None = None
        self._closed = False
        self.stopped = False
        self.figures: Mapping[str, Any] = {}
        self._thread = threading.Thread(target=self._run, name="msdata-constructor", daemon=True)
        self._thread.start()

    def begin(self, join: m.Join) -> None:
        """Join the job: steps are made ready from now on. Only the first call counts."""
        if not self._begun:
            self._begun = True
            self._loop.post(join)

    @property
    def has_begun(self) -> bool:
        """Whether `begin` was called."""
        return self._begun

    def next_step(self, timeout_seconds: float, stop: Callable[[], bool] | None = None) -> Step | None:
        """The next step, and word to the planner that it was taken.

        None where `stop` became true while there was no step yet; it is asked every `STOP_SECONDS`.

        Raises:
            StopIteration: the data ended.
            BadSampleError: the data failed at this step, on every training process.
            JobFailed: a rank failed.
            MSDataError: no step came in time, or the loader is closed.
        """
        if self._ended is None:
            if self._closed:
                raise MSDataError("the DataLoader is closed; build a new one to read on")
            begin = time.monotonic()
            try:
                item = self._wait_for_step(timeout_seconds, stop)
            except queue.Empty:
                raise MSDataError(
                    f"no step came within {timeout_seconds:g} s; a loader is slow or stuck, or another "
                    "training process takes no steps: raise DataLoader(step_seconds=...) where that is normal"
                ) from None
            if item is None:
                return None
            if isinstance(item, Step):
                waited = time.monotonic() - begin
                self._loop.post(m.Delivered(step=item.expect.step, wait_seconds=waited))
                return item
            self._ended, self.stopped = item, item.stopped
        if self._ended.error is not None:
            raise self._ended.error
        raise StopIteration

    def _wait_for_step(
        self, timeout_seconds: float, stop: Callable[[], bool] | None
    ) -> Step | EndStream | None:
        """What comes next; None where `stop` says so. Raises `queue.Empty` when the time is up."""
        left = timeout_seconds
        while stop is not None and not stop() and left > STOP_SECONDS:
            with contextlib.suppress(queue.Empty):
                return self._steps.get(timeout=STOP_SECONDS)
            left -= STOP_SECONDS
        return None if stop is not None and stop() else self._steps.get(timeout=left)

    def ask_to_stop(self) -> None:
        """Let the data end soon; on any thread, and in a handler of a signal."""
        self._loop.post(m.AskToStop(), soon=False)

    def pin_blocks(self, step: int) -> None:
        """Let the loaders hold the blocks that a checkpoint of the state before `step` keeps."""
        self._loop.post(m.PinBlocks(step=step))

    def save_blocks(self, step: int, folder: str, timeout_seconds: float) -> m.BlocksSaved:
        """Let the loaders write what they hold; on any thread, one call at a time.

        A failure is told, not raised: a checkpoint is whole without them.
        """
        self._loop.post(m.SaveBlocks(step=step, folder=folder))
        deadline = time.monotonic() + timeout_seconds
        while (left := deadline - time.monotonic()) > 0 and self._thread.is_alive():
            try:
                saved = self._blocks_saved.get(timeout=min(left, 1.0)).message
            except queue.Empty:
                continue
            if saved.folder == folder:
                return saved
        error = "the loaders did not answer in time"
        if not self._thread.is_alive():
            error = "the DataLoader was closed before the loaders had written them: wait for the save first"
        return m.BlocksSaved(folder=folder, num_blocks=0, num_bytes=0, error=error)

    def fail(self, message: str) -> None:
        """Tell the job that the trainer cannot go on, and wait until it heard."""
        if not self._closed and self._thread.is_alive():
            self._closed = True
            self._loop.post(m.Failed(message=message))
            self._thread.join(FAILURE_SECONDS)

    def close(self, timeout_seconds: float) -> None:
        """Leave the job: say so, wait for everybody's figures.

        Raises:
            JobFailed: a rank failed, and no call of `next_step` has said so.
            MSDataError: another training process did not leave in time.
        """
        if self._closed and not self._thread.is_alive():
            return
        self.leave()
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            raise MSDataError(
                f"closed here, but after {timeout_seconds:g} s another training process has not closed its "
                "DataLoader: close it on all after the same step, or raise DataLoader(step_seconds=...)"
            )
        if self._failure is not None and (self._ended is None or self._ended.error is None):
            raise self._failure

    def leave(self) -> None:
        """Leave the job, without waiting for anybody."""
        if not self._closed:
            self._closed = True
            self._loop.post(m.Leave(again=self._in_job))

    def _run(self) -> None:
        try:
            self.figures = self._loop.run()
        except JobFailed as failed:
            self._failure = failed
            self._steps.put(EndStream(error=failed))
            if self._in_job:
                self._exit_later()
        finally:
            self._observer.close()

    def _show(self, failed: JobFailed) -> None:
        """Show a failure of this thread; one of the trainer was shown by whoever called `fail`."""
        if self._in_job and not self._closed:
            print(f"msdata: rank {failed.rank} failed:\n{failed.message}", file=sys.stderr, flush=True)  # noqa: T201

    def _deliver(self, delivered: Deliver) -> None:
        batch = self._emit(delivered.fields)
        self._ready.append(Step(expect=delivered.expect, batch=batch, states=delivered.states))

    def _let_have(self, show: Show) -> None:
        while self._ready and self._ready[0].expect.step <= show.step:
            self._steps.put(self._ready.popleft())

    def _exit_later(self) -> None:
        timer = threading.Timer(FAILURE_SECONDS, end_badly)
        timer.daemon = True
        timer.start()
