"""Results of benchmarks as files: JSON, pictures, and one HTML page of what a folder holds."""

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

from msdata_jax.cli.json_files import read_json, write_json
from msdata_jax.cli.tables import format_value, tables_of
from msdata_jax.observing.report.tables import table
from msdata_jax.observing.report.words import escape

PAGE = "index.html"
LONG = 32
"""Characters of a cell from which on it may take several lines."""


def write_results(folder: Path, result: Mapping[str, Any], module: ModuleType) -> None:
    """Write a result, the picture that the benchmark draws of it, and the page anew.

    Args:
        folder: of the results.
        result: with the line about the benchmark as `about`.
        module: of the benchmark; its `draw(result, path)`, if there is one, draws.

    Raises:
        OSError: the folder cannot be written to.
        RecipeError: it holds a JSON file that cannot be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{result['name']}.json", result)
    if (draw := own(module, "draw")) is not None:
        draw(result, folder / f"{result['name']}.png")
    (folder / PAGE).write_text(make_page(folder))


def headlines_of(results: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the results say in a line each: one table of all."""
    return [each for result in results for each in result.get("headlines", ())]


def own(module: ModuleType, name: str) -> Callable[..., Any] | None:
    """The function of a benchmark, if it defines one; what it imports under that name is another thing."""
    found = getattr(module, name, None)
    return found if getattr(found, "__module__", None) == module.__name__ else None


def make_page(folder: Path) -> str:
    """The page of a folder's results. It loads nothing: pictures are in it."""
    results = [read_json(path, "result", dict) for path in sorted(folder.glob("*.json"))]
    links = "".join(f'<a href="#{escape(each["name"])}">{escape(each["name"])}</a>' for each in results)
    sections = "".join(_section(each, folder / f"{each['name']}.png") for each in results)
    found = headlines_of(results)
    glance = f'<div class="card wide whole">{_table(found)}</div>' if found else ""
    style = files("msdata_jax.observing.report").joinpath("page.css").read_text()
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>msdata_jax: benchmarks</title><style>{style}</style></head><body><main>"
        "<header><h1>msdata_jax: benchmarks</h1></header>"
        '<p class="more">Each table is of one run on one machine, with what it compares beside each other. '
        "<code>msdata bench NAME</code> runs one again.</p>"
        f"<nav>{links}</nav>{glance}{sections}</main></body></html>\n"
    )


def _section(result: Mapping[str, Any], picture: Path) -> str:
    tables = "".join(f'<div class="card wide">{_table(rows)}</div>' for rows in tables_of(result["rows"]))
    shown = ""
    if picture.exists():
        content = base64.b64encode(picture.read_bytes()).decode()
        shown = (
            f'<p><img alt="{escape(result["about"])}" src="data:image/png;base64,{content}" width="100%"></p>'
        )
    notes = "".join(f"<li>{escape(note)}</li>" for note in result.get("notes", ()))
    return (
        f'<section id="{escape(result["name"])}"><h2>{escape(result["name"])}</h2>'
        f"<p>{escape(result['about'])}</p>{shown}"
        f'<div class="cards">{tables}</div><ul>{notes}</ul><footer>{escape(machine_line(result))}</footer>'
        "</section>"
    )


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(rows[0])
    text = {}
    for place, name in enumerate(names):
        values = [row[name] for row in rows]
        if any(isinstance(value, dict) or (isinstance(value, str) and len(value) > LONG) for value in values):
            text[place] = "w"
        elif any(isinstance(value, str) for value in values):
            text[place] = "t"
    head = [escape(name.replace("_", " ")) for name in names]
    return table(head, [[escape(format_value(value)) for value in row.values()] for row in rows], text)


def machine_line(result: Mapping[str, Any]) -> str:
    """Where and how a result was measured."""
    machine = result["machine"]
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, load before "
        f"{machine['load_1min']}; took {result['seconds']} s{', --quick' if result['quick'] else ''}"
    )
