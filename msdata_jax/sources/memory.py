"""Datasets in memory or behind grain's random-access protocol, and `grain.MapDataset`.

A `MapDataset` counts epochs itself: index `epoch * len + record` may give other content in another epoch (its
own shuffle, its own random transforms). `Source.shuffle` permutes the records within an epoch on top of what
the dataset does; with `shuffle=False` position p is exactly `dataset[p]`. Elements that are None were left
out by the dataset's filter and yield no sample.
"""

from typing import Any

import numpy as np

from msdata_jax.errors import SourceError
from msdata_jax.sources.feistel import MAX_RECORDS
from msdata_jax.sources.protocol import BadRecord, is_transient, one_line


class MemoryRecords:
    """Anything with `__len__` and `__getitem__`; reads in batches where the dataset has a method for it.

    The dataset must bear reads from several threads, as grain demands too.
    """

    group_sizes = None
    window_groups = 1
    num_open_files = 0

    def __init__(self, data: Any) -> None:
        if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            raise SourceError(
                f"data needs __len__ and __getitem__ (grain's random-access protocol), "
                f"{type(data).__qualname__} has not both; give a grain.MapDataset rather than an "
                "IterDataset, a sequence, or a path"
            )
        self._data = data
        self._batched = getattr(data, "__getitems__", None) or getattr(data, "_getitems", None)
        self.counts_epochs = _is_map_dataset(data)
        self._num_records = len(data)
        if self._num_records > MAX_RECORDS:
            raise SourceError(
                f"the dataset says it has {self._num_records} records, that is, it repeats for ever; leave "
                ".repeat() out, epochs are counted here"
            )
        if self.counts_epochs and self._num_records:
            self.read(
                np.zeros(1, np.int64)
            )  # grain creates statistics at the first read, for one thread only

    def __len__(self) -> int:
        return self._num_records

    def read(self, indices: np.ndarray) -> list[Any]:
        """One batched call; one by one where that fails, to find out which records are bad."""
        wanted = indices.tolist()
        if self._batched is not None:
            try:
                elements = list(self._batched(wanted))
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001 - the dataset is the user's code, its records are judged below
                elements = []
            if len(elements) == len(wanted):
                return elements
        return [self._read_one(index) for index in wanted]

    def _read_one(self, index: int) -> Any:
        try:
            return self._data[index]
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - the user's code: what it raises is a bad record
            return BadRecord(
                f"{type(self._data).__name__}[{index}]: {one_line(error)}", transient=is_transient(error)
            )

    def describe(self, index: int) -> str:
        """The record's number, from 0."""
        return f"record {index}"

    def fingerprint(self) -> str:
        """The type and the length: all that is known of data in memory without reading them."""
        return f"{type(self._data).__qualname__}:{self._num_records}"

    def file_digests(self) -> dict[str, str]:
        """None: there are no files."""
        return {}

    def drop_handles(self) -> None:
        """Nothing is open."""

    def close(self) -> None:
        """Nothing is open."""


def _is_map_dataset(data: Any) -> bool:
    # By name, so that grain (and JAX with it) is not imported to ask.
    return any(
        base.__name__ == "MapDataset" and base.__module__.split(".")[0] == "grain"
        for base in type(data).__mro__
    )
