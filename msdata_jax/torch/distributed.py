"""`torch.distributed` over the training processes alone; data ranks take no part and load no torch."""

# pyright: reportPrivateImportUsage=false
# torch documents Store, HashStore and TCPStore as members of torch.distributed, and does not export them.
import atexit
import os
import socket
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

import msdata_jax as msd
from msdata_jax.errors import LaunchError
from msdata_jax.roles.planner import START_SECONDS
from msdata_jax.runtime.job import TrainingJob, current_job

if TYPE_CHECKING:
    from msdata_jax.processes import Processes

LOOPBACK = "127.0.0.1"


def initialize(
    *, backend: str = "gloo", start_seconds: float = START_SECONDS, timeout_seconds: float = 600.0
) -> "Processes":
    """Join the job and start `torch.distributed`; call it at the top of the training script.

    Alone (`python train.py`) it starts a world of one process. Under `msdata launch` or `msdata serve` it
    meets the data ranks over MPI; the world are the training processes, whose rank is their `process_index`.
    It sets `RANK`, `WORLD_SIZE`, `LOCAL_RANK` and `LOCAL_WORLD_SIZE` in the environment accordingly, and ends
    `torch.distributed` when the program ends in order.

    Args:
        backend: as `torch.distributed.init_process_group` knows it: "gloo", "nccl", "cpu:gloo,cuda:nccl".
        start_seconds: time for all ranks to come.
        timeout_seconds: of the collectives.

    Raises:
        LaunchError: the ranks form no job; or `torch.distributed` was started before, or does not start.
    """
    if dist.is_initialized():
        raise LaunchError(
            "torch.distributed runs already; msdata_jax.torch.initialize() starts it, once, over the "
            "training processes: call it at the top of the training script, without init_process_group"
        )
    processes = msd.initialize(use_jax=False, start_seconds=start_seconds)
    job = current_job()
    store = _store(job, timedelta(seconds=start_seconds))
    _set_environment(job)
    try:
        dist.init_process_group(
            backend,
            store=store,
            rank=processes.process_index,
            world_size=processes.num_processes,
            timeout=timedelta(seconds=timeout_seconds),
        )
        _meet(store, processes, timedelta(seconds=start_seconds))
    except (RuntimeError, ValueError, AttributeError, AssertionError) as error:
        raise LaunchError(f"torch.distributed did not start with backend={backend!r}: {error}") from error

    def shut_down(_keep: dist.Store = store) -> None:
        """The store lives as long as process 0, which waits in MPI until the others are done with it."""
        if dist.is_initialized():
            dist.destroy_process_group()

    if job is None:
        atexit.register(shut_down)
    else:
        job.exit_first(shut_down)
    return processes


def _store(job: TrainingJob | None, timeout: timedelta) -> dist.Store:
    """Where the training processes find one another: a port of process 0, which the system chooses."""
    if job is None:
        return dist.HashStore()
    if job.process_index > 0:
        host, _, port = job.mpi.group_bcast(None).rpartition(":")
        return dist.TCPStore(host, int(port), job.num_processes, is_master=False, timeout=timeout)
    one_host = len({job.mpi.hosts[rank] for rank in job.placement.constructors}) == 1
    host = LOOPBACK if one_host else socket.gethostname()
    store = dist.TCPStore(host, 0, job.num_processes, is_master=True, timeout=timeout, wait_for_workers=False)
    job.mpi.group_bcast(f"{host}:{store.port}")
    return store


def _meet(store: dist.Store, processes: "Processes", timeout: timedelta) -> None:
    """Go on when all are connected: a script that fails at once would break the others' connecting."""
    arrived = [f"msdata/{index}" for index in range(processes.num_processes)]
    store.set(arrived[processes.process_index], "")
    store.wait(arrived, timeout)


def _set_environment(job: TrainingJob | None) -> None:
    """The variables by which torch's own tools know the ranks."""
    hosts = [job.mpi.hosts[rank] for rank in job.placement.constructors] if job else [""]
    rank = job.process_index if job else 0
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(hosts)),
        "LOCAL_RANK": str(hosts[:rank].count(hosts[rank])),
        "LOCAL_WORLD_SIZE": str(hosts.count(hosts[rank])),
    }
