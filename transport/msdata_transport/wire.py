# pyright: strict
"""A wire that is looked at, not waited in, and what is under way on it between two ranks."""

from collections import deque
from collections.abc import Generator
from typing import Generic, Protocol, TypeVar

import numpy as np

from msdata_transport.credits import Credits
from msdata_transport.framing import Head

Buffer = bytes | bytearray | np.ndarray
Pending = TypeVar("Pending")
ANYBODY = -1
"""As a rank: it may be any."""
Waits = Generator[None, None, None]


class Wire(Protocol[Pending]):
    """Ordered runs of bytes between numbered ranks, nonblocking. A call may raise PeerLost for its `rank`."""

    def arrived(self) -> int | None:
        """A rank from which something may have come, or `ANYBODY`; lets in what is on its way."""
        ...

    def probe(self, rank: int) -> int | None:
        """Size of the next run from `rank` for which no receive was started, or None."""
        ...

    def start_send(self, rank: int, data: Buffer) -> Pending | None:
        """Start to send; None means not started, try again later. `data` must live until it is finished."""
        ...

    def start_receive(self, rank: int, buffer: Buffer) -> Pending | None:
        """Start to receive the run just probed; None means not started, try again later."""
        ...

    def finished(self, rank: int, pending: Pending) -> bool:
        """Whether a send or receive is over; not asked again after True. One that failed never is."""
        ...


class Incoming(Generic[Pending]):
    """A message whose head is here; it keeps the arrays alive while the wire may write to them."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.num_bytes = sum(spec.num_bytes for spec in head.arrays)
        self.arrays: list[np.ndarray] = []
        self.receiving: deque[Pending] = deque()  # in the order of the arrays, without those that finished
        self.all_started = False  # a receive of each array


class Peer(Generic[Pending]):
    """What is under way between this rank and one other."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.credits = Credits()
        self.waiting: deque[list[Buffer]] = deque()  # messages that wait for credit
        self.posting: deque[Buffer] = deque()  # with credit, not given to the wire yet
        self.sending: deque[tuple[Pending, Buffer]] = deque()  # given to the wire
        self.rings_left = 0  # 2 from when a message is posted, 1 when all is posted and not all is gone
        self.lost: str | None = None
        self.forgotten = False
        self.closed = False  # it said so
        self.talked = False  # something went or came
        self.told = False  # that this rank closed
        self.incoming: deque[Incoming[Pending]] = deque()  # in the order they were sent
        self.num_held = 0  # messages of it from their head until the owner takes them
        self.reading = False  # a head or a control
        self.reader: Waits

    @property
    def gone(self) -> bool:
        return self.closed or self.lost is not None

    @property
    def arriving(self) -> bool:
        """Whether something of it has begun to come and is not here yet."""
        return self.reading or bool(self.incoming)

    @property
    def moving(self) -> bool:
        """Whether bytes are under way that need this rank to look again soon."""
        return self.arriving or bool(self.sending)

    @property
    def busy(self) -> bool:
        """Whether there is something to do even if nothing came."""
        return self.moving or bool(self.posting or self.waiting)

    @property
    def left(self) -> bool:
        """Whether all messages that were queued have been taken by the peer, or never will be."""
        return self.gone or not (self.waiting or self.credits.num_unacknowledged)

    def lose(self, why: str) -> None:
        """Send no more to it; what it takes and gives from now on is not looked at."""
        self.lost = why
        self.waiting.clear()
        self.posting.clear()
