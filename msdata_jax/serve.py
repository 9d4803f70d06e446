"""A data rank: planner or source loader of an MPI job. Loads no JAX."""

import os
import sys
import time

from msdata_jax.errors import JobFailed
from msdata_jax.recipe import Recipe
from msdata_jax.roles.placement import placement_from_groups
from msdata_jax.runtime.data_rank import run_loader, run_planner
from msdata_jax.runtime.loop import FAILURE_SECONDS

LINGER_SECONDS = FAILURE_SECONDS + 1


def serve(recipe: Recipe, role: str, *, num_threads: int = 1) -> int:
    """Play `role` (`planner` or `loader`) until the job is over.

    Every rank of `MPI.COMM_WORLD` must come: the training ranks by `msd.initialize()`.

    Returns:
        0 when the job ended well. A failed job ends the process with status 1, some seconds after the
        training ranks were told, since the launcher kills all ranks when one goes.

    Raises:
        LaunchError: the ranks form no job.
    """
    from msdata_transport.mpi import join

    mpi = join(role)
    try:
        placement = placement_from_groups(mpi.groups)
        if role == "planner":
            run_planner(recipe, placement, mpi.endpoint)
        else:
            run_loader(recipe, placement, mpi.endpoint, num_threads)
    except JobFailed as failed:
        if failed.rank == mpi.endpoint.rank:
            print(  # noqa: T201
                f"msdata: rank {failed.rank} ({role}) failed:\n{failed.message}", file=sys.stderr, flush=True
            )
        mpi.leave(ok=False)
        time.sleep(LINGER_SECONDS)
        os._exit(1)
    mpi.leave(ok=True)
    return 0
