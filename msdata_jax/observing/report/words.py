"""What a report says: the verdict in plain words, and the key figures."""

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from msdata_jax.observing import by_role
from msdata_jax.observing.report.figures import RunFigures, naming_damage

LITTLE_WAIT, MUCH_WAIT = 0.02, 0.1
EVEN = 1.05
_LONGEST_ERROR = 200


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A key figure.

    Attributes:
        title: of it.
        value: large.
        note: small, below it.
        mood: `good`, `fair` or `bad` where that can be said; else empty.
    """

    title: str
    value: str
    note: str
    mood: str = ""


def summarise(figures: RunFigures) -> dict[str, Any]:
    """A run in values that JSON has: what `msdata report --json` prints.

    Raises:
        MSDataError: the record is damaged.
    """
    with naming_damage(figures.folder):
        return _summarise(figures)


def _summarise(figures: RunFigures) -> dict[str, Any]:
    status = figures.last["status"]
    totals, columns = status["totals"], status["sources"]
    tokens = max(sum(columns["tokens"]), 1)
    return {
        "seconds": figures.last["seconds"],
        "ending": ending(figures),
        "steps": totals["steps"],
        "num_steps": status["num_steps"],
        "steps_per_second": totals["steps_per_second"],
        "data_wait": data_wait(figures),
        "imbalance": totals["imbalance"],
        "imbalance_unbalanced": totals["imbalance_unbalanced"],
        "fill": totals["fill"],
        "lost": status["lost"],
        "memory_mb": {role: round(mb, 1) for role, mb in memory_by_role(figures).items()},
        "decisions": figures.num_decisions,
        "alarms": [dict(alarm) for alarm in figures.alarms],
        "sources": [
            {
                "name": name,
                **{key: columns[key][index] for key in ("samples", "tokens", "bad", "waited_seconds")},
                "share_of_tokens": round(columns["tokens"][index] / tokens, 5),
            }
            for index, name in enumerate(figures.names)
        ],
        "verdict": plain_verdict(figures),
    }


def ending(figures: RunFigures) -> str:
    """How the run ended, as far as a record knows: `done`, `stopped`, `ended`, `failed` or `open`."""
    status = figures.last["status"]
    if figures.end is not None and not figures.end["ok"]:
        return "failed"
    if not status["ended"]:
        return "open"
    if status["stopping"]:
        return "stopped"
    return "done" if status["num_steps"] is not None and status["step"] >= status["num_steps"] else "ended"


def data_wait(figures: RunFigures) -> float | None:
    """Share of the time between steps that the trainer which waited most has waited; None without steps."""
    totals = figures.last["status"]["totals"]
    stepping = totals["stepping_seconds"]
    return min(totals["waited_seconds"] / stepping, 1.0) if stepping else None


def memory_by_role(figures: RunFigures) -> dict[str, float]:
    """MB of all ranks of each role, the most that a point has."""
    roles = {rank: by_role.NAMES.get(each["role"], "other") for rank, each in figures.ranks.items()}
    processes = {rank: (each["host"], each["pid"]) for rank, each in figures.ranks.items()}
    most: dict[str, float] = {}
    for point in figures.points:
        seen: dict[str, dict[Any, float]] = {}
        for rank, megabytes in point.memory_mb.items():
            seen.setdefault(roles[rank], {})[processes[rank]] = megabytes
        for role, values in seen.items():
            most[role] = max(most.get(role, 0.0), sum(values.values()))
    return most


# --- verdict ----------------------------------------------------------------------------------------------


def plain_verdict(figures: RunFigures) -> list[str]:
    """Sentences, the most important first."""
    totals = figures.last["status"]["totals"]
    sentences = [_how_it_went(figures)]
    if not totals["steps"]:
        return sentences
    sentences += [_waits(figures)]
    lost = figures.last["status"]["lost"]
    if lost:
        ranks = ", ".join(f"rank {each['rank']} ({each['why']})" for each in lost[:4])
        more = f" and {len(lost) - 4} more" if len(lost) > 4 else ""
        sentences.append(f"It went on without {ranks}{more}.")
    return [*sentences, _balance(totals)]


def _how_it_went(figures: RunFigures) -> str:
    status = figures.last["status"]
    totals = status["totals"]
    steps, of = totals["steps"], status["num_steps"]
    seconds = duration(figures.last["seconds"])
    if not steps:
        if ending(figures) == "failed":
            return f"The job failed before its first step{_why_failed(figures)}."
        return f"The job took no step in the {seconds} that were recorded: {_start(status)}."
    rate = f", {pace(totals['steps_per_second'])}" if totals["steps_per_second"] else ""
    taken = f"{steps:,} step{'s' if steps != 1 else ''}"
    return {
        "done": f"The job took all its {taken} in {seconds}{rate}.",
        "stopped": f"The job was asked to stop and did, behind {taken} in {seconds}{rate}.",
        "ended": f"The job took {taken} in {seconds}{rate}, and its training script ended it there.",
        "failed": f"The job failed behind {taken} in {seconds}{rate}{_why_failed(figures)}.",
        "open": f"The record ends behind {taken}{f' of {of:,}' if of else ''} and {seconds}{rate}, without "
        "an end of the job: it goes on, or it failed or was killed.",
    }[ending(figures)]


def _why_failed(figures: RunFigures) -> str:
    """The rank that failed first, and the end of what it said."""
    if figures.end is None or figures.end["ok"]:
        return ""
    lines = [line.strip() for line in str(figures.end["error"]).splitlines() if line.strip()]
    return f": rank {figures.end['rank']}, {lines[-1][:_LONGEST_ERROR].rstrip('.')}" if lines else ""


def _start(status: Mapping[str, Any]) -> str:
    coming = []
    if status["sources_to_open"]:
        coming.append(f"{status['sources_to_open']} sources were not open")
    if status["trainers_to_come"]:
        coming.append(f"{status['trainers_to_come']} training processes had no DataLoader")
    return " and ".join(coming) or "the first was being made"


def _waits(figures: RunFigures) -> str:
    wait = data_wait(figures)
    if wait is None:
        return "That is too short to say anything of waiting for data."
    if wait < LITTLE_WAIT:
        return f"Training hardly waited for data: {percent(wait)} of the time{_but_at_times(figures)}."
    return f"Training waited for data {percent(wait)} of the time{_because(figures)}."


def _but_at_times(figures: RunFigures) -> str:
    worst = max(figures.alarms, key=lambda each: each["data_wait"], default=None)
    if worst is None:
        return ""
    return f", with up to {percent(worst['data_wait'])} at times{_because(figures)}"


def _because(figures: RunFigures) -> str:
    began = [each for each in figures.alarms if each["event"] != "over"]
    sources = Counter(each["source"] for each in began if each["source"])
    if sources and len(began) <= 2 * sources.total():
        (name, _), *others = sources.most_common(3)
        more = f" and {', '.join(quoted(each) for each, _ in others)}" if others else ""
        if began[0]["kind"] == "behind":
            return f", for samples that came behind those of {quoted(name)}{more}"
        return f", for samples of {quoted(name)}{more}: {_WHY.get(began[0]['kind'], 'see the alarms below')}"
    if began:
        return f": {_WHY.get(began[0]['kind'], 'see the alarms below')}"
    waited = figures.last["status"]["sources"]["waited_seconds"]
    if max(waited, default=0.0) > 0:
        return f"; what planning waited for longest was {quoted(figures.names[int(np.argmax(waited))])}"
    return ""


_WHY = {
    "threads": "its loaders had no thread to spare",
    "reads": "its storage was slow",
    "buffers": "its loaders were full to their budget of bytes",
    "late": "its blocks began too late",
    "trainer": "one training process was slower than the others",
    "planner": "the planner could not keep up",
    "constructor": "a training process had too little CPU to put steps together",
    "loader": "a loader could not hand over samples fast enough",
}


def _balance(totals: Mapping[str, Any]) -> str:
    with_it, without = totals["imbalance"], totals["imbalance_unbalanced"]
    if with_it is None:
        return ""
    how = "even" if with_it < EVEN else "uneven"
    saved = f", and would have done {without:.2f} times as much without balancing" if without else ""
    if without is not None and without - with_it < 0.005:
        saved = ", and balancing had nothing to add"
    return f"Work was {how}: the busiest data-parallel rank did {with_it:.2f} times the mean{saved}."


# --- tiles ------------------------------------------------------------------------------------------------


def tiles(figures: RunFigures) -> Sequence[Tile]:
    """The key figures."""
    status = figures.last["status"]
    totals, wait = status["totals"], data_wait(figures)
    lost, bad = status["lost"], sum(status["sources"]["bad"])
    of = f" of {status['num_steps']:,}" if status["num_steps"] else ""
    return [
        Tile(
            title="Steps",
            value=f"{totals['steps']:,}",
            note=f"taken{of} in {duration(figures.last['seconds'])}",
        ),
        Tile(
            title="Pace",
            value=pace(totals["steps_per_second"]) if totals["steps_per_second"] else "–",
            note="mean over all steps",
        ),
        Tile(
            title="Data wait",
            value="–" if wait is None else percent(wait),
            note=_wait_note(status),
            mood=""
            if wait is None
            else "good"
            if wait < LITTLE_WAIT
            else "fair"
            if wait < MUCH_WAIT
            else "bad",
        ),
        _balance_tile(totals),
        Tile(
            title="Rows filled",
            value="–" if totals["fill"] is None else percent(totals["fill"]),
            note="places of a batch that hold tokens",
        ),
        Tile(
            title="Tokens",
            value=count(sum(status["sources"]["tokens"])),
            note=f"in {count(sum(status['sources']['samples']))} samples of {len(figures.names)} sources",
        ),
        Tile(
            title="Bad samples",
            value=f"{bad:,}",
            note="could not be read and were left out" if bad else "every sample could be read",
            mood="good" if not bad else "fair",
        ),
        _lost_tile(lost),
        _memory_tile(figures),
        _cpu_tile(figures),
    ]


def _wait_note(status: Mapping[str, Any]) -> str:
    waits = status["wait_ms"]
    if not waits:
        return "of the time between steps"
    return f"of the time; a step {waits['p50']:.3g} ms, 95 % below {waits['p95']:.3g} ms"


def _balance_tile(totals: Mapping[str, Any]) -> Tile:
    value = totals["imbalance"]
    if value is None:
        return Tile(title="Imbalance", value="–", note="no step was taken")
    return Tile(
        title="Imbalance",
        value=f"{value:.2f} ×",
        note=f"busiest rank over the mean; {totals['imbalance_unbalanced']:.2f} × without balancing",
        mood="good" if value < EVEN else "fair",
    )


def _lost_tile(lost: Sequence[Mapping[str, Any]]) -> Tile:
    return Tile(
        title="Lost ranks",
        value=str(len(lost)),
        note="the job went on without them" if lost else "all ranks stayed",
        mood="bad" if lost else "good",
    )


def _memory_tile(figures: RunFigures) -> Tile:
    memory = memory_by_role(figures)
    parts = ", ".join(f"{role} {megabytes(mb)}" for role, mb in memory.items())
    return Tile(title="Memory", value=megabytes(sum(memory.values())), note=f"at most: {parts}")


def _cpu_tile(figures: RunFigures) -> Tile:
    seconds = float(figures.points[-1].seconds)
    used = by_role.cpu_seconds(list(figures.ranks.values()))
    value = f"{used / seconds:.2g} cores" if seconds > 0 else "–"
    return Tile(title="CPU", value=value, note=f"in the mean; {duration(used)} of CPU time of all ranks")


# --- words ------------------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"


def short_time(seconds: float) -> str:
    """A short time as people say it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:,.3g} {unit}" if seconds < 1000 else f"{seconds:,.0f} s"
    return f"{1e6 * seconds:.3g} µs"


def pace(steps_per_second: float) -> str:
    """A rate as people say it."""
    if 0 < steps_per_second < 1:
        return f"{1 / steps_per_second:.3g} s a step"
    return f"{steps_per_second:.3g} steps/s"


def percent(share: float) -> str:
    """A share as people say it."""
    return f"{100 * share:.1f} %" if share < 0.0995 else f"{100 * share:.0f} %"


def count(number: float) -> str:
    """A large number as people say it."""
    for unit, size in (("bn", 1e9), ("M", 1e6), ("k", 1e4)):
        if number >= size:
            return f"{number / size:.3g} {unit}" if unit != "k" else f"{number / 1e3:,.0f} k"
    return f"{number:,.0f}"


def megabytes(mb: float) -> str:
    """Memory as people say it."""
    return f"{mb / 1000:.2f} GB" if mb >= 1000 else f"{mb:.0f} MB"


def num_bytes(number: float) -> str:
    """Bytes as people say it."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"


def quoted(name: str) -> str:
    """A name in a sentence."""
    return f"“{name}”"


def escape(text: object) -> str:
    """Text as HTML shows it."""
    return html.escape(str(text), quote=True)
