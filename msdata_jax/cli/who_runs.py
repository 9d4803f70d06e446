"""What a dry run of `msdata launch` shows: which rank would play what, and of which recipe."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import click

from msdata_jax.cli.resources import show_partition
from msdata_jax.cli.tables import make_console, make_table
from msdata_jax.recipe import Recipe
from msdata_jax.roles.placement import parse_roles
from msdata_jax.scaling.partition import Partition

MOST_ROWS = 40
MOST_NAMES = 8

_WHAT = {
    "planner": "decides what each step delivers; the job ends with it",
    "loader": "reads and transforms; one that dies is replaced",
    "shadow": "stands by for a loader that dies",
    "constructor": "trains; the job ends with it",
}
_SHOWN = {"constructor": "trainer"}
_WHAT_UNGUARDED = _WHAT | {"loader": "reads and transforms; the job ends with it"}


def name_roles(loaders: int, shadows: int, trainers: int) -> str:
    """The roles of the ranks that `mpiexec.command_line` starts, as `msdata serve --roles` takes them."""
    spare = f"shadows={shadows}," if shadows else ""
    return f"planner=1,loaders={loaders},{spare}trainers={trainers}"


def describe_ranks(roles: str, ranks_of_nodes: Sequence[int] = (), *, guarded: bool) -> list[dict[str, str]]:
    """Rows of a table: ranks in a row that play the same on the same node.

    Args:
        roles: of all ranks in order, as `msdata serve --roles` takes them.
        ranks_of_nodes: how many ranks each node has; empty for one node.
        guarded: whether the job survives the death of a loader.
    """
    of_rank = [role for role, count in parse_roles(roles) for _ in range(count)]
    nodes = [node for node, count in enumerate(ranks_of_nodes or [len(of_rank)]) for _ in range(count)]
    rows: list[dict[str, str]] = []
    for (node, role), run in groupby(range(len(of_rank)), lambda rank: (nodes[rank], of_rank[rank])):
        ranks = list(run)
        row = {"rank": str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"}
        row |= {"node": str(node)} if ranks_of_nodes else {}
        what = (_WHAT if guarded else _WHAT_UNGUARDED)[role]
        rows.append({**row, "role": _SHOWN.get(role, role), "": what})
    return rows


def describe_recipe(path: Path, recipe: Recipe) -> str:
    """The recipe in one line."""
    names = list(recipe.source_names)
    more = f", and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return (
        f"{path}: {len(names)} source{'s' if len(names) > 1 else ''}: {', '.join(names[:MOST_NAMES])}{more}"
    )


def show(path: Path, recipe: Recipe, rows: Sequence[dict[str, str]], made: Partition | None = None) -> None:
    """Print all on stderr, which leaves stdout to the command; with a partition, which source is whose."""
    click.echo(describe_recipe(path, recipe), err=True)
    console = make_console(stderr=True)
    console.print(make_table(rows[:MOST_ROWS], texts=("rank", "node", "role", "")))
    if len(rows) > MOST_ROWS:
        console.print(f"and {len(rows) - MOST_ROWS} more rows")
    if made is not None:
        console.print()
        show_partition(made, stderr=True)
