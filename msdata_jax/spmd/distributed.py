"""JAX over the training processes alone; data ranks take no part and load no JAX."""

import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

from msdata_jax.errors import LaunchError

LOOPBACK = "127.0.0.1"
TROUBLE = "trouble: "
"""Begins the text of `free_address` where there is no address."""
DEVICES = Path("/dev")
_BOUND_BY_SLURM = ("SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND")


def free_address(*, one_host: bool, port: int | None = None) -> str:
    """An address on which JAX's coordinator can listen, or `TROUBLE` and what is wrong.

    It goes to all training processes as text, so that all of them end where there is none.

    Args:
        one_host: whether all training processes run on this host; its loopback then does.
        port: the one to take; None takes any that is free now.
    """
    host = LOOPBACK if one_host else socket.gethostname()
    with socket.socket() as probe:
        # What an ended job left is no obstacle; one that listens is, though gRPC would share its port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port or 0))
            probe.listen()
        except OSError as error:
            return (
                f"{TROUBLE}JAX's coordinator cannot listen on port {port} of {socket.gethostname()}: "
                f"{error.strerror}. Another job may use it: give each its own msd.initialize("
                f"coordinator_port=...), or leave it out and a free one is taken"
            )
        return f"{host}:{probe.getsockname()[1]}"


def count_gpus(environ: Mapping[str, str], devices: Path = DEVICES) -> int:
    """How many of this host's NVIDIA GPUs this process may share with others; 0 where JAX is to choose.

    Those that `CUDA_VISIBLE_DEVICES` lists, else all. Where Slurm bound GPUs to tasks, nothing is shared.
    """
    platforms = environ.get("JAX_PLATFORMS", "")
    if any(name in environ for name in _BOUND_BY_SLURM) or (platforms and "cuda" not in platforms):
        return 0
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return sum(bool(re.fullmatch(r"nvidia\d+", path.name)) for path in devices.glob("nvidia*"))
    listed = [entry.strip() for entry in visible.split(",")]
    valid = [entry for entry in listed if entry and not entry.startswith("-") and entry != "NoDevFiles"]
    return len(valid)


def share_gpus(hosts: Sequence[str], process_index: int, num_gpus: int) -> list[int] | None:
    """The GPUs of a training process, as indices in the visible list; None for all that JAX finds.

    Args:
        hosts: of each training process.
        process_index: this one.
        num_gpus: of its host; 0 where there is nothing to share.

    Raises:
        LaunchError: they cannot be shared equally.
    """
    sharing = [index for index, host in enumerate(hosts) if host == hosts[process_index]]
    if len(sharing) == 1 or num_gpus == 0:
        return None
    if num_gpus % len(sharing):
        raise LaunchError(
            f"{len(sharing)} training processes on {hosts[process_index]} cannot share {num_gpus} GPUs "
            f"equally: start as many as there are GPUs, or a divisor of that, or set CUDA_VISIBLE_DEVICES"
        )
    each = num_gpus // len(sharing)
    first = sharing.index(process_index) * each
    return list(range(first, first + each))


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
    address: str,
    *,
    process_index: int,
    num_processes: int,
    local_device_ids: Sequence[int] | None = None,
    timeout_seconds: int = 120,
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
            local_device_ids=local_device_ids,
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
