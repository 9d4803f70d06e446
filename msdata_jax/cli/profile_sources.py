"""`msdata profile`: what each source of a recipe costs, measured, as a table and a file."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from msdata_jax.cli.json_files import write_json
from msdata_jax.cli.outputs import check_output, write_output
from msdata_jax.cli.recipes import load_recipe
from msdata_jax.cli.resources import profile_path
from msdata_jax.cli.tables import make_console, make_table
from msdata_jax.profiling import SAMPLES, SECONDS, Effort, profile_recipe
from msdata_jax.scaling.profile import Profile, SourceProfile


@click.command("profile")
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option(
    "--seconds",
    default=SECONDS,
    show_default=True,
    type=click.FloatRange(0.05, 3600),
    help="Time to read each source for, about.",
)
@click.option(
    "--samples", default=SAMPLES, show_default=True, type=click.IntRange(1), help="Of a source, at most."
)
@click.option("--json", "as_json_object", is_flag=True, help="Print one JSON object.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write.  [default: RECIPE.profile.json beside the recipe, where launch looks]",
)
def command(recipe: Path, seconds: float, samples: int, as_json_object: bool, output: Path | None) -> int:
    """Measure what the sources of RECIPE cost: time, threads, bytes and memory.

    Each source is opened and read for some seconds, at a few places, as a loader does.
    The file is for `msdata plan --resources` and `msdata launch`, which choose loaders and threads by it.

    \b
    msdata profile recipe.py
    msdata plan recipe.py --resources --step-seconds 0.5 --cpus 16

    Exit status: 1 where a source could not be measured; the others are measured all the same.
    """
    path = output or profile_path(recipe)
    loaded = load_recipe(recipe)
    check_output(path, "-o", (".json",))
    count = len(loaded.source_names)

    def tell(name: str, number: int) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[Ksource {number + 1} of {count}: {name}", err=True, nl=False)

    profile = profile_recipe(loaded, Effort(seconds=seconds, samples=samples), tell)
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", err=True, nl=False)
    if as_json_object:
        click.echo(json.dumps(profile.to_json(), indent=2))
    else:
        show(recipe, profile)
    is_written = write_output(path, lambda: write_json(path, profile.to_json()))
    return 0 if is_written and not any(each.error for each in profile.sources) else 1


def show(recipe: Path, profile: Profile) -> None:
    """Tables of what was measured, and the errors."""
    console = make_console()
    measured = [each for each in profile.sources if each.is_measured]
    cpus = f"{profile.num_cpus} CPU{'s' if profile.num_cpus > 1 else ''}"
    console.print(f"[bold]{recipe}[/bold]: {len(profile.sources)} sources, measured on {cpus}")
    if measured:
        console.print("\n[bold]Time[/bold] and bytes of a sample, and samples of a record")
        console.print(make_table([_time_row(each) for each in measured], texts=("most of it in",)))
        console.print("\n[bold]Memory[/bold] of a loader that has the source open, MB")
        console.print(make_table([_memory_row(each) for each in measured]))
        console.print("\n[bold]Tokens[/bold] of a sample")
        console.print(make_table([_length_row(each) for each in measured]))
        console.print(
            "2 threads: how many times as much two threads read as one; near 1, more loaders help "
            "and threads do not; - where other processes left too little of the CPUs to tell.",
            style="dim",
        )
    for each in profile.sources:
        if each.error:
            console.print(f"[bold red]source {each.name!r} was not measured[/bold red]: ", end="")
            console.print(each.error, markup=False)


def _time_row(each: SourceProfile) -> dict[str, Any]:
    dearest = max(each.stages, key=lambda stage: stage.wall_seconds)
    share = 100 * dearest.wall_seconds / max(sum(stage.wall_seconds for stage in each.stages), 1e-12)
    return {
        "source": each.name,
        "ms": _milliseconds(each.wall_seconds),
        "CPU ms": _milliseconds(each.cpu_seconds),
        "most of it in": f"{dearest.name} {share:.0f} %",
        "2 threads": "-" if each.thread_speedup is None else f"{each.thread_speedup:.2f}x",
        "send ms": _milliseconds(each.send_seconds),
        "kB": f"{each.sample_bytes / 1e3:,.1f}",
        "a record": f"{each.samples_per_record:.2f}",
        "bad %": f"{100 * each.bad_share:.1f}",
    }


def _memory_row(each: SourceProfile) -> dict[str, Any]:
    return {
        "source": each.name,
        "reader": f"{each.reader_bytes / 1e6:,.1f}",
        "of it index": f"{each.index_bytes / 1e6:,.1f}",
        "libraries": f"{each.library_bytes / 1e6:,.1f}",
        "block": f"{each.block_bytes / 1e6:,.2f}",
        "open files": each.open_files,
        "opens in s": f"{each.open_seconds:.2f}",
    }


def _length_row(each: SourceProfile) -> dict[str, Any]:
    return {
        "source": each.name,
        "records": each.num_records,
        "samples read": each.samples,
        "mean": round(each.lengths.mean),
        "p50": round(each.lengths.p50),
        "p90": round(each.lengths.p90),
        "p99": round(each.lengths.p99),
        "longest": each.lengths.longest,
    }


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g}" if seconds < 1 else f"{1000 * seconds:,.0f}"
