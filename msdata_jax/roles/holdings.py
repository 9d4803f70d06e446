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
        self._owner: dict[int, int] = {}  # by block, as `_block` numbers them
        self._promised: dict[int, int] = {}
        self._block_bytes = [1] * len(block_sizes)
        self._held_bytes: Counter[int] = Counter()
        self._step_bytes: dict[int, Counter[int]] = {}

    def num_bytes(self, loader: int) -> int:
        """Bytes that a loader holds or will hold when its leases are read."""
        return self._held_bytes[loader]

    def lease(self, loader: int, source: int, start: int) -> None:
        """A loader was told to read the block that starts at position `start`."""
        block = self._block(source, start)
        self._owner[block] = loader
        self._promised[block] = self._block_bytes[source]
        self._held_bytes[loader] += self._block_bytes[source]

    def report(self, source: int, start: int, num_bytes: int) -> None:
        """A leased block was read."""
        block = self._block(source, start)
        self._held_bytes[self._owner[block]] += num_bytes - self._promised.pop(block)
        self._block_bytes[source] = max(num_bytes, 1)

    def owners(self, infos: np.ndarray) -> np.ndarray:
        """int64 `[samples]`: the loader that holds each sample of SampleInfo records."""
        blocks, inverse = np.unique(self._blocks(infos), return_inverse=True)
        return np.array([self._owner[block] for block in blocks.tolist()], dtype=np.int64)[inverse]

    def plan_step(self, step: int, infos: np.ndarray) -> None:
        """The samples `infos`, each once, leave the buffers when `step` is released."""
        loaders, inverse = np.unique(self.owners(infos), return_inverse=True)
        num_bytes = np.zeros(len(loaders), dtype=np.int64)
        np.add.at(num_bytes, inverse, infos["num_bytes"])
        self._step_bytes[step] = Counter(dict(zip(loaders.tolist(), num_bytes.tolist(), strict=True)))

    def release(self, step: int) -> None:
        """Steps up to `step` are delivered everywhere."""
        for done in [each for each in self._step_bytes if each <= step]:
            self._held_bytes.subtract(self._step_bytes.pop(done))

    def forget_before(self, positions: np.ndarray, waiting: Sequence[np.ndarray]) -> None:
        """No sample before `positions` int64 `[sources]` will be asked for again, but for those `waiting`."""
        num_sources = len(self._block_sizes)
        first = (positions // self._block_sizes).tolist()
        wanted = set(np.concatenate([np.empty(0, dtype=np.int64), *map(self._blocks, waiting)]).tolist())
        self._owner = {
            block: loader
            for block, loader in self._owner.items()
            if block // num_sources >= first[block % num_sources] or block in wanted
        }

    def _block(self, source: int, start: int) -> int:
        return start // int(self._block_sizes[source]) * len(self._block_sizes) + source

    def _blocks(self, infos: np.ndarray) -> np.ndarray:
        """int64 `[samples]`: number of the block that each sample is in, among the blocks of all sources."""
        source = infos["source"].astype(np.int64)
        return infos["position"] // self._block_sizes[source] * len(self._block_sizes) + source
