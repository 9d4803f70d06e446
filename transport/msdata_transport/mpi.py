# pyright: strict
"""The MPI twin, for mpi4py 4. The only file that imports mpi4py, and only when something here is called.

Rules that keep the living going when a rank dies (measured: without them most survivors wedge):
- after `join` no collectives: nonblocking point-to-point with named sources on a private communicator;
- at most `credits.WINDOW` unacknowledged messages to one peer, the rest wait here;
- never block in MPI, which spins, but look and sleep;
- an error that names nobody is counted and looked past, never blamed on the peer of the request;
- a receive that ended has its bytes only if its status says so.
"""

import contextlib
import faulthandler
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from msdata_transport.bell import CARD_BYTES, Bell
from msdata_transport.errors import PeerLost, TooLate
from msdata_transport.framing import DEFAULT_LIMITS, Limits
from msdata_transport.launch import check_world_size, find_mpiexec, has_guard
from msdata_transport.mpich import bound_tries, own_provider, unlink_shared_memory
from msdata_transport.polled import PolledEndpoint
from msdata_transport.wire import ANYBODY, Buffer

if TYPE_CHECKING:
    from mpi4py import MPI

_TAG = 1
_CARD = struct.Struct(f"64s256s{CARD_BYTES}s")  # name of the group, host, bell
_MAX_TEXT_BYTES = 64 << 10
_TEXT = struct.Struct(f"<I{_MAX_TEXT_BYTES}s")

_GUARDED_SECONDS = 5.0

# MPI may read the buffers of sends that did not finish until the process ends, so what holds them lives on.
_kept: list[object] = []


class Transfer(NamedTuple):
    """A send, or a receive of so many bytes."""

    request: "MPI.Request"
    num_bytes: int | None


class MpiWire:
    """Messages of MPI on one communicator that nobody else uses.

    Attributes:
        num_nameless_errors: errors of MPI that blame no process; the call is tried again.
    """

    def __init__(self, comm: "MPI.Intracomm") -> None:
        from mpi4py import MPI

        self.num_nameless_errors = 0
        self._comm = comm
        self._status = MPI.Status()
        self._matched: dict[int, tuple[int, MPI.Message]] = {}  # probed, and no receive started
        self._byte = MPI.BYTE
        self._any = MPI.ANY_SOURCE
        self._null = MPI.REQUEST_NULL
        self._error = MPI.Exception
        # Where MPI has no such class, mpi4py gives it the number of ERR_UNKNOWN.
        self._lost = {MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING} - {MPI.ERR_UNKNOWN}

    def arrived(self) -> int | None:
        # Iprobe looks first and lets messages in afterwards, so one call alone finds them a sleep too late.
        # Asking about all ranks is safe when one is dead; receiving from any rank would not be.
        comm, status = self._comm, self._status
        try:
            if comm.Iprobe(self._any, _TAG, status) or comm.Iprobe(self._any, _TAG, status):
                return status.Get_source()
        except self._error:  # somebody failed: ask each rank, to learn who
            return ANYBODY
        return None

    def probe(self, rank: int) -> int | None:
        # Matched: over some providers of libfabric a plain probe also finds what a started receive waits for.
        try:
            if rank not in self._matched:
                message = self._comm.Improbe(rank, _TAG, self._status)
                if message is None:
                    return None
                self._matched[rank] = self._status.Get_count(self._byte), message
            return self._matched[rank][0]
        except self._error as error:
            self._judge(rank, error)

    def start_send(self, rank: int, data: Buffer) -> Transfer | None:
        try:
            return Transfer(self._comm.Isend([data, self._byte], rank, _TAG), None)
        except self._error as error:
            self._judge(rank, error)

    def start_receive(self, rank: int, buffer: Buffer) -> Transfer | None:
        num_bytes, message = self._matched[rank]
        try:
            request = message.Irecv([buffer, self._byte])
        except self._error as error:
            self._judge(rank, error)
            return None
        del self._matched[rank]
        return Transfer(request, num_bytes)

    def finished(self, rank: int, pending: Transfer) -> bool:
        request, num_bytes = pending
        status = self._status
        try:
            # A request that is null before it was found finished has failed, and MPI would call it finished.
            if request == self._null or not request.Test(status):
                return False
            is_whole = num_bytes is None or status.Get_count(self._byte) == num_bytes
            if is_whole and not status.Is_cancelled():
                return True
        except self._error as error:
            self._judge(rank, error)
            return False
        # MPICH over libfabric ends the receives of a connection that broke as if somebody had cancelled them.
        raise PeerLost(rank, "the connection to it broke in the middle of a message")

    def _judge(self, rank: int, error: "MPI.Exception") -> None:
        """Blame the peer only for an error that says a process failed; count any other."""
        if error.Get_error_class() in self._lost:
            raise PeerLost(rank, error.Get_error_string()) from error
        self.num_nameless_errors += 1


@dataclass(frozen=True, kw_only=True, slots=True)
class MpiDescription:
    """What MPI this Python has, for people to read."""

    library: str
    standard: str
    thread_level: str
    mpi4py: str
    mpiexec: str | None


def describe_mpi() -> MpiDescription:
    """Load MPI, which starts it in this process, and say what it is. ImportError when there is none."""
    import mpi4py
    from mpi4py import MPI

    levels = {
        MPI.THREAD_SINGLE: "THREAD_SINGLE",
        MPI.THREAD_FUNNELED: "THREAD_FUNNELED",
        MPI.THREAD_SERIALIZED: "THREAD_SERIALIZED",
        MPI.THREAD_MULTIPLE: "THREAD_MULTIPLE",
    }
    library = " ".join(MPI.Get_library_version().replace("\0", "").splitlines()[0].split())
    standard = ".".join(map(str, MPI.Get_version()))
    return MpiDescription(
        library=library,
        standard=standard,
        thread_level=levels.get(MPI.Query_thread(), "unknown"),
        mpi4py=mpi4py.__version__,
        mpiexec=find_mpiexec(),
    )


class MpiJob:
    """All processes of `MPI.COMM_WORLD`, each in a named group. Made by `join`.

    Attributes:
        endpoint: this rank's end of the transport; ranks are those of `MPI.COMM_WORLD`.
        group: name of this rank's group.
        groups: world ranks of each group, ascending; groups in order of their first rank.
        hosts: processor name of each world rank.
    """

    def __init__(
        self,
        cards: list[tuple[str, str]],
        group_comm: "MPI.Comm",
        comm: "MPI.Intracomm",
        limits: Limits,
        *,
        bell: Bell | None,
        started_mpi: bool,
    ) -> None:
        self._started_mpi = started_mpi
        self._wire = MpiWire(comm)
        self.endpoint = PolledEndpoint(comm.Get_rank(), comm.Get_size(), self._wire, limits, bell)
        _kept.append(self.endpoint)
        self.group = cards[self.endpoint.rank][0]
        self.groups = _groups_of([name for name, _ in cards])
        self.hosts = tuple(host for _, host in cards)
        self._group_comm = group_comm
        self._comm = comm

    @property
    def num_nameless_errors(self) -> int:
        """Errors of MPI that blamed no process and were looked past."""
        return self._wire.num_nameless_errors

    @property
    def group_rank(self) -> int:
        return self._group_comm.Get_rank()

    @property
    def group_size(self) -> int:
        return self._group_comm.Get_size()

    def group_bcast(self, text: str | None, timeout_seconds: float = 60.0) -> str:
        """Give the text of the group's rank 0 to its group; all of it call this, the others with None.

        Raises:
            ValueError: over 64 KiB of UTF-8, or rank 0 has no text.
            TooLate: somebody did not call it in time; the job is of no more use then.
        """
        is_root = self.group_rank == 0
        data = (text or "").encode()
        if is_root and (text is None or len(data) > _MAX_TEXT_BYTES):
            raise ValueError(
                f"rank 0 of a group broadcasts a text of at most {_MAX_TEXT_BYTES} bytes, got {len(data)}"
            )
        # Fixed size: one collective, and nothing to trust about a length.
        buffer = bytearray(_TEXT.pack(len(data), data)) if is_root else bytearray(_TEXT.size)
        _wait(self._group_comm.Ibcast(buffer, root=0), timeout_seconds, f"group_bcast of {self.group!r}")
        num_bytes, padded = _TEXT.unpack(buffer)
        return padded[:num_bytes].decode()

    def leave(self, ok: bool, timeout_seconds: float = 60.0) -> None:
        """End this rank's part.

        With `ok`, which all ranks must pass or none, it closes the endpoint, waits until all ranks are here,
        frees the communicators, and ends MPI where `join` had started it.

        A rank that has a guard, as all ranks under `msdata launch` do, leaves as by `leave_without`: ranks
        that others can do without may die at any time, also while they wait for the others. Who does not
        take its last messages within 5 s counts as one of them.

        Without `ok` nothing here waits for others, and MPI is not ended: MPI_Finalize could hang for ever. A
        process that ends without it makes the launcher, or the guard, end the whole job, so a rank that
        breaks on its way leaves nobody waiting.

        Raises:
            TooLate: with `ok`, a rank did not come in time; end by `os._exit`.
        """
        if not ok:
            with contextlib.suppress(TooLate):
                self.endpoint.close(timeout_seconds=0.0)
            return
        if has_guard():
            with contextlib.suppress(TooLate):
                self.leave_without((), min(timeout_seconds, _GUARDED_SECONDS))
            return
        self.endpoint.close(timeout_seconds)
        _wait(self._comm.Ibarrier(), timeout_seconds, "leave", self.endpoint.discard)
        self._comm.Free()
        self._group_comm.Free()
        if self._started_mpi:
            from mpi4py import MPI

            MPI.Finalize()

    def leave_without(self, lost: Iterable[int], timeout_seconds: float = 60.0) -> None:
        """End this rank's part of a job that lost ranks; then end the process by `os._exit(0)`.

        It forgets the lost and closes the endpoint, which waits for the living alone and tells all of them
        that this rank is gone. There is no barrier, and MPI is not ended: both would wait for the dead for
        ever.

        Under mpiexec all ranks must end so, and MPICH's needs `-disable-auto-cleanup` (`msdata launch`).

        Raises:
            TooLate: a living rank did not take its messages in time; end by `os._exit` all the same.
        """
        for rank in lost:
            self.endpoint.forget(rank)
        self.endpoint.close(timeout_seconds, tell_all=True)


def join(group: str, timeout_seconds: float = 120.0, limits: Limits = DEFAULT_LIMITS) -> MpiJob:
    """Load MPI and meet all ranks of `MPI.COMM_WORLD`; each calls this once with the name of its group.

    Where a rank does not even start MPI in time, the process ends with status 1 and a stack trace that shows
    this call: MPI_Init waits for all ranks and cannot be left.

    mpi4py asks for THREAD_MULTIPLE unless told otherwise. THREAD_SERIALIZED is enough while one thread at a
    time uses MPI, THREAD_FUNNELED while that is the main thread. SIGUSR1 is ignored from here on, unless the
    program had a handler for it: MPICH's launcher sends it when a rank dies.

    Raises:
        ValueError: the name is empty or over 64 bytes of UTF-8.
        TooLate: a rank did not call it in time.
        TransportError: srun started more processes than MPI sees.
    """
    started_mpi = "mpi4py.MPI" not in sys.modules
    if started_mpi:
        import mpi4py

        mpi4py.rc.finalize = False  # at an exit after an error it would wait for the others; see `leave`
    # A thread of C ends the process, since MPI_Init holds the interpreter while it waits.
    faulthandler.dump_traceback_later(timeout_seconds, exit=True)
    try:
        with own_provider():
            from mpi4py import MPI
    finally:
        faulthandler.cancel_dump_traceback_later()

    _ignore_deaths()
    world = MPI.COMM_WORLD
    check_world_size(world.Get_size())
    bell = None
    with contextlib.suppress(OSError):
        bell = Bell()
    cards, bells = _exchange_cards(world, group, MPI.Get_processor_name(), bell, timeout_seconds)
    if bell is not None:
        bell.meet(bells)
    names = list(_groups_of([name for name, _ in cards]))
    # All ranks have just arrived, so these two, which cannot be polled, are short.
    group_comm = world.Split(names.index(group), world.Get_rank())
    private = world.Dup()
    private.Set_errhandler(MPI.ERRORS_RETURN)
    if has_guard():
        bound_tries()
        unlink_shared_memory()
    return MpiJob(cards, group_comm, private, limits, bell=bell, started_mpi=started_mpi)


def _ignore_deaths() -> None:
    """Ignore SIGUSR1 unless the program handles it.

    MPICH's mpiexec tells of a rank's death by it, and MPICH's own handler then breaks the survivors. With
    `-disable-auto-cleanup` and a guard around each rank (`msdata_transport.guard`) they go on.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGUSR1) in (signal.SIG_DFL, None):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def _exchange_cards(
    world: "MPI.Intracomm", group: str, host: str, bell: Bell | None, timeout_seconds: float
) -> tuple[list[tuple[str, str]], list[bytes]]:
    """(group, host) of every rank, and the card of its bell, empty where it has none."""
    name = group.encode()
    if not 0 < len(name) <= 64:
        raise ValueError(f"the name of a group has 1 to 64 bytes, got {group!r}")
    mine = np.frombuffer(_CARD.pack(name, host.encode(), b"" if bell is None else bell.card), np.uint8)
    cards = np.zeros((world.Get_size(), _CARD.size), np.uint8)
    _wait(world.Iallgather(mine, cards), timeout_seconds, f"join of rank {world.Get_rank()}")
    unpacked = [[field.rstrip(b"\0") for field in _CARD.unpack(card.tobytes())] for card in cards]
    hosts = [(name.decode(), host.decode(errors="replace")) for name, host, _ in unpacked]
    return hosts, [bell for _, _, bell in unpacked]


def _groups_of(names: list[str]) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(rank for rank, other in enumerate(names) if other == name)
        for name in dict.fromkeys(names)
    }


def _wait(
    request: "MPI.Request", timeout_seconds: float, what: str, meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Wait without spinning, as a blocking MPI call would, with ever longer sleeps."""
    deadline, sleep_seconds = time.monotonic() + timeout_seconds, 1e-3
    while not request.Test():
        if time.monotonic() >= deadline:
            _kept.append(request)
            raise TooLate(f"{what}: a rank did not come within {timeout_seconds} s")
        meanwhile()
        time.sleep(sleep_seconds)
        sleep_seconds = min(1.05 * sleep_seconds, 20e-3)
