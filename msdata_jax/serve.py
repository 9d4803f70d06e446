"""A data rank: planner or source loader of an MPI job. Loads no JAX."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from msdata_transport import TransportError
from msdata_transport.launch import has_guard
from msdata_transport.run_folder import RunFolder

from msdata_jax.errors import JobFailed
from msdata_jax.lineage.plan_log import PlanLogWriter
from msdata_jax.observing.alarm_log import AlarmLog
from msdata_jax.observing.monitor import Monitor
from msdata_jax.recipe import Recipe
from msdata_jax.roles import messages as m
from msdata_jax.roles.effects import Forget
from msdata_jax.roles.placement import Placement, placement_from_groups
from msdata_jax.roles.watching import Watch
from msdata_jax.runtime import wire
from msdata_jax.runtime.allocators import keep_little
from msdata_jax.runtime.data_rank import run_loader, run_planner
from msdata_jax.runtime.ear import Ear
from msdata_jax.runtime.job import SHOW_SECONDS, join_job, leave_job, lost_ranks
from msdata_jax.runtime.limits import TimeLimits
from msdata_jax.runtime.loop import FAILURE_SECONDS, describe_failure
from msdata_jax.runtime.monitoring import Watching, keep_end, observe, show_alarm, start_monitor, tell_decided
from msdata_jax.runtime.observing import NoObserver
from msdata_jax.runtime.scaling import ScaleOptions
from msdata_jax.runtime.status import memory_by_role

if TYPE_CHECKING:
    from msdata_transport import Endpoint
    from msdata_transport.mpi import MpiJob

LINGER_SECONDS = FAILURE_SECONDS + 1


def serve(  # noqa: PLR0913 - keyword-only, each with a default
    load: Callable[[], Recipe],
    role: str,
    *,
    num_threads: int = 1,
    limits: TimeLimits | None = None,
    plan_log: Path | None = None,
    watching: Watching = Watching(),  # noqa: B008 - frozen
    scale: ScaleOptions = ScaleOptions(),  # noqa: B008 - frozen
) -> int:
    """Play `role` (`planner`, `loader` or `shadow`) until the job is over.

    Every rank of `MPI.COMM_WORLD` must come within `limits.start_seconds`, the training ranks by
    `msd.initialize()`; then they have as long again to build their DataLoader. What `load` raises is kept
    until this rank has joined: a rank that ends before leaves the others waiting in MPI_Init, where nobody
    can tell them.

    Args:
        load: gives the recipe.
        role: of this rank.
        num_threads: worker threads of a loader.
        limits: how long to wait for whom.
        plan_log: the file, not there yet, to which the planner writes a plan log (`lineage.PlanLog`).
        watching: how the job is watched, the same on every rank.
        scale: who reads what at first, and how that changes; for the planner.

    Returns:
        0 when the job ended well. A failed job ends the process with status 1, some seconds after the
        training ranks were told, since the launcher kills all ranks when one goes.

    Raises:
        LaunchError: the ranks form no job.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the GPUs are the trainers'; transforms may load libraries
    keep_little(num_threads)
    loaded = _attempt(load)
    limits = limits or TimeLimits()
    mpi = join_job(role, limits.start_seconds)
    placement = placement_from_groups(mpi.groups)

    def show(failed: JobFailed) -> None:
        who = placement.role_of(failed.rank)
        print(f"msdata: rank {failed.rank} ({who}) failed:\n{failed.message}", file=sys.stderr, flush=True)  # noqa: T201

    try:
        if isinstance(loaded, Exception):
            raise loaded
        if role == "planner":
            recorder = PlanLogWriter(plan_log, loaded) if plan_log else None
            monitor = None
            if watching.is_wanted:
                monitor = start_monitor(
                    watching, loaded, placement, dict(enumerate(mpi.hosts)), on_alarm=show_alarm
                )
            observer = observe(watching, mpi.endpoint.rank, placement, monitor.measured if monitor else None)
            scale = _fitting(scale, loaded, placement)
            seen_by = _SeenBy(recorder=recorder, monitor=monitor, observer=observer, scale=scale)
            plan = partial(_plan, loaded, placement, mpi.endpoint, limits, show, seen_by)
            figures = keep_end(watching.folder, plan)
        else:
            figures = run_loader(
                loaded,
                placement,
                mpi.endpoint,
                num_threads=num_threads,
                read_seconds=limits.read_seconds,
                on_failure=show,
                observer=observe(watching, mpi.endpoint.rank, placement),
            )
    except JobFailed:
        _end_badly(mpi)
    except Exception as error:  # noqa: BLE001 - a rank's boundary: a normal exit would wait in MPI_Finalize
        failed = JobFailed(mpi.endpoint.rank, describe_failure(error))
        if _tell(mpi.endpoint, placement, failed) == failed.rank:  # what fails on all alike is shown once
            show(failed)
        with contextlib.suppress(TransportError):
            mpi.endpoint.close(LINGER_SECONDS)  # until all have heard
        _end_badly(mpi)
    leave_job(mpi, lost_ranks(figures))
    return 0


def _fitting(scale: ScaleOptions, recipe: Recipe, placement: Placement) -> ScaleOptions:
    """The options, without a partition that is for other sources or another number of loaders."""
    if scale.partition is None:
        return scale
    why = scale.partition.why_not(recipe.source_names, len(placement.loaders))
    if not why:
        return scale
    print(  # noqa: T201
        f"msdata: the partition is ignored: {why}; sources are shared out evenly", file=sys.stderr, flush=True
    )
    return replace(scale, partition=None)


@dataclass(frozen=True, kw_only=True)
class _SeenBy:
    """Who is told what the planner decides, how the job goes, and what the planner's loop does."""

    recorder: PlanLogWriter | None
    monitor: Monitor | None
    observer: NoObserver
    scale: ScaleOptions

    def tellers(self, folder: RunFolder | None) -> list[Callable[[Mapping[str, Any]], object]]:
        """Who takes the status."""
        tellers: list[Callable[[Mapping[str, Any]], object]] = []
        if folder is not None:
            tellers.append(folder.write_status)
        # A monitor looks for alarms itself, and knows more.
        tellers.append(self.monitor.tell if self.monitor is not None else AlarmLog([show_alarm]).tell)
        return tellers


def _plan(
    recipe: Recipe,
    placement: Placement,
    endpoint: "Endpoint",
    limits: TimeLimits,
    show: Callable[[JobFailed], None],
    seen_by: _SeenBy,
) -> Mapping[str, Any]:
    """Play the planner, with an ear for the guards where the job has any, and leave word of how it ended."""
    folder = RunFolder.from_environment()
    tellers = seen_by.tellers(folder)

    def tell(status: Mapping[str, Any]) -> None:
        for each in tellers:
            each(status)

    def warn(lost: Forget) -> None:
        who = placement.role_of(lost.rank)
        print(  # noqa: T201
            f"msdata: rank {lost.rank} ({who}) is lost: {lost.why}",
            file=sys.stderr,
            flush=True,
        )
        if folder is not None:
            folder.kill(lost.rank)

    # Without guards nobody can end a rank that is silent, and any that dies ends the job.
    watched = placement.readers if has_guard() else ()
    with contextlib.ExitStack() as stack:
        if seen_by.monitor is not None:
            stack.enter_context(contextlib.closing(seen_by.monitor))
        ear = Ear(folder, guarded=has_guard()) if folder is not None else None
        if folder is not None and ear is not None:
            stack.enter_context(contextlib.closing(ear))
            folder.announce_formed()
        figures = run_planner(
            recipe,
            placement,
            endpoint,
            start_seconds=limits.start_seconds,
            watch=Watch(watched, limits.heartbeat_seconds, limits.read_seconds, recipe.source_names),
            on_failure=show,
            on_forget=warn,
            on_loop=ear.attach if ear else None,
            recorder=seen_by.recorder,
            on_status=tell if tellers else None,
            observer=seen_by.observer,
            scale=seen_by.scale,
            on_round=partial(tell_decided, seen_by.monitor),
        )
    if folder is not None:
        outcome = {"ok": True, "stopped": figures["stopped"], "lost": figures["lost"]}
        folder.write_outcome({**outcome, "memory_mb": memory_by_role(figures)})
        folder.done()
    return figures


def _attempt(load: Callable[[], Recipe]) -> Recipe | Exception:
    try:
        return load()
    except Exception as error:  # noqa: BLE001 - it is raised again, where the other ranks can be told
        return error


def _tell(endpoint: "Endpoint", placement: Placement, failed: JobFailed) -> int:
    """Tell the job of a rank that never got to play its role. Returns the rank that failed first."""
    first = failed.rank
    with contextlib.suppress(TransportError):
        if endpoint.rank == placement.planner:
            abort = m.Abort(rank=failed.rank, message=failed.message)
            for rank in (*placement.constructors, *placement.readers):
                endpoint.send(rank, wire.encode(abort))
        else:
            endpoint.send(placement.planner, wire.encode(m.Failed(message=failed.message)))
            first = _wait_for_abort(endpoint)
    return first


def _wait_for_abort(endpoint: "Endpoint") -> int:
    """The rank that failed first, in the planner's words; this one where it says nothing in time."""
    deadline = time.monotonic() + SHOW_SECONDS
    with contextlib.suppress(TransportError):
        while received := endpoint.receive(max(deadline - time.monotonic(), 0.0)):
            message = wire.decode(received[1])
            if isinstance(message, m.Abort):
                return message.rank
    return endpoint.rank


def _end_badly(mpi: "MpiJob") -> NoReturn:
    mpi.leave(ok=False)
    time.sleep(LINGER_SECONDS)
    os._exit(1)
