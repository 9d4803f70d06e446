"""What importing costs, seen from a fresh process."""

import subprocess
import sys

import msdata_transport

PUBLIC = [
    *("BadFrame", "Endpoint", "EndpointClosed", "Faults", "Limits", "Message", "PeerLost", "TooLate"),
    *("TransportError", "connect", "find_mpiexec", "world_size_from_environment"),
]


def test_public_names() -> None:
    modules = {name for name in vars(msdata_transport) if f"msdata_transport.{name}" in sys.modules}
    assert sorted(name for name in vars(msdata_transport) if name[0] != "_" and name not in modules) == PUBLIC


def test_importing_loads_no_mpi_and_no_jax_and_starts_no_thread() -> None:
    program = (
        "import sys, threading, msdata_transport, msdata_transport.mpi, msdata_transport.conformance;"
        "loaded = {name.partition('.')[0] for name in sys.modules};"
        "print(sorted(loaded & {'mpi4py', 'jax', 'jaxlib', 'torch', 'msdata_jax'}), threading.active_count())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "[] 1\n"
