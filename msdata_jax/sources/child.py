"""One forked child process, and the way to ask it something and to learn of its death."""

import contextlib
import fcntl
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import numpy as np

from msdata_jax.records import Block
from msdata_jax.sources.forking import fork
from msdata_jax.sources.frames import BrokenFrame, pack, receive_block, receive_header
from msdata_jax.sources.watch import Board, Phase

_PIPE_BYTES = 1 << 20
_LOOK_SECONDS = 0.1

Limit = Callable[[Board], float]
"""How many seconds what the board shows may take."""

Main = Callable[[Board, int, int], NoReturn]
"""What a child does, with its board, the descriptor of its requests and that of its replies."""


class ChildDied(Exception):
    """A child process died, or was killed because it took too long.

    Attributes:
        how: "crashed: signal 11 (SIGSEGV)", "took over 2 s", ...
        phase: what it was doing.
        position: at which position, the first of several where `num_positions` were read in one go.
        num_positions: how many.
    """

    def __init__(self, how: str, board: Board) -> None:
        super().__init__(how)
        self.how = how
        self.phase = board.phase
        self.position = board.position
        self.num_positions = board.num_positions


class Child:
    """A child process. One thread at a time asks; any thread may kill it.

    Args:
        main: what the child does.
        reopen_files: as in `fork`.

    Raises:
        OSError: the system starts no process.
    """

    def __init__(self, main: Main, *, reopen_files: bool) -> None:
        self._board = Board()
        self._lock = threading.Lock()
        self._status: int | None = None
        self._is_reaped = False
        self._owner = os.getpid()
        self._heard = time.monotonic()
        self.num_open_files = 0
        self.num_retries = 0
        requests, self._requests = os.pipe()
        self._replies, replies = os.pipe()
        self._pidfd = -1
        try:
            with contextlib.suppress(OSError, AttributeError):  # fewer switches between the two
                fcntl.fcntl(replies, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            call = partial(main, self._board, requests, replies)
            self.pid = fork(call, (requests, replies), reopen_files=reopen_files)
        except OSError:
            self.release()
            raise
        finally:
            os.close(requests)
            os.close(replies)
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:  # it has ended and was reaped; its number may be another one's by now
            self._is_reaped = True
        except (OSError, AttributeError):  # without, the end of the pipe tells
            pass

    @property
    def is_alive(self) -> bool:
        """Whether it runs, as far as can be told at once."""
        return not self._is_reaped and not self._ready(0)

    def ask(self, request: list[Any]) -> None:
        """Send a request; `receive` gets the reply.

        Raises:
            ChildDied: it died.
        """
        packed = pack(request)
        self._heard = time.monotonic()
        view = memoryview(len(packed).to_bytes(4, "little") + packed)
        try:
            while view:
                view = view[os.write(self._requests, view) :]
        except BrokenPipeError:
            raise self._death() from None

    def receive(self, dtype: np.dtype, limit: Limit | None) -> dict[str, Any]:
        """The reply: its header, where it has a block with the block under `block`.

        Args:
            dtype: of the infos of a block.
            limit: how long each thing that the child does may take; None for ever.

        Raises:
            ChildDied: it died, took too long, or sent what is no reply.
        """
        receive = partial(self._receive_into, limit)
        try:
            header, num_bytes = receive_header(receive)
            block: Block | None = None
            if "range" in header:
                block = receive_block(header, num_bytes, dtype, receive)
        except BrokenFrame as error:
            raise self._death(f"sent no reply ({error})") from error
        self.num_open_files = header.get("num_open_files", 0)
        self.num_retries = header.get("num_retries", 0)
        return {**header, "block": block}

    def kill(self) -> None:
        """End it and reap it."""
        with self._lock:
            if self._is_reaped or os.getpid() != self._owner:
                return
            with contextlib.suppress(ProcessLookupError):
                if self._pidfd >= 0:  # its number may be another process's, where SIGCHLD is ignored
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                else:
                    os.kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):  # somebody else has reaped it
                self._status = os.waitpid(self.pid, 0)[1]
            self._is_reaped = True

    def release(self) -> None:
        """Close the pipes; only when no thread asks."""
        for name in ("_requests", "_replies", "_pidfd"):
            descriptor = getattr(self, name)
            setattr(self, name, -1)
            if descriptor >= 0:
                os.close(descriptor)

    def _receive_into(self, limit: Limit | None, view: memoryview) -> None:
        while view:
            self._wait(limit)
            num_bytes = os.readv(self._replies, [view])
            if not num_bytes:
                raise self._death()
            self._heard = time.monotonic()
            view = view[num_bytes:]

    def _wait(self, limit: Limit | None) -> None:
        """Until there is something to read."""
        while True:
            seconds = None
            if limit is not None:
                begin = max(self._board.since, self._heard)
                left = begin + limit(self._board) - time.monotonic()
                if left <= 0:
                    raise self._death(f"took over {limit(self._board):g} s")
                seconds = min(left, _LOOK_SECONDS)
            ready = self._ready(seconds)
            if self._replies in ready:
                return
            if ready:
                raise self._death()

    def _ready(self, seconds: float | None) -> list[int]:
        """Those of its descriptors that have something to say."""
        poll = select.poll()
        for descriptor in (self._replies, self._pidfd):
            if descriptor >= 0:
                poll.register(descriptor, select.POLLIN)
        milliseconds = None if seconds is None else int(1000 * seconds) + 1
        return [descriptor for descriptor, _ in poll.poll(milliseconds)]

    def _death(self, how: str | None = None) -> ChildDied:
        self.kill()
        if self._board.is_out_of_memory:
            how = "ran out of memory (MemoryError)"
        return ChildDied(how or _describe(self._status), self._board)


def blame(death: ChildDied) -> int | None:
    """The position of which a child died, where that is one."""
    is_one = death.phase in (Phase.READ, Phase.TRANSFORM) and death.num_positions == 1
    return death.position if is_one else None


def _describe(status: int | None) -> str:
    if status is None:
        return "ended, nothing tells how"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        known = number in signal.Signals.__members__.values()
        return f"crashed: signal {number} ({signal.Signals(number).name if known else 'no name'})"
    return f"ended its process with status {os.WEXITSTATUS(status)}"
