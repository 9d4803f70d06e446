"""Puts the figures of all ranks and the status of their job together, for whoever wants them."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from msdata_jax.observing.files import Ring

SOURCE_FIGURES = ("blocks", "samples", "tokens", "bytes", "bad", "read_seconds", "transform_seconds")
"""What loaders count of each source, in this order: what they read, whether it was delivered or not."""
MOST_SOURCES = 1000
"""Sources that are listed, as in the status; what the others have is summed up behind them."""

Line = Mapping[str, Any]
"""What is known at one moment: a line of `metrics.jsonl`, described in `observing.record`."""


class Sink(Protocol):
    """Takes the lines of a job as it goes."""

    def write(self, line: Line, /) -> None:
        """Take a line; quick, and without an error that could end the job."""
        ...

    def close(self) -> None:
        """The job is over."""
        ...


class Monitor:
    """Takes figures of ranks and hands lines on; all on one thread.

    Args:
        num_sources: of the recipe.
        sinks: get each line.
        clock: seconds since the epoch.
        decisions: a log of decisions of scaling; None for none.
    """

    def __init__(
        self,
        num_sources: int,
        sinks: Sequence[Sink],
        clock: Callable[[], float] = time.time,
        decisions: Ring | None = None,
    ) -> None:
        self._decisions = decisions
        self._sinks, self._clock, self._begun_at = tuple(sinks), clock, clock()
        self._ranks: dict[int, Mapping[str, Any]] = {}
        self._by_rank: dict[tuple[int, int], np.ndarray] = {}
        self._by_source = np.zeros((num_sources, len(SOURCE_FIGURES)))

    def measured(self, rank: int, figures: Mapping[str, Any]) -> None:
        """Take the figures of a rank (`runtime.observing.Observer.figures`), in place of its last ones."""
        rest = dict(figures)
        for name, values in rest.pop("sources", {}).items():
            source, now = int(name), np.asarray(values, dtype=np.float64)
            if 0 <= source < len(self._by_source):
                self._by_source[source] += now - self._by_rank.get((rank, source), 0.0)
                self._by_rank[rank, source] = now
        self._ranks[rank] = rest

    def tell(self, status: Mapping[str, Any]) -> None:
        """Hand a line on to all sinks."""
        now = self._clock()
        line = {
            "seconds": round(now - self._begun_at, 3),
            "time": round(now, 3),
            "status": status,
            "sources": self._sources(),
            "ranks": {str(rank): figures for rank, figures in sorted(self._ranks.items())},
        }
        for sink in self._sinks:
            sink.write(line)

    def close(self) -> None:
        """Close the sinks and the log."""
        for each in (*self._sinks, *([self._decisions] if self._decisions else [])):
            each.close()

    def decided(self, decided: Mapping[str, Any]) -> None:
        """Write a round of scaling down (`scaling.decision_log.Round.to_plain`)."""
        if self._decisions:
            self._decisions.write([decided])

    def _sources(self) -> dict[str, list[float]]:
        """Columns, in the order of the status's."""
        listed = self._by_source[:MOST_SOURCES]
        if len(self._by_source) > MOST_SOURCES:
            listed = np.vstack([listed, self._by_source[MOST_SOURCES:].sum(axis=0)])
        return {
            name: column.round(4).tolist() if name.endswith("_seconds") else column.astype(np.int64).tolist()
            for name, column in zip(SOURCE_FIGURES, listed.T, strict=True)
        }
