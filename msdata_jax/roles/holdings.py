"""The planner's account of what the loaders hold: who has which block, and how many bytes."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

NOBODY = -1
"""The owner of a block that was read and is kept by no loader."""

BlockKey = tuple[int, int]
"""Source, and the position at which the block starts."""


class Holdings:
    """Who holds which block, and the bytes that each loader holds or has promised to read.

    A block that is leased and not reported yet counts as many bytes as the last reported block of its source,
    so that a burst of leases is spread over the loaders and stops at their budget.

    Blocks are remembered, with the digest of what they held, until no sample of theirs can be asked for
    again: whoever reads one again must find the same.
    """

    def __init__(self, block_sizes: Sequence[int]) -> None:
        self._block_sizes = np.array(block_sizes, dtype=np.int64)
        self._owner: dict[int, int] = {}  # by block, as `_block` numbers them
        self._promised: dict[int, int] = {}
        self._digest: dict[int, int] = {}
        self._block_bytes = [1] * len(block_sizes)
        self._held_bytes: Counter[int] = Counter()
        self._leaving: dict[int, np.ndarray] = {}  # by step, the samples that leave when it is released

    def num_bytes(self, loader: int) -> int:
        """Bytes that a loader holds or will hold when its leases are read."""
        return self._held_bytes[loader]

    def block_of(self, source: int, position: int) -> BlockKey:
        """The block that a position is in."""
        size = int(self._block_sizes[source])
        return source, position // size * size

    def owner(self, source: int, start: int) -> int | None:
        """The loader that has a block or is reading it; NOBODY where none keeps it, None if it is unknown."""
        return self._owner.get(self._block(source, start))

    def is_being_read(self, source: int, start: int) -> bool:
        """Whether a block is leased and not reported."""
        return self._block(source, start) in self._promised

    def digest(self, source: int, start: int) -> int | None:
        """The digest that was reported of a block; None if none was."""
        return self._digest.get(self._block(source, start))

    def lease(self, loader: int, source: int, start: int) -> None:
        """A loader was told to read the block that starts at position `start`."""
        block = self._block(source, start)
        self._owner[block] = loader
        self._promised[block] = self._block_bytes[source]
        self._held_bytes[loader] += self._block_bytes[source]

    def report(self, source: int, start: int, num_bytes: int, digest: int = 0, *, kept: bool = True) -> None:
        """A leased block was read; with `kept` its loader keeps the samples."""
        block = self._block(source, start)
        self._digest[block] = digest
        self._held_bytes[self._owner[block]] += num_bytes * kept - self._promised.pop(block)
        self._block_bytes[source] = max(num_bytes, 1)
        if not kept:
            self._owner[block] = NOBODY

    def drop(self, infos: np.ndarray) -> None:
        """The loaders that hold these samples were told to forget them."""
        sizes = infos["num_bytes"].tolist()
        for block, num_bytes in zip(self._blocks(infos).tolist(), sizes, strict=True):
            owner = self._owner.get(block, NOBODY)
            if owner != NOBODY and block not in self._promised:
                self._held_bytes[owner] -= num_bytes

    def owners(self, infos: np.ndarray) -> np.ndarray:
        """int64 `[samples]`: the loader that holds each sample of SampleInfo records, NOBODY for none."""
        blocks = self._blocks(infos).tolist()
        return np.array([self._owner.get(block, NOBODY) for block in blocks], dtype=np.int64)

    def plan_step(self, step: int, infos: np.ndarray) -> None:
        """The samples `infos`, each once, leave the buffers when `step` is released."""
        self._leaving[step] = infos

    def release(self, step: int) -> None:
        """Steps up to `step` are delivered everywhere."""
        for done in [each for each in self._leaving if each <= step]:
            self.drop(self._leaving.pop(done))

    def being_read(self, loader: int) -> list[BlockKey]:
        """Blocks that a loader was told to read and did not report, the longest known first."""
        return [self._key(block) for block in self._promised if self._owner[block] == loader]

    def lose(self, loader: int) -> list[BlockKey]:
        """A loader is gone: the blocks that it had or was reading, which now belong to nobody."""
        lost = [block for block, owner in self._owner.items() if owner == loader]
        for block in lost:
            self._owner[block] = NOBODY
            self._promised.pop(block, None)
        self._held_bytes.pop(loader, None)
        return sorted(self._key(block) for block in lost)

    def without_owner(self) -> list[BlockKey]:
        """Blocks that are known and that nobody keeps, in order."""
        return sorted(self._key(block) for block, owner in self._owner.items() if owner == NOBODY)

    def forget_before(self, positions: np.ndarray, waiting: Sequence[np.ndarray]) -> None:
        """No sample before `positions` int64 `[sources]` will be asked for again, but for those `waiting`."""
        num_sources = len(self._block_sizes)
        first = (positions // self._block_sizes).tolist()
        wanted = self._numbers(waiting)
        self._owner = {
            block: loader
            for block, loader in self._owner.items()
            if block in wanted
            or block // num_sources >= first[block % num_sources]
            or block in self._promised
        }
        self._digest = {block: digest for block, digest in self._digest.items() if block in self._owner}

    def blocks_of(self, waiting: Iterable[np.ndarray]) -> set[BlockKey]:
        """The blocks that SampleInfo records are in."""
        return {self._key(block) for block in self._numbers(waiting)}

    def in_block(self, infos: np.ndarray, key: BlockKey) -> np.ndarray:
        """Which SampleInfo records are in a block: bool `[samples]`."""
        return self._blocks(infos) == self._block(*key)

    def _numbers(self, waiting: Iterable[np.ndarray]) -> set[int]:
        return set(np.concatenate([np.empty(0, dtype=np.int64), *map(self._blocks, waiting)]).tolist())

    def _key(self, block: int) -> BlockKey:
        number, source = divmod(block, len(self._block_sizes))
        return source, number * int(self._block_sizes[source])

    def _block(self, source: int, start: int) -> int:
        return start // int(self._block_sizes[source]) * len(self._block_sizes) + source

    def _blocks(self, infos: np.ndarray) -> np.ndarray:
        """int64 `[samples]`: number of the block that each sample is in, among the blocks of all sources."""
        source = infos["source"].astype(np.int64)
        return infos["position"] // self._block_sizes[source] * len(self._block_sizes) + source
