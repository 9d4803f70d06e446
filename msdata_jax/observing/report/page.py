"""A report as one HTML page that loads nothing.

What the page shows comes from a record, so from names and data that others chose. Texts are escaped; charts
get theirs as JSON that no browser takes for markup; and the page's policy lets no script run but the two that
are in it, by their hashes, and nothing be loaded from anywhere.
"""

import base64
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from msdata_jax.observing.report import tables
from msdata_jax.observing.report.charts import make_charts, marks, time_axis
from msdata_jax.observing.report.figures import RunFigures, naming_damage
from msdata_jax.observing.report.words import Tile, escape, plain_verdict, tiles
from msdata_jax.sources.protocol import require

_CHARTS = {
    "pace": ("Pace", "How many steps all trainers took a second. It should be flat.", "wide low"),
    "wait": (
        "Data wait",
        "Share of the time that the trainer which waited most had no step to work with. Below 2 % is fine. "
        "Shaded: an alarm. Dotted: scaling decided something.",
        "wide low",
    ),
    "source_waits": (
        "What planning waited for",
        "Share of the time that no step could be planned for want of samples of a source. It hurts only "
        "where data wait is high as well: steps are planned ahead.",
        "",
    ),
    "mixture": ("What was delivered", "Share of each source in the tokens of the steps at that time.", ""),
    "imbalance": (
        "How even the work was",
        "Work of the busiest data-parallel rank over the mean; 1 is even. Without balancing, the rest would "
        "have waited for it in every step.",
        "",
    ),
    "loader_time": (
        "Where loaders' time went",
        "Time of worker threads over the run. Much of getting records points at storage, much of transforms "
        "at CPU.",
        "",
    ),
    "buffers": ("Samples held ahead", "Bytes that loaders hold ready for steps to come.", ""),
    "memory": ("Memory", "Of each process; pages that several share count in part, where that is known.", ""),
    "cpu": ("CPU", "Cores that a process kept busy.", ""),
    "peers": (
        "Who sent what to whom",
        "Arrays over the whole run. Loaders should send to trainers about evenly.",
        "",
    ),
}

_LISTS: Mapping[str, Callable[[RunFigures], str]] = {
    "Alarms": tables.alarms,
    "All sources": tables.sources,
    "Bad samples": tables.bad_samples,
    "Scaling decisions": tables.decisions,
    "All ranks": tables.ranks,
    "How long things took": tables.times,
}
_NOTES = {
    "Alarms": "Given while the job ran, when trainers waited for more than 2 % of the time.",
    "All sources": "What was delivered, what a sample costs one thread, and how long planning waited.",
    "Bad samples": "They could not be read, and were left out as the recipe says.",
    "Scaling decisions": "They change who reads what, never what is delivered.",
    "All ranks": "Memory of the process at the end and at most; of a lost rank what was known last.",
    "How long things took": "Of all ranks of a role, over the whole run; good to a factor of 1.4.",
}


def make_page(figures: RunFigures) -> str:
    """The page.

    Raises:
        SourceError: plotly is not installed.
        MSDataError: the record is damaged.
    """
    with naming_damage(figures.folder):
        return _page(figures)


def _page(figures: RunFigures) -> str:
    plotly = require("plotly.offline", "report").get_plotlyjs().replace("\r\n", "\n").replace("\r", "\n")
    script = _asset("page.js")
    charts = make_charts(figures)
    values = {"time": time_axis(figures), "marks": marks(figures), "charts": charts}
    about = figures.about
    policy = (
        f"default-src 'none'; script-src {_hash(plotly)} {_hash(script)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )
    verdict, *more = plain_verdict(figures)
    if more:
        verdict, more = f"{verdict} {more[0]}", more[1:]
    began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(float(about["time"])))
    title = f"Run of {began}"
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)} – msdata</title><style>{_asset('page.css')}</style></head><body><main>",
        f"<header><h1>{escape(title)} · {_ranks_in_words(figures)} · {len(figures.names):,} sources</h1>",
        f'<p class="verdict">{escape(verdict)}</p><p class="more">{escape(" ".join(more))}</p></header>',
        _nav(),
        f'<div class="tiles">{"".join(map(_tile, tiles(figures)))}</div>',
        "<noscript><p>The charts need JavaScript; the figures and tables do not.</p></noscript>",
        *_sections(figures, charts),
        f"<footer>Recipe {escape(about.get('recipe', ''))}, seed {escape(about.get('seed', ''))}; msdata_jax "
        f"{escape(about.get('msdata_jax', ''))} on Python {escape(about.get('python', ''))}. "
        f"{escape(about.get('strategy', ''))}</footer></main>",
        f'<script type="application/json" id="charts">{_json(values)}</script>',
        f"<script>{plotly}</script><script>{script}</script></body></html>",
    ]
    return "\n".join(parts)


def _sections(figures: RunFigures, charts: Mapping[str, Any]) -> list[str]:
    def drawn(*names: str) -> str:
        return "".join(_card(name, charts[name]) for name in names if name in charts)

    lists = {name: _list(name, make(figures)) for name, make in _LISTS.items()}
    return [
        _section(
            "time",
            "Over time",
            "Drag over a chart to look closer: all charts of time follow. Double-click to go back.",
            drawn("pace", "wait") + lists["Alarms"],
        ),
        _section(
            "sources",
            "Sources",
            "What each source gave, and what it cost.",
            drawn("mixture", "source_waits", "loader_time", "buffers")
            + lists["All sources"]
            + lists["Bad samples"],
        ),
        _section(
            "balance",
            "Balance and scaling",
            "How evenly steps were cut, and who was put to read what.",
            drawn("imbalance", "peers") + lists["Scaling decisions"],
        ),
        _section(
            "ranks",
            "Ranks",
            "What the processes of the job used.",
            drawn("memory", "cpu") + lists["All ranks"] + lists["How long things took"],
        ),
    ]


def _list(title: str, content: str) -> str:
    return f'<div class="card wide"><h3>{title}</h3><p>{_NOTES[title]}</p>{content}</div>'


def _section(name: str, title: str, note: str, content: str) -> str:
    return f'<section id="{name}"><h2>{title}</h2><p>{note}</p><div class="cards">{content}</div></section>'


def _card(name: str, values: Mapping[str, Any]) -> str:
    title, note, size = _CHARTS[name]
    note = f"{note} {escape(values.get('note', ''))}".rstrip()
    chart = f'<div class="chart" id="chart-{name}" style="height:{_height(values, size)}px"></div>'
    return f'<div class="card {size}"><h3>{title}</h3><p>{note}</p>{chart}</div>'


def _height(chart: Mapping[str, Any], size: str) -> int:
    """Pixels, so that a long legend or many bars leave room for what they are of."""
    if chart["kind"] == "bars":
        return 130 + max(17 * len(chart["labels"]), 120)
    if chart["kind"] == "heat":
        return 270 if len(chart["rows"]) <= 16 else 420
    return (215 if size else 270) + 20 * (max(len(chart["series"]) - 4, 0) // 2)


def _nav() -> str:
    names = {"time": "Over time", "sources": "Sources", "balance": "Balance and scaling", "ranks": "Ranks"}
    links = "".join(f'<a href="#{key}">{title}</a>' for key, title in names.items())
    return f"<nav>{links}</nav>"


def _tile(tile: Tile) -> str:
    return (
        f'<div class="tile {tile.mood}"><span>{escape(tile.title)}</span><b>{escape(tile.value)}</b>'
        f"<em>{escape(tile.note)}</em></div>"
    )


def _ranks_in_words(figures: RunFigures) -> str:
    roles = [str(each["role"]) for each in figures.about["ranks"].values()]
    counts = {"loader": "loaders", "shadow": "shadows", "constructor": "trainers"}
    parts = [
        f"{roles.count(role)} {many if roles.count(role) > 1 else many[:-1]}"
        for role, many in counts.items()
        if role in roles
    ]
    hosts = {str(each.get("host", "")) for each in figures.about["ranks"].values()}
    return ", ".join(parts) + (f" on {len(hosts)} hosts" if len(hosts) > 1 else "")


def _json(values: Mapping[str, Any]) -> str:
    """JSON that cannot end the element it is in."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return files("msdata_jax.observing.report").joinpath(name).read_text()
