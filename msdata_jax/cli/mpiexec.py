"""The mpiexec command of a job."""

import sys
from collections.abc import Sequence
from pathlib import Path

from msdata_transport import find_mpiexec
from msdata_transport.launch import is_hydra

from msdata_jax.errors import LaunchError
from msdata_jax.runtime.job import ROLE_VARIABLE


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
    logged: bool = False,
) -> list[str]:
    """The mpiexec command of a job (MPMD: data ranks beside the training script).

    With `guarded` each rank has a guard (`msdata_transport.guard`), and the death of a loader does not end
    the job; such a command needs a run folder, so start it by `run_until_done`. Without, mpiexec ends all
    ranks when one fails. With `logged` the training script is started by `msdata serve` too, which knows
    where its log goes.

    Raises:
        LaunchError: there is no mpiexec.
    """
    mpiexec = _find_mpiexec()
    guard = [sys.executable, "-m", "msdata_transport.guard"]
    expendable, vital = ([*guard, "--"], [*guard, "--vital", "--"]) if guarded else ([], [])
    data = [sys.executable, "-m", "msdata_jax", "serve", *data_options, "--role"]
    spare = [":", "-n", str(shadows), *expendable, *data, "shadow", str(recipe)]
    direct = ["env", f"{ROLE_VARIABLE}=constructor", sys.executable, *train]
    through_serve = [*data, "constructor", str(recipe), "--", *train]
    training = [*vital, *(through_serve if logged else direct)]
    return [
        mpiexec,
        *(["-disable-auto-cleanup"] if guarded else []),
        *("-n", "1", *vital, *data, "planner", str(recipe)),
        *(":", "-n", str(loaders), *expendable, *data, "loader", str(recipe)),
        *(spare if shadows else []),
        *(":", "-n", str(trainers), *training),
    ]


def spread_line(num_ranks: int, ranks_per_host: int, rank: Sequence[str]) -> list[str]:
    """The mpiexec command of a job on several hosts: every rank is started alike, and any that dies ends it.

    Raises:
        LaunchError: there is no mpiexec, or it is not MPICH's.
    """
    mpiexec = _find_mpiexec()
    if not is_hydra(mpiexec):
        raise LaunchError(f"{mpiexec} is not MPICH's, whose placement of ranks is known: use --launcher srun")
    return [mpiexec, "-ppn", str(ranks_per_host), "-n", str(num_ranks), *rank]


def _find_mpiexec() -> str:
    mpiexec = find_mpiexec()
    if mpiexec is None:
        raise LaunchError(
            "no mpiexec beside this Python or on PATH; `pip install 'msdata-jax[mpi]'` brings one"
        )
    return mpiexec
