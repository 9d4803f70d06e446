"""Tables on the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from msdata_jax.cli.bench import format_value


def make_console():
    """A console of rich; without a terminal it is wide enough to leave columns whole."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    return console


def make_table(rows: Sequence[Mapping[str, Any]], texts: Sequence[str] = ()):
    """A table with a column for each key of the first row; those in `texts` are set left."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column, value in rows[0].items():
        is_text = isinstance(value, str) or column in texts
        table.add_column(column, justify="left" if is_text else "right")
    for row in rows:
        table.add_row(*(format_value(value) for value in row.values()))
    return table
