"""`msdata trace`: a record as a trace that Perfetto opens."""

import gzip
import json
from pathlib import Path

import click

from msdata_jax.cli.outputs import check_output, write_output
from msdata_jax.errors import RecipeError
from msdata_jax.observing.record import RunRecord
from msdata_jax.observing.trace import DEFAULT_STEPS, build, find_window


@click.command("trace")
@click.option("--steps", help=f"Which, such as 100:120; the last {DEFAULT_STEPS} unless said otherwise.")
@click.option(
    "-o",
    "--output",
    default=Path("trace.json"),
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write, .json or .json.gz.",
)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
def command(steps: str | None, output: Path, folder: Path) -> int:
    """Write what every rank did for some steps, as a trace for ui.perfetto.dev.

    FOLDER is what `msdata launch --record` named; its job may be running still. Each rank is a process, and
    arrows lead from the blocks that were read to the steps that their samples were delivered in.

    \b
    msdata trace runs/7 --steps 100:120 -o trace.json
    """
    first, stop = _parse(steps)
    check_output(output, "--output", (".json", ".gz"))
    record = RunRecord(folder)
    trace = build(record, find_window(record, first, stop))
    data = json.dumps(trace, separators=(",", ":")).encode()
    if output.suffix == ".gz":
        data = gzip.compress(data)
    if not write_output(output, lambda: output.write_bytes(data)):
        return 1
    click.echo("msdata: open it at https://ui.perfetto.dev or chrome://tracing", err=True)
    return 0


def _parse(steps: str | None) -> tuple[int | None, int | None]:
    if steps is None:
        return None, None
    first, colon, stop = steps.partition(":")
    if not colon or not all(each.isdecimal() or not each for each in (first, stop)):
        raise RecipeError(f"--steps takes FIRST:STOP, such as 100:120, 100: or :20; got {steps!r}")
    bounds = int(first) if first else 0, int(stop) if stop else None
    if bounds[1] is not None and bounds[1] <= bounds[0]:
        raise RecipeError(f"--steps {steps} holds no step: STOP is not included")
    return bounds
