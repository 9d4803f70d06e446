# pyright: strict
"""`python -m msdata_transport.guard [--vital] -- command ...`: runs one rank as its child.

MPICH's launcher cannot tell a rank that a job needs from one that it can do without. So no rank is its child:
a guard is, and decides what the launcher gets to see.

- The guard of a *vital* rank ends the whole job when its rank dies by a signal or ends with another status
  than 0, or when the guard of another vital rank dies; otherwise it ends as its rank did.
- The guard of an *expendable* rank does the same until the job has formed. After that it reports the death to
  the planner and stays until the job is over, so that the launcher sees nothing.

The rank inherits everything, the launcher's connection among it, and is killed with its guard. SIGTERM and
SIGINT are passed on. By SIGUSR2 a vital rank says that it failed, and is ended with the job, so that nobody
sees it go first (`report_failure`). SIGUSR1, by which MPICH's launcher tells of deaths, is ignored by both.
`run_folder` says what a guard hears and tells. Imports little, for there is one guard a rank.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from msdata_transport.launch import GUARD_VARIABLE, rank_from_environment
from msdata_transport.run_folder import RunFolder, receive_event

if TYPE_CHECKING:
    from msdata_transport.kept_sockets import SocketKeeper

LOOK_SECONDS = 1.0
"""How often a guard looks whether its launcher is still there."""
GO_SECONDS = 5.0
"""How long a rank may take to end once the job is over."""
PRINT_SECONDS = 0.3
"""What other ranks that fail at the same time get to print their messages."""
FAILED_SIGNAL = signal.SIGUSR2
"""By which a rank tells its guard that it failed."""
ABORT_SECONDS = 2.0
"""How long the launcher may take to end the job."""

_PR_SET_PDEATHSIG = 1
_NOT_STARTED = 127


class Guard:
    """Runs one command and watches it.

    Args:
        command: the program and its arguments.
        vital: whether the job cannot do without it.
        rank: of the program, where a launcher gave it one.
        folder: the job's run folder, where it has one.
    """

    def __init__(
        self, command: Sequence[str], *, vital: bool, rank: int | None, folder: RunFolder | None
    ) -> None:
        self._command = command
        self._vital = vital
        self._rank = rank
        self._folder = folder
        self._launcher = os.getppid()
        self._child = 0  # its process id while it lives
        self._told_to_end = 0  # the signal
        self._done = False
        self._rank_failed = False
        self._keeper: SocketKeeper | None = None
        listens = not vital and folder is not None and rank is not None
        self._socket = folder.listen_as_guard(rank) if listens and folder and rank is not None else None
        self._wake, signalled = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(signalled, False)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)

    def run(self) -> int:
        """Start the command and stay until it may end; returns the exit status for this process."""
        self._start()
        code = self._watch()
        if code == 0 and self._left_early:
            self._say(
                "ended with status 0 before it joined the job; a training script calls initialize() first"
            )
            self._release()
            self._end_job(1, self._rank, "ended before it joined the job")
        if code == 0 or self._done:
            self._release()
            self._report_end()
            return code if self._vital else 0
        how = describe_exit(code)
        if self._vital or (self._folder is not None and not self._folder.is_formed):
            if code < 0 and not self._is_ending():  # with a status it has shown its own message
                self._say(f"failed: {how}")
            self._release()
            self._end_job(code if code > 0 else 128 - code, self._rank, how)
        told = (
            self._folder is not None and self._rank is not None and self._folder.report_death(self._rank, how)
        )
        if not told and not self._is_ending():  # else the planner says so
            self._say(f"is lost: {how}")
        self._linger()
        return 128 + self._told_to_end if self._told_to_end else 0

    @property
    def _left_early(self) -> bool:
        """Whether the job cannot form any more, since it waits for this rank."""
        return self._vital and self._folder is not None and not self._folder.is_formed

    def _report_end(self) -> None:
        """Tell the planner of a vital rank that ended well: it may not have said so itself."""
        if self._vital and not self._done and self._folder is not None and self._rank is not None:
            self._folder.report_death(self._rank, "ended with status 0", timeout_seconds=0.0)

    def _start(self) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, _nothing)  # it only has to wake this guard
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)
        signal.signal(FAILED_SIGNAL, self._take_failure)
        guard = os.getpid()
        child = os.fork()
        if child == 0:
            _become(self._command, guard)
        self._child = child
        if self._vital and self._folder is not None and self._rank is not None:
            self._folder.hold_vital(self._rank)
        if self._told_to_end:
            self._pass_on(self._told_to_end, None)

    def _pass_on(self, number: int, _frame: object) -> None:
        self._told_to_end = number
        if self._child:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self._child, number)

    def _take_failure(self, _number: int, _frame: object) -> None:
        self._rank_failed = True

    def _watch(self) -> int:
        """Wait until the child has ended; returns its exit status, negative for a signal."""
        patience = float("inf")
        while True:
            ended, status = os.waitpid(self._child, os.WNOHANG)
            if ended:
                self._child = 0
                return os.waitstatus_to_exitcode(status)
            if self._is_orphan() or time.monotonic() >= patience:
                os.kill(self._child, signal.SIGKILL)
            event = self._look()
            if self._rank_failed and self._vital:
                self._end_job(1, self._rank, "failed")
            self._keep_sockets()
            self._check_others()
            if event == "kill":
                os.kill(self._child, signal.SIGKILL)
            elif event == "done" and not self._done:
                self._done = True
                patience = time.monotonic() + GO_SECONDS

    def _keep_sockets(self) -> None:
        """Where ranks on other hosts can do without this one, see that its death resets no connection."""
        if self._vital or self._folder is None or not self._folder.is_shared:
            return
        if self._keeper is None:
            from msdata_transport.kept_sockets import SocketKeeper

            self._keeper = SocketKeeper(self._child)
        self._keeper.look()

    def _linger(self) -> None:
        """Stay until the job is over."""
        is_over = False
        while not (self._done or self._told_to_end or self._is_orphan() or is_over):
            self._done = self._look() == "done"
            is_over = self._folder is not None and self._folder.is_over

    def _look(self) -> object:
        """Sleep until something happens, at most `LOOK_SECONDS`; what the planner says, if anything."""
        select.select([self._wake, *([self._socket] if self._socket else [])], [], [], LOOK_SECONDS)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)
        event = receive_event(self._socket) if self._socket else None
        if event is None and not self._vital and self._folder is not None and self._rank is not None:
            return self._folder.told(self._rank)
        return event.get("event") if event else None

    def _is_ending(self) -> bool:
        """Whether this guard was told to end, or is left without launcher: its rank's death is no news."""
        return bool(self._told_to_end) or self._is_orphan()

    def _is_orphan(self) -> bool:
        return os.getppid() != self._launcher

    def _say(self, what: str) -> None:
        who = "a rank" if self._rank is None else f"rank {self._rank}"
        with contextlib.suppress(OSError):  # one write, so that lines of several guards do not mix
            os.write(2, f"msdata: {who} {what}\n".encode())

    def _release(self) -> None:
        if self._vital and self._folder is not None and self._rank is not None:
            self._folder.release_vital(self._rank)

    def _check_others(self) -> None:
        """End the job when another vital rank died with its guard: nobody else may notice."""
        unguarded = self._folder.find_unguarded() if self._vital and self._folder is not None else None
        if unguarded is not None:
            self._say(f"ends the job: the guard of rank {unguarded} is gone")
            self._end_job(1, unguarded, "its guard was killed")

    def _end_job(self, status: int, rank: int | None, how: str) -> NoReturn:
        """End all ranks through the launcher; where that is not MPICH's, by ending with this status."""
        if self._folder is not None:
            self._folder.report_failure(rank, how)
        time.sleep(PRINT_SECONDS)
        if os.environ.get("PMI_FD", "").isdecimal():
            # What MPI_Abort sends; the rank writes here only while it starts MPI.
            with contextlib.suppress(OSError):
                os.write(int(os.environ["PMI_FD"]), f"cmd=abort exitcode={status}\n".encode())
            time.sleep(ABORT_SECONDS)  # the launcher kills this guard meanwhile
            _abort()
        os._exit(status)


def report_failure(seconds: float) -> None:
    """On a vital rank that failed: let the guard end the job while this process still lives.

    Whoever others depend on, such as the coordinator of their framework, must not go before them. Returns at
    once where there is no guard, and after so many seconds where the job does not end.
    """
    guard = os.environ.get(GUARD_VARIABLE, "")
    if guard.isdecimal() and int(guard) == os.getppid():
        os.kill(int(guard), FAILED_SIGNAL)
        time.sleep(seconds)


def describe_exit(code: int) -> str:
    """How a process ended, in words; a negative status is a signal."""
    return f"killed by signal {-code}" if code < 0 else f"ended with status {code}"


def _become(command: Sequence[str], guard: int) -> NoReturn:
    """In the child: become the rank."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    try:
        _die_with_parent()
        if os.getppid() != guard:  # it died before it could be told
            os._exit(_NOT_STARTED)
        os.environ[GUARD_VARIABLE] = str(guard)
        os.execvp(command[0], list(command))
    except OSError as error:
        os.write(2, f"msdata: {command[0]} cannot be started: {error}\n".encode())
    os._exit(_NOT_STARTED)


def _die_with_parent() -> None:
    """Be killed when the guard ends, whatever ends it."""
    if sys.platform == "linux":
        import ctypes  # only the child loads it, and loses it again in exec

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _abort() -> NoReturn:
    """Die by SIGABRT, without a core file: after it MPICH's launcher ends the job too."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()


def _nothing(_number: int, _frame: object) -> None:
    pass


def main(arguments: Sequence[str]) -> int:
    """Run the guard; returns its exit status."""
    vital = arguments[:1] == ["--vital"]
    rest = arguments[1:] if vital else arguments
    command = rest[1:] if rest[:1] == ["--"] else rest
    if not command or command[0].startswith("-"):
        print("usage: python -m msdata_transport.guard [--vital] -- command ...", file=sys.stderr)  # noqa: T201
        return 2
    guard = Guard(command, vital=vital, rank=rank_from_environment(), folder=RunFolder.from_environment())
    return guard.run()


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
