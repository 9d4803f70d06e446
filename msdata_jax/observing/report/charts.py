"""The charts of a report, as plain values that `page.js` draws.

A chart is `{"id", "kind", "unit", "series": [{"name", "y", "colour", "dash"?, "x"?}], ...}`. Charts of kind
`lines` and `area` are over the time of the page's `x` and are zoomed together; `bars` and `heat` are not.
"""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from msdata_jax.observing import by_role
from msdata_jax.observing.report.figures import RunFigures, reading_of
from msdata_jax.observing.report.words import num_bytes, pace, percent

MOST_LINES = 8
"""Sources or ranks of a chart that are shown one by one; what the others have is put together."""
MOST_BARS = 20
MOST_MARKS = 200
_LONGEST_NAME = 32
_GREY = -1  # the colour of "others" and of what is only for comparison
_ROLE_COLOURS = {"planner": 3, "loader": 0, "trainer": 1, "other": 4}

Chart = dict[str, Any]
Series = dict[str, Any]


def time_axis(figures: RunFigures) -> dict[str, Any]:
    """The shared axis: `x` of every point, and the `unit`: s, min or h."""
    seconds = figures.seconds
    unit, size = _unit(float(seconds[-1]))
    return {"x": _numbers(seconds / size), "unit": unit}


def _unit(longest: float) -> tuple[str, float]:
    if longest < 600:
        return "s", 1.0
    return ("min", 60.0) if longest < 5 * 3600 else ("h", 3600.0)


def marks(figures: RunFigures) -> dict[str, Any]:
    """Decisions of scaling as points in time, and alarms as spans of it."""
    _, size = _unit(float(figures.seconds[-1]))
    decisions = [
        {"x": round(each["seconds"] / size, 4), "text": _short(f"step {each['step']}: {_kinds(each)}", 90)}
        for each in figures.decisions[:MOST_MARKS]
    ]
    spans: list[dict[str, Any]] = []
    for alarm in figures.alarms[: 3 * MOST_MARKS]:
        at = round(alarm["seconds"] / size, 4)
        if alarm["event"] == "began":
            spans.append({"begin": at, "end": None, "text": _short(alarm["source"] or alarm["kind"], 40)})
        elif alarm["event"] == "over" and spans:
            spans[-1]["end"] = at
    return {"decisions": decisions, "alarms": spans[:MOST_MARKS]}


def _kinds(decided: Mapping[str, Any]) -> str:
    kinds = [str(each["kind"]) for each in decided["decisions"]]
    return ", ".join(
        f"{kind} ×{kinds.count(kind)}" if kinds.count(kind) > 1 else kind for kind in dict.fromkeys(kinds)
    )


def make_charts(figures: RunFigures) -> dict[str, Chart]:
    """All charts that there is something to draw of, by id."""
    charts = (
        _pace(figures), _wait(figures), _imbalance(figures), _buffers(figures), _waits_by_source(figures),
        _mixture(figures), _loader_time(figures), _memory(figures), _cpu(figures), _peers(figures),
    )  # fmt: skip
    return {chart["id"]: chart for chart in charts if chart is not None}


# --- steps ------------------------------------------------------------------------------------------------


def _pace(figures: RunFigures) -> Chart:
    steps = np.array([point.steps for point in figures.points], dtype=np.float64)
    rate = _rates(figures, steps)
    rate[~_has_stepped(figures)] = math.nan
    mean = figures.last["status"]["totals"]["steps_per_second"]
    series = [_series("steps a second", rate, 0)]
    if mean:
        flat = np.where(_has_stepped(figures), mean, math.nan)
        series.append(_series(f"mean: {pace(mean)}", flat, _GREY, dash="dot"))
    return {"id": "pace", "kind": "lines", "unit": "steps/s", "series": series, "marks": True}


def _wait(figures: RunFigures) -> Chart:
    waited = np.array([point.waited_seconds for point in figures.points])
    share = 100 * np.clip(_rates(figures, waited), 0, 1)
    share[~_has_stepped(figures)] = math.nan
    return {
        "id": "wait",
        "kind": "lines",
        "unit": "% of the time",
        "series": [_series("data wait", share, 5, fill=True)],
        "marks": True,
        "reaches": 5,
    }


def _imbalance(figures: RunFigures) -> Chart | None:
    with_it = np.array([point.imbalance for point in figures.points])
    if not np.isfinite(with_it).any():
        return None
    without = np.array([point.unbalanced for point in figures.points])
    return {
        "id": "imbalance",
        "kind": "lines",
        "unit": "× the mean",
        "series": [
            _series("without balancing", without, 1, dash="dash"),
            _series("as it was", with_it, 0),
        ],
        "least": 1,
    }


# --- buffers and sources ----------------------------------------------------------------------------------


def _buffers(figures: RunFigures) -> Chart | None:
    ranks = sorted({rank for point in figures.points for rank in point.held_bytes})
    if not ranks:
        return None
    held = {
        rank: np.array([point.held_bytes.get(rank, math.nan) for point in figures.points]) for rank in ranks
    }
    most = {rank: float(np.nanmax(values, initial=0.0)) for rank, values in held.items()}
    unit, size = _bytes_unit(max(most.values()))
    held = {rank: values / size for rank, values in held.items()}
    shown = sorted(sorted(ranks, key=lambda rank: -most[rank])[:MOST_LINES])
    series = [
        _series(f"loader rank {rank}", held[rank], colour, dash=_dash(colour))
        for colour, rank in enumerate(shown)
    ]
    others = [held[rank] for rank in ranks if rank not in shown]
    if others:
        mean = np.nan_to_num(np.stack(others)).mean(axis=0)
        series.append(_series(f"mean of {len(others)} others", mean, _GREY))
    budget = float(figures.last["status"]["budget_bytes"] or 0)
    if budget and max(most.values()) > 0.2 * budget:
        flat = np.full(len(figures.points), budget / size)
        series.append(_series("budget of a loader", flat, _GREY, dash="dot"))
    note = (
        f"Each may hold {num_bytes(budget)}; {percent(max(most.values()) / budget)} was the most."
        if budget
        else ""
    )
    return {"id": "buffers", "kind": "lines", "unit": unit, "series": series, "zero": True, "note": note}


def _bytes_unit(most: float) -> tuple[str, float]:
    return ("MB", 1e6) if most >= 1e6 else ("kB", 1e3)


def _waits_by_source(figures: RunFigures) -> Chart | None:
    waited = figures.column("waited_seconds")
    if not waited[-1].any():
        return None
    rates = 100 * np.clip(np.stack([_rates(figures, column) for column in waited.T]), 0, None)
    series = _of_sources(figures, rates[:, 1:], waited[-1])
    return {
        "id": "source_waits",
        "kind": "area",
        "unit": "% of the time",
        "series": series,
        "first": 1,
        "reaches": 5,
    }


def _mixture(figures: RunFigures) -> Chart | None:
    tokens = figures.column("tokens")
    if not tokens[-1].any():
        return None
    grown = np.clip(np.diff(tokens, axis=0, prepend=tokens[:1]), 0, None)
    total = grown.sum(axis=1, keepdims=True)
    share = np.divide(100 * grown, total, out=np.zeros_like(grown), where=total > 0)
    delivered = np.flatnonzero(total[:, 0] > 0)
    if not len(delivered):  # all of it was delivered before the first point
        return None
    for point in range(delivered[0] + 1, len(share)):
        if not total[point, 0]:  # nothing was delivered just then: what there was before goes on
            share[point] = share[point - 1]
    first, stop = int(delivered[0]), int(delivered[-1]) + 1
    return {
        "id": "mixture",
        "kind": "area",
        "unit": "% of tokens",
        "series": _of_sources(figures, share[first:stop].T, tokens[-1]),
        "percent": True,
        "first": first,
    }


def _of_sources(figures: RunFigures, values: np.ndarray, size: np.ndarray) -> list[Series]:
    """One series a source, `values` being `[sources, points]`, the largest first."""
    order = np.argsort(-size, kind="stable")
    order = order[size[order] > 0]
    by_tokens = np.argsort(-figures.column("tokens")[-1], kind="stable").tolist()
    series = [  # a source has the same colour in all charts
        _series(_name(figures.names[int(source)]), values[source], by_tokens.index(source))
        for source in order[:MOST_LINES].tolist()
    ]
    rest = order[MOST_LINES:]
    if len(rest):
        series.append(_series(f"{len(rest)} others", values[rest].sum(axis=0), _GREY))
    return series


def _loader_time(figures: RunFigures) -> Chart | None:
    read, transform = (reading_of(figures.last, f"{name}_seconds") for name in ("read", "transform"))
    total = read + transform
    order = np.argsort(-total, kind="stable")
    order = order[total[order] > 0]
    if not len(order):
        return None
    shown, rest = order[:MOST_BARS], order[MOST_BARS:]
    names = [_name(figures.names[int(source)]) for source in shown.tolist()]
    names += [f"{len(rest)} others"] if len(rest) else []

    def bars(values: np.ndarray) -> list[float | None]:
        return _numbers([*values[shown], *([values[rest].sum()] if len(rest) else [])])

    return {
        "id": "loader_time",
        "kind": "bars",
        "unit": "seconds of worker threads",
        "labels": names,
        "series": [
            {"name": "getting records", "y": bars(read), "colour": 4},
            {"name": "transforms", "y": bars(transform), "colour": 0},
        ],
    }


# --- ranks ------------------------------------------------------------------------------------------------


def _memory(figures: RunFigures) -> Chart:
    values = _of_ranks(figures, "memory_mb")
    return {
        "id": "memory",
        "kind": "lines",
        "unit": "MB",
        "series": _by_rank_or_role(figures, values),
        "zero": True,
    }


def _cpu(figures: RunFigures) -> Chart:
    used = _of_ranks(figures, "cpu_seconds")
    rates = {rank: np.clip(_rates(figures, values), 0, None) for rank, values in used.items()}
    return {
        "id": "cpu",
        "kind": "lines",
        "unit": "cores",
        "series": _by_rank_or_role(figures, rates),
        "zero": True,
    }


def _of_ranks(figures: RunFigures, name: str) -> dict[int, np.ndarray]:
    """A figure of each rank over the points, of each process once."""
    seen: set[Any] = set()
    ranks: list[int] = []
    for rank, each in figures.ranks.items():
        if (each["host"], each["pid"]) not in seen:
            ranks.append(rank)
        seen.add((each["host"], each["pid"]))
    columns = [getattr(point, name) for point in figures.points]
    return {rank: np.array([each.get(rank, math.nan) for each in columns]) for rank in ranks}


def _by_rank_or_role(figures: RunFigures, values: Mapping[int, np.ndarray]) -> list[Series]:
    """A line a rank where they are few, else the most and the mean of each role."""
    grouped: dict[str, list[int]] = {}
    for rank in values:
        grouped.setdefault(by_role.NAMES.get(figures.ranks[rank]["role"], "other"), []).append(rank)
    series: list[Series] = []
    for role, ranks in grouped.items():
        colour = _ROLE_COLOURS[role]
        if len(values) <= MOST_LINES + 2:
            series += [
                _series(f"{role} rank {rank}", values[rank], colour, dash=_dash(place))
                for place, rank in enumerate(ranks)
            ]
            continue
        stacked = np.stack([values[rank] for rank in ranks])
        known = np.isfinite(stacked)
        mean = np.divide(
            np.nansum(stacked, axis=0),
            known.sum(axis=0),
            out=np.full(stacked.shape[1], math.nan),
            where=known.any(axis=0),
        )
        most = np.where(known.any(axis=0), np.where(known, stacked, -math.inf).max(axis=0), math.nan)
        series.append(_series(f"{role}: most of {len(ranks)}", most, colour))
        if len(ranks) > 1:
            series.append(_series(f"{role}: mean", mean, colour, dash="dot"))
    return series


def _peers(figures: RunFigures) -> Chart | None:
    """Bytes from rank to rank."""
    ranks = list(figures.ranks)
    targets = sorted({int(to) for each in figures.ranks.values() for to in each["peers"]} - {-1})
    if not targets:
        return None
    sent = [[_sent(figures.ranks[rank]["peers"], to) for to in targets] for rank in ranks]
    unit, size = _bytes_unit(max(max(row) for row in sent))
    return {
        "id": "peers",
        "kind": "heat",
        "unit": unit,
        "labels": [f"rank {to}" for to in targets],
        "rows": [f"rank {rank} {by_role.NAMES.get(figures.ranks[rank]['role'], '')}" for rank in ranks],
        "values": [[round(value / size, 4) if value else None for value in row] for row in sent],
        "series": [],
    }


def _sent(peers: Mapping[str, Sequence[float]], to: int) -> float:
    found = peers.get(str(to))
    return float(found[1]) if found else 0.0


# --- values -----------------------------------------------------------------------------------------------


def _rates(figures: RunFigures, sums: np.ndarray) -> np.ndarray:
    """How fast a sum grew before each point, a second; NaN at the first one, and where time stood still."""
    seconds = np.diff(figures.seconds, prepend=math.nan)
    grown = np.diff(sums, prepend=math.nan)
    return np.divide(grown, seconds, out=np.full(len(sums), math.nan), where=seconds > 0)


def _has_stepped(figures: RunFigures) -> np.ndarray:
    """Points that lie behind a whole interval of steps."""
    stepping = np.array([point.stepping for point in figures.points])
    whole = stepping & np.concatenate([[False], stepping[:-1]])
    return whole if whole.any() else stepping


def _series(name: str, values: np.ndarray, colour: int, *, dash: str = "", fill: bool = False) -> Series:
    extra: dict[str, Any] = {"dash": dash} if dash else {}
    return {
        "name": name,
        "y": _numbers(values),
        "colour": colour,
        **extra,
        **({"fill": True} if fill else {}),
    }


def _numbers(values: Iterable[Any]) -> list[float | None]:
    """Numbers that JSON has, with five digits."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in map(float, values)]


def _dash(place: int) -> str:
    return ("", "dash", "dot", "dashdot", "longdash")[place % 5]


def _name(name: str) -> str:
    return _short(name, _LONGEST_NAME)


def _short(text: str, longest: int) -> str:
    """A text as plotly.js shows it, which takes some HTML for markup; cut in its middle."""
    if len(text) > longest:
        half = (longest - 1) // 2
        text = f"{text[:half]}…{text[-half:]}"
    return html.escape("".join(each if each.isprintable() else "?" for each in text), quote=False)
