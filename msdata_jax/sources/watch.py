"""What a reader is at, for whoever has to tell which record it died of."""

import mmap
import time
from enum import IntEnum

import numpy as np


class Phase(IntEnum):
    """What a reader does just now."""

    IDLE = 0
    """Between reads, or on the way there and back: no position is to blame."""
    READ = 1
    """Reading one or more positions in one go."""
    TRANSFORM = 2
    """Transforming one position."""
    PAUSE = 3
    """Waiting before another try."""


class Watch:
    """Is told what a reader is at. This one does not look.

    Attributes:
        one_by_one: read each position on its own, so that one can be blamed.
    """

    one_by_one = False

    def at(self, phase: Phase, position: int = 0, num_positions: int = 1) -> None:
        """Something begins."""

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class Board(Watch):
    """A watch that another process can read: made before a fork, written in the child, read in the parent."""

    def __init__(self) -> None:
        self._cells = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.int64)[:5]

    def at(self, phase: Phase, position: int = 0, num_positions: int = 1) -> None:
        """Write it down, the time first: a reader in between then sees too short a time, never too long."""
        self._cells[0] = time.monotonic_ns()
        self._cells[1:4] = (phase, position, num_positions)

    def sleep(self, seconds: float) -> None:
        """Wait, and then go on with what was before, which begins anew."""
        phase, position, num_positions = self._cells[1:4].tolist()
        self.at(Phase.PAUSE)
        time.sleep(seconds)
        self.at(Phase(phase), position, num_positions)

    @property
    def since(self) -> float:
        """When the present phase began, on `time.monotonic`'s clock."""
        return int(self._cells[0]) / 1e9

    @property
    def phase(self) -> Phase:
        """What is done now, or was when the child died."""
        return Phase(int(self._cells[1]))

    @property
    def position(self) -> int:
        """Of which position, the first one where `num_positions` are read in one go."""
        return int(self._cells[2])

    @property
    def num_positions(self) -> int:
        """How many are read in one go."""
        return int(self._cells[3])

    @property
    def is_out_of_memory(self) -> bool:
        """Whether a MemoryError ended the child."""
        return bool(self._cells[4])

    def note_out_of_memory(self) -> None:
        """Say that a MemoryError ends the child."""
        self._cells[4] = 1
