"""How long reading takes: of each source, and what each loader still has to do. Values only."""

from collections.abc import Sequence

import numpy as np

from msdata_jax.roles import messages as m

_DECAY = 0.9
"""What the blocks read before count for, with each block more."""


class ReadingRates:
    """Seconds a sample of each source, and seconds of work that loaders were given and have not done.

    Args:
        costs: seconds a sample by source, as far as they are known before.

    Attributes:
        busy_seconds: of reading that each loader has reported, by rank.
    """

    def __init__(self, costs: Sequence[float | None]) -> None:
        self._prior = list(costs)
        self._seconds = np.zeros(len(self._prior))
        self._positions = np.zeros(len(self._prior))
        self._samples = np.zeros(len(self._prior))
        self._under_way: dict[tuple[int, int], tuple[int, float]] = {}  # block -> (loader, seconds)
        self._waiting: dict[int, float] = {}
        self._busy: dict[int, float] = {}
        self.busy_seconds: dict[int, float] = {}

    def seconds_per_sample(self, source: int) -> float | None:
        """Of one worker thread, for each sample that comes of it; None where nothing is known."""
        if self._samples[source] > 0:
            return float(self._seconds[source] / self._samples[source])
        return self._prior[source]

    def lease(self, loader: int, key: tuple[int, int], num_positions: int) -> None:
        """A loader was told to read a block; before any of its source was, a position counts as a sample."""
        self.forget(key)
        source, per_position = key[0], self._prior[key[0]] or 0.0
        if self._positions[source] > 0:
            per_position = float(self._seconds[source] / self._positions[source])
        seconds = per_position * num_positions
        self._under_way[key] = loader, seconds
        self._waiting[loader] = self._waiting.get(loader, 0.0) + seconds

    def forget(self, key: tuple[int, int]) -> None:
        """A block is read, or its loader is lost."""
        loader, seconds = self._under_way.pop(key, (-1, 0.0))
        if loader >= 0:
            self._waiting[loader] = max(self._waiting[loader] - seconds, 0.0)

    def report(self, loader: int, block: m.BlockReady) -> None:
        """A loader has read a block."""
        source, seconds = block.source, block.seconds
        self.forget((source, block.start))
        for sums, value in (
            (self._seconds, seconds),
            (self._positions, block.stop - block.start),
            (self._samples, len(block.infos)),
        ):
            sums[source] = _DECAY * sums[source] + value
        for sums in (self._busy, self.busy_seconds):
            sums[loader] = sums.get(loader, 0.0) + seconds

    def waiting_seconds(self, loader: int) -> float:
        """Work that a loader was given and has not done, in seconds of one worker thread."""
        return self._waiting.get(loader, 0.0)

    def take_busy(self) -> dict[int, float]:
        """Seconds of reading that loaders reported since this was asked last."""
        busy, self._busy = self._busy, {}
        return busy
