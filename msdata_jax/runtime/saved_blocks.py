"""Transformed samples that a checkpoint keeps, for sources that are dear to recompute (`Source.snapshot`)."""

import threading
from collections.abc import Sequence
from pathlib import Path

from msdata_jax.recipe import Recipe
from msdata_jax.records import Block, info_dtype
from msdata_jax.roles.messages import BlocksSaved, Lease, SaveBlocks
from msdata_jax.roles.source_loader import Reader
from msdata_jax.sources.block_store import BlockStore, block_key, write_blocks
from msdata_jax.sources.protocol import one_line


class BlockFolders:
    """Folders of saved blocks, as a loader uses them.

    Args:
        recipe: says which sources are kept.
        rank: of this loader; it writes a database of its own.
    """

    def __init__(self, recipe: Recipe, rank: int) -> None:
        self._recipe, self._rank = recipe, rank
        self._stores: dict[str, BlockStore] = {}
        self._lock = threading.Lock()

    def keeps(self, source: int) -> bool:
        """Whether the blocks of a source are kept with checkpoints."""
        return self._recipe.sources[self._recipe.source_names[source]].snapshot

    def load(self, reader: Reader, lease: Lease) -> tuple[Block, int] | None:
        """A block that lies ready, and its digest; None where it does not, or was damaged."""
        folder, _, step = lease.blocks.rpartition("@")
        with self._lock:
            if folder not in self._stores:
                self._stores[folder] = BlockStore(Path(folder), info_dtype(self._recipe.columns))
        return self._stores[folder].read(self._key(int(step), lease.source, reader, lease.start, lease.stop))

    def save(self, message: SaveBlocks, blocks: Sequence[tuple[int, Reader, Block, int]]) -> BlocksSaved:
        """Write blocks, with their digests, to a folder. A failure is told: they can be made again."""
        items = (
            (self._key(message.step, source, reader, block.start, block.stop), block, digest)
            for source, reader, block, digest in blocks
        )
        writer, error = f"rank_{self._rank}", ""
        num_blocks = num_bytes = 0
        try:
            if blocks:
                num_blocks, num_bytes = write_blocks(Path(message.folder), writer, items)
        except Exception as failure:  # noqa: BLE001 - a checkpoint is whole without them
            error = one_line(failure)
        return BlocksSaved(folder=message.folder, num_blocks=num_blocks, num_bytes=num_bytes, error=error)

    def _key(self, step: int, source: int, reader: Reader, start: int, stop: int) -> str:
        """Where a block lies: the samples that it has are those that are needed from `step` on."""
        name = self._recipe.source_names[source]
        content, data = self._recipe.content_of(name), reader.fingerprint()
        return block_key(repr((step, self._recipe.seed, source, name, content, data)), start, stop)
