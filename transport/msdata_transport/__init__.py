"""Messages between numbered ranks: one contract, a twin over threads, a twin over MPI.

The MPI twin is `msdata_transport.mpi.join`; nothing here loads MPI.
"""

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
