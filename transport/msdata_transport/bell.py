# pyright: strict
"""Bells between the processes of one host: who waits sleeps until somebody who sent something rings.

A bell only says "look". What it is rung for goes another way, a ring may be lost, and anybody on the host
may ring; so whoever waits also looks now and then by itself. Waiting by looking alone has to look often: each
look costs some 50 us of CPU, and what comes waits for the next.
"""

import contextlib
import os
import select
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

_MOST_RINGS = 256  # taken at a time
_SHORT_SECONDS = 1e-3
CARD_BYTES = 64
_RING = b"!"


class Waking(Protocol):
    """How ranks that wait are woken."""

    @property
    def reaches_all(self) -> bool:
        """Whether all other ranks ring here when they send something."""
        ...

    def ring(self, rank: int) -> None:
        """Let a rank look, which may be this one, where it can be reached. May be called from any thread."""
        ...

    def wait(self, seconds: float) -> None:
        """Sleep so long, or, but for the shortest sleeps, until somebody rings or rang since the last one."""
        ...


class NoBell:
    """Nobody can be woken: sleeps are slept to their end."""

    reaches_all = False

    def ring(self, rank: int) -> None:
        """Nothing."""

    def wait(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)


class Bell:
    """A datagram socket without a name in any file system, so that nothing is left of it.

    OSError where the system has no such sockets: outside of Linux.

    Attributes:
        card: where it is, for `meet` of the others; at most `CARD_BYTES`.
        reaches_all: as in `Waking`; False until `meet`.
    """

    def __init__(self) -> None:
        network = _network()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind("")  # Linux chooses a name
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._names: dict[int, bytes] = {}
        self.card = f"{network} {self._socket.getsockname().hex()}".encode()
        self.reaches_all = False

    def meet(self, cards: Sequence[bytes]) -> None:
        """Learn the cards of all ranks, by rank, empty where one has no bell; those elsewhere stay unrung."""
        network = self.card.split()[0]
        for rank, card in enumerate(cards):
            if card.startswith(network + b" "):
                self._names[rank] = bytes.fromhex(card.split()[1].decode())
        self.reaches_all = len(self._names) == len(cards)

    def ring(self, rank: int) -> None:
        """As `Waking`."""
        name = self._names.get(rank)
        if name is not None:
            # The rank is gone; or it has not taken many rings, and will look anyway.
            with contextlib.suppress(OSError):
                self._socket.sendto(_RING, name)

    def wait(self, seconds: float) -> None:
        """As `Waking`."""
        if seconds < _SHORT_SECONDS:
            time.sleep(seconds)  # poll counts in milliseconds
        elif self._poll.poll(1000 * seconds):
            with contextlib.suppress(BlockingIOError):
                for _ in range(_MOST_RINGS):
                    self._socket.recv(len(_RING))

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()


def _network() -> str:
    """The network namespace, within which these sockets find one another, of a kernel since its start."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"
