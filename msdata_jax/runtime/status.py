"""What people see of a job while it runs: the planner's state, once a second, as a small plain dict."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from msdata_jax.roles import messages as m
from msdata_jax.roles.effects import Effect, Finish
from msdata_jax.roles.planner import Planner
from msdata_jax.roles.tally import Tally

WINDOW_SECONDS = 10.0
"""Rates are those of about so long."""
MOST_SOURCES = 1000
"""Sources that are listed; what the others have is summed up behind them, under `OTHERS`."""
OTHERS = "(others)"

_RATIOS = ("imbalance", "imbalance_unbalanced", "fill")
_AS_IT_IS = (
    *("step", "ready", "num_steps", "began", "ended", "stopping"),
    *("trainers_to_come", "sources_to_open"),
)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Where a job stood at one moment.

    Attributes:
        seconds: since the planner began.
        step: that every trainer comes to next.
        trainers_waited: seconds that each trainer has waited for steps, by rank.
        sources_waited: float64 `[sources]`, seconds that planning has waited for each.
        sources_lacked: float64 `[sources]`, seconds that trainers have waited for steps that lacked it last.
    """

    seconds: float
    step: int
    trainers_waited: Mapping[int, float]
    sources_waited: np.ndarray
    sources_lacked: np.ndarray = field(default_factory=lambda: np.zeros(0))


def rates(first: Reading, last: Reading) -> dict[str, Any]:
    """What happened between two moments.

    Returns:
        `steps_per_second`; `data_wait`, the share of the time that the trainer which waited most has waited
        for steps; `slowest_source`, the number of the source that planning waited for longest. Each is None
        where there is nothing to say.
    """
    seconds = last.seconds - first.seconds
    if seconds <= 0:
        return {"steps_per_second": None, "data_wait": None, "slowest_source": None}
    waited = [now - first.trainers_waited.get(rank, 0.0) for rank, now in last.trainers_waited.items()]
    by_source = last.sources_waited - first.sources_waited
    slowest = int(np.argmax(by_source)) if by_source.max(initial=0.0) > 0 else None
    return {
        "steps_per_second": round((last.step - first.step) / seconds, 4),
        "data_wait": round(min(max(waited, default=0.0) / seconds, 1.0), 5),
        "slowest_source": slowest,
    }


@dataclass(kw_only=True)
class Totals:
    """What all sessions of a job have brought so far.

    Attributes:
        steps: that every trainer took.
        sums: as `Tally.sums`.
        samples, tokens: int64 `[sources]`.
        waited_seconds: of the trainer that waited most, first steps left out.
        stepping_seconds: from the first step taken to the last, in each session.
        intervals: steps in these times.
    """

    steps: int = 0
    sums: np.ndarray
    samples: np.ndarray
    tokens: np.ndarray
    waited_seconds: float = 0.0
    stepping_seconds: float = 0.0
    intervals: int = 0

    def with_session(self, tally: Tally, waited_seconds: float, stepping_seconds: float) -> "Totals":
        """These and one session more."""
        return Totals(
            steps=self.steps + tally.num_steps,
            sums=self.sums + tally.sums,
            samples=self.samples + tally.samples,
            tokens=self.tokens + tally.tokens,
            waited_seconds=self.waited_seconds + waited_seconds,
            stepping_seconds=self.stepping_seconds + stepping_seconds,
            intervals=self.intervals + max(tally.num_steps - 1, 0),
        )


def describe(
    state: Mapping[str, Any], totals: Totals, first: Reading, last: Reading, names: Sequence[str]
) -> dict[str, Any]:
    """The status of a job, of values that JSON has.

    Args:
        state: what `Planner.status` gave.
        totals: of all sessions, this one too.
        first: where the job stood about `WINDOW_SECONDS` before.
        last: where it stands.
        names: of the sources.
    """
    found = rates(first, last)
    slowest, recent = found["slowest_source"], state["tally"].recent()
    held, budget = state["held_bytes"], state["budget_bytes"]
    by_source = {
        **{name: state[name] for name in ("known", "leased", "known_bytes", "bad")},
        "samples": totals.samples.tolist(),
        "tokens": totals.tokens.tolist(),
        "waited_seconds": last.sources_waited.round(2).tolist(),
    }
    return {
        **{name: state[name] for name in _AS_IT_IS},
        "seconds": round(last.seconds, 2),
        **found,
        "slowest_source": None if slowest is None else names[slowest],
        "recent": None if recent is None else _named(recent),
        "buffers": max(held.values(), default=0) / budget if budget else None,
        "held_bytes": {str(rank): num_bytes for rank, num_bytes in held.items()},
        "budget_bytes": budget,
        "lacking": _lacking(state, first, last, names),
        "loaders": {
            str(rank): {"threads": threads, "busy_seconds": round(state["busy_seconds"].get(rank, 0.0), 3)}
            for rank, threads in state["threads"].items()
        },
        "lost": [{"rank": rank, "why": why} for rank, why in state["lost"].items()],
        "totals": _totals(totals),
        "wait_ms": _percentiles(state["waits"]),
        "sources": _listed(names, by_source),
    }


def _lacking(
    state: Mapping[str, Any], first: Reading, last: Reading, names: Sequence[str]
) -> dict[str, Any] | None:
    """The source that steps lacked longest, of the steps that trainers waited for between two moments.

    Returns:
        `source`; `share`, its part of all that trainers waited; `all`, the part of all sources; `loaders`,
        the ranks that read it. None where nothing was lacking.
    """
    lacked = _since(last.sources_lacked, first.sources_lacked)
    now, before = last.trainers_waited, first.trainers_waited
    waited = sum(max(seconds - before.get(rank, 0.0), 0.0) for rank, seconds in now.items())
    if waited <= 0 or lacked.max(initial=0.0) <= 0:
        return None
    source = int(np.argmax(lacked))
    return {
        "source": names[source],
        "share": round(min(float(lacked[source]) / waited, 1.0), 4),
        "all": round(min(float(lacked.sum()) / waited, 1.0), 4),
        "loaders": state["loaders"][source],
    }


def _since(now: np.ndarray, before: np.ndarray) -> np.ndarray:
    return now - before if len(now) == len(before) else now


def _totals(totals: Totals) -> dict[str, Any]:
    return {
        "steps": totals.steps,
        "steps_per_second": (
            round(totals.intervals / totals.stepping_seconds, 4) if totals.stepping_seconds > 0 else None
        ),
        "waited_seconds": round(totals.waited_seconds, 3),
        "stepping_seconds": round(totals.stepping_seconds, 3),
        **_named(totals.sums / totals.steps if totals.steps else None),
    }


def _percentiles(waits: Sequence[float]) -> dict[str, float] | None:
    if not waits:
        return None
    p50, p95 = (1000 * np.percentile(np.array(waits), (50, 95))).round(3).tolist()
    return {"p50": p50, "p95": p95}


def _named(ratios: np.ndarray | None) -> dict[str, float | None]:
    if ratios is None:
        return dict.fromkeys(_RATIOS)
    return dict(zip(_RATIOS, ratios.round(4).tolist(), strict=True))


def _listed(names: Sequence[str], by_source: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Columns, one value a source; a job that has not begun knows nothing of most."""
    more = len(names) > MOST_SOURCES
    listed: dict[str, list[Any]] = {"name": [*names[:MOST_SOURCES], *([OTHERS] if more else [])]}
    for name, column in by_source.items():
        column = column or [0] * len(names)
        listed[name] = [*column[:MOST_SOURCES], *([sum(column[MOST_SOURCES:])] if more else [])]
    return listed


def memory_by_role(figures: Mapping[str, Any]) -> dict[str, list[float]]:
    """Memory of each process in MB (PSS), by role, from the figures with which a planner finishes."""
    roles = {
        "planner": [figures["planner"]],
        "loaders": figures["loaders"],
        "trainers": figures["constructors"],
    }
    return {name: [each.get("pss_mb", 0.0) for each in of] for name, of in roles.items()}


class StatusBoard:
    """Tells the status of a job about once a second, from session to session.

    Args:
        names: of the recipe's sources.
        tell: takes the status, on the planner's thread; quick.
        clock: seconds.
    """

    def __init__(
        self,
        names: Sequence[str],
        tell: Callable[[Mapping[str, Any]], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        zeros = np.zeros(len(names), dtype=np.int64)
        self._names, self._tell, self.clock = names, tell, clock
        self._begun_at = clock()
        self._before = Totals(sums=np.zeros(3), samples=zeros, tokens=zeros)
        self._shown: Watched | None = None
        self._latest: Watched | None = None
        self._readings: deque[Reading] = deque()
        self.sources_waited = np.zeros(len(names))

    def watch(self, planner: Planner) -> "Watched":
        """The role to run in place of the planner of a new session; it only looks."""
        self._latest = Watched(planner, self)
        self._shown = self._shown or self._latest
        return self._latest

    def tell(self) -> None:
        """Tell the status now: once more when all is over."""
        watched = self._choose()
        if watched is None:
            return
        state = watched.planner.status()
        waited = max(state["waited_seconds"].values(), default=0.0)
        totals = self._before.with_session(state["tally"], waited, watched.stepping_seconds)
        last = Reading(
            seconds=self.clock() - self._begun_at,
            step=state["step"],
            trainers_waited=state["waited_seconds"],
            sources_waited=self.sources_waited.copy(),
            sources_lacked=state["lacked_seconds"],
        )
        readings = self._readings
        readings.append(last)
        while len(readings) > 2 and readings[1].seconds <= last.seconds - WINDOW_SECONDS:
            readings.popleft()
        self._tell(describe(state, totals, readings[0], last, self._names))
        if not state["tally"].num_steps:
            readings.clear()  # what comes before the first step is the job's start

    def _choose(self) -> "Watched | None":
        """The session to show: the last one that began, so that a job's steps stay in sight behind it."""
        shown, latest = self._shown, self._latest
        if shown is None or latest is None or shown is latest or not latest.planner.has_begun:
            return shown
        state = shown.planner.status()
        waited = max(state["waited_seconds"].values(), default=0.0)
        self._before = self._before.with_session(state["tally"], waited, shown.stepping_seconds)
        self._readings.clear()
        self._shown = latest
        return latest


class Watched:
    """A planner as the loop runs it: what it is handed goes to the planner, and what that gives comes back.

    Made by `StatusBoard.watch`.
    """

    def __init__(self, planner: Planner, board: StatusBoard) -> None:
        self.planner = planner
        self._board = board
        self._looked_at = board.clock()
        self._taken_at: tuple[float, float] | None = None  # the first step, and the last

    @property
    def stepping_seconds(self) -> float:
        """Time from the first step that a trainer took to the last."""
        return self._taken_at[1] - self._taken_at[0] if self._taken_at else 0.0

    def start(self) -> Sequence[Effect]:
        """As the planner."""
        return self.planner.start()

    def handle(self, sender: int, message: m.RoleMessage) -> Sequence[Effect]:
        """As the planner; the time since the last look goes to the source that was waited for.

        The last status is told before any rank hears of the end, since that may end this process.
        """
        now = self._look()
        if isinstance(message, m.Delivered):
            self._taken_at = (self._taken_at[0] if self._taken_at else now, now)
        effects = self.planner.handle(sender, message)
        if any(isinstance(each, Finish) for each in effects):
            self._board.tell()
        return effects

    def tick(self, elapsed_seconds: float, *, caught_up: bool = True) -> Sequence[Effect]:
        """As the planner, then tell the status."""
        effects = self.planner.tick(elapsed_seconds, caught_up=caught_up)
        self._look()
        self._board.tell()
        return effects

    def _look(self) -> float:
        now, source = self._board.clock(), self.planner.waits_for
        if source is not None:
            self._board.sources_waited[source] += now - self._looked_at
        self._looked_at = now
        return now
