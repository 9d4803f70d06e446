"""Tables on the terminal."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any


def make_console(*, stderr: bool = False):
    """A console of rich; without a terminal it is wide enough to leave columns whole."""
    from rich.console import Console

    console = Console(highlight=False, stderr=stderr)
    if not console.is_terminal:
        console.width = 200
    return console


def format_value(value: Any) -> str:
    """A cell: thousands with commas, four figures of a fraction (six near 1, for ratios), all of a list."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:{'.6g' if 0.9 < value < 1.1 else '.4g'}}"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return " ".join(format_value(each) for each in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {format_value(each)}" for name, each in value.items()) or "-"
    return str(value)


def in_words(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows, with spaces for the underscores of their keys."""
    return [{name.replace("_", " "): value for name, value in row.items()} for row in rows]


def tables_of(rows: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Rows by their columns: rows that measure different things make tables of their own."""
    tables: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        tables.setdefault(tuple(row), []).append(row)
    return list(tables.values())


def make_table(
    rows: Sequence[Mapping[str, Any]],
    texts: Collection[str] = (),
    cell: Callable[[Any], str] = format_value,
):
    """A table with a column for each key of the first row; texts, and columns in `texts`, are set left."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column, value in rows[0].items():
        is_text = isinstance(value, str) or column in texts
        table.add_column(column, justify="left" if is_text else "right")
    for row in rows:
        table.add_row(*map(cell, row.values()))
    return table
