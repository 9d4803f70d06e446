"""The job that this process belongs to: alone, or one rank among others under MPI."""

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from msdata_transport import (
    EndpointClosed,
    Faults,
    TooLate,
    TransportError,
    connect,
    world_size_from_environment,
)

from msdata_jax.errors import BadSampleError, JobFailed, LaunchError, MSDataError
from msdata_jax.lineage.plan_log import PlanLogWriter
from msdata_jax.recipe import Recipe
from msdata_jax.roles import messages as m
from msdata_jax.roles.placement import Placement, placement_from_groups
from msdata_jax.runtime import wire
from msdata_jax.runtime.data_rank import run_loader, run_planner
from msdata_jax.runtime.ending import end_badly, flush, run_first_at_exit, write_whole_lines
from msdata_jax.runtime.loop import FAILURE_SECONDS, WORKER_SECONDS, describe_failure
from msdata_jax.runtime.monitoring import Watching, keep_end, observe, start_monitor, tell_decided
from msdata_jax.runtime.observing import NoObserver
from msdata_jax.runtime.scaling import ScaleOptions

if TYPE_CHECKING:
    from msdata_transport import Endpoint
    from msdata_transport.mpi import MpiJob

ROLE_VARIABLE = "MSDATA_ROLE"
"""Set by `msdata launch` and `msdata serve` for the ranks that they start."""

SHOW_SECONDS = 1.0
"""What fails on every training process alike is shown by process 0; the others give it this time."""

LEAVE_SECONDS = 7 * 24 * 3600.0
"""How long a rank that is done waits for the others: a trainer may work on for hours after its data ended.

Where a rank dies meanwhile, the launcher ends all.
"""


@dataclass(kw_only=True)
class TrainingJob:
    """The MPI job, as a training process sees it.

    Attributes:
        mpi: the ranks of the job.
        placement: who plays what.
        on_failure: told the trainer's own failure; set by the open DataLoader.
        failed: whether anything failed, so that nothing at exit may wait for other processes.
        sessions: DataLoaders that were built.
        left: whether the last one was closed in order, so that the others may end too.
        lost: ranks that are gone and that the job did without.
        exit_hooks: run at an orderly exit, before MPI ends.
        observer: told what this process's constructors do, one after the other.
    """

    mpi: "MpiJob"
    placement: Placement
    on_failure: Callable[[str], None] | None = None
    failed: bool = False
    sessions: int = 0
    left: bool = False
    lost: tuple[int, ...] = ()
    exit_hooks: list[Callable[[], None]] = field(default_factory=list)
    observer: NoObserver = field(default_factory=NoObserver)

    def exit_first(self, hook: Callable[[], None]) -> None:
        """Run `hook` at an orderly exit; and see to that exit before what was registered for it until now.

        Frameworks register hooks of their own that wait for the other training processes.
        """
        self.exit_hooks.append(hook)
        run_first_at_exit(_leave, self)

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


def join_as_trainer(start_seconds: float) -> TrainingJob | None:
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
    mpi = join_job("constructor", start_seconds)
    placement = placement_from_groups(mpi.groups)
    observer = observe(Watching.from_environment(), mpi.endpoint.rank, placement)
    _job = TrainingJob(mpi=mpi, placement=placement, observer=observer)
    _install_exit_hooks(_job)
    return _job


def join_job(role: str, start_seconds: float) -> "MpiJob":
    """Meet all ranks of the MPI job, for at most `start_seconds`.

    Raises:
        LaunchError: MPI does not load, or a rank did not come; this process then ends without MPI_Finalize,
            which would wait for that rank.
    """
    write_whole_lines()
    try:
        from msdata_transport.mpi import join

        return join(role, timeout_seconds=start_seconds)
    except ImportError as error:
        raise LaunchError(f"MPI does not load: {error}; `msdata doctor` says what to do") from error
    except TransportError as error:
        atexit.register(end_badly)
        raise LaunchError(f"the ranks form no job: {error}") from error


def leave_job(mpi: "MpiJob", lost: Sequence[int] = ()) -> None:
    """End this rank's part in order; waits for the others.

    Where ranks are `lost` nothing may wait for all: the process then ends here, with status 0.
    """
    try:
        if not lost:
            mpi.leave(ok=True, timeout_seconds=LEAVE_SECONDS)
            return
        mpi.leave_without(lost, timeout_seconds=FAILURE_SECONDS)
    except TooLate as error:
        print(f"msdata: {error}", file=sys.stderr)  # noqa: T201
        if not lost:
            end_badly()
    flush()
    os._exit(0)


def lost_ranks(figures: Mapping[str, Any]) -> tuple[int, ...]:
    """The ranks that the job did without, in the figures with which its roles finish."""
    return tuple(each["rank"] for each in figures.get("lost", ()))


def _install_exit_hooks(job: TrainingJob) -> None:
    """End well with the others where all went well, and at once where anything failed.

    MPI_Finalize and JAX's own shutdown wait for every process, so a process that failed must not reach them.
    """
    previous, stderr = sys.excepthook, sys.stderr

    def on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        job.failed = True
        sys.stderr = stderr  # torch's own hook collects what this one shows, and would show it behind the end
        # What a recipe, a mesh or the data have wrong, every training process meets at the same place.
        if job.process_index > 0 and isinstance(error, MSDataError):
            time.sleep(SHOW_SECONDS)
        if isinstance(error, JobFailed | BadSampleError):
            _show_common_failure(error)
        else:
            previous(kind, error, trace)
            flush()
            if job.on_failure is not None:
                job.on_failure(describe_failure(error))
        end_badly()

    sys.excepthook = on_exception
    atexit.register(_leave, job)


def _leave(job: TrainingJob) -> None:
    """At exit: in order when the DataLoader was closed, at once when anything failed."""
    if not job.left and not job.failed:
        job.failed = True
        message = (
            f"training process {job.process_index} ended before it closed its DataLoader; use "
            f"`with msd.DataLoader(...) as loader:` or call loader.close()"
        )
        print(f"msdata: {message}", file=sys.stderr)  # noqa: T201
        if job.on_failure is not None:
            job.on_failure(message)
    if job.failed:
        end_badly()
    with contextlib.suppress(TransportError):  # a planner that is gone has ended the job
        job.mpi.endpoint.send(job.placement.planner, wire.encode(m.Goodbye(), job.sessions))
    for hook in job.exit_hooks:  # which wait for the other training processes
        hook()
    leave_job(job.mpi, job.lost)


def _show_common_failure(error: JobFailed | BadSampleError) -> None:
    if isinstance(error, JobFailed):  # the rank that failed has shown its message
        text = f"training stopped, since rank {error.rank} failed"
    else:
        text = f"the data failed: {error}"
    print(f"msdata: {text}", file=sys.stderr)  # noqa: T201


@dataclass(frozen=True, kw_only=True)
class LocalJob:
    """A planner and loaders on threads of this process.

    Attributes:
        placement: who plays what.
        endpoint: of the one constructor.
        threads: the planner's and the loaders'.
        observer: of the constructor.
    """

    placement: Placement
    endpoint: "Endpoint"
    threads: tuple[threading.Thread, ...]
    observer: NoObserver

    def wait(self) -> None:
        """Wait for the threads to end, but for no longer than a loader waits for its workers."""
        deadline = time.monotonic() + WORKER_SECONDS + 1
        for thread in self.threads:
            thread.join(max(deadline - time.monotonic(), 0.0))


def start_in_process(
    recipe: Recipe,
    *,
    num_loaders: int,
    threads_per_loader: int,
    plan_log: PlanLogWriter | None = None,
    faults: Faults | None = None,
    record: Path | None = None,
) -> LocalJob:
    """Start a planner and loaders on threads of this process; the planner's thread closes the log.

    Args:
        recipe: what to deliver.
        num_loaders: source loaders.
        threads_per_loader: their worker threads.
        plan_log: the planner's recorder.
        faults: to lose ranks by, for tests.
        record: a new folder of figures and spans (`observing.record`).

    Raises:
        LaunchError: the folder of the record is not new, or cannot be made.
    """

    def plan() -> Mapping[str, Any]:
        with contextlib.ExitStack() as stack:
            if plan_log:
                stack.enter_context(contextlib.closing(plan_log))
            if monitor:
                stack.enter_context(contextlib.closing(monitor))
            return run_planner(
                recipe,
                placement,
                endpoints[0],
                recorder=plan_log,
                on_status=monitor.tell if monitor else None,
                scale=scale,
                on_round=partial(tell_decided, monitor),
                observer=observe(watching, 0, placement, monitor.measured if monitor else None),
            )

    size = 2 + num_loaders
    placement = Placement(planner=0, loaders=tuple(range(1, size - 1)), constructors=(size - 1,))
    endpoints = connect(size, faults)
    scale = ScaleOptions(
        policy="auto" if recipe.scaling else "off", threads=threads_per_loader, max_threads=threads_per_loader
    )
    watching = Watching(folder=record)
    watching.check()
    monitor = start_monitor(watching, recipe, placement, {}) if record else None
    runs: list[Callable[[], object]] = [partial(keep_end, record, plan)]
    runs += [
        lambda rank=rank: run_loader(
            recipe,
            placement,
            endpoints[rank],
            num_threads=threads_per_loader,
            observer=observe(watching, rank, placement),
        )
        for rank in placement.loaders
    ]
    names = [f"msdata-{placement.role_of(rank)}-{rank}" for rank in range(len(runs))]
    threads = tuple(
        threading.Thread(target=_run_quietly, args=(run,), name=name, daemon=True)
        for run, name in zip(runs, names, strict=True)
    )
    for thread in threads:
        thread.start()
    observer = observe(watching, size - 1, placement)
    return LocalJob(placement=placement, endpoint=endpoints[-1], threads=threads, observer=observer)


def _run_quietly(run: Callable[[], object]) -> None:
    with contextlib.suppress(JobFailed, EndpointClosed):  # the trainer hears of it; a killed one needs not
        run()
