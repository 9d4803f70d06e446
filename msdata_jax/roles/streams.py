"""What the planner knows of one source: the samples ahead, and which positions to lease next."""

from collections.abc import Sequence

import numpy as np

from msdata_jax.recipe import Source
from msdata_jax.records import BadSample

MAX_LISTED = 100


class SourceStream:
    """Samples of one source behind the last drawn one, in order, as far as they are known.

    Blocks come back in any order; `ahead` holds the contiguous part.
    """

    def __init__(self, name: str, source: Source, *, num_records: int, repeat: bool, dtype: np.dtype) -> None:
        self._name, self._source = name, source
        self._num_positions = None if repeat else num_records
        self._num_records = num_records
        self._leased_to = 0
        self._known_to = 0
        self._waiting: dict[int, tuple[int, np.ndarray, Sequence[BadSample]]] = {}
        self._last_good = -1
        self._infos = np.empty(64, dtype=dtype)  # samples ahead from `_first` to `_end`, then room for more
        self._first = self._end = 0
        self.failure: str | None = None
        self.num_bad = 0
        self.bad: list[BadSample] = []

    @property
    def ahead(self) -> np.ndarray:
        """SampleInfo records of the samples behind the last drawn one, as far as they are known in order."""
        return self._infos[self._first : self._end]

    @property
    def ended(self) -> bool:
        """Whether the samples ahead are the last ones."""
        if self._num_positions is None or self.failure is not None:
            return False  # after a failure the data fail, they do not simply end
        return self._known_to >= self._num_positions

    @property
    def known_to(self) -> int:
        """Positions before it were read."""
        return self._known_to

    @property
    def num_leased_positions(self) -> int:
        """Positions that are leased and not reported yet."""
        return self._leased_to - self._known_to

    def next_lease(self) -> tuple[int, int] | None:
        """Claim the next block of positions; None when there is none to come."""
        start = self._leased_to
        stop = start + self._source.block_size
        if self._num_positions is not None:
            stop = min(stop, self._num_positions)
        if start >= stop or self.failure is not None:
            return None
        self._leased_to = stop
        return start, stop

    def add_block(self, start: int, stop: int, infos: np.ndarray, bad: Sequence[BadSample]) -> None:
        """Take what a lease yielded."""
        self._waiting[start] = (stop, infos, bad)
        while self._known_to in self._waiting and self.failure is None:
            start = self._known_to
            self._known_to, infos, bad = self._waiting.pop(start)
            self._append(infos, bad)

    def drop(self, count: int) -> None:
        """Forget the first `count` samples ahead: they were drawn."""
        self._first += count

    def _append(self, infos: np.ndarray, bad: Sequence[BadSample]) -> None:
        fatal = self._fatal_position(bad)
        if fatal is not None:
            infos = infos[infos["position"] < fatal.position]
        self._reserve(len(infos))
        self._infos[self._end : self._end + len(infos)] = infos
        self._end += len(infos)
        if len(infos):
            self._last_good = int(infos["position"][-1])
        elif self.failure is None and self._known_to - self._last_good > self._num_records:
            self.failure = (
                f"source {self._name!r} yielded no sample in a whole epoch of {self._num_records} records "
                f"({self.num_bad} bad ones); look at its transforms and filters, or give it weight 0"
            )

    def _reserve(self, count: int) -> None:
        """Make room behind the end, in a new array of twice what is ahead, so that copies stay rare."""
        if self._end + count > len(self._infos):
            ahead = self.ahead
            self._infos = np.empty(2 * (len(ahead) + count), dtype=ahead.dtype)
            self._infos[: len(ahead)] = ahead
            self._first, self._end = 0, len(ahead)

    def _fatal_position(self, bad: Sequence[BadSample]) -> BadSample | None:
        """The bad sample that the policy does not allow to pass, if there is one; fills `failure`."""
        limit = 0 if self._source.on_bad_sample == "raise" else self._source.max_bad_samples
        for each in bad:
            self.num_bad += 1
            if len(self.bad) < MAX_LISTED:
                self.bad.append(each)
            if limit is not None and self.num_bad > limit:
                rule = (
                    "on_bad_sample='raise'; 'skip' leaves such records out"
                    if self._source.on_bad_sample == "raise"
                    else f"max_bad_samples={limit} bad records came before it; raise the limit to go on"
                )
                self.failure = f"source {self._name!r}, position {each.position}: {each.reason} ({rule})"
                return each
        return None
