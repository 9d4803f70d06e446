"""`msdata launch`: a whole job on this machine."""

import shlex
import traceback
import warnings
from pathlib import Path

import click

from msdata_jax.cli import options
from msdata_jax.cli.mpiexec import can_guard, command_line
from msdata_jax.cli.recipes import load_recipe
from msdata_jax.cli.running import run_until_done
from msdata_jax.errors import LaunchError
from msdata_jax.lineage.plan_log import check_new


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
