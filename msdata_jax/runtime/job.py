"""The job that this process belongs to: alone, or one rank among others under MPI."""

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msdata_transport import connect, world_size_from_environment

from msdata_jax.errors import BadSampleError, JobFailed, LaunchError
from msdata_jax.recipe import Recipe
from msdata_jax.roles.placement import Placement, placement_from_groups
from msdata_jax.runtime.data_rank import run_loader, run_planner
from msdata_jax.runtime.loop import describe_failure

if TYPE_CHECKING:
    from msdata_transport import Endpoint
    from msdata_transport.mpi import MpiJob

ROLE_VARIABLE = "MSDATA_ROLE"
"""Set by `msdata launch` and `msdata serve` for the ranks that they start."""


SHOW_SECONDS = 1.0


@dataclass(kw_only=True)
class TrainingJob:
    """The MPI job, as a training process sees it.

    Attributes:
        mpi: the ranks of the job.
        placement: who plays what.
        on_failure: told the trainer's own failure; set by the open DataLoader.
        failed: whether anything failed, so that nothing at exit may wait for other processes.
        left: whether a DataLoader was closed in order, so that the others may end too.
        exit_hooks: run at an orderly exit, before MPI ends.
    """

    mpi: "MpiJob"
    placement: Placement
    on_failure: Callable[[str], None] | None = None
    failed: bool = False
    left: bool = False
    exit_hooks: list[Callable[[], None]] = field(default_factory=list)

    @property
    def process_index(self) -> int:
        """This process among the training processes."""
        return self.mpi.group_rank

    @property
    def num_processes(self) -> int:
        """Training processes."""
        return self.mpi.group_size


_job: TrainingJob | None = None


def current_job() -> TrainingJob | None:
    """The MPI job that this training process joined; None when it runs alone."""
    return _job


def is_launched() -> bool:
    """Whether this process was started as a training rank of a job with data ranks."""
    return os.environ.get(ROLE_VARIABLE) == "constructor"


def join_as_trainer() -> TrainingJob | None:
    """Join the MPI job as a training process; None when this process was started alone.

    Raises:
        LaunchError: mpiexec or srun started several processes but no data ranks.
    """
    global _job  # noqa: PLW0603 - a process belongs to one job
    if _job is not None:
        return _job
    if not is_launched():
        size = world_size_from_environment()
        if size is not None and size > 1:
            raise LaunchError(
                f"mpiexec or srun started {size} processes, none of them a data rank. Start the job with "
                f"`msdata launch --loaders 3 --trainers {size} recipe.py -- train.py`, or every rank as "
                f"`msdata serve --roles planner=1,loaders=3,trainers={size} recipe.py -- train.py`"
            )
        return None
    from msdata_transport.mpi import join

    mpi = join("constructor")
    _job = TrainingJob(mpi=mpi, placement=placement_from_groups(mpi.groups))
    _install_exit_hooks(_job)
    return _job


def _install_exit_hooks(job: TrainingJob) -> None:
    """End well with the others where all went well, and at once where anything failed.

    MPI_Finalize and JAX's own shutdown wait for every process, so a process that failed must not reach them.
    """

    def on_exception(kind: type[BaseException], error: BaseException, trace: object) -> None:
        job.failed = True
        if isinstance(error, JobFailed | BadSampleError):
            _show_common_failure(job, error)
        else:
            sys.__excepthook__(kind, error, trace)  # pyright: ignore[reportArgumentType]
            _flush()
            if job.on_failure is not None:
                job.on_failure(describe_failure(error))
        _flush()
        os._exit(1)

    sys.excepthook = on_exception
    atexit.register(_leave, job)


def _leave(job: TrainingJob) -> None:
    """At exit: in order when the DataLoader was closed, at once when anything failed."""
    if not job.left and not job.failed:
        job.failed = True
        message = f"training process {job.process_index} ended before it closed its DataLoader"
        print(f"msdata: {message}", file=sys.stderr)  # noqa: T201
        if job.on_failure is not None:
            job.on_failure(message)
    if job.failed:
        _flush()
        os._exit(1)
    for hook in job.exit_hooks:
        hook()
    job.mpi.leave(ok=True)


def _show_common_failure(job: TrainingJob, error: JobFailed | BadSampleError) -> None:
    """Show what every training process meets at the same step once, on process 0.

    The others give it time to: the launcher kills all ranks as soon as one has gone.
    """
    if job.process_index > 0:
        time.sleep(SHOW_SECONDS)
    elif isinstance(error, JobFailed):  # the rank that failed has shown its message
        print(f"msdata: training stopped, since rank {error.rank} failed", file=sys.stderr)  # noqa: T201
    else:
        print(f"msdata: the data failed: {error}", file=sys.stderr)  # noqa: T201


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def start_in_process(
    recipe: Recipe, *, num_loaders: int, threads_per_loader: int
) -> "tuple[Placement, Endpoint]":
    """Start a planner and loaders on threads of this process.

    Returns:
        the placement, and the endpoint of its one constructor.
    """
    size = 2 + num_loaders
    placement = Placement(planner=0, loaders=tuple(range(1, size - 1)), constructors=(size - 1,))
    endpoints = connect(size)
    runs: list[Callable[[], object]] = [lambda: run_planner(recipe, placement, endpoints[0])]
    runs += [
        lambda rank=rank: run_loader(recipe, placement, endpoints[rank], threads_per_loader)
        for rank in placement.loaders
    ]
    for rank, run in enumerate(runs):
        name = f"msdata-{placement.role_of(rank)}-{rank}"
        threading.Thread(target=_run_quietly, args=(run,), name=name, daemon=True).start()
    return placement, endpoints[size - 1]


def _run_quietly(run: Callable[[], object]) -> None:
    with contextlib.suppress(JobFailed):  # the constructor gets the same Abort and raises it in the trainer
        run()
