"""The training processes of a job, and what a training script calls first to be one."""

import os
from dataclasses import dataclass

from msdata_jax.errors import LaunchError
from msdata_jax.roles.planner import START_SECONDS
from msdata_jax.runtime.job import join_as_trainer


@dataclass(frozen=True, kw_only=True)
class Processes:
    """The training processes of the job.

    Attributes:
        process_index: this one; equal to `jax.process_index()`.
        num_processes: all of them.
    """

    process_index: int
    num_processes: int


def initialize(
    *,
    num_cpu_devices: int | None = None,
    use_jax: bool = True,
    start_seconds: float = START_SECONDS,
    coordinator_port: int | None = None,
) -> Processes:
    """Join the job; call it at the top of the training script, before JAX's devices are used.

    Alone (`python train.py`) it only sets the CPU devices. Under `msdata launch` or `msdata serve` it meets
    the data ranks over MPI and starts `jax.distributed` over the training processes. Several of them on one
    host share its GPUs, those of `CUDA_VISIBLE_DEVICES` or all, in equal parts in the order of their ranks.

    Args:
        num_cpu_devices: use the CPU, as so many devices for each process; None leaves JAX's choice.
        use_jax: False for trainers that do not use JAX.
        start_seconds: time for all ranks to come.
        coordinator_port: for JAX's coordinator on the host of process 0, where a firewall lets only some
            through; None takes one that is free.

    Raises:
        LaunchError: the ranks form no job, JAX's devices were used before, the port is taken, or a host's
            GPUs cannot be shared equally.
    """
    job = join_as_trainer(start_seconds)
    process_index, num_processes = (job.process_index, job.num_processes) if job else (0, 1)
    if use_jax:
        from msdata_jax.spmd import distributed

        if num_cpu_devices is not None:
            distributed.set_cpu_devices(num_cpu_devices)
        if job is not None and num_processes > 1:
            hosts = [job.mpi.hosts[rank] for rank in job.placement.constructors]
            one_host = len(set(hosts)) == 1
            found = (
                distributed.free_address(one_host=one_host, port=coordinator_port)
                if process_index == 0
                else None
            )
            address = job.mpi.group_bcast(found)
            if address.startswith(distributed.TROUBLE):  # on all, before any waits for the coordinator
                raise LaunchError(address.removeprefix(distributed.TROUBLE))
            num_gpus = 0 if num_cpu_devices is not None else distributed.count_gpus(os.environ)
            distributed.initialize_jax(
                address,
                process_index=process_index,
                num_processes=num_processes,
                local_device_ids=distributed.share_gpus(hosts, process_index, num_gpus),
            )
            job.exit_first(distributed.shutdown)
    return Processes(process_index=process_index, num_processes=num_processes)
