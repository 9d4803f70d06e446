"""Messages between numbered ranks: one contract, a twin over threads, a twin over MPI.

The MPI twin is `msdata_transport.mpi.join`; nothing here loads MPI. Public names are loaded when they are
first used, since the guard around each rank imports this package and must stay small.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from msdata_transport.endpoint import Endpoint as Endpoint
    from msdata_transport.endpoint import Message as Message
    from msdata_transport.errors import BadFrame as BadFrame
    from msdata_transport.errors import EndpointClosed as EndpointClosed
    from msdata_transport.errors import PeerLost as PeerLost
    from msdata_transport.errors import TooLate as TooLate
    from msdata_transport.errors import TransportError as TransportError
    from msdata_transport.framing import Limits as Limits
    from msdata_transport.inproc import Faults as Faults
    from msdata_transport.inproc import connect as connect
    from msdata_transport.launch import find_mpiexec as find_mpiexec
    from msdata_transport.launch import world_size_from_environment as world_size_from_environment
    from msdata_transport.run_folder import RunFolder as RunFolder

_HOMES = {
    "Endpoint": "endpoint",
    "Message": "endpoint",
    "BadFrame": "errors",
    "EndpointClosed": "errors",
    "PeerLost": "errors",
    "TooLate": "errors",
    "TransportError": "errors",
    "Limits": "framing",
    "Faults": "inproc",
    "connect": "inproc",
    "find_mpiexec": "launch",
    "world_size_from_environment": "launch",
    "RunFolder": "run_folder",
}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'msdata_transport' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"msdata_transport.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
