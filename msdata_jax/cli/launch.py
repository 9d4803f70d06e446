"""`msdata launch`: a whole job, on this machine or in a Slurm allocation."""

import os
import shlex
import traceback
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from msdata_transport.launch import is_in_step

from msdata_jax.cli import options, who_runs
from msdata_jax.cli.mpiexec import can_guard, command_line, spread_line
from msdata_jax.cli.rank_log import check_folder
from msdata_jax.cli.recipes import load_recipe
from msdata_jax.cli.running import Spread, run_until_done
from msdata_jax.cli.showing import Showing
from msdata_jax.cli.srun import (
    Layout,
    Wanted,
    check_plugin,
    find_plugin,
    is_mpich_wheel,
    list_plugins,
    lost_nodes,
    plan_layout,
    read_allocation,
    serve_line,
    spans_hosts,
    srun_environment,
    srun_line,
    vital_nodes,
)
from msdata_jax.cli.who_runs import describe_ranks, name_roles
from msdata_jax.errors import LaunchError
from msdata_jax.lineage.plan_log import check_new
from msdata_jax.runtime.monitoring import Watching
from msdata_jax.runtime.scaling import PolicyName, ScaleOptions


@click.command("launch")
@click.option(
    "--loaders", type=click.IntRange(1), help="Source loader ranks.  [default: 2; in a Slurm job by node]"
)
@click.option(
    "--trainers", type=click.IntRange(1), help="Training processes.  [default: 1; in a Slurm job by node]"
)
@click.option("--shadows", default=0, show_default=True, type=click.IntRange(0), help="Spare loader ranks.")
@options.threads
@options.start_seconds
@options.heartbeat_seconds
@options.read_seconds
@options.plan_log
@options.log_dir
@options.scaling
@options.watching
@options.showing
@options.slurm
@click.option(
    "--dry-run", is_flag=True, help="Check recipe and script, show who would run what, print the command."
)
@click.argument("recipe", type=click.Path(path_type=Path))
@click.argument("train", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- TRAIN [ARGUMENTS]...")
def command(  # noqa: PLR0917 - click calls it by name
    loaders: int | None,
    trainers: int | None,
    shadows: int,
    threads: int,
    start_seconds: float,
    heartbeat_seconds: float,
    read_seconds: float,
    plan_log: Path | None,
    launcher: str,
    trainers_per_node: int | None,
    loaders_per_node: int | None,
    mpi: str,
    srun_options: tuple[str, ...],
    python: str,
    run_folder: Path,
    log_dir: Path | None,
    scaling: PolicyName,
    max_threads: int | None,
    loader_memory: int,
    record: Path | None,
    metrics_port: int | None,
    metrics_host: str,
    tensorboard: Path | None,
    dry_run: bool,
    recipe: Path,
    train: tuple[str, ...],
    **showing: Any,
) -> int:
    """Start a job: one planner, LOADERS loaders and TRAINERS training processes.

    In a Slurm job (sbatch, salloc) it starts them by srun on all nodes: on each --trainers-per-node training
    processes, one for each GPU unless said otherwise, and loaders in the other tasks of --ntasks-per-node.

    A loader that dies or hangs is replaced, by one of SHADOWS spare ranks first; the job goes on. When a
    training process or the planner fails, the job ends.

    RECIPE is a Python file that defines `recipe`; TRAIN is the training script and its arguments, behind
    `--`. The script calls msd.initialize() first.

    \b
    msdata launch --loaders 3 --trainers 2 recipe.py -- train.py --steps 100

    Exit status: 0 all steps were taken; 85 it was asked to stop, by SIGUSR1 or DataLoader.request_stop(), and
    did so in order: start it again to go on; 1 the job failed; 2 a wrong call, recipe or script, and nothing
    was started; 130, 143 and 129 interrupted, told to end (SIGTERM), or its terminal was closed (SIGHUP).
    """
    data_options = ["--threads", str(threads), "--start-seconds", f"{start_seconds:g}"]
    data_options += ["--heartbeat-seconds", f"{heartbeat_seconds:g}", "--read-seconds", f"{read_seconds:g}"]
    if plan_log is not None:
        data_options += ["--plan-log", str(plan_log)]
    if log_dir is not None:
        data_options += ["--log-dir", str(log_dir)]
    watching = Watching.from_options(
        record=record, metrics_port=metrics_port, metrics_host=metrics_host, tensorboard=tensorboard
    )
    data_options += watching.arguments
    scale = ScaleOptions(policy=scaling, max_threads=max_threads, loader_memory=loader_memory)
    data_options += scale.arguments
    wanted = Wanted(
        trainers=trainers,
        trainers_per_node=trainers_per_node,
        loaders_per_node=loaders_per_node,
        shadows=shadows,
    )
    environ, spread = dict(os.environ), None
    layout, guarded = None, True
    in_job = "SLURM_JOB_ID" in environ and not is_in_step(environ)
    if launcher == "srun" or (launcher == "auto" and in_job):
        layout = _lay_out(wanted, loaders)
        plugin = find_plugin(environ) if mpi == "auto" else mpi
        check_plugin(plugin, list_plugins())
        serve = serve_line(python, layout, data_options, recipe, train)
        line = srun_line(layout, plugin, serve, srun_options)
        environ = srun_environment(environ, plugin, is_wheel=is_mpich_wheel())
        watch = partial(lost_nodes, environ["SLURM_JOB_ID"], vital_nodes(layout, environ))
        spread = Spread(parent=run_folder, name=f"msdata-run-{environ['SLURM_JOB_ID']}", lost_nodes=watch)
    elif spans_hosts(environ):
        layout = _lay_out(wanted, loaders)
        serve = serve_line(python, layout, data_options, recipe, train)
        line, guarded = spread_line(layout.num_ranks, layout.ranks_per_node, serve), False
    else:
        _refuse_options_of_slurm()
        guarded = can_guard()
        line = command_line(
            loaders=loaders or 2,
            trainers=trainers or 1,
            shadows=shadows,
            guarded=guarded,
            data_options=data_options,
            recipe=recipe,
            train=train,
            logged=log_dir is not None,
        )
    # What is wrong fails here, once, before any rank starts.
    loaded = load_recipe(recipe)
    _check_script(Path(train[0]))
    if plan_log is not None:
        check_new(plan_log)
    watching.check()
    shown = Showing(**showing)
    shown.check()
    environ |= watching.environment | shown.environment
    if dry_run:
        roles = layout.roles if layout else name_roles(loaders or 2, shadows, trainers or 1)
        rows = describe_ranks(roles, layout.ranks_of_nodes if layout else (), guarded=guarded)
        who_runs.show(recipe, loaded, rows)
        click.echo(shlex.join(line))
        return 0
    if log_dir is not None:
        check_folder(log_dir)
    return run_until_done(line, environ, spread, shown)


def _refuse_options_of_slurm() -> None:
    """Raise UsageError where options are given that mean something in a Slurm job alone."""
    names = ("trainers_per_node", "loaders_per_node", "mpi", "srun_options", "python", "run_folder")
    context = click.get_current_context()
    given = [name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if given:
        options = ", ".join(each.opts[0] for each in context.command.params if each.name in given)
        raise click.UsageError(
            f"{options} go with a Slurm job (sbatch, salloc), and this is none: say --loaders and --trainers"
        )


def _lay_out(wanted: Wanted, loaders: int | None) -> Layout:
    if loaders is not None:
        raise click.UsageError(
            "in a Slurm job every node has as many loaders: say --loaders-per-node instead of --loaders"
        )
    return plan_layout(read_allocation(os.environ), wanted)


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
