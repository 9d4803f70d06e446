# pyright: strict
"""An endpoint over any wire that is looked at, not waited in. Loads no MPI; `mpi.py` brings the wire.

All goes in order: a message is its head, then each array that is not empty. A control is 8 bytes, which no
head is: a number of messages acknowledged, or 0 for "I closed". A message is acknowledged when `receive`
gives it out, so a rank that stops receiving holds at most a window of messages of each peer; a peer
that sends more breaks the rules. The next messages are received while the arrays of earlier ones are under
way, and given out in order.
"""

import struct
import time
from collections import deque
from collections.abc import Generator
from typing import Generic

import numpy as np

from msdata_transport.backoff import Backoff
from msdata_transport.bell import NoBell, Waking
from msdata_transport.credits import WINDOW
from msdata_transport.endpoint import Message
from msdata_transport.errors import BadFrame, EndpointClosed, PeerLost, TooLate, TransportError
from msdata_transport.framing import (
    DEFAULT_LIMITS,
    Limits,
    byte_view,
    copy_message,
    decode_head,
    encode_head,
)
from msdata_transport.wire import ANYBODY, Incoming, Peer, Pending, Waits, Wire

_CONTROL = struct.Struct("<Q")
_CLOSED = 0  # as a control
_LARGE_BYTES = 128 << 10  # of a message; over this a look reads one
_ENOUGH_BYTES = 4 << 20  # under way from one peer; from here on no next message is begun
_UNRUNG_SECONDS = 50e-3  # between looks of who waits for its bell


class PolledEndpoint(Generic[Pending]):
    """An Endpoint that makes progress only while its owner is inside `send`, `receive` or `close`.

    It waits for its bell where all others ring it; else it looks every 5 ms at least, and so sees a `wake`.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        wire: Wire[Pending],
        limits: Limits = DEFAULT_LIMITS,
        bell: Waking | None = None,
    ) -> None:
        self._rank = rank
        self._size = size
        self._wire = wire
        self._limits = limits
        self._inbox: deque[tuple[int, Message | BadFrame | PeerLost]] = deque()
        self._backoff = Backoff()
        self._bell = bell or NoBell()
        self._moved = False  # traffic since the last pause
        self._num_looks = self._num_arrivals = 0
        self._busy = dict[int, Peer[Pending]]()  # of the others
        self._owed = dict[int, Peer[Pending]]()  # what was taken of them is not acknowledged
        self._woken = False
        self._closed = False
        self._others = {other: Peer[Pending](other) for other in range(size) if other != rank}
        for peer in self._others.values():
            peer.reader = self._read(peer)

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    def send(self, rank: int, message: Message) -> None:
        self._check_open()
        if not 0 <= rank < self._size:
            raise ValueError(f"rank must be in [0, {self._size}), got {rank}")
        if rank == self._rank:
            self._inbox.append((rank, copy_message(message, self._limits)))
            return
        peer = self._others[rank]
        head = encode_head(message, self._limits)
        if peer.lost is not None and not peer.forgotten:
            raise PeerLost(rank, peer.lost)
        if not peer.gone:
            peer.waiting.append([head, *(byte_view(array) for array in message.arrays if array.size)])
            self._advance(peer)

    def receive(self, timeout_seconds: float) -> tuple[int, Message] | None:
        self._check_open()
        deadline = time.monotonic() + timeout_seconds
        while True:
            if self._woken:
                self._woken = False
                return None
            # What is here comes first, but a rank that keeps writing to itself must not starve its peers.
            self._num_looks += 1
            if not self._inbox or self._num_looks % 16 == 0:
                self._advance_all()
            if self._inbox:
                return self._give_out()
            if time.monotonic() >= deadline:
                self._acknowledge_all()
                raise TooLate(f"rank {self._rank} got nothing within {timeout_seconds} s")
            if self._bell.reaches_all and all(peer.gone for peer in self._busy.values()):
                self._wait_for_bell(deadline)
            else:
                self._pause(deadline)

    def wake(self) -> None:
        self._woken = True
        self._bell.ring(self._rank)

    def forget(self, rank: int, why: str = "it was given up") -> None:
        """As the contract. What the wire was given stays alive: it may be read or written for ever."""
        if rank == self._rank or not 0 <= rank < self._size:
            raise ValueError(
                f"only another rank of {self._size} can be forgotten, rank {self._rank} got {rank}"
            )
        peer = self._others[rank]
        peer.forgotten = True
        peer.lose(why if peer.lost is None else peer.lost)
        self._inbox = deque(entry for entry in self._inbox if entry[0] != rank)

    def close(self, timeout_seconds: float = 10.0, *, tell_all: bool = False) -> None:
        """As the contract. A message has left when its peer acknowledged it, so the process may exit at once.

        What arrives meanwhile is dropped. Peers that closed or are lost are not waited for. Those that this
        rank ever talked to are told that it closed. Where no barrier follows, `tell_all` tells the others
        too: one of them may be about to send its first message, which nobody would take.
        """
        if self._closed:
            return
        deadline = time.monotonic() + timeout_seconds
        peers = self._others.values()
        while True:
            self.discard()
            self._acknowledge_all()
            if all(peer.left for peer in peers) or time.monotonic() >= deadline:
                break
            self._pause(deadline)
        late = [peer.rank for peer in peers if not peer.left]
        self._say_closed(max(deadline, time.monotonic() + 0.1), tell_all=tell_all)
        if late:
            raise TooLate(
                f"ranks {late} did not take their messages within {timeout_seconds} s; closed anyway"
            )

    def discard(self) -> None:
        """Drop what has come; once closed, tell its senders so. For `close`, and for waiting after it."""
        self._woken = False
        self._advance_all()
        while self._inbox:
            self._take_next()

    def _say_closed(self, deadline: float, *, tell_all: bool) -> None:
        """Tell those that were talked to, or all, and wait until the wire has taken it."""
        self._closed = True
        for peer in self._others.values():
            if peer.talked or tell_all:
                self._tell_closed(peer)
        while any((peer.posting or peer.sending) and not peer.gone for peer in self._busy.values()):
            if time.monotonic() >= deadline:
                break
            self.discard()
            self._pause(deadline)

    def _tell_closed(self, peer: Peer[Pending]) -> None:
        if not peer.told and not peer.gone:
            peer.told = True
            peer.posting.append(_CONTROL.pack(_CLOSED))
            peer.rings_left = 2
            self._busy[peer.rank] = peer

    def _check_open(self) -> None:
        if self._closed:
            raise EndpointClosed(f"the endpoint of rank {self._rank} is closed")

    def _wait_for_bell(self, deadline: float) -> None:
        self._acknowledge_all()
        self._moved = False
        self._bell.wait(min(_UNRUNG_SECONDS, max(0.0, deadline - time.monotonic())))

    def _pause(self, deadline: float) -> None:
        now = time.monotonic()
        if self._moved:
            self._moved = False
            self._backoff.traffic(now)
        moving = any(peer.moving for peer in self._busy.values() if not peer.gone)
        seconds = min(self._backoff.pause(now, moving=moving), deadline - now)
        if seconds > 0:
            # Not earlier: what comes next may be acknowledged with it. Nobody answers, so it is no traffic.
            self._acknowledge_all()
            self._moved = False
            self._bell.wait(seconds)

    def _give_out(self) -> tuple[int, Message]:
        sender, item = self._take_next()
        if isinstance(item, TransportError):
            raise item
        return sender, item

    def _take_next(self) -> tuple[int, Message | BadFrame | PeerLost]:
        sender, item = self._inbox.popleft()
        if not isinstance(item, TransportError) and sender != self._rank:
            peer = self._others[sender]
            peer.credits.taken()
            peer.num_held -= 1
            if self._closed:
                self._tell_closed(peer)
            self._owed[sender] = peer
            self._acknowledge(peer, peer.credits.collect_owed())
        return sender, item

    def _acknowledge_all(self) -> None:
        owed, self._owed = self._owed, {}
        for peer in owed.values():
            self._acknowledge(peer, peer.credits.collect_owed(at_least=1))

    def _acknowledge(self, peer: Peer[Pending], num_messages: int) -> None:
        # After "I closed" the peer reads no more.
        if num_messages and not peer.gone and not self._closed:
            peer.posting.append(_CONTROL.pack(num_messages))
            self._advance(peer, read=False)  # the peer may wait for it, so it leaves before more is read

    def _advance_all(self) -> None:
        # One question for all: a look asks MPI as often for two peers as for hundreds. All are asked where
        # what came of one cannot be read now, which hides the others', and at times, since one may be lost.
        for peer in [*self._busy.values()]:
            self._advance(peer, read=peer.arriving)
        rank = self._wire.arrived()
        if rank is None:
            return
        self._num_arrivals += 1
        if rank != ANYBODY and self._num_arrivals % 16:
            moved, self._moved = self._moved, False
            self._advance(self._others[rank])
            if self._moved:
                return
            self._moved = moved
        for peer in self._others.values():
            self._advance(peer)

    def _advance(self, peer: Peer[Pending], *, read: bool = True) -> None:
        """Do for one peer what can be done without waiting."""
        if not peer.gone:
            try:
                if read:
                    self._complete(peer)
                    next(peer.reader, None)
                if not peer.gone:
                    self._push(peer)
            except BadFrame as error:
                self._inbox.append((peer.rank, BadFrame(f"from rank {peer.rank}: {error}")))
                self._lose(peer, "it sent bytes that are no message")
            except PeerLost as error:
                self._lose(peer, error.why)
        if peer.busy and not peer.gone:
            self._busy[peer.rank] = peer
        else:
            self._busy.pop(peer.rank, None)

    def _lose(self, peer: Peer[Pending], why: str) -> None:
        peer.lose(why)
        self._inbox.append((peer.rank, PeerLost(peer.rank, why)))

    def _push(self, peer: Peer[Pending]) -> None:
        while peer.waiting and peer.credits.may_send:
            peer.credits.sent()
            peer.posting.extend(peer.waiting.popleft())
            peer.rings_left = 2
        while peer.posting and (pending := self._wire.start_send(peer.rank, peer.posting[0])) is not None:
            peer.sending.append((pending, peer.posting.popleft()))
            peer.talked = self._moved = True
        while peer.sending and self._wire.finished(peer.rank, peer.sending[0][0]):
            peer.sending.popleft()
            self._moved = True
        if peer.rings_left and not peer.posting and (peer.rings_left == 2 or not peer.sending):
            self._bell.ring(peer.rank)
            peer.rings_left = int(bool(peer.sending))  # MPI may hold back what it took

    def _complete(self, peer: Peer[Pending]) -> None:
        """Let the inbox have the messages that are here, up to the first that is not."""
        while peer.incoming and peer.incoming[0].all_started:
            first = peer.incoming[0]
            while first.receiving:
                if not self._wire.finished(peer.rank, first.receiving[0]):
                    return
                first.receiving.popleft()
                self._moved = True
            peer.incoming.popleft()
            message = Message(kind=first.head.kind, header=first.head.header, arrays=tuple(first.arrays))
            self._inbox.append((peer.rank, message))

    def _read(self, peer: Peer[Pending]) -> Waits:
        """Read a peer until it closes; yields wherever it has to wait for the wire."""
        try:
            while not peer.closed:
                yield from self._read_next(peer)
        except BadFrame:
            yield from self._wait_for_incoming(peer)  # the good messages before it
            raise

    def _read_next(self, peer: Peer[Pending]) -> Waits:
        """Read a control, or a head and start the receives of its arrays."""
        num_bytes = yield from self._probe(peer)
        peer.talked = peer.reading = True
        if num_bytes > self._limits.max_head_bytes:
            raise BadFrame(f"too many bytes in a head: {num_bytes}, at most {self._limits.max_head_bytes}")
        data = bytearray(num_bytes)
        pending = yield from self._take(peer, data)
        while not self._wire.finished(peer.rank, pending):
            yield
        peer.reading = False
        if num_bytes == _CONTROL.size:
            yield from self._obey(peer, _CONTROL.unpack(data)[0])
            return
        head = decode_head(data, self._limits)
        if peer.num_held == WINDOW:
            raise BadFrame(f"it sent a message while {WINDOW} before it were not acknowledged")
        peer.num_held += 1
        incoming: Incoming[Pending] = Incoming(head)
        peer.incoming.append(incoming)
        yield from self._start_arrays(peer, incoming)
        self._complete(peer)
        while sum(each.num_bytes for each in peer.incoming) >= _ENOUGH_BYTES:
            yield
        if peer.num_held >= WINDOW // 2 or incoming.num_bytes > _LARGE_BYTES:
            # The owner takes these first: the peer can send on, and the memory of large ones is used again.
            yield

    def _start_arrays(self, peer: Peer[Pending], incoming: Incoming[Pending]) -> Waits:
        """Receive the arrays in place; each is made only when as many bytes as its head said are here."""
        for index, spec in enumerate(incoming.head.arrays):
            num_bytes = (yield from self._probe(peer)) if spec.num_bytes else 0
            if num_bytes != spec.num_bytes:
                raise BadFrame(f"array {index} has {num_bytes} bytes, its head said {spec.num_bytes}")
            array = spec.allocate()
            incoming.arrays.append(array)
            if num_bytes:
                incoming.receiving.append((yield from self._take(peer, byte_view(array))))
        incoming.all_started = True

    def _wait_for_incoming(self, peer: Peer[Pending]) -> Waits:
        while peer.incoming and peer.incoming[0].all_started:
            yield

    def _probe(self, peer: Peer[Pending]) -> Generator[None, None, int]:
        # Twice at first: MPI looks and then lets in one run, and behind a run there is mostly another.
        num_bytes = self._wire.probe(peer.rank)
        while num_bytes is None and (num_bytes := self._wire.probe(peer.rank)) is None:
            yield
        self._moved = True
        return num_bytes

    def _take(self, peer: Peer[Pending], buffer: bytearray | np.ndarray) -> Generator[None, None, Pending]:
        while (pending := self._wire.start_receive(peer.rank, buffer)) is None:
            yield
        return pending

    def _obey(self, peer: Peer[Pending], control: int) -> Waits:
        if control != _CLOSED:
            peer.credits.acknowledged(control)
            return
        yield from self._wait_for_incoming(peer)
        peer.closed = True
        peer.waiting.clear()
        peer.posting.clear()
