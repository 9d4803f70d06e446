# pyright: strict
"""What MPICH over libfabric needs so that those who live outlive a rank on another host.

Measured with the `mpich` wheel on two hosts (`docs/guides/slurm.md`): over UCX, its own choice, a send to a
rank that was killed crashes the sender. Over libfabric's `tcp;ofi_rxm` such a send is tried again for ever,
inside MPI, unless the number of tries is bounded; then it fails at once, and the caller may try again later.
That number must stay unbounded while MPI starts, when connections take their time: it is set after that.
"""

import contextlib
import ctypes
import os
import re
from collections.abc import Generator, MutableMapping

PROVIDER_VARIABLE = "MSDATA_FI_PROVIDER"
"""The libfabric provider for MPI alone, set by whoever starts the ranks."""
PROVIDER = "tcp;ofi_rxm"
MAX_TRIES = 200
"""Of a send that finds no connection; about 0.1 s for one to a dead rank."""

# Of ofi_rxm: 42 MB a process in place of 205, by smaller pools of smaller buffers.
_FRUGAL = {
    "FI_OFI_RXM_BUFFER_SIZE": "2048",
    "FI_OFI_RXM_MSG_RX_SIZE": "16",
    "FI_OFI_RXM_MSG_TX_SIZE": "16",
}
_TRIES = b"MPIR_CVAR_CH4_OFI_MAX_EAGAIN_RETRY"
_SEGMENT = re.compile(r"\s(/dev/shm/mpich_shm_\w+)$", re.MULTILINE)
_LIBRARY = re.compile(r"\s(/\S*/libmpi(?:ch)?\.so\S*)$", re.MULTILINE)


@contextlib.contextmanager
def own_provider(environ: MutableMapping[str, str] = os.environ) -> Generator[None]:
    """While MPI starts, name its provider; other users of libfabric, such as NCCL's, are not told.

    `FI_PROVIDER` in the environment decides for all of them, and is left alone.
    """
    provider = environ.get(PROVIDER_VARIABLE)
    own = {} if provider is None or "FI_PROVIDER" in environ else {"FI_PROVIDER": provider, **_FRUGAL}
    added = {name: value for name, value in own.items() if name not in environ}
    environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del environ[name]


def bound_tries(max_tries: int = MAX_TRIES) -> bool:
    """Let sends that find no connection fail after so many tries; returns whether this MPI can."""
    with contextlib.suppress(OSError, AttributeError):
        with open("/proc/self/maps") as maps:
            found = _LIBRARY.search(maps.read())
        return found is not None and _write_setting(ctypes.CDLL(found[1]), _TRIES, max_tries)
    return False


def unlink_shared_memory(maps: str = "/proc/self/maps") -> None:
    """Take away the names of the shared memory that MPICH maps, once all ranks of this host map it.

    It then goes with the last of them, however they end. MPI_Finalize would do it, but a job that can lose
    ranks does without, and on other hosts than the launcher's nobody would clean up behind it.
    """
    with contextlib.suppress(OSError):
        with open(maps) as file:
            found = {match[1] for match in _SEGMENT.finditer(file.read())}
        for path in found:
            with contextlib.suppress(OSError):  # another rank did it
                os.unlink(path)


def _write_setting(library: ctypes.CDLL, name: bytes, value: int) -> bool:
    """Write a number through MPI's tool interface, which is made for settings of a library that runs."""
    index, handle, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    if library.MPI_T_init_thread(0, ctypes.byref(ctypes.c_int())):
        return False
    return (
        not library.MPI_T_cvar_get_index(name, ctypes.byref(index))
        and not library.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(count))
        and not library.MPI_T_cvar_write(handle, ctypes.byref(ctypes.c_int(value)))
    )
