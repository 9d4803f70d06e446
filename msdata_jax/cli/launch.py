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
from collections.abc import Collection, Sequence
from pathlib import Path

import click
from msdata_transport import find_mpiexec

from msdata_jax.cli import options
from msdata_jax.cli.checks import PROCESSES, SHARED_MEMORY, unmapped_segments
from msdata_jax.cli.recipes import load_recipe
from msdata_jax.errors import LaunchError
from msdata_jax.lineage.plan_log import check_new
from msdata_jax.runtime.job import ROLE_VARIABLE

PR_SET_PDEATHSIG = 1
STOP_SECONDS = 5.0
"""How long ranks may take to end after an interrupt before they are killed."""
LOOK_AGAIN_SECONDS = 0.5


@click.command("launch", context_settings={"ignore_unknown_options": True})
@click.option("--loaders", default=2, show_default=True, type=click.IntRange(1), help="Source loader ranks.")
@click.option("--trainers", default=1, show_default=True, type=click.IntRange(1), help="Training processes.")
@options.threads
@options.start_seconds
@options.plan_log
@click.option("--dry-run", is_flag=True, help="Print the mpiexec command and stop.")
@click.argument("recipe", type=click.Path(path_type=Path))
@click.argument("train", nargs=-1, required=True, type=click.UNPROCESSED)
def command(  # noqa: PLR0917 - click calls it by name
    loaders: int,
    trainers: int,
    threads: int,
    start_seconds: float,
    plan_log: Path | None,
    dry_run: bool,
    recipe: Path,
    train: tuple[str, ...],
) -> int:
    """Start a job on this machine: one planner, LOADERS loaders and TRAINERS training processes.

    RECIPE is a Python file that defines `recipe`; TRAIN is the training script and its arguments, behind
    `--`. The script calls msd.initialize() first.

    \b
    msdata launch --loaders 3 --trainers 2 recipe.py -- train.py --steps 100
    """
    data_options = ["--threads", str(threads), "--start-seconds", f"{start_seconds:g}"]
    if plan_log is not None:
        data_options += ["--plan-log", str(plan_log)]
    line = command_line(
        loaders=loaders,
        trainers=trainers,
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


def command_line(
    *, loaders: int, trainers: int, data_options: Sequence[str] = (), recipe: Path, train: Sequence[str]
) -> list[str]:
    """The mpiexec command of a job (MPMD: data ranks beside the training script).

    Raises:
        LaunchError: there is no mpiexec.
    """
    mpiexec = find_mpiexec()
    if mpiexec is None:
        raise LaunchError(
            "no mpiexec beside this Python or on PATH; `pip install 'msdata-jax[mpi]'` brings one"
        )
    data = [sys.executable, "-m", "msdata_jax", "serve", *data_options, "--role"]
    return [
        mpiexec,
        *("-n", "1", *data, "planner", str(recipe)),
        *(":", "-n", str(loaders), *data, "loader", str(recipe)),
        *(":", "-n", str(trainers), "env", f"{ROLE_VARIABLE}=constructor", sys.executable, *train),
    ]


def run_until_done(line: list[str]) -> int:
    """Run mpiexec; on an interrupt or SIGTERM end all ranks. Returns the exit status."""
    before = set(unmapped_segments())
    received, status = _run(line)
    if received or status:
        remove_new_segments(before)
    if received:
        click.echo("msdata: interrupted; all ranks are stopped", err=True)
        return 128 + received
    if status:
        click.echo("msdata: the job failed; the message of the rank that failed first is above", err=True)
        return 1
    return 0


def _run(line: list[str]) -> tuple[int, int]:
    """Run mpiexec; returns the signal that ended it (0 for none) and its exit status."""
    environment = {name: value for name, value in os.environ.items() if name != ROLE_VARIABLE}
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

        previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            process.wait()
        finally:
            killer.cancel()
            for number, handler in previous.items():
                signal.signal(number, handler)
    return (received[0] if received else 0), process.returncode


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
