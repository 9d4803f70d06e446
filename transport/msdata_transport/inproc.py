# pyright: strict
"""The in-process twin: every rank is a thread, and faults can be injected.

A message goes through the wire format and its arrays are copied: a receiver gets what it would get from MPI.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable

from msdata_transport.endpoint import Endpoint, Message
from msdata_transport.errors import EndpointClosed, PeerLost, TooLate
from msdata_transport.framing import DEFAULT_LIMITS, Limits, copy_message

_Item = tuple[int, Message] | PeerLost


def connect(size: int, faults: "Faults | None" = None, limits: Limits = DEFAULT_LIMITS) -> list[Endpoint]:
    """Make `size` endpoints that reach one another; rank r is the r-th. Each belongs to one thread."""
    if size < 1:
        raise ValueError(f"a transport has at least 1 rank, got {size}")
    faults = Faults() if faults is None else faults
    endpoints = [_InprocEndpoint(rank, faults, limits) for rank in range(size)]
    for endpoint in endpoints:
        endpoint.peers = endpoints
    faults.attach(endpoints)
    return list(endpoints)


class Faults:
    """Faults of one set of endpoints. After `connect`, any thread may call any method at any time.

    MPICH never reports a dead process: `drop(sender=rank)` with `drop(receiver=rank)` is that silence, `kill`
    is an MPI that does report it.
    """

    def __init__(self) -> None:
        self._endpoints: list[_InprocEndpoint] = []
        self._delays: dict[tuple[int, int], float] = {}
        self._drops: list[Callable[[int, int, Message], bool]] = []

    def kill(self, rank: int) -> None:
        """Make `rank` dead: its calls raise EndpointClosed, its peers get PeerLost after its messages."""
        self._endpoints[rank].die()

    def delay(self, sender: int, receiver: int, seconds: float) -> None:
        """Let messages from now on take `seconds`. The order of one sender to one receiver is kept."""
        self._delays[sender, receiver] = seconds

    def drop(
        self,
        predicate: Callable[[int, int, Message], bool] | None = None,
        *,
        sender: int | None = None,
        receiver: int | None = None,
        kind: str | None = None,
    ) -> None:
        """Lose messages of which all that is given holds; `predicate(sender, receiver, message)`."""

        def matches(from_rank: int, to_rank: int, message: Message) -> bool:
            wanted = ((sender, from_rank), (receiver, to_rank), (kind, message.kind))
            if any(want is not None and want != have for want, have in wanted):
                return False
            return predicate is None or predicate(from_rank, to_rank, message)

        self._drops.append(matches)

    def heal(self) -> None:
        """Forget all delays and drops; the dead stay dead."""
        self._delays.clear()
        self._drops.clear()

    def attach(self, endpoints: "list[_InprocEndpoint]") -> None:
        """Bind to the endpoints; `connect` does it."""
        if self._endpoints:
            raise ValueError("these Faults belong to other endpoints already; make new ones")
        self._endpoints = endpoints

    def delay_of(self, sender: int, receiver: int) -> float:
        return self._delays.get((sender, receiver), 0.0)

    def drops(self, sender: int, receiver: int, message: Message) -> bool:
        return any(matches(sender, receiver, message) for matches in list(self._drops))


class _InprocEndpoint:
    def __init__(self, rank: int, faults: Faults, limits: Limits) -> None:
        self._rank = rank
        self._faults = faults
        self._limits = limits
        self.peers: list[_InprocEndpoint] = []
        # All below is guarded by `_changed`; no thread ever holds two of them.
        self._changed = threading.Condition()
        self._inbox: list[tuple[float, int, _Item]] = []  # a heap by due time, then order of arrival
        self._numbers = itertools.count()
        self._last_due: dict[int, float] = {}
        self._lost: set[int] = set()
        self._forgotten: set[int] = set()
        self._woken = False
        self._closed = False
        self._dead = False

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return len(self.peers)

    def send(self, rank: int, message: Message) -> None:
        self._check_open()
        if not 0 <= rank < self.size:
            raise ValueError(f"rank must be in [0, {self.size}), got {rank}")
        copy = copy_message(message, self._limits)
        if rank in self._forgotten:  # only this thread writes it
            return
        if self.peers[rank].is_dead():
            raise PeerLost(rank, "it was killed")
        if not self._faults.drops(self._rank, rank, copy):
            self.peers[rank].deliver(self._rank, (self._rank, copy), self._faults.delay_of(self._rank, rank))

    def receive(self, timeout_seconds: float) -> tuple[int, Message] | None:
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while True:
                self._check_open()
                if self._woken:
                    self._woken = False
                    return None
                now = time.monotonic()
                next_due = self._inbox[0][0] if self._inbox else float("inf")
                if next_due <= now:
                    break
                if now >= deadline:
                    raise TooLate(f"rank {self._rank} got nothing within {timeout_seconds} s")
                self._changed.wait(min(deadline, next_due) - now)
            _, _, item = heapq.heappop(self._inbox)
        if isinstance(item, PeerLost):
            raise item
        return item

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def forget(self, rank: int, why: str = "it was given up") -> None:
        if rank == self._rank or not 0 <= rank < self.size:
            raise ValueError(
                f"only another rank of {self.size} can be forgotten, rank {self._rank} got {rank}"
            )
        with self._changed:
            self._forgotten.add(rank)
            self._inbox = [entry for entry in self._inbox if _sender(entry[2]) != rank]
            heapq.heapify(self._inbox)

    def close(self, timeout_seconds: float = 10.0) -> None:
        """As the contract; there is nothing to wait for, messages leave within `send`."""
        with self._changed:
            self._closed = True
            self._inbox.clear()
            self._changed.notify_all()

    def deliver(self, sender: int, item: _Item, delay_seconds: float) -> None:
        """Called by the sender's thread. Due times of one sender never go back, which keeps its order."""
        with self._changed:
            if self._closed or self._dead or sender in self._lost | self._forgotten:
                return
            if isinstance(item, PeerLost):
                self._lost.add(sender)
            due = max(time.monotonic() + delay_seconds, self._last_due.get(sender, 0.0))
            self._last_due[sender] = due
            heapq.heappush(self._inbox, (due, next(self._numbers), item))
            self._changed.notify_all()

    def is_dead(self) -> bool:
        with self._changed:
            return self._dead

    def die(self) -> None:
        with self._changed:
            if self._dead or self._closed:
                return
            self._dead = True
            self._inbox.clear()
            self._changed.notify_all()
        for peer in self.peers:
            peer.deliver(self._rank, PeerLost(self._rank, "it was killed"), 0.0)

    def _check_open(self) -> None:
        if self._dead:
            raise EndpointClosed(f"rank {self._rank} was killed")
        if self._closed:
            raise EndpointClosed(f"the endpoint of rank {self._rank} is closed")


def _sender(item: _Item) -> int:
    return item.rank if isinstance(item, PeerLost) else item[0]
