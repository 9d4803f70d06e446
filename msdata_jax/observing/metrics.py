"""Counters, and histograms of seconds, in plain values. No clock: durations are passed in.

A histogram has fixed buckets, two for each doubling: bucket 0 is of up to 1 µs, bucket `i` of more than
`BOUNDS[i - 1]` and at most `BOUNDS[i]` seconds, the last one of all beyond (about 18 minutes). So histograms
of all ranks add up, and a quantile is right to a factor of the square root of 2.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

BOUNDS: tuple[float, ...] = tuple(1e-6 * 2 ** (i / 2) for i in range(61))
"""Upper bounds of the buckets in seconds, but for the last one, which has none."""


class Histogram:
    """How long something took, each time it happened.

    Attributes:
        count: how often.
        sum: seconds altogether.
        least, most: shortest and longest, seconds; 0 where nothing was counted.
        buckets: how often for each bucket, `len(BOUNDS) + 1` of them.
    """

    __slots__ = ("buckets", "count", "least", "most", "sum")

    def __init__(self) -> None:
        self.count, self.sum, self.least, self.most = 0, 0.0, 0.0, 0.0
        self.buckets = [0] * (len(BOUNDS) + 1)

    def add(self, seconds: float) -> None:
        """Count one that took so long; less than nothing counts as nothing."""
        seconds = max(seconds, 0.0)
        self.least = min(self.least, seconds) if self.count else seconds
        self.most = max(self.most, seconds)
        self.count += 1
        self.sum += seconds
        self.buckets[bisect_left(BOUNDS, seconds)] += 1

    @property
    def mean(self) -> float:
        """Seconds; 0 where nothing was counted."""
        return self.sum / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """About how long the quickest `share` of them took at most; 0 where nothing was counted.

        It lies in the bucket of the value asked for (the least one that so many are not above), and between
        the shortest and the longest.
        """
        if not self.count:
            return 0.0
        rank, below = max(math.ceil(share * self.count), 1), 0
        for index, count in enumerate(self.buckets):
            if below + count >= rank:
                low = BOUNDS[index - 1] if index else self.least
                high = BOUNDS[index] if index < len(BOUNDS) else self.most
                return min(max(low + (high - low) * (rank - below) / count, self.least), self.most)
            below += count
        return self.most

    def merged(self, other: "Histogram") -> "Histogram":
        """Both together."""
        both = Histogram()
        both.count, both.sum = self.count + other.count, self.sum + other.sum
        counted = [each for each in (self, other) if each.count]
        both.least = min((each.least for each in counted), default=0.0)
        both.most = max(self.most, other.most)
        both.buckets = [a + b for a, b in zip(self.buckets, other.buckets, strict=True)]
        return both

    def plain(self) -> dict[str, Any]:
        """Values that JSON and msgpack have; `buckets` are pairs of index and count, empty ones left out."""
        return {
            "count": self.count,
            "sum": round(self.sum, 7),
            "least": round(self.least, 9),
            "most": round(self.most, 9),
            "buckets": [[index, count] for index, count in enumerate(self.buckets) if count],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Histogram":
        """What `plain` gave.

        Raises:
            ValueError: it is none.
        """
        histogram = cls()
        try:
            histogram.count, histogram.sum = int(plain["count"]), float(plain["sum"])
            histogram.least, histogram.most = float(plain["least"]), float(plain["most"])
            for index, count in plain["buckets"]:
                if not 0 <= index < len(histogram.buckets):
                    raise ValueError(f"a histogram has {len(histogram.buckets)} buckets, got one at {index}")
                histogram.buckets[index] = int(count)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"this is no histogram: {error!r}") from error
        return histogram


class Metrics:
    """Counters and histograms by name.

    Attributes:
        counters: sums that only grow.
        histograms: of seconds.
    """

    def __init__(self) -> None:
        self.counters: dict[str, float] = {}
        self.histograms: dict[str, Histogram] = {}

    def count(self, name: str, more: float = 1) -> None:
        """Add to a counter."""
        self.counters[name] = self.counters.get(name, 0) + more

    def time(self, name: str, seconds: float) -> None:
        """Add to a histogram."""
        histogram = self.histograms.get(name)
        if histogram is None:
            histogram = self.histograms[name] = Histogram()
        histogram.add(seconds)

    def plain(self) -> dict[str, Any]:
        """`counters` and `histograms` in plain values."""
        counters = {name: round(value, 6) for name, value in self.counters.items()}
        return {
            "counters": counters,
            "histograms": {name: each.plain() for name, each in self.histograms.items()},
        }


def merge_plain(many: Sequence[Mapping[str, Any]]) -> dict[str, Histogram]:
    """Histograms of several ranks (`histograms` as `Metrics.plain` gives them) by name, added up."""
    merged: dict[str, Histogram] = {}
    for histograms in many:
        for name, plain in histograms.items():
            merged[name] = merged.get(name, Histogram()).merged(Histogram.from_plain(plain))
    return merged
