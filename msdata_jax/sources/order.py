"""Position -> (epoch, record): a pure function of seed, source name and position.

Flat order: each epoch is one Feistel permutation of all records.

Two-level order, for files that are decoded a group of records at a time (Parquet row groups): the groups are
permuted, every `window_groups` consecutive ones form a window, and the records of a window are permuted
among themselves. Neighbouring positions then fall into few groups, and each group is decoded about once.
"""

from typing import NamedTuple

import numpy as np

from msdata_jax.sources.feistel import order_key, permute, sub_key


class Places(NamedTuple):
    """For each position: which epoch it is in (int64) and which record it shows (int64)."""

    epochs: np.ndarray
    records: np.ndarray


class Order:
    """The order of one source.

    Args:
        num_records: records of an epoch, 1 to 2**62.
        seed: the recipe's seed.
        source_name: the name of the source in the recipe.
        shuffle: False visits the records as they are stored.
        group_sizes: records of each group in stored order, or None for the flat order.
        window_groups: groups that are mixed with each other, at least 1.
    """

    def __init__(
        self,
        num_records: int,
        *,
        seed: int,
        source_name: str,
        shuffle: bool = True,
        group_sizes: np.ndarray | None = None,
        window_groups: int = 4,
    ) -> None:
        self.num_records = num_records
        self._seed = seed
        self._source_name = source_name
        self._shuffle = shuffle
        self._group_sizes = group_sizes
        self._window_groups = window_groups
        self._layouts: dict[int, _Layout] = {}

    def locate(self, positions: np.ndarray) -> Places:
        """The epoch and the record of each position (int64, any order, at least 0)."""
        positions = np.asarray(positions, np.int64)
        epochs, offsets = np.divmod(positions, self.num_records)
        if not self._shuffle:
            return Places(epochs, offsets)
        records = np.empty_like(offsets)
        for epoch in np.unique(epochs).tolist():
            chosen = epochs == epoch
            records[chosen] = self._permute(offsets[chosen], epoch)
        return Places(epochs, records)

    def _permute(self, offsets: np.ndarray, epoch: int) -> np.ndarray:
        if self._group_sizes is None:
            return permute(offsets, self.num_records, order_key(self._seed, self._source_name, epoch))
        layout = self._layouts.get(epoch)
        if layout is None:
            key = order_key(self._seed, self._source_name, epoch)
            layout = _Layout(self._group_sizes, self._window_groups, key)
            # Two epochs are met near the end of one. Threads may build the same layout twice: it is equal.
            self._layouts = {**dict(list(self._layouts.items())[-1:]), epoch: layout}
        return layout.locate(offsets)


class _Layout:
    """The groups of one epoch in their permuted order, and the windows over them."""

    def __init__(self, group_sizes: np.ndarray, window_groups: int, key: int) -> None:
        group_order = permute(np.arange(len(group_sizes)), len(group_sizes), key)
        self._key = key
        self._group_order = group_order
        # first offset of each group as stored, and of each group as permuted (with the end as last entry)
        self._stored_starts = np.cumsum(group_sizes) - group_sizes
        self._starts = np.concatenate([[0], np.cumsum(group_sizes[group_order])])
        window_starts = self._starts[:-1:window_groups]
        self._window_edges = np.append(window_starts, self._starts[-1])

    def locate(self, offsets: np.ndarray) -> np.ndarray:
        """Offset in the epoch -> record."""
        windows = np.searchsorted(self._window_edges, offsets, side="right") - 1
        mixed = np.empty_like(offsets)
        for window in np.unique(windows).tolist():
            chosen = windows == window
            start, stop = self._window_edges[window : window + 2].tolist()
            mixed[chosen] = start + permute(
                offsets[chosen] - start, stop - start, sub_key(self._key, window + 1)
            )
        places = np.searchsorted(self._starts, mixed, side="right") - 1
        return self._stored_starts[self._group_order[places]] + mixed - self._starts[places]
