"""`msdata report`: a record as a page to read."""

import json
from pathlib import Path

import click

from msdata_jax.cli.outputs import check_output, write_output
from msdata_jax.observing.record import RunRecord
from msdata_jax.observing.report import make_page, read_figures, summarise
from msdata_jax.sources.protocol import require


@click.command("report")
@click.option(
    "-o",
    "--output",
    default=Path("report.html"),
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write, .html.",
)
@click.option("--open", "show", is_flag=True, help="Open it in a browser.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the figures as JSON instead; no page is written."
)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
def command(output: Path, show: bool, as_json: bool, folder: Path) -> int:
    """Make one HTML page of a run: how it went, what it waited for, and who was at fault.

    FOLDER is what `msdata launch --record` named; its job may be running still. The page is one file that
    needs no network, so it can be sent to others as it is.

    \b
    msdata report runs/7 -o report.html
    """
    if as_json:
        click.echo(json.dumps(summarise(read_figures(RunRecord(folder))), indent=2))
        return 0
    check_output(output, "--output", (".html",))
    require("plotly", "report")
    page = make_page(read_figures(RunRecord(folder)))
    if not write_output(output, lambda: output.write_text(page, encoding="utf-8")):
        return 1
    if show:
        click.launch(output.absolute().as_uri())
    return 0
