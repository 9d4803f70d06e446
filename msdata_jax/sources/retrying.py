"""Reads that fail for want of the disk or the network are tried again, with longer and longer pauses."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from msdata_jax.errors import SourceError
from msdata_jax.sources.protocol import BadRecord, Records

FIRST_PAUSE_SECONDS = 0.05
MAX_PAUSE_SECONDS = 5.0


class RetryingRecords:
    """`Records` that try again. Files are opened anew before each try.

    What ends the data otherwise (SourceError from an OSError of any kind) is tried again; so are bad records
    whose error may pass (`BadRecord.transient`). Anything else comes through at once.

    Args:
        records: what is read.
        max_retries: how often a read is tried again, at least 0.
        sleep: waits for a number of seconds.
    """

    def __init__(self, records: Records, max_retries: int, sleep: Callable[[float], None]) -> None:
        self._records = records
        self._max_retries = max_retries
        self._sleep = sleep
        self._lock = threading.Lock()
        self._num_retries = 0
        self.counts_epochs = records.counts_epochs
        self.group_sizes = records.group_sizes
        self.window_groups = records.window_groups

    @property
    def num_open_files(self) -> int:
        """Files that are open now."""
        return self._records.num_open_files

    @property
    def num_retries(self) -> int:
        """How often a read was tried again, and of remote files a request."""
        return self._num_retries + getattr(self._records, "num_retries", 0)

    def __len__(self) -> int:
        return len(self._records)

    def read(self, indices: np.ndarray) -> list[Any]:
        """As `Records.read`; SourceError says how often it was tried."""
        found: list[Any] = [None] * len(indices)
        places = np.arange(len(indices))
        for retry in range(self._max_retries + 1):
            if retry:
                self._pause(retry)
            records = self._try(indices[places], retry)
            if records is None:
                continue
            for place, record in zip(places.tolist(), records, strict=True):
                found[place] = record
            places = places[[isinstance(each, BadRecord) and each.transient for each in records]]
            if not len(places):
                break
        return found

    def _try(self, indices: np.ndarray, retry: int) -> list[Any] | None:
        """None where it is worth another try."""
        try:
            return self._records.read(indices)
        except (OSError, SourceError) as error:
            if not isinstance(error, OSError) and not isinstance(error.__cause__, OSError):
                raise
            if retry < self._max_retries:
                return None
            raise SourceError(
                f"{error}, in {retry + 1} tries; look after the file system, or give the source more "
                "read_retries"
            ) from error

    def _pause(self, retry: int) -> None:
        with self._lock:
            self._num_retries += 1
        self._sleep(min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (retry - 1)))
        self._records.drop_handles()

    def describe(self, index: int) -> str:
        """Where a record is to be found."""
        return self._records.describe(index)

    def fingerprint(self) -> str:
        """The digest of the data."""
        return self._records.fingerprint()

    def file_digests(self) -> dict[str, str]:
        """The digests of the files."""
        return self._records.file_digests()

    def drop_handles(self) -> None:
        """Open files anew from now on."""
        self._records.drop_handles()

    def close(self) -> None:
        """Close the files."""
        self._records.close()
