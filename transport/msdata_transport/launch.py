# pyright: strict
"""What the launcher told this process, read from its environment without loading MPI.

Every guard of a rank loads this file, so what costs memory is imported where it is used.
"""

import os
import sys
from collections.abc import Mapping

from msdata_transport.errors import TransportError

# MPICH and Intel MPI (PMI), Open MPI, MVAPICH.
_SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
GUARD_VARIABLE = "MSDATA_GUARD"
"""Set by a guard for the rank that it runs."""

_FIRST_SPECIAL_STEP = 0xFFFF_FFF0  # Slurm numbers the batch script and interactive shells from the top


def world_size_from_environment(environ: Mapping[str, str] = os.environ) -> int | None:
    """Number of processes that mpiexec or srun started together, or None when neither started this one.

    Loads no MPI, so a program can choose between MPI and the in-process transport before paying for it.
    """
    sizes = (_number(environ, name) for name in _SIZE_VARIABLES)
    return next((size for size in sizes if size is not None), _tasks_of_step(environ))


def check_world_size(size: int, environ: Mapping[str, str] = os.environ) -> None:
    """Refuse the silent case that srun started N tasks and MPI sees fewer.

    Raises:
        TransportError: MPI's world is smaller than the Slurm step.
    """
    num_tasks = _tasks_of_step(environ)
    if num_tasks is not None and size < num_tasks:
        raise TransportError(
            f"srun started {num_tasks} tasks (SLURM_NTASKS) but MPI's world has {size}: they are {num_tasks}"
            " silent singletons, because srun and this MPI speak different PMI. Use `srun --mpi=pmi2` for"
            " MPICH, `srun --mpi=pmix` for Open MPI, or start with mpiexec; `srun --mpi=list` shows what"
            " Slurm has"
        )


def has_guard(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a guard (`msdata_transport.guard`) stands between this process and its launcher."""
    return GUARD_VARIABLE in environ


def is_in_step(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether srun started this process as a task of a step; not so a batch script or a shell."""
    return _tasks_of_step(environ) is not None


def has_pmi(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher left a way to the other processes: the variables of PMI-1, PMI-2, PMIx or PALS."""
    return any(name.startswith(("PMI", "PALS_")) for name in environ)


def find_mpiexec() -> str | None:
    """Path of the mpiexec that belongs to this Python: beside its executable, else on PATH."""
    import shutil

    beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    return beside if os.access(beside, os.X_OK) else shutil.which("mpiexec")


def is_hydra(mpiexec: str) -> bool:
    """Whether this mpiexec is Hydra, the launcher of MPICH; starts it to ask, for a few milliseconds."""
    return b"HYDRA" in _version(mpiexec)


def is_open_mpi(mpiexec: str) -> bool:
    """Whether this mpiexec is Open MPI's; starts it to ask."""
    return b"Open MPI" in _version(mpiexec)


def _version(mpiexec: str) -> bytes:
    import subprocess

    try:
        asked = subprocess.run([mpiexec, "--version"], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return asked.stdout


def _tasks_of_step(environ: Mapping[str, str]) -> int | None:
    step = _number(environ, "SLURM_STEP_ID")
    return None if step is None or step >= _FIRST_SPECIAL_STEP else _number(environ, "SLURM_NTASKS")


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else None


def rank_from_environment(environ: Mapping[str, str] = os.environ) -> int | None:
    """This process's rank among those that mpiexec or srun started together, or None; loads no MPI."""
    names = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
    return next((rank for rank in (_number(environ, name) for name in names) if rank is not None), None)
