"""`msdata serve`: one rank of a job."""

import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click
from msdata_transport import RunFolder
from msdata_transport.launch import (
    has_guard,
    has_pmi,
    is_in_step,
    rank_from_environment,
    world_size_from_environment,
)
from msdata_transport.shared_folder import VARIABLE as SHARED_VARIABLE

from msdata_jax.cli import options
from msdata_jax.cli.rank_log import begin_log
from msdata_jax.cli.recipes import load_recipe
from msdata_jax.cli.resources import PARTITION_FILE, RUN, read_partition
from msdata_jax.errors import LaunchError, RecipeError
from msdata_jax.roles.placement import parse_roles, role_of_rank
from msdata_jax.runtime.ending import write_whole_lines
from msdata_jax.runtime.job import ROLE_VARIABLE, SHOW_SECONDS
from msdata_jax.runtime.monitoring import Watching
from msdata_jax.runtime.scaling import PolicyName, ScaleOptions
from msdata_jax.scaling.partition import Partition

NO_SCRIPT = "training ranks need their script: msdata serve ... recipe.py -- train.py [args]"


@click.command("serve")
@click.option(
    "--role", type=click.Choice(["planner", "loader", "shadow", "constructor"]), help="This rank's role."
)
@click.option(
    "--roles",
    help="All roles in order, such as planner=1,loaders=3,shadows=1,trainers=2. A role may come again.",
)
@options.threads
@options.start_seconds
@options.heartbeat_seconds
@options.read_seconds
@options.plan_log
@options.log_dir
@options.scaling
@click.option(
    "--partition",
    metavar="FILE",
    help="Who reads what at first, by msdata plan --resources --write; `run` for what msdata launch left.",
)
@options.watching
@click.argument("recipe", type=click.Path(path_type=Path))
@click.argument("train", nargs=-1, type=click.UNPROCESSED)
def command(  # noqa: PLR0917 - click calls it by name
    role: str | None,
    roles: str | None,
    threads: int,
    start_seconds: float,
    heartbeat_seconds: float,
    read_seconds: float,
    plan_log: Path | None,
    log_dir: Path | None,
    recipe: Path,
    train: tuple[str, ...],
    scaling: PolicyName,
    max_threads: int | None,
    loader_memory: int,
    partition: str | None,
    **watching: Any,
) -> int:
    """Be one rank of a job.

    Start every rank alike under mpiexec or srun, with --roles; trainers then run the script behind `--`:

    \b
    srun -n 6 msdata serve --roles planner=1,loaders=3,trainers=2 recipe.py -- train.py

    Or say the --role of each rank (mpiexec -n 1 ... : -n 3 ...), with training ranks that call
    msd.initialize(). A data rank never loads JAX.
    """
    if (role is None) == (roles is None):
        raise click.UsageError("say either --role (of this rank) or --roles (of all ranks)")
    if roles is not None:
        rank = rank_from_environment()
        if rank is None:
            raise LaunchError(
                "--roles needs a rank from mpiexec or srun, and this process has none (no PMI_RANK, "
                "OMPI_COMM_WORLD_RANK or SLURM_PROCID): start it with mpiexec -n N or srun -n N"
            )
        _check_start(roles, train)
        role = role_of_rank(roles, rank)
    assert role is not None
    os.environ[ROLE_VARIABLE] = role
    watched = Watching.from_options(**watching)
    os.environ.update(watched.environment)
    if log_dir is not None:
        begin_log(log_dir, rank_from_environment(), role)
    write_whole_lines()  # those of a recipe, too
    program = [sys.executable, *train] if role == "constructor" else sys.orig_argv
    if SHARED_VARIABLE in os.environ and not has_guard():
        vital = ["--vital"] if role in ("planner", "constructor") else []
        _become([sys.executable, "-m", "msdata_transport.guard", *vital, "--", *program], train)
    if role == "constructor":
        _become(program, train)
    from msdata_jax.runtime.limits import TimeLimits
    from msdata_jax.serve import serve

    limits = TimeLimits(
        start_seconds=start_seconds, heartbeat_seconds=heartbeat_seconds, read_seconds=read_seconds
    )
    return serve(
        partial(load_recipe, recipe),
        role,
        num_threads=threads,
        limits=limits,
        plan_log=plan_log,
        watching=watched,
        scale=ScaleOptions(
            policy=scaling,
            threads=threads,
            max_threads=max_threads,
            loader_memory=loader_memory,
            partition=_find_partition(partition) if partition and role == "planner" else None,
        ),
    )


def _find_partition(given: str) -> Partition | None:
    """The partition of a file; None, and a word on stderr, where it cannot be used: the job runs without."""
    path = Path(given)
    if given == RUN:
        folder = RunFolder.from_environment()
        path = Path(folder.path if folder else ".", PARTITION_FILE)
    try:
        return read_partition(path)
    except RecipeError as error:
        click.echo(f"msdata: {error}; sources are shared out evenly", err=True)
        return None


def _check_start(roles: str, train: tuple[str, ...]) -> None:
    """Refuse on every rank alike what only some would meet; the others would wait for those in vain.

    Raises:
        LaunchError: the roles are not those of so many ranks, or the ranks cannot find one another.
        UsageError: there is no training script.
    """
    named = sum(count for _, count in parse_roles(roles))
    started = world_size_from_environment()
    if started is not None and started != named:
        raise LaunchError(f"roles {roles!r} name {named} ranks, and {started} were started: start {named}")
    if is_in_step() and not has_pmi():
        if rank_from_environment():
            time.sleep(SHOW_SECONDS)  # rank 0 says it for all
            sys.exit(2)
        raise LaunchError(
            f"srun started {started} tasks without MPI (no PMI or PMIX variable is set), and each would be "
            f"alone. Use `srun --mpi=pmi2` for MPICH, `srun --mpi=pmix` for Open MPI; `srun --mpi=list` "
            f"shows what Slurm has"
        )
    if not train:
        raise click.UsageError(NO_SCRIPT)


def _become(program: Sequence[str], train: tuple[str, ...]) -> NoReturn:
    """Go on as another program, in this very process, which keeps its place in the MPI job."""
    if not train and os.environ[ROLE_VARIABLE] == "constructor":
        raise click.UsageError(NO_SCRIPT)
    sys.stdout.flush()
    os.execv(sys.executable, list(program))
