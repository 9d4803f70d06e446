"""What README.md shows of measured figures: tables and a picture, from the files in `benchmarks/results`.

usage: python -m benchmarks.readme
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.registry import BOUND_NAMES, OUR_NAME, is_block, name_in
from msdata_jax.cli.tables import format_value

HERE = Path(__file__).parent
README, RESULTS = HERE.parent / "README.md", HERE / "results"
COMPARISON = HERE.parent / "docs" / "comparison.md"
PICTURE = "readme.png"
SOURCES = 64
SIDE_BY_SIDE = {
    "samples/s": "samples_per_second",
    "CPU ms a sample": "cpu_ms_per_sample",
    "first batch, s": "first_batch_seconds",
    "wait p50, ms": "wait_ms_p50",
    "wait p95, ms": "wait_ms_p95",
    "mixture error": "mix_error",
    "max/mean work": "imbalance",
}
"""Columns of the table, and where their figures are."""
NUM_OF_BOUNDS = 3
"""Of these columns the first ones mean something for floor and ceiling."""
GROWTH = {
    "fixed": ("fixed_mb", 0),
    "a source": ("mb_a_source", 2),
    "a training process": ("mb_a_trainer", 0),
    "a source in each training process": ("mb_a_source_in_each_trainer", 3),
    "largest error": ("largest_error_mb", 0),
}
"""Columns of the table, where their figures are, and their decimals."""
FEATURES = ("", "msdata_jax", "grain", "Streaming", "Energon", "LitData", "torchdata", "HF datasets")
"""Columns of the table in docs/comparison.md that are shown."""
WITH_TABLES = ("memory", "side_by_side")
"""Benchmarks whose headlines are in tables of their own."""
OURS_COLOUR, OTHERS_COLOUR, GREY = "#0072B2", "#b8bdc4", "#8a8a8a"
MODE_COLOURS = {"unpacked": "#D55E00", "packed": "#0072B2"}

Result = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]


def read_results(folder: Path = RESULTS) -> dict[str, Result]:
    """The results by the benchmark's name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def with_tables(text: str, results: Mapping[str, Result]) -> str:
    """The text with each `<!-- name -->` ... `<!-- end -->` filled.

    Raises:
        ValueError: the text has no such place for a table.
    """
    for name, table in TABLES.items():
        found = re.fullmatch(rf"(.*<!-- {name} -->\n).*?(<!-- end -->.*)", text, flags=re.S)
        if found is None:
            raise ValueError(f"README.md has no <!-- {name} --> with an <!-- end --> behind it")
        text = found[1] + table(results) + found[2]
    return text


def memory_table(results: Mapping[str, Result]) -> str:
    """MB of each loader by training processes, block formats first."""
    rows = _memory_rows(results)
    trainers = sorted({row["trainers"] for row in rows})
    figures: dict[tuple[bool, str], dict[int, float]] = {}
    for row in rows:
        key = not is_block(row), f"{_bold_ours(name_in(row))} | {row['format']}"
        figures.setdefault(key, {})[row["trainers"]] = row["loader_pss_mb"]
    head = ["loader", "format", *(f"{n} training process{'es' if n > 1 else ''}" for n in trainers)]
    ordered = sorted(figures.items(), key=lambda each: (each[0][0], each[1][max(each[1])]))
    cells = [
        [name, *(f"{found[count]:,.0f}" if count in found else "–" for count in trainers)]
        for (_, name), found in ordered
    ]
    return _table(head, cells, num_texts=2)


def growth_table(results: Mapping[str, Result]) -> str:
    """What a source, a training process, and a source in each of them add."""
    fits = [row for row in results["memory"]["rows"] if "fixed_mb" in row]
    cells = [
        [
            _bold_ours(row["peer"]),
            row["format"],
            *(f"{row[column]:.{digits}f}" for column, digits in GROWTH.values()),
        ]
        for row in sorted(fits, key=lambda row: (not is_block(row), row["mb_a_source_in_each_trainer"]))
    ]
    return _table(["loader", "format", *GROWTH], cells, num_texts=2)


def side_by_side_table(results: Mapping[str, Result]) -> str:
    """What each loader did with the same mixture, by speed; what bounds them comes last."""
    rows = [row for row in results["side_by_side"]["rows"] if "samples_per_second" in row]
    cells = []
    for row in sorted(rows, key=lambda row: (row["peer"] in BOUND_NAMES, -row["samples_per_second"])):
        is_bound = row["peer"] in BOUND_NAMES
        name = row["peer"] if is_bound else _bold_ours(name_in(row))
        columns = [*SIDE_BY_SIDE.values()][: NUM_OF_BOUNDS if is_bound else None]
        figures = [format_value(row[column]) for column in columns]
        figures += ["–"] * (len(SIDE_BY_SIDE) - len(columns))
        cells.append([name, row["format"], *figures])
    result = results["side_by_side"]
    measured = (
        f"`msdata bench side_by_side{_quick(result)}`: {max(row['trainers'] for row in rows)} training "
        f"processes, {result['notes'][1]}."
    )
    return f"{measured}\n\n{_table(['loader', 'format', *SIDE_BY_SIDE], cells, num_texts=2)}"


def headline_table(results: Mapping[str, Result]) -> str:
    """The headlines of the other benchmarks."""
    cells = [
        [f"`{name}{_quick(result)}`", row["figure"], format_value(row["ours"]), format_value(row["beside"])]
        for name, result in results.items()
        if name not in WITH_TABLES
        for row in result["headlines"]
    ]
    return _table(["`msdata bench`", "figure", "here", "beside"], cells, num_texts=2)


def feature_table(_results: Mapping[str, Result]) -> str:
    """What each can do: the table of docs/comparison.md, for some of the loaders and without its notes."""
    lines = [line for line in COMPARISON.read_text().splitlines() if line.startswith("|")]
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    places = [head.index(name) for name in FEATURES]
    cells = [[re.sub(r" [⁰¹²³⁴-⁹]+$", "", row[place]) for place in places] for row in rows]
    return _table(FEATURES, cells, num_texts=len(FEATURES))


def _quick(result: Result) -> str:
    return " --quick" if result["quick"] else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], num_texts: int) -> str:
    rule = "|" + "---|" * num_texts + "---:|" * (len(head) - num_texts)
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], rule, *lines[1:]]) + "\n"


TABLES: Mapping[str, Callable[[Mapping[str, Result]], str]] = {
    "memory": memory_table,
    "growth": growth_table,
    "side_by_side": side_by_side_table,
    "headlines": headline_table,
    "features": feature_table,
}


def draw(results: Mapping[str, Result], path: Path) -> None:
    """Draw three charts: memory, evenness of work, and what that does to a training step."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    memory, work, steps = figure.subplots(1, 3, width_ratios=(1.1, 1.1, 1))
    rows = _memory_rows(results)
    most = max(row["trainers"] for row in rows)
    _bars(
        memory,
        {_label(row): row["loader_pss_mb"] for row in rows if row["trainers"] == most and is_block(row)},
        f"MB that loading takes\n{SOURCES} sources in block formats, {most} training processes",
        "{:,.0f}",
    )
    compared = [row for row in results["side_by_side"]["rows"] if "imbalance" in row]
    uneven = {_label(row): row["imbalance"] for row in compared if row["peer"] not in BOUND_NAMES}
    _bars(work, uneven, "busiest training process over the mean\nsum of squared lengths", "{:.2f}")
    work.set_xlim(left=1)
    _gains(steps, results["training"]["rows"])
    figure.savefig(path, dpi=130)


def _memory_rows(results: Mapping[str, Result]) -> Rows:
    return [
        row for row in results["memory"]["rows"] if row.get("sources") == SOURCES and "loader_pss_mb" in row
    ]


def _bold_ours(name: str) -> str:
    return f"**{name}**" if name.startswith(OUR_NAME) else name


def _label(row: Mapping[str, Any]) -> str:
    return f"{name_in(row)}, {row['format']}"


def _bars(axes: Any, values: Mapping[str, float], title: str, form: str) -> None:
    ordered = sorted(values.items(), key=lambda each: -each[1])
    names = [name for name, _ in ordered]
    colours = [OURS_COLOUR if name.startswith(OUR_NAME) else OTHERS_COLOUR for name in names]
    bars = axes.barh(names, [value for _, value in ordered], color=colours)
    axes.bar_label(bars, [form.format(value) for _, value in ordered], padding=3, fontsize=8)
    axes.margins(x=0.15)
    axes.set_title(title, fontsize=9.5, loc="left")
    axes.tick_params(labelsize=8, length=0)
    axes.set_xticks([])
    for side in axes.spines.values():
        side.set_visible(False)


def _gains(axes: Any, rows: Rows) -> None:
    """Step time without balance over that with it, by context, synchronised by microbatch."""
    for mode, colour in MODE_COLOURS.items():
        mine = [row for row in rows if row["mode"] == mode and row.get("sync") == "microbatch"]
        points = sorted((row["context"], row["gain"]) for row in mine)
        if not points:
            continue
        axes.plot(*zip(*points, strict=True), marker="o", ms=4, color=colour, label=f"{mode} rows")
        context, gain = points[-1]
        axes.annotate(
            f"{gain:.2f}", (context, gain), (0, 6), textcoords="offset points", ha="center", fontsize=8
        )
    contexts = sorted({row["context"] for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(contexts, [f"{context // 1024}k" for context in contexts])
    axes.minorticks_off()
    axes.axhline(1, color=GREY, lw=0.8, ls=":")
    axes.margins(y=0.2)
    axes.set_title(
        "training step, unbalanced over balanced\nby context, microbatch by microbatch",
        fontsize=9.5,
        loc="left",
    )
    axes.tick_params(labelsize=8)
    axes.legend(frameon=False, fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


if __name__ == "__main__":
    found = read_results()
    README.write_text(with_tables(README.read_text(), found))
    draw(found, RESULTS / PICTURE)
