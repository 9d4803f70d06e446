"""What importing costs, seen from a fresh process."""

import subprocess
import sys

import msdata_transport

PUBLIC = [
    *("BadFrame", "Endpoint", "EndpointClosed", "Faults", "Limits", "Message", "PeerLost", "TooLate"),
    *("RunFolder", "TransportError", "connect", "find_mpiexec", "world_size_from_environment"),
]


def test_public_names() -> None:
    assert dir(msdata_transport) == sorted(PUBLIC)
    assert all(getattr(msdata_transport, name).__name__ == name for name in PUBLIC)


def test_the_guard_loads_nothing_but_the_standard_library_and_little_of_it() -> None:
    program = (
        "import sys, msdata_transport.guard;"
        "loaded = {name.partition('.')[0] for name in sys.modules};"
        "print(sorted(loaded - sys.stdlib_module_names - {'__main__', 'msdata_transport'}));"
        "print(sorted(loaded & {'ctypes', 'dataclasses', 'inspect', 'shutil', 'subprocess', 'threading'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    ours, heavy = done.stdout.splitlines()
    assert not [name for name in eval(ours) if not name.startswith(("_", "distutils", "sitecustomize"))]
    assert heavy == "[]"


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
