"""JAX over the training processes alone; data ranks take no part and load no JAX."""

import socket

import jax

from msdata_jax.errors import LaunchError


def free_address(*, one_host: bool) -> str:
    """An address on which JAX's coordinator can listen: a port that is free now, on the loopback of one host.

    Args:
        one_host: whether all training processes run on this host.
    """
    host = "127.0.0.1" if one_host else socket.gethostname()
    with socket.socket() as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    return f"{host}:{port}"


def set_cpu_devices(num_devices: int) -> None:
    """Use the CPU, as `num_devices` devices.

    Raises:
        LaunchError: JAX already runs with other devices.
    """
    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", num_devices)
    except RuntimeError as error:
        raise LaunchError(
            f"msd.initialize(num_cpu_devices={num_devices}) must come before the first use of JAX's devices: "
            f"{error}"
        ) from error


def initialize_jax(
    address: str, *, process_index: int, num_processes: int, timeout_seconds: int = 120
) -> None:
    """`jax.distributed.initialize` over the training processes.

    Cluster detection stays off: under MPI or Slurm it would count the data ranks too.
    """
    jax.distributed.initialize(
        coordinator_address=address,
        coordinator_bind_address=address if process_index == 0 else None,
        num_processes=num_processes,
        process_id=process_index,
        cluster_detection_method="deactivate",
        initialization_timeout=timeout_seconds,
    )


def shutdown() -> None:
    """Meet the other training processes at the end; process 0 must not go before them."""
    jax.distributed.shutdown()
