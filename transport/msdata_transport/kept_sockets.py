# pyright: strict
"""Keeps the sockets of a rank open beyond its death: to ranks on other hosts it is then silent, and not gone.

A connection that the kernel resets is an error in the middle of whatever MPI has under way over it, and MPICH
ends the process that meets one. One that stays open, and that nobody reads, is none: what was sent waits.
"""

import contextlib
import ctypes
import os

_PIDFD_GETFD = 438  # on every architecture


class SocketKeeper:
    """Holds duplicates of the sockets of a child of this process. Needs Linux 5.6; elsewhere it holds none.

    Args:
        pid: the child.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._kept: dict[str, int] = {}
        self._missing: set[str] = set()
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._handle = -1
        with contextlib.suppress(OSError, AttributeError):
            self._handle = os.pidfd_open(pid)

    @property
    def num_kept(self) -> int:
        """Sockets that are held."""
        return len(self._kept)

    def look(self) -> None:
        """Take what the child has opened since, and let go what it has closed, while it lives.

        A child that is just dying closes one after the other, so what is missing is let go at the next look.
        """
        there = self._sockets() if self._handle >= 0 else None
        if there is None:
            return
        for name in there.keys() - self._kept.keys():
            own = self._call(_PIDFD_GETFD, self._handle, there[name], 0)
            if own >= 0:
                self._kept[name] = own
        gone = self._kept.keys() - there.keys()
        for name in gone & self._missing:
            os.close(self._kept.pop(name))
        self._missing = gone

    def close(self) -> None:
        """Let go of all."""
        for descriptor in self._kept.values():
            os.close(descriptor)
        self._kept.clear()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _sockets(self) -> dict[str, int] | None:
        """Descriptors of the child's sockets by what the kernel calls them; None where it has died."""
        folder, found, names = f"/proc/{self._pid}/fd", dict[str, int](), list[str]()
        with contextlib.suppress(OSError):
            names = os.listdir(folder)
        for name in names:
            with contextlib.suppress(OSError):
                what = os.readlink(f"{folder}/{name}")
                if what.startswith("socket:"):
                    found[what] = int(name)
        return found if names else None
