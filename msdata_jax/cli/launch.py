"""`msdata launch`: a whole job on this machine."""

import ctypes
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import click
from msdata_transport import RunFolder, find_mpiexec
from msdata_transport.launch import is_hydra
from msdata_transport.run_folder import VARIABLE as RUN_FOLDER_VARIABLE

from msdata_jax.cli import options
from msdata_jax.cli.checks import PROCESSES, SHARED_MEMORY, folders_of_processes, unmapped_segments
from msdata_jax.cli.recipes import load_recipe
from msdata_jax.errors import LaunchError
from msdata_jax.lineage.plan_log import check_new
from msdata_jax.runtime.job import ROLE_VARIABLE

PR_SET_PDEATHSIG = 1
STOP_SECONDS = 5.0
"""How long ranks may take to end after an interrupt before they are killed."""
LOOK_AGAIN_SECONDS = 0.5
GONE_SECONDS = 2.0
"""How long ranks may take to be gone once mpiexec has ended."""


@click.command("launch", context_settings={"ignore_unknown_options": True})
@click.option("--loaders", default=2, show_default=True, type=click.IntRange(1), help="Source loader ranks.")
@click.option("--trainers", default=1, show_default=True, type=click.IntRange(1), help="Training processes.")
@click.option("--shadows", default=0, show_default=True, type=click.IntRange(0), help="Spare loader ranks.")
@options.threads
@options.start_seconds
@options.heartbeat_seconds
@options.read_seconds
@options.plan_log
@click.option("--dry-run", is_flag=True, help="Print the mpiexec command and stop.")
@click.argument("recipe", type=click.Path(path_type=Path))
@click.argument("train", nargs=-1, required=True, type=click.UNPROCESSED)
def command(  # noqa: PLR0917 - click calls it by name
    loaders: int,
    trainers: int,
    shadows: int,
    threads: int,
    start_seconds: float,
    heartbeat_seconds: float,
    read_seconds: float,
    plan_log: Path | None,
    dry_run: bool,
    recipe: Path,
    train: tuple[str, ...],
) -> int:
    """Start a job on this machine: one planner, LOADERS loaders and TRAINERS training processes.

    A loader that dies or hangs is replaced, by one of SHADOWS spare ranks first; the job goes on. When a
    training process or the planner fails, the job ends.

    RECIPE is a Python file that defines `recipe`; TRAIN is the training script and its arguments, behind
    `--`. The script calls msd.initialize() first.

    \b
    msdata launch --loaders 3 --trainers 2 recipe.py -- train.py --steps 100
    """
    data_options = ["--threads", str(threads), "--start-seconds", f"{start_seconds:g}"]
    data_options += ["--heartbeat-seconds", f"{heartbeat_seconds:g}", "--read-seconds", f"{read_seconds:g}"]
    if plan_log is not None:
        data_options += ["--plan-log", str(plan_log)]
    line = command_line(
        loaders=loaders,
        trainers=trainers,
        shadows=shadows,
        guarded=can_guard(),
        data_options=data_options,
        recipe=recipe,
        train=train,
    )
    if dry_run:
        click.echo(shlex.join(line))
        return 0
    # What is wrong fails here, once, before any rank starts.
    load_recipe(recipe)
    _check_script(Path(train[0]))
    if plan_log is not None:
        check_new(plan_log)
    return run_until_done(line)


def _check_script(path: Path) -> None:
    """Raise LaunchError where there is no such script, or it is no Python: no rank of it would ever join."""
    if not path.is_file():
        raise LaunchError(f"the training script {path} does not exist")
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(path.read_bytes(), str(path), "exec")
    except (SyntaxError, ValueError) as error:
        text = "".join(traceback.format_exception_only(error)).rstrip()
        raise LaunchError(f"the training script {path} is no Python:\n{text}") from error


def can_guard() -> bool:
    """Whether ranks can have guards here: they are made for MPICH's mpiexec on Linux."""
    mpiexec = find_mpiexec()
    return sys.platform == "linux" and mpiexec is not None and is_hydra(mpiexec)


def command_line(
    *,
    loaders: int,
    trainers: int,
    shadows: int = 0,
    guarded: bool = False,
    data_options: Sequence[str] = (),
    recipe: Path,
    train: Sequence[str],
) -> list[str]:
    """The mpiexec command of a job (MPMD: data ranks beside the training script).

    With `guarded` each rank has a guard (`msdata_transport.guard`), and the death of a loader does not end
    the job; such a command needs a run folder, so start it by `run_until_done`. Without, mpiexec ends all
    ranks when one fails.

    Raises:
        LaunchError: there is no mpiexec.
    """
    mpiexec = find_mpiexec()
    if mpiexec is None:
        raise LaunchError(
            "no mpiexec beside this Python or on PATH; `pip install 'msdata-jax[mpi]'` brings one"
        )
    guard = [sys.executable, "-m", "msdata_transport.guard"]
    expendable, vital = ([*guard, "--"], [*guard, "--vital", "--"]) if guarded else ([], [])
    data = [sys.executable, "-m", "msdata_jax", "serve", *data_options, "--role"]
    spare = [":", "-n", str(shadows), *expendable, *data, "shadow", str(recipe)]
    training = [*vital, "env", f"{ROLE_VARIABLE}=constructor", sys.executable, *train]
    return [
        mpiexec,
        *(["-disable-auto-cleanup"] if guarded else []),
        *("-n", "1", *vital, *data, "planner", str(recipe)),
        *(":", "-n", str(loaders), *expendable, *data, "loader", str(recipe)),
        *(spare if shadows else []),
        *(":", "-n", str(trainers), *training),
    ]


def run_until_done(line: list[str]) -> int:
    """Run mpiexec with a run folder; on an interrupt, SIGTERM or SIGHUP end all ranks. Gives the exit status.

    A job went well when the planner says so and no rank failed that it needs. mpiexec's status says neither:
    it is 0 where a rank ended badly in some ways, and another where a loader was lost in some.

    Raises:
        LaunchError: there is no room for a run folder.
    """
    before = set(unmapped_segments())
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(RunFolder.temporary())
        except OSError as error:
            raise LaunchError(
                f"no folder for the job can be made: {error}; set TMPDIR to one with room"
            ) from error
        received, status = _run(line, folder)
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
        return 128 + received
    for text in lost:
        click.echo(f"msdata: {text}", err=True)
    if not went_well:
        click.echo("msdata: the job failed; the message of the rank that failed first is above", err=True)
    return 0 if went_well else 1


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


def _run(line: list[str], folder: RunFolder) -> tuple[int, int]:
    """Run mpiexec; returns the signal that ended it (0 for none) and its exit status."""
    environment = {name: value for name, value in os.environ.items() if name != ROLE_VARIABLE}
    environment[RUN_FOLDER_VARIABLE] = folder.path
    environment.setdefault("PYTHONUNBUFFERED", "1")
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def die_with_parent() -> None:
        """In the child: get SIGTERM when this launcher dies, so that no rank outlives it."""
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    # A session of its own: the terminal's Ctrl-C reaches this process alone, which ends the ranks in order.
    with subprocess.Popen(
        line,
        env=environment,
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - it makes one system call
    ) as process:
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
        try:
            process.wait()
        finally:
            killer.cancel()
            for number, handler in previous.items():
                signal.signal(number, handler)
    return (received[0] if received else 0), process.returncode


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
