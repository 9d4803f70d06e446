"""A data rank: planner or source loader of an MPI job. Loads no JAX."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from msdata_jax.errors import JobFailed
from msdata_jax.lineage.plan_log import PlanLogWriter
from msdata_jax.recipe import Recipe
from msdata_jax.roles.placement import placement_from_groups
from msdata_jax.roles.planner import START_SECONDS
from msdata_jax.runtime.data_rank import run_loader, run_planner
from msdata_jax.runtime.job import join_job, leave_job
from msdata_jax.runtime.loop import FAILURE_SECONDS, describe_failure

if TYPE_CHECKING:
    from msdata_transport.mpi import MpiJob

LINGER_SECONDS = FAILURE_SECONDS + 1


def serve(
    recipe: Recipe,
    role: str,
    *,
    num_threads: int = 1,
    start_seconds: float = START_SECONDS,
    plan_log: Path | None = None,
) -> int:
    """Play `role` (`planner` or `loader`) until the job is over.

    Every rank of `MPI.COMM_WORLD` must come within `start_seconds`, the training ranks by `msd.initialize()`;
    then they have as long again to build their DataLoader. With `plan_log` the planner writes a plan log
    (`lineage.PlanLog`) to that file, which must not be there yet.

    Returns:
        0 when the job ended well. A failed job ends the process with status 1, some seconds after the
        training ranks were told, since the launcher kills all ranks when one goes.

    Raises:
        LaunchError: the ranks form no job.
        PlanError: there is a plan log already, or it cannot be written.
    """
    log = PlanLogWriter(plan_log, recipe) if plan_log and role == "planner" else None
    mpi = join_job(role, start_seconds)
    placement = placement_from_groups(mpi.groups)

    def show(failed: JobFailed) -> None:
        who = placement.role_of(failed.rank)
        print(f"msdata: rank {failed.rank} ({who}) failed:\n{failed.message}", file=sys.stderr, flush=True)  # noqa: T201

    try:
        if role == "planner":
            run_planner(
                recipe,
                placement,
                mpi.endpoint,
                start_seconds=start_seconds,
                on_failure=show,
                recorder=log,
            )
        else:
            run_loader(recipe, placement, mpi.endpoint, num_threads=num_threads, on_failure=show)
    except JobFailed:
        _end_badly(mpi)
    except Exception as error:  # noqa: BLE001 - a rank's boundary: a normal exit would wait in MPI_Finalize
        show(JobFailed(mpi.endpoint.rank, describe_failure(error)))
        _end_badly(mpi)
    leave_job(mpi)
    return 0


def _end_badly(mpi: "MpiJob") -> NoReturn:
    mpi.leave(ok=False)
    time.sleep(LINGER_SECONDS)
    os._exit(1)
