"""What a report is made of: the lines of a record, thinned and in columns.

All work is bounded: files larger than a record ever gets are refused, a line is dropped once it is read, and
of many lines some hundred are kept, evenly over the run. Sums since the start are kept, so rates between two
lines that are left are right whatever was dropped between them.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from msdata_jax.errors import MSDataError
from msdata_jax.observing.record import ALARMS, DECISIONS, METRICS, RunRecord

MOST_POINTS = 600
"""Lines that are kept."""
MOST_RANKS, MOST_SOURCES = 4096, 4096
MOST_LISTED = 500
"""Alarms and rounds of scaling that are listed."""
_MOST_BYTES = 256 << 20  # of a file; a record keeps to an eighth

_SUMS = ("samples", "tokens", "waited_seconds", "bad")
_READ = ("samples", "bytes", "read_seconds", "transform_seconds")


@dataclass(frozen=True, kw_only=True)
class Point:
    """A line of a record, as far as a report shows it.

    Attributes:
        seconds: since the planner began to watch.
        steps: that every trainer took.
        stepping: whether a trainer has taken a step.
        waited_seconds: of the trainer that waited most.
        imbalance, unbalanced, fill: of the last steps; NaN before there are any.
        delivered: float64 `[len(_SUMS), sources]`, by source since the start.
        held_bytes: of each loader.
        memory_mb, cpu_seconds: of each rank.
    """

    seconds: float
    steps: int
    stepping: bool
    waited_seconds: float
    imbalance: float
    unbalanced: float
    fill: float
    delivered: np.ndarray
    held_bytes: Mapping[int, float]
    memory_mb: Mapping[int, float]
    cpu_seconds: Mapping[int, float]


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """A run.

    Attributes:
        folder: of the record.
        about: `about.json`.
        names: of the sources, in the order of all columns.
        points: over the run; at least one.
        last: the last line as it was read.
        ranks: the last figures of each rank that ever told any, by rank.
        decisions, alarms: as the record has them, the first `MOST_LISTED`.
        num_decisions, num_alarms: of them all, single decisions and alarms that began.
        end: how the job ended (`observing.record`); None where the record does not know.
    """

    folder: Path
    about: Mapping[str, Any]
    names: Sequence[str]
    points: Sequence[Point]
    last: Mapping[str, Any]
    ranks: Mapping[int, Mapping[str, Any]]
    decisions: Sequence[Mapping[str, Any]]
    alarms: Sequence[Mapping[str, Any]]
    num_decisions: int
    num_alarms: int
    end: Mapping[str, Any] | None = None

    def column(self, name: str) -> np.ndarray:
        """A column of what was delivered, float64 `[points, sources]`."""
        index = _SUMS.index(name)
        return np.stack([point.delivered[index] for point in self.points])

    @property
    def seconds(self) -> np.ndarray:
        """Of the points, since the first one's."""
        return np.array([point.seconds for point in self.points])


def read_figures(record: RunRecord) -> RunFigures:
    """The figures of a record.

    Raises:
        MSDataError: it has no line yet, is larger than a record gets, or is damaged.
    """
    for name in (METRICS, DECISIONS, ALARMS):
        _check_size(record, name)
    with naming_damage(record.folder):
        return _read(record)


@contextlib.contextmanager
def naming_damage(folder: Path) -> Iterator[None]:
    """Around what reads values of a record: those that are none of a record are an error that says so.

    Raises:
        MSDataError: there were such.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
        raise MSDataError(
            f"{folder} is damaged: it has values that no record has ({type(error).__name__}: "
            f"{str(error)[:200]})"
        ) from error


def _check_size(record: RunRecord, name: str) -> None:
    path = record.folder / name
    try:
        num_bytes = path.stat().st_size if path.exists() else 0
    except OSError as error:
        raise MSDataError(f"{path} cannot be read: {error}") from error
    if num_bytes > _MOST_BYTES:
        raise MSDataError(
            f"{path} has {num_bytes >> 20} MB, and a record keeps to less than {_MOST_BYTES >> 20} MB: it is "
            "no file of ours, or is damaged"
        )


def _read(record: RunRecord) -> RunFigures:
    thinned = _Thinned()
    names: list[str] = []
    ranks: dict[int, Mapping[str, Any]] = {}
    last: Mapping[str, Any] | None = None
    for line in record.lines():
        if last is None:
            names = [str(name) for name in line["status"]["sources"]["name"]]
            _check_count("sources", len(names), MOST_SOURCES)
        thinned.add(partial(_point, line, len(names)))
        ranks |= {int(rank): figures for rank, figures in line["ranks"].items()}
        _check_count("ranks", len(ranks), MOST_RANKS)
        last = line
    if last is None:
        raise MSDataError(
            f"{record.folder} has no figures yet: a line comes about every second once all ranks are there"
        )
    points = thinned.points(_point(last, len(names)))
    decisions, num_decisions = _first(record.decisions(), lambda each: len(each["decisions"]))
    alarms, num_alarms = _first(record.alarms(), lambda each: each["event"] == "began")
    return RunFigures(
        folder=record.folder,
        about=record.about,
        names=names,
        points=points,
        last=last,
        ranks=dict(sorted(ranks.items())),
        decisions=decisions,
        alarms=alarms,
        num_decisions=num_decisions,
        num_alarms=num_alarms,
        end=record.end,
    )


def _check_count(what: str, count: int, most: int) -> None:
    if count > most:
        raise MSDataError(f"a report is of at most {most} {what}, and this record has {count}")


def _first(
    lines: Iterator[dict[str, Any]], count: Callable[[Mapping[str, Any]], int]
) -> tuple[list[dict[str, Any]], int]:
    kept: list[dict[str, Any]] = []
    number = 0
    for line in lines:
        number += int(count(line))
        if len(kept) < MOST_LISTED:
            kept.append(line)
    return kept, number


class _Thinned:
    """Every line at first; each time there are too many, every second one goes and half as many come."""

    def __init__(self) -> None:
        self._kept: list[Point] = []
        self._every, self._number = 1, 0

    def add(self, make: Callable[[], Point]) -> None:
        if self._number % self._every == 0:
            self._kept.append(make())
            if len(self._kept) >= 2 * MOST_POINTS:
                self._kept = self._kept[::2]
                self._every *= 2
        self._number += 1

    def points(self, last: Point) -> list[Point]:
        """What is left, the last one for certain."""
        kept = self._kept
        if len(kept) > MOST_POINTS:
            kept = kept[::2]
        kept = [point for point in kept if point.seconds < last.seconds]
        usual = (last.seconds - kept[0].seconds) / len(kept) if kept else 0.0
        # The last lines may come right behind the one before: rates between the two would say little.
        while len(kept) > 1 and last.seconds - kept[-1].seconds < usual / 2:
            del kept[-1]
        return [*kept, last]


def _point(line: Mapping[str, Any], num_sources: int) -> Point:
    status = line["status"]
    recent, columns = status["recent"] or {}, status["sources"]
    delivered = np.array([columns[name] for name in _SUMS], dtype=np.float64)
    if delivered.shape != (len(_SUMS), num_sources):
        raise ValueError(f"columns of {delivered.shape[1]} sources, where there are {num_sources}")
    ranks = {int(rank): figures for rank, figures in line["ranks"].items()}
    return Point(
        seconds=number(line["seconds"]),
        steps=int(status["totals"]["steps"]),
        stepping=bool(status["totals"]["steps"]),
        waited_seconds=number(status["totals"]["waited_seconds"]),
        imbalance=number(recent.get("imbalance")),
        unbalanced=number(recent.get("imbalance_unbalanced")),
        fill=number(recent.get("fill")),
        delivered=delivered,
        held_bytes={int(rank): number(held) for rank, held in status["held_bytes"].items()},
        memory_mb={rank: number(each["pss_mb"] or each["memory_mb"]) for rank, each in ranks.items()},
        cpu_seconds={rank: number(each["cpu_seconds"]) for rank, each in ranks.items()},
    )


def number(value: Any) -> float:
    """A number; NaN for None."""
    return math.nan if value is None else float(value)


def reading_of(line: Mapping[str, Any], name: str) -> np.ndarray:
    """A column of what loaders have read, float64 `[sources]`."""
    return np.array(line["sources"][name], dtype=np.float64)
