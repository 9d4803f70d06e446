"""`msdata launch`: a whole job, on this machine or in a Slurm allocation."""

import json
import os
import shlex
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
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
from msdata_jax.cli.resources import PARTITION_FILE, RUN, Asked, for_job
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
from msdata_jax.profiling import num_cpus
from msdata_jax.recipe import Recipe
from msdata_jax.roles.placement import parse_roles
from msdata_jax.runtime.monitoring import Watching
from msdata_jax.runtime.scaling import PolicyName, ScaleOptions
from msdata_jax.scaling.partition import MOST_THREADS, Budget, Partition


@click.command("launch")
@click.option(
    "--loaders",
    type=click.IntRange(1),
    help="Source loader ranks.  [default: by --partition, else 2; in a Slurm job by node]",
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
@options.partition
@options.step_seconds
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
    partition: str,
    step_seconds: float | None,
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

    Where `msdata profile` has left a profile beside the recipe, loaders and threads are chosen by it, unless
    they are set by hand.

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
    for name, path in (("--plan-log", plan_log), ("--log-dir", log_dir)):
        data_options += [] if path is None else [name, str(path)]
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
    environ = dict(os.environ)
    job = _place(launcher, mpi, wanted, loaders, environ)
    # What is wrong fails here, once, before any rank starts.
    loaded = load_recipe(recipe)
    _check_script(Path(train[0]))
    if plan_log is not None:
        check_new(plan_log)
    watching.check()
    shown = Showing(**showing)
    shown.check()
    asked = _asked(partition, step_seconds, job.layout, loaders, trainers or 1, max_threads)
    made = _choose_partition(recipe, loaded, asked, job)
    if made is not None:
        data_options += ["--partition", RUN]
        loaders, shadows = made.loaders, made.shadows
    serve = [] if job.layout is None else serve_line(python, job.layout, data_options, recipe, train)
    guarded = can_guard() if job.layout is None else bool(job.plugin)
    if job.layout is None:
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
    elif job.plugin:
        line = srun_line(job.layout, job.plugin, serve, srun_options)
    else:
        line = spread_line(job.layout.num_ranks, job.layout.ranks_per_node, serve)
    environ, spread = _surroundings(job, environ, run_folder)
    environ |= watching.environment | shown.environment
    if dry_run:
        layout = job.layout
        roles = layout.roles if layout else name_roles(loaders or 2, shadows, trainers or 1)
        rows = describe_ranks(roles, layout.ranks_of_nodes if layout else (), guarded=guarded)
        who_runs.show(recipe, loaded, rows, made)
        click.echo(shlex.join(line))
        return 0
    if log_dir is not None:
        check_folder(log_dir)
    files = {} if made is None else {PARTITION_FILE: json.dumps(made.to_json())}
    return run_until_done(line, environ, spread, shown, files)


@dataclass(frozen=True, kw_only=True)
class _Job:
    """Where a job runs.

    Attributes:
        layout: who is where in a Slurm allocation; None on one machine.
        plugin: srun's, for MPI; empty where mpiexec starts the ranks.
    """

    layout: Layout | None = None
    plugin: str = ""


def _place(launcher: str, mpi: str, wanted: Wanted, loaders: int | None, environ: Mapping[str, str]) -> _Job:
    in_job = "SLURM_JOB_ID" in environ and not is_in_step(environ)
    if launcher == "srun" or (launcher == "auto" and in_job):
        layout = _lay_out(wanted, loaders)
        plugin = find_plugin(environ) if mpi == "auto" else mpi
        check_plugin(plugin, list_plugins())
        return _Job(layout=layout, plugin=plugin)
    if spans_hosts(environ):
        return _Job(layout=_lay_out(wanted, loaders))
    _refuse_options_of_slurm()
    return _Job()


def _surroundings(
    job: _Job, environ: dict[str, str], run_folder: Path
) -> tuple[dict[str, str], Spread | None]:
    """The environment of the launcher, and what a job on several hosts needs beside."""
    if not job.plugin or job.layout is None:
        return environ, None
    environ = srun_environment(environ, job.plugin, is_wheel=is_mpich_wheel())
    watch = partial(lost_nodes, environ["SLURM_JOB_ID"], vital_nodes(job.layout, environ))
    name = f"msdata-run-{environ['SLURM_JOB_ID']}"
    return environ, Spread(parent=run_folder, name=name, lost_nodes=watch)


def _choose_partition(path: Path, recipe: Recipe, asked: Asked, job: _Job) -> Partition | None:
    """What the sources' profile suggests for this job, told in a line.

    Under mpiexec on several hosts there is none: its ranks share no folder to find it in.
    """
    if job.layout is not None and not job.plugin:
        if asked.mode not in ("auto", "off"):
            click.echo(f"msdata: the partition {asked.mode} is ignored: use --launcher srun", err=True)
        return None
    made, words = for_job(path, recipe, asked)
    for text in words:
        click.echo(f"msdata: {text}", err=True)
    return made


def _asked(
    mode: str,
    step_seconds: float | None,
    layout: Layout | None,
    loaders: int | None,
    trainers: int,
    max_threads: int | None,
) -> Asked:
    """What a partition of this job may take: what was set by hand, else the CPUs that trainers leave.

    In a Slurm job the loaders are given, and each has the CPUs of its task.
    """
    context = click.get_current_context()
    given = {
        name: context.params[name]
        for name in ("threads", "shadows")
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    cpus = max(num_cpus() - trainers, 1)
    if layout is not None:
        roles = parse_roles(layout.roles)
        loaders = sum(count for role, count in roles if role == "loader")
        given["shadows"] = sum(count for role, count in roles if role == "shadow")
        cpus = loaders * (layout.parts[-1].cpus_per_task or 1)
    budget = Budget(
        steps_per_second=None if step_seconds is None else 1 / step_seconds,
        cpus=cpus,
        loaders=loaders,
        max_loaders=cpus,
        max_threads=max_threads or MOST_THREADS,
        **given,
    )
    return Asked(mode=mode, budget=budget)


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
