"""`msdata bench`: runs a benchmark of the repository's `benchmarks` folder and prints its rows."""

import ast
import importlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

import msdata_jax
from msdata_jax.cli.machine import describe_machine, package_versions
from msdata_jax.cli.tables import in_words, make_console, make_table

BENCHMARKS = Path(msdata_jax.__file__).resolve().parent.parent / "benchmarks"


@click.command("bench")
@click.argument("name", required=False)
@click.option("--list", "as_list", is_flag=True, help="List the benchmarks and what each measures.")
@click.option("--quick", is_flag=True, help="Under a minute, with fewer rounds; figures are rougher.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: rows, versions, machine.")
def command(name: str | None, as_list: bool, quick: bool, as_json: bool) -> int:
    """Run the benchmark NAME and print its rows; without NAME list what there is.

    Progress goes to stderr. Benchmarks live in the folder `benchmarks` of the source tree, not in the
    installed package.
    """
    known = find_benchmarks(BENCHMARKS)
    if not known:
        raise click.UsageError(
            f"there are no benchmarks at {BENCHMARKS}: they come with the source tree, not with "
            "the installed package. Get the source tree (the repository, or the sdist unpacked), run "
            "`pip install -e .` in it, then msdata bench again"
        )
    if name is None or as_list:
        _show_list(known, as_json)
        return 0
    if name not in known:
        raise click.UsageError(f"there is no benchmark {name!r}; there are {', '.join(known)}")
    result = run_benchmark(name, quick)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        show(result, known[name])
    return 0


def find_benchmarks(folder: Path) -> dict[str, str]:
    """First docstring line of each module in `folder` that defines `run`, by name; imports none of them."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.py")):
        module = ast.parse(path.read_text())
        if any(isinstance(each, ast.FunctionDef) and each.name == "run" for each in module.body):
            found[path.stem] = (ast.get_docstring(module) or "").partition("\n")[0]
    return found


def run_benchmark(name: str, quick: bool) -> dict[str, Any]:
    """What `benchmarks.<name>.run(quick)` returns, with versions, machine and the time that it took."""
    sys.path.insert(0, str(BENCHMARKS.parent))
    module = importlib.import_module(f"benchmarks.{name}")
    machine = describe_machine()  # before, so that the load is that of others
    begin = time.monotonic()
    result = module.run(quick=quick)
    return {
        **result,
        "quick": quick,
        "seconds": round(time.monotonic() - begin, 1),
        "machine": machine,
        "versions": package_versions(),
    }


def show(result: Mapping[str, Any], title: str) -> None:
    """The rows as a table, what to know about them, and where they were measured."""
    console = make_console()
    console.print(f"[bold]{result['name']}[/bold]: {title}")
    for rows in map(in_words, _tables(result["rows"])):
        texts = {name for row in rows for name, value in row.items() if isinstance(value, str)}
        console.print(make_table(rows, texts))
    for note in result.get("notes", ()):
        console.print(f"- {note}", markup=False)
    machine = result["machine"]
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, load before "
        f"{machine['load_1min']}; took {result['seconds']} s{', --quick' if result['quick'] else ''}",
        style="dim",
    )


def _tables(rows: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Rows by their columns: rows that measure different things make tables of their own."""
    tables: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        tables.setdefault(tuple(row), []).append(row)
    return list(tables.values())


def _show_list(known: Mapping[str, str], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"benchmarks": known}, indent=2))
        return
    width = max(map(len, known))
    for name, line in known.items():
        click.echo(f"{name:{width}}  {line}")
    click.echo("\nmsdata bench NAME [--quick] [--json] runs one", err=True)
