"""Runs a launcher's command until the job is over, and says how the job went."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

import click
from msdata_transport import RunFolder
from msdata_transport.run_folder import VARIABLE as RUN_FOLDER_VARIABLE
from msdata_transport.shared_folder import SharedRunFolder

from msdata_jax.cli.checks import PROCESSES, SHARED_MEMORY, folders_of_processes, unmapped_segments
from msdata_jax.cli.showing import Showing
from msdata_jax.cli.status_line import StatusView
from msdata_jax.errors import LaunchError
from msdata_jax.runtime.job import ROLE_VARIABLE

PR_SET_PDEATHSIG = 1
STOPPED_STATUS = 85
"""Exit status of a job that ended early because it was asked to: start it again, and it goes on."""
STOP_SECONDS = 5.0
"""How long ranks may take to end after an interrupt before they are killed."""
OVERDUE_SECONDS = 15.0
"""How long srun may take to end once the ranks that the job needs have ended; a hung node never does."""
LOOK_AGAIN_SECONDS = 0.5
GONE_SECONDS = 2.0
"""How long ranks may take to be gone once mpiexec has ended."""


def run_until_done(
    line: list[str],
    environ: Mapping[str, str] = os.environ,
    shared: tuple[Path, str] | None = None,
    showing: Showing = Showing(),  # noqa: B008 - frozen
) -> int:
    """Run mpiexec with a run folder; on an interrupt, SIGTERM or SIGHUP end all ranks. Gives the exit status.

    SIGUSR1 asks the job to end early, in order; the status is then 85.

    A job went well when the planner says so and no rank failed that it needs. mpiexec's status says neither:
    it is 0 where a rank ended badly in some ways, and another where a loader was lost in some.

    Args:
        line: the command of mpiexec or srun.
        environ: for it.
        shared: for ranks on several hosts, a folder that all of them see, and how the run folder in it is
            called.
        showing: what to show of it.

    Raises:
        LaunchError: there is no room for a run folder.
    """
    before = set(unmapped_segments())
    with ExitStack() as stack:
        try:
            fresh = SharedRunFolder.fresh(*shared) if shared else RunFolder.temporary()
            folder = stack.enter_context(fresh)
        except OSError as error:
            way_out = (
                "say --run-folder with one that all nodes see" if shared else "set TMPDIR to one with room"
            )
            raise LaunchError(f"no folder for the job can be made: {error}; {way_out}") from error
        begin = time.monotonic()
        received, status = _run(line, folder, environ, showing.view(folder))
        seconds, last = time.monotonic() - begin, folder.read_status()
        outcome = folder.read_outcome() if folder.is_formed else {"ok": status == 0}
        failures = folder.failures()
        _wait_until_gone(folder)
    lost = describe_lost(outcome)
    went_well = (
        outcome is not None and outcome.get("ok") is True and not failures and (bool(lost) or not status)
    )
    remove_new_segments(before)
    if received:
        with suppress(OSError):  # the terminal may be gone; nothing must stay in a buffer for its end
            os.write(2, b"msdata: interrupted; all ranks are stopped\n")
        if received != signal.SIGHUP:
            showing.tell_end(last, outcome, 128 + received, seconds)
        return 128 + received
    was_stopped = outcome is not None and outcome.get("stopped") is True
    exit_status = 1 if not went_well else STOPPED_STATUS if was_stopped else 0
    showing.tell_end(last, outcome, exit_status, seconds)
    for text in lost:
        click.echo(f"msdata: {text}", err=True)
    if not went_well:
        click.echo("msdata: the job failed; the first message above says why", err=True)
    return exit_status


def describe_lost(outcome: Mapping[str, Any] | None) -> list[str]:
    """The loaders and shadows that the job went on without, a line each, from the planner's outcome."""
    listed = outcome.get("lost") if outcome else None
    lost = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    lines: list[str] = []
    for role, what in (("loader", "lost and replaced"), ("shadow", "lost")):
        its = [each for each in lost if each.get("role", "loader") == role]
        ranks = ", ".join(f"rank {each.get('rank')} ({each.get('why')})" for each in its)
        if its:
            lines.append(f"{len(its)} {role}{'s were' if len(its) > 1 else ' was'} {what}: {ranks}")
    return lines


def _run(
    line: list[str], folder: RunFolder, environ: Mapping[str, str], view: StatusView | None
) -> tuple[int, int]:
    """Run mpiexec; returns the signal that ended it (0 for none) and its exit status."""
    environment = {name: value for name, value in environ.items() if name != ROLE_VARIABLE}
    environment[RUN_FOLDER_VARIABLE] = folder.path
    environment.setdefault("PYTHONUNBUFFERED", "1")
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def die_with_parent() -> None:
        """In the child: get SIGTERM when this launcher dies, so that no rank outlives it."""
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    # A session of its own: the terminal's Ctrl-C reaches this process alone, which ends the ranks in order.
    with (
        view or nullcontext({}) as streams,
        subprocess.Popen(
            line,
            env=environment,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - it makes one system call
            stdout=streams.get("stdout"),
            stderr=streams.get("stderr"),
        ) as process,
    ):
        if view is not None:
            view.start()
        killer = threading.Timer(STOP_SECONDS, os.killpg, (process.pid, signal.SIGKILL))
        received: list[int] = []

        def stop(signum: int, _frame: object) -> None:
            if not received:
                killer.start()
            received.append(signum)
            process.terminate()

        # Under nohup the job goes on when its terminal is closed.
        hangup = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
        numbers = (signal.SIGINT, signal.SIGTERM, *hangup)
        previous = {number: signal.signal(number, stop) for number in numbers}
        previous[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, lambda *_: folder.ask_to_stop())
        try:
            _wait(process, folder)
        finally:
            killer.cancel()
            for number, handler in previous.items():
                signal.signal(number, handler)
    return (received[0] if received else 0), process.returncode


def _wait(process: subprocess.Popen[bytes], folder: RunFolder) -> None:
    """Wait for the launcher; under srun end the step where only ranks are left that the job did without."""
    since = None
    while isinstance(folder, SharedRunFolder):
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
            return
        if not folder.is_over or folder.num_vital:
            since = None
        elif since is None:
            since = time.monotonic()
        elif time.monotonic() - since > OVERDUE_SECONDS:
            process.terminate()
    process.wait()


def _wait_until_gone(folder: RunFolder) -> None:
    """Wait for ranks that are just ending: they go with their guards, a moment after mpiexec."""
    deadline = time.monotonic() + GONE_SECONDS
    while Path(folder.path).name in folders_of_processes(PROCESSES) and time.monotonic() < deadline:
        time.sleep(0.02)


def remove_new_segments(
    before: Collection[Path], folder: Path = SHARED_MEMORY, processes: Path = PROCESSES
) -> None:
    """Remove the shared memory that killed ranks left: files that are not in `before` and that nobody maps.

    It looks twice, for another job that is just starting maps its file a moment after making it.
    """
    new = set(unmapped_segments(folder, processes)) - set(before)
    if new:
        time.sleep(LOOK_AGAIN_SECONDS)
    for path in new & set(unmapped_segments(folder, processes)):
        path.unlink(missing_ok=True)
