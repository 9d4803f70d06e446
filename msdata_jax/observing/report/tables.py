"""The tables of a report, as HTML. Everything that comes from the record is escaped here."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from msdata_jax.observing import by_role
from msdata_jax.observing.report.figures import RunFigures, reading_of
from msdata_jax.observing.report.words import (
    count,
    duration,
    escape,
    megabytes,
    num_bytes,
    percent,
    short_time,
)

MOST_ROWS = 400
"""Of a table; a line below says how many more there are."""
MOST_REASONS = 3
_LONGEST = 300

_OF_WHAT = {
    "plan": "deciding what is in a step, and where",
    "lease": "a block, from asking a loader for it to word that it is read",
    "queue": "a block waits for a worker thread",
    "read": "getting the records of a block",
    "transform": "transforms of a block",
    "open": "opening a source",
    "order": "an order, until its first samples leave",
    "send": "handing a message to the transport",
    "gather": "a step, from its plan to its last sample",
    "assemble": "writing a message of samples into rows",
    "emit": "making a step's arrays of rows",
    "wait": "the training script waits for a step",
    "step": "the training script works with a step",
    "handle": "a role handles a message",
}
_ROLES = ("planner", "loader", "trainer", "other")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], text: Mapping[int, str] | None = None) -> str:
    """A table of cells that are HTML already.

    Args:
        head: of the columns, as HTML.
        rows: cells.
        text: class of columns that hold text, by number.
    """
    text = text or {0: "n"}

    def row(tag: str, cells: Sequence[str]) -> str:
        kinds = [text.get(index, "") for index in range(len(cells))]
        kinds = ["t" if kind and tag == "th" else kind for kind in kinds]
        inside = "".join(
            f'<{tag} class="{kind}">{cell}</{tag}>' if kind else f"<{tag}>{cell}</{tag}>"
            for kind, cell in zip(kinds, cells, strict=True)
        )
        return f"<tr>{inside}</tr>"

    all_rows = list(rows)
    body = "".join(row("td", cells) for cells in all_rows[:MOST_ROWS])
    more = len(all_rows) - MOST_ROWS
    note = f'<p class="empty">and {more} more</p>' if more > 0 else ""
    inside = f"<thead>{row('th', head)}</thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table>{inside}</table></div>{note}'


def sources(figures: RunFigures) -> str:
    """What each source gave, cost and was waited for."""
    columns = figures.last["status"]["sources"]
    read, samples = {}, reading_of(figures.last, "samples")
    for name in ("read_seconds", "transform_seconds", "bytes"):
        read[name] = reading_of(figures.last, name)
    tokens = np.array(columns["tokens"], dtype=np.float64)
    share = tokens / max(tokens.sum(), 1)

    def row(index: int) -> list[str]:
        read_samples = max(samples[index], 1)
        width = round(70 * share[index] / max(share.max(), 1e-9), 1)
        return [
            name_cell(figures.names[index]),
            count(columns["samples"][index]),
            count(tokens[index]),
            f'<span class="bar" style="width:{width}px"></span>{percent(share[index])}',
            f"{columns['bad'][index]:,}" if columns["bad"][index] else "–",
            _cost(read["read_seconds"][index], read_samples),
            _cost(read["transform_seconds"][index], read_samples),
            num_bytes(read["bytes"][index] / read_samples) if samples[index] else "–",
            f"{columns['waited_seconds'][index]:.1f} s" if columns["waited_seconds"][index] >= 0.05 else "–",
        ]

    order = np.argsort(-tokens, kind="stable").tolist()
    head = (
        "source",
        "samples",
        "tokens",
        "of tokens",
        "bad",
        "read, a sample",
        "transforms",
        "size",
        "waited for",
    )
    return table(head, [row(index) for index in order])


def _cost(seconds: float, samples: float) -> str:
    return short_time(seconds / samples) if seconds > 0 else "–"


def decisions(figures: RunFigures) -> str:
    """What scaling decided, and why."""
    rows = [
        [
            duration(each["seconds"]),
            f"{each['step']:,}",
            escape(_in_words(decision, figures)),
            escape(_cut(decision["why"])),
        ]
        for each in figures.decisions
        for decision in each["decisions"]
    ]
    rows += [
        [
            duration(each["seconds"]),
            f"{each['step']:,}",
            "scaling is switched off",
            escape(_cut(each["note"])),
        ]
        for each in figures.decisions
        if each.get("note")
    ]
    if not rows:
        return '<p class="empty">None: who reads what stayed as it began.</p>'
    return table(("after", "at step", "what", "why"), rows, {2: "w", 3: "w"})


def _in_words(decision: Mapping[str, Any], figures: RunFigures) -> str:
    loader, source = decision["loader"], decision["source"]
    name = figures.names[source] if 0 <= source < len(figures.names) else f"source {source}"
    threads = decision["threads"]
    return {
        "widen": f"loader rank {loader} reads “{name}”, too",
        "narrow": f"loader rank {loader} stops reading “{name}”",
        "threads": f"loader rank {loader} gets {threads} worker thread{'s' if threads != 1 else ''}",
    }.get(decision["kind"], str(decision["kind"]))


def alarms(figures: RunFigures) -> str:
    """Data-wait alarms as they were given."""
    if not figures.alarms:
        return '<p class="empty">None: no wait for data was long enough to say so.</p>'
    lines = []
    for each in figures.alarms:
        kind = "alarm over" if each["event"] == "over" else "alarm"
        when = f"{duration(each['seconds'])}, step {each['step']:,}"
        lines.append(f'<p class="{kind}"><b>{escape(when)}</b>{escape(_cut(each["text"]))}</p>')
    return "".join(lines)


def bad_samples(figures: RunFigures) -> str:
    """How many samples of which source could not be read, and since when."""
    bad = figures.column("bad")
    found = [index for index in np.argsort(-bad[-1], kind="stable").tolist() if bad[-1][index] > 0]
    if not found:
        return '<p class="empty">None: every sample could be read.</p>'
    samples = figures.last["status"]["sources"]["samples"]
    rows = []
    for index in found:
        first = int(np.argmax(bad[:, index] > 0))
        known = bad[-1][index] + samples[index]
        rows.append(
            [
                name_cell(figures.names[int(index)]),
                f"{int(bad[-1][index]):,}",
                percent(float(bad[-1][index] / known)),
                duration(figures.points[first].seconds),
                escape(_cut(_data_of(figures, index))),
                _reasons(figures, index),
            ]
        )
    head = ("source", "bad", "of its samples", "first seen after", "its data", "the first of them")
    return table(head, rows, {0: "n", 4: "w", 5: "w"})


def _reasons(figures: RunFigures, index: int) -> str:
    """The first bad samples of a source, by position and reason; known when the job has ended."""
    listed = ((figures.end or {}).get("bad") or {}).get(figures.names[index], ())
    reasons = [f"{int(position):,}: {reason}" for _, position, reason in listed[:MOST_REASONS]]
    return "<br>".join(escape(_cut(each)) for each in reasons) or "–"


def _data_of(figures: RunFigures, index: int) -> str:
    listed = figures.about.get("sources")
    if isinstance(listed, list) and index < len(listed) and isinstance(listed[index], dict):
        return str(listed[index].get("data", ""))
    return ""


def ranks(figures: RunFigures) -> str:
    """Each rank: who it is, what it used, what it sent."""
    lost = {each["rank"]: each["why"] for each in figures.last["status"]["lost"]}
    seconds = max(float(figures.points[-1].seconds), 1e-9)

    def row(rank: int, each: Mapping[str, Any]) -> list[str]:
        most = max((point.memory_mb.get(rank, 0.0) for point in figures.points), default=0.0)
        counters = each["counters"]
        gone = f"lost: {_cut(lost[rank])}" if rank in lost else "stayed"
        return [
            str(rank),
            escape(by_role.NAMES.get(each["role"], each["role"])),
            escape(each["host"]),
            megabytes(each["pss_mb"] or each["memory_mb"]),
            megabytes(most),
            f"{each['cpu_seconds']:,.1f} s",
            percent(each["cpu_seconds"] / seconds),
            num_bytes(counters.get("bytes_out", 0)),
            num_bytes(counters.get("bytes_in", 0)),
            escape(gone),
        ]

    rows = [row(rank, each) for rank, each in figures.ranks.items()]
    never = [rank for rank in lost if rank not in figures.ranks]
    rows += [[str(rank), *["–"] * 8, escape(f"lost: {_cut(lost[rank])}")] for rank in never]
    head = ("rank", "role", "host", "memory", "at most", "CPU time", "of a core", "sent", "got", "fate")
    return table(head, rows, {1: "t", 2: "n", 9: "w"})


def times(figures: RunFigures) -> str:
    """How long everything took that ranks time, by role."""
    grouped: dict[str, list[Mapping[str, Any]]] = {}
    for each in figures.ranks.values():
        grouped.setdefault(by_role.NAMES.get(each["role"], "other"), []).append(each)
    rows = []
    for role in _ROLES:
        found = by_role.histograms(grouped.get(role, []))
        for name in [*(each for each in _OF_WHAT if each in found), *(set(found) - set(_OF_WHAT))]:
            histogram = found[name]
            if not histogram.count:
                continue
            quantiles = (histogram.quantile(share) for share in (0.5, 0.95, 0.99))
            rows.append(
                [
                    escape(role),
                    escape(name),
                    escape(_OF_WHAT.get(name, "")),
                    count(histogram.count),
                    *(short_time(each) for each in quantiles),
                    short_time(histogram.most),
                    duration(histogram.sum),
                ]
            )
    head = ("role", "what", "", "how often", "half below", "95 % below", "99 % below", "longest", "together")
    return table(head, rows, {0: "t", 1: "t", 2: "w"})


def name_cell(name: str) -> str:
    """The name of a source, whole where one hovers over it."""
    shown = _cut(name, 60)
    title = f' title="{escape(_cut(name, 1000))}"' if shown != name else ""
    return f"<span{title}>{escape(shown)}</span>"


def _cut(text: object, longest: int = _LONGEST) -> str:
    shown = "".join(each if each.isprintable() else "?" for each in str(text))
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"
