"""Runs a launcher's command until the job is over, and says how the job went."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
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
FAILED_SECONDS = 5.0
"""How long srun may take to end once a rank has failed that the job needs."""
NODES_SECONDS = 10.0
"""How often Slurm is asked for the nodes that a job still has."""
LATE_SECONDS = 60.0
LOOK_AGAIN_SECONDS = 0.5
GONE_SECONDS = 2.0
"""How long ranks may take to be gone once mpiexec has ended."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """What a job on several hosts needs beside.

    Attributes:
        parent: a folder that all of them see.
        name: begins the name of the run folder in it.
        lost_nodes: gives the nodes that are gone with ranks that the job needs.
    """

    parent: Path
    name: str
    lost_nodes: Callable[[], Sequence[str]]


def run_until_done(
    line: list[str],
    environ: Mapping[str, str] = os.environ,
    spread: Spread | None = None,
    showing: Showing = Showing(),  # noqa: B008 - frozen
    files: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Run mpiexec with a run folder; on an interrupt, SIGTERM or SIGHUP end all ranks. Gives the exit status.

    SIGUSR1 asks the job to end early, in order; the status is then 85.

    A job went well when the planner says so and no rank failed that it needs. mpiexec's status says neither:
    it is 0 where a rank ended badly in some ways, and another where a loader was lost in some.

    Args:
        line: the command of mpiexec or srun.
        environ: for it.
        spread: what a job on several hosts needs beside.
        showing: what to show of it.
        files: names and texts of files that the ranks find in the run folder.

    Raises:
        LaunchError: there is no room for a run folder.
    """
    before = set(unmapped_segments())
    with ExitStack() as stack:
        try:
            fresh = SharedRunFolder.fresh(spread.parent, spread.name) if spread else RunFolder.temporary()
            folder = stack.enter_context(fresh)
            for name, text in files.items():
                Path(folder.path, name).write_text(text)
        except OSError as error:
            way_out = (
                "say --run-folder with one that all nodes see" if spread else "set TMPDIR to one with room"
            )
            raise LaunchError(f"no folder for the job can be made: {error}; {way_out}") from error
        begin = time.monotonic()
        received, status = _run(line, folder, environ, showing.view(folder), spread)
        seconds, last = time.monotonic() - begin, folder.read_status()
        outcome, went_well = _judge(folder, status)
        _wait_until_gone(folder)
    lost = describe_lost(outcome)
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


def _judge(folder: RunFolder, status: int) -> tuple[dict[str, Any] | None, bool]:
    """The planner's word of how the job ended, and whether it ended well.

    A network file system may show what other hosts wrote some seconds late, so it is worth a wait where the
    ranks ended well and the planner's word is missing, or the job did and a rank seems to go on.
    """
    deadline = time.monotonic() + LATE_SECONDS
    while True:
        outcome = folder.read_outcome()
        if outcome is None and not folder.is_formed and not isinstance(folder, SharedRunFolder):
            outcome = {"ok": status == 0}  # the ranks never met
        is_ok = outcome is not None and outcome.get("ok") is True and not folder.failures()
        going_on = isinstance(folder, SharedRunFolder) and folder.num_vital != 0
        is_late = (
            going_on if is_ok else isinstance(folder, SharedRunFolder) and outcome is None and not status
        )
        if not is_late or time.monotonic() > deadline:
            return outcome, is_ok and not going_on and (bool(describe_lost(outcome)) or not status)
        time.sleep(LOOK_AGAIN_SECONDS)


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
    line: list[str],
    folder: RunFolder,
    environ: Mapping[str, str],
    view: StatusView | None,
    spread: Spread | None,
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
            is_overdue = _wait(process, folder, spread)
        finally:
            killer.cancel()
            for number, handler in previous.items():
                signal.signal(number, handler)
    return (received[0] if received else 0), 0 if is_overdue else process.returncode


def _wait(process: subprocess.Popen[bytes], folder: RunFolder, spread: Spread | None) -> bool:
    """Wait for the launcher; under srun end a step that would not end by itself.

    It would not where only ranks are left that the job did without, on a node that hangs; where a rank ended
    before it started MPI, which the others wait for; and where a node was lost with ranks that the job needs,
    until JAX notices. Returns whether it was the first.
    """
    overdue = next_look = time.monotonic()
    failed = float("inf")
    is_overdue = False
    while spread is not None and isinstance(folder, SharedRunFolder):
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
            return is_overdue
        now = time.monotonic()
        if not folder.is_over or folder.num_vital:
            overdue = now + OVERDUE_SECONDS
        elif now > overdue:
            is_overdue = True
            process.terminate()
        if folder.failures():
            failed = min(failed, now + FAILED_SECONDS)
        if now > failed:
            process.terminate()
        if now > next_look:
            next_look = now + NODES_SECONDS
            lost = spread.lost_nodes()
            if lost:
                click.echo(f"msdata: lost with ranks that the job needs: {', '.join(lost)}", err=True)
                process.terminate()
    process.wait()
    return is_overdue


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
