"""Pipelines over an MSDataset of what grain has for iterators. Elements are dicts of numpy arrays."""

from collections.abc import Callable
from typing import Any

import grain
import numpy as np

g = grain.experimental


class Rows(g.FlatMapTransform):
    """The rows of a batch one by one, each without its padding; a longest row may be empty."""

    max_fan_out = 4

    def flat_map(self, batch: dict) -> list[dict]:
        return [
            {"tokens": row[ids > 0]}
            for row, ids in zip(batch["tokens"], batch["segment_ids"], strict=True)
            if ids.any()
        ]


def tokens_of(batch: dict) -> dict:
    return {"tokens": batch["tokens"], "segment_ids": batch["segment_ids"]}


def with_noise(batch: dict, rng: np.random.Generator) -> dict:
    return {**batch, "noise": rng.integers(0, 1000, batch["tokens"].shape)}


def numbered(index: int, batch: dict) -> dict:
    return {**batch, "index": index}


def every_other(batch: dict) -> bool:
    """The same on every training process, as it must be: they take the same steps."""
    return batch["index"] % 2 == 0


def thread(ds: grain.IterDataset, size: int = 2) -> grain.IterDataset:
    return g.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=size)


def packed(ds: grain.IterDataset, kind: Any) -> grain.IterDataset:
    rows = g.FlatMapIterDataset(ds, Rows())
    return kind(rows, length_struct={"tokens": 24}, num_packing_bins=3)


PIPELINES: dict[str, Callable[[grain.IterDataset], grain.IterDataset]] = {
    "raw": lambda ds: ds,
    "map": lambda ds: ds.map(tokens_of),
    "map with index": lambda ds: ds.map_with_index(numbered),
    "filter": lambda ds: ds.map_with_index(numbered).filter(every_other),
    "random map": lambda ds: ds.seed(5).random_map(with_noise),
    "batch": lambda ds: ds.batch(3, drop_remainder=False),
    "rebatch": lambda ds: g.RebatchIterDataset(ds, 3),
    "repeat": lambda ds: g.RepeatIterDataset(g.LimitIterDataset(ds, 3), 2),
    "limit": lambda ds: g.LimitIterDataset(ds, 5),
    "thread prefetch": thread,
    "thread prefetch over map": lambda ds: thread(ds.map(tokens_of).map_with_index(numbered), 1).filter(
        every_other
    ),
    "flat map": lambda ds: g.FlatMapIterDataset(ds, Rows()),
    "window shuffle": lambda ds: g.WindowShuffleIterDataset(ds, window_size=3, seed=2),
    "first-fit packing": lambda ds: packed(ds, g.FirstFitPackIterDataset),
    "best-fit packing": lambda ds: packed(ds, g.BestFitPackIterDataset),
    "concatenate, then split": lambda ds: g.ConcatThenSplitIterDataset(
        g.FlatMapIterDataset(ds, Rows()), length_struct={"tokens": 12}
    ),
}

OF_ROWS = ("flat map", "first-fit packing", "best-fit packing", "concatenate, then split")
"""Those with an element for each row."""

SEVERAL: dict[str, Callable[[grain.IterDataset, grain.IterDataset], grain.IterDataset]] = {
    "mix": lambda one, other: grain.IterDataset.mix({"one": one, "other": other}, {"one": 2, "other": 1}),
    "zip": lambda one, other: g.ZipIterDataset([one, other]),
}
"""Over two datasets that are read in turns; in one process, where each has a DataLoader of its own."""
