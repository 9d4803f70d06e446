"""What the planner knows of one source: the samples ahead, and which positions to lease next."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from msdata_jax.data_state import BadRecords
from msdata_jax.recipe import Source
from msdata_jax.records import BadSample

MAX_LISTED = 100


class SourceStream:
    """Samples of one source behind the last drawn one, in order, as far as they are known.

    Blocks come back in any order; `ahead` holds the contiguous part.

    Args:
        name: of the source.
        source: its policy and block size.
        num_records: of one epoch.
        repeat: another epoch follows each.
        dtype: of SampleInfo records.
        last: position and part of the last sample that was drawn already; -1 for none. Reading begins with
            the block that it is in.
        bad: the bad samples until then.
    """

    def __init__(  # noqa: PLR0913 - keyword-only
        self,
        name: str,
        source: Source,
        *,
        num_records: int,
        repeat: bool,
        dtype: np.dtype,
        last: tuple[int, int] = (-1, -1),
        bad: BadRecords = BadRecords(),  # noqa: B008 - frozen
    ) -> None:
        self._name, self._source = name, source
        # Where it stands in a later epoch, since it used to repeat, it ends there.
        self._num_positions = None if repeat else max(num_records, last[0] + 1)
        self._num_records = num_records
        self._last = last
        self._known_to = self._leased_to = self._block_start(last[0])
        self._waiting: dict[int, tuple[int, np.ndarray, Sequence[BadSample]]] = {}
        self._last_good = last[0]
        self._infos = np.empty(64, dtype=dtype)  # samples ahead from `_first` to `_end`, then room for more
        self._first = self._end = 0
        self.failure: str | None = None
        self._num_bad_before = bad.num_bad  # before the positions of `_bad_positions`
        self._bad_positions: list[int] = []
        self.bad: list[BadSample] = list(bad.listed)

    @property
    def num_records(self) -> int:
        """Records of one epoch."""
        return self._num_records

    @property
    def num_bad(self) -> int:
        """Bad samples so far."""
        return self._num_bad_before + len(self._bad_positions)

    def bad_up_to(self, position: int) -> tuple[int, tuple[BadSample, ...]]:
        """How many bad samples there are up to a position, and those of them that are listed."""
        before = bisect_right(self._bad_positions, position)
        listed = tuple(each for each in self.bad if each.position <= position)
        return self._num_bad_before + before, listed

    def forget_bad_up_to(self, position: int) -> None:
        """Nobody asks for `bad_up_to` a smaller position any more."""
        before = bisect_right(self._bad_positions, position)
        self._num_bad_before += before
        del self._bad_positions[:before]

    def _block_start(self, position: int) -> int:
        return max(position, 0) // self._source.block_size * self._source.block_size

    @property
    def ahead(self) -> np.ndarray:
        """SampleInfo records of the samples behind the last drawn one, as far as they are known in order."""
        return self._infos[self._first : self._end]

    @property
    def num_coming(self) -> int:
        """Samples ahead, and positions that are leased and not reported yet."""
        return self._end - self._first + self.num_leased_positions

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
        start, stop = self._leased_to, self.block_stop(self._leased_to)
        if start >= stop or self.failure is not None:
            return None
        self._leased_to = stop
        return start, stop

    def claim(self, start: int) -> None:
        """The block that starts there is leased: if it would be the next one, it is so no more."""
        if start == self._leased_to:
            self._leased_to = self.block_stop(start)

    def block_stop(self, start: int) -> int:
        """One past the last position of the block that starts there."""
        stop = start + self._source.block_size
        return stop if self._num_positions is None else min(stop, self._num_positions)

    def expects(self, start: int) -> bool:
        """Whether the block that starts there is leased for the first time and not reported."""
        return self._known_to <= start < self._leased_to and start not in self._waiting

    def is_behind(self, start: int) -> bool:
        """Whether all that the block which starts there yielded was drawn, or is in `ahead`."""
        return start < self._known_to

    def begins_behind(self, start: int) -> bool:
        """Whether some of what the block that starts there yields was drawn before this stream began."""
        return start <= self._last[0]

    def add_block(self, start: int, stop: int, infos: np.ndarray, bad: Sequence[BadSample]) -> None:
        """Take what a lease yielded."""
        self._waiting[start] = (stop, infos, bad)
        while self._known_to in self._waiting and self.failure is None:
            start = self._known_to
            self._known_to, infos, bad = self._waiting.pop(start)
            if self._source.one_per_record:
                infos, bad = self._only_one_each(start, infos, bad)
            self._append(infos, bad)

    def drop(self, count: int) -> None:
        """Forget the first `count` samples ahead: they were drawn."""
        self._first += count

    def _append(self, infos: np.ndarray, bad: Sequence[BadSample]) -> None:
        fatal = self._fatal_position(bad)
        if fatal is not None:
            infos = infos[infos["position"] < fatal.position]
        position, part = self._last
        if len(infos) and infos["position"][0] <= position:  # drawn before this stream began
            drawn = (infos["position"] < position) | (
                (infos["position"] == position) & (infos["part"] <= part)
            )
            infos = infos[~drawn]
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

    def _only_one_each(
        self, start: int, infos: np.ndarray, bad: Sequence[BadSample]
    ) -> tuple[np.ndarray, Sequence[BadSample]]:
        """What comes before a position that yields none or several without being bad; fills `failure`."""
        count = np.bincount(infos["position"] - start, minlength=self._known_to - start)
        count[[each.position - start for each in bad]] = 1
        if (count == 1).all():
            return infos, bad
        place = int(np.argmax(count != 1))
        self.failure = (
            f"source {self._name!r}, position {start + place}: it yields {count[place]} samples, and "
            "one_per_record=True says one; leave that out, or the transform that filters or splits"
        )
        before = [each for each in bad if each.position < start + place]
        return infos[infos["position"] < start + place], before

    def _fatal_position(self, bad: Sequence[BadSample]) -> BadSample | None:
        """The bad sample that the policy does not allow to pass, if there is one; fills `failure`."""
        limit = 0 if self._source.on_bad_sample == "raise" else self._source.max_bad_samples
        for each in bad:
            if each.position <= self._last[0]:
                continue  # counted before this stream began
            self._bad_positions.append(each.position)
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
