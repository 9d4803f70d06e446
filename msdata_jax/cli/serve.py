"""`msdata serve`: one rank of a job."""

import os
import sys
from functools import partial
from pathlib import Path

import click
from msdata_transport.launch import rank_from_environment, world_size_from_environment

from msdata_jax.cli import options
from msdata_jax.cli.recipes import load_recipe
from msdata_jax.errors import LaunchError
from msdata_jax.roles.placement import parse_roles, role_of_rank
from msdata_jax.runtime.job import ROLE_VARIABLE

NO_SCRIPT = "training ranks need their script: msdata serve ... recipe.py -- train.py [args]"


@click.command("serve", context_settings={"ignore_unknown_options": True})
@click.option(
    "--role", type=click.Choice(["planner", "loader", "shadow", "constructor"]), help="This rank's role."
)
@click.option(
    "--roles", help="Roles of all ranks in order, such as planner=1,loaders=3,shadows=1,trainers=2."
)
@options.threads
@options.start_seconds
@options.heartbeat_seconds
@options.read_seconds
@options.plan_log
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
    recipe: Path,
    train: tuple[str, ...],
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
    if role == "constructor":
        return _become_trainer(train)
    from msdata_jax.runtime.limits import TimeLimits
    from msdata_jax.serve import serve

    limits = TimeLimits(
        start_seconds=start_seconds, heartbeat_seconds=heartbeat_seconds, read_seconds=read_seconds
    )
    return serve(partial(load_recipe, recipe), role, num_threads=threads, limits=limits, plan_log=plan_log)


def _check_start(roles: str, train: tuple[str, ...]) -> None:
    """Refuse on every rank alike what only some would meet; the others would wait for those in vain.

    Raises:
        LaunchError: the roles are not those of so many ranks.
        UsageError: there is no training script.
    """
    named, started = sum(parse_roles(roles).values()), world_size_from_environment()
    if started is not None and started != named:
        raise LaunchError(f"roles {roles!r} name {named} ranks, and {started} were started: start {named}")
    if not train:
        raise click.UsageError(NO_SCRIPT)


def _become_trainer(train: tuple[str, ...]) -> int:
    """Go on as `python train.py ...`, in this very process, which keeps its place in the MPI job."""
    if not train:
        raise click.UsageError(NO_SCRIPT)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *train])
