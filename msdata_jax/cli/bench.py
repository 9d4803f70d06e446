"""`msdata bench`: runs a benchmark of the repository's `benchmarks` folder and prints its rows."""

import ast
import importlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import click

import msdata_jax
from msdata_jax.cli import bench_page
from msdata_jax.cli.machine import describe_machine, package_versions
from msdata_jax.cli.tables import in_words, make_console, make_table, tables_of

BENCHMARKS = Path(msdata_jax.__file__).resolve().parent.parent / "benchmarks"
ALL = "all"


@click.command("bench")
@click.argument("name", required=False)
@click.option("--list", "as_list", is_flag=True, help="List the benchmarks and what each measures.")
@click.option("--quick", is_flag=True, help="A minute or less each, with fewer rounds; figures are rougher.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: rows, versions, machine.")
@click.option(
    "--results",
    type=click.Path(path_type=Path, file_okay=False),
    help="Also write NAME.json, pictures, and index.html with all that the folder holds.",
)
def command(name: str | None, as_list: bool, quick: bool, as_json: bool, results: Path | None) -> int:
    """Run the benchmark NAME, or `all`, and print its rows; without NAME list what there is.

    Progress goes to stderr. Benchmarks live in the folder `benchmarks` of the source tree, not in the
    installed package. `all` ends with one table of what they found, beside the alternatives; one that fails
    is named behind it, and the status is 1.
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
    if name not in (*known, ALL):
        raise click.UsageError(
            f"there is no benchmark {name!r}; there are {', '.join(known)}, and all of them: {ALL}"
        )
    if name == ALL:
        return _run_all(known, quick, as_json, results)
    result = _run(name, known[name], quick, results)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        show(result, known[name])
    return 0


def _run(name: str, about: str, quick: bool, folder: Path | None) -> dict[str, Any]:
    """The result of a benchmark, which is written into the folder, too."""
    result = run_benchmark(name, quick)
    if folder is not None:
        bench_page.write_results(folder, {"about": about, **result}, _module(name))
    return result


def _run_all(known: Mapping[str, str], quick: bool, as_json: bool, folder: Path | None) -> int:
    """Run them all, whatever becomes of one; show results, then what went wrong."""
    results: list[dict[str, Any]] = []
    failures: list[str] = []
    for number, (name, about) in enumerate(known.items(), start=1):
        click.echo(f"msdata bench: {name}, {number} of {len(known)}", err=True)
        try:
            results.append(_run(name, about, quick, folder))
        except Exception as error:  # noqa: BLE001 - it is named at the end, and the others run
            failures.append(f"{name} failed: {type(error).__name__}: {error}")
    headlines = bench_page.headlines_of(results)
    if as_json:
        click.echo(json.dumps({"name": ALL, "headlines": headlines, "results": results}, indent=2))
    else:
        for result in results:
            show(result, known[result["name"]])
        show_headlines(headlines)
    for failure in failures:
        click.echo(f"msdata bench: {failure}", err=True)
    return 1 if failures else 0


def find_benchmarks(folder: Path) -> dict[str, str]:
    """First docstring line of each module in `folder` that defines `run`, by name; imports none of them."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.py")):
        module = ast.parse(path.read_text())
        if any(isinstance(each, ast.FunctionDef) and each.name == "run" for each in module.body):
            found[path.stem] = (ast.get_docstring(module) or "").partition("\n")[0]
    return found


def run_benchmark(name: str, quick: bool) -> dict[str, Any]:
    """What `benchmarks.<name>.run(quick)` returns, with versions, machine and the time that it took.

    What its `headlines(result)` makes of that, if there is such a function, goes with it.
    """
    module = _module(name)
    machine = describe_machine()  # before, so that the load is that of others
    begin = time.monotonic()
    result = module.run(quick=quick)
    headlines = bench_page.own(module, "headlines") or (lambda _: [])
    return {
        **result,
        "headlines": [{"benchmark": name, **each} for each in headlines(result)],
        "quick": quick,
        "seconds": round(time.monotonic() - begin, 1),
        "machine": machine,
        "versions": package_versions(),
    }


def _module(name: str) -> ModuleType:
    if (root := str(BENCHMARKS.parent)) not in sys.path:
        sys.path.insert(0, root)
    return importlib.import_module(f"benchmarks.{name}")


def show(result: Mapping[str, Any], title: str) -> None:
    """The rows as a table, what to know about them, and where they were measured."""
    console = make_console()
    console.print(f"[bold]{result['name']}[/bold]: {title}")
    for rows in map(in_words, tables_of(result["rows"])):
        texts = {name for row in rows for name, value in row.items() if isinstance(value, str)}
        console.print(make_table(rows, texts))
    for note in result.get("notes", ()):
        console.print(f"- {note}", markup=False)
    console.print(bench_page.machine_line(result), style="dim", markup=False)


def show_headlines(rows: Sequence[Mapping[str, Any]]) -> None:
    """The one table, for people."""
    if rows:
        console = make_console()
        console.print("[bold]all[/bold]: what they found")
        console.print(make_table(rows))


def _show_list(known: Mapping[str, str], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"benchmarks": known}, indent=2))
        return
    width = max(map(len, known))
    for name, line in known.items():
        click.echo(f"{name:{width}}  {line}")
    click.echo("\nmsdata bench NAME [--quick] [--json] runs one, msdata bench all every one", err=True)
