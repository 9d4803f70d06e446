"""JAX over the training processes alone; data ranks take no part and load no JAX."""

import socket

import jax

from msdata_jax.errors import LaunchError

LOOPBACK = "127.0.0.1"


def free_address(*, one_host: bool) -> str:
    """An address on which JAX's coordinator can listen: a port that is free now, on the loopback of one host.

    Args:
        one_host: whether all training processes run on this host.
    """
    host = LOOPBACK if one_host else socket.gethostname()
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

    Raises:
        LaunchError: JAX's devices were used before, or `jax.distributed` was started before.
    """
    on_loopback = address.startswith(f"{LOOPBACK}:")
    try:
        jax.distributed.initialize(
            coordinator_address=address,
            # A host's own name may stand for 127.0.1.1 on itself, so for other hosts JAX listens everywhere.
            coordinator_bind_address=address if on_loopback and process_index == 0 else None,
            num_processes=num_processes,
            process_id=process_index,
            cluster_detection_method="deactivate",
            initialization_timeout=timeout_seconds,
        )
    except RuntimeError as error:
        raise LaunchError(
            f"jax.distributed did not start: {error}\nmsd.initialize() starts it, once, before the first use "
            "of JAX's devices: call it at the top of the training script"
        ) from error


def shutdown() -> None:
    """Meet the other training processes at the end; process 0 must not go before them."""
    jax.distributed.shutdown()
