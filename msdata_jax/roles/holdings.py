"""The planner's account of what the loaders hold: who has which block, and how many bytes."""

from collections import Counter
from collections.abc import Sequence

import numpy as np


class Holdings:
    """Who holds which block, and the bytes that each loader holds or has promised to read.

    A block that is leased and not reported yet counts as many bytes as the last reported block of its source,
    so that a burst of leases is spread over the loaders and stops at their budget.
    """

    def __init__(self, block_sizes: Sequence[int]) -> None:
        self._block_sizes = np.array(block_sizes, dtype=np.int64)
        self._owner: dict[tuple[int, int], int] = {}
        self._promised: dict[tuple[int, int], int] = {}
        self._block_bytes = [1] * len(block_sizes)
        self._held_bytes: Counter[int] = Counter()
        self._step_bytes: dict[int, Counter[int]] = {}

    def num_bytes(self, loader: int) -> int:
        """Bytes that a loader holds or will hold when its leases are read."""
        return self._held_bytes[loader]

    def lease(self, loader: int, source: int, start: int) -> None:
        """A loader was told to read the block that starts at position `start`."""
        self._owner[source, start] = loader
        self._promised[source, start] = self._block_bytes[source]
        self._held_bytes[loader] += self._block_bytes[source]

    def report(self, source: int, start: int, num_bytes: int) -> None:
        """A leased block was read."""
        loader = self._owner[source, start]
        self._held_bytes[loader] += num_bytes - self._promised.pop((source, start))
        self._block_bytes[source] = max(num_bytes, 1)

    def owners(self, infos: np.ndarray) -> np.ndarray:
        """int64 `[samples]`: the loader that holds each sample of SampleInfo records."""
        pairs, inverse = np.unique(self._blocks(infos), axis=0, return_inverse=True)
        owners = np.array([self._owner[source, start] for source, start in pairs.tolist()], dtype=np.int64)
        return owners[inverse.reshape(-1)]

    def plan_step(self, step: int, infos: np.ndarray) -> None:
        """The samples `infos`, each once, leave the buffers when `step` is released."""
        owners = self.owners(infos)
        self._step_bytes[step] = Counter(
            {loader: int(infos["num_bytes"][owners == loader].sum()) for loader in np.unique(owners).tolist()}
        )

    def release(self, step: int) -> None:
        """Steps up to `step` are delivered everywhere."""
        for done in [each for each in self._step_bytes if each <= step]:
            self._held_bytes.subtract(self._step_bytes.pop(done))

    def forget_before(self, positions: np.ndarray, waiting: Sequence[np.ndarray]) -> None:
        """No sample before `positions` int64 `[sources]` will be asked for again, but for those `waiting`."""
        first = positions // self._block_sizes * self._block_sizes
        blocks = np.concatenate([np.empty((0, 2), dtype=np.int64), *map(self._blocks, waiting)])
        wanted = {(source, start) for source, start in np.unique(blocks, axis=0).tolist()}
        self._owner = {
            block: loader
            for block, loader in self._owner.items()
            if block[1] >= first[block[0]] or block in wanted
        }

    def _blocks(self, infos: np.ndarray) -> np.ndarray:
        """int64 `[samples, 2]`: source and first position of the block that each sample is in."""
        sizes = self._block_sizes[infos["source"]]
        return np.stack([infos["source"], infos["position"] // sizes * sizes], axis=1)
