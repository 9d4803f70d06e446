"""Files that a command writes: checked before any work, and announced when they are there."""

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import click

from msdata_jax.errors import MSDataError, RecipeError
from msdata_jax.lineage.plan_log import why_no_file

PICTURES = (".png", ".pdf", ".svg")


def check_output(path: Path | None, option: str, suffixes: Sequence[str]) -> None:
    """Refuse a file that could not be written; None, where the option is not used, passes.

    Args:
        path: the file; one that is there is overwritten.
        option: that names it, such as `--plot`.
        suffixes: that it may have.

    Raises:
        RecipeError: another suffix; a folder or file that cannot be written; a picture without matplotlib.
    """
    if path is None:
        return
    if path.suffix.lower() not in suffixes:
        known = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}" if len(suffixes) > 1 else suffixes[0]
        raise RecipeError(f"{option} writes {known}, by the file's suffix; got {path}")
    trouble = "it may not be written to" if path.exists() and not os.access(path, os.W_OK) else ""
    trouble = trouble or why_no_file(path)
    if trouble:
        raise RecipeError(f"{option} {path} cannot be written: {trouble}; name another file")
    if path.suffix.lower() in PICTURES and find_spec("matplotlib") is None:
        raise RecipeError(f"{option} needs matplotlib: pip install 'msdata-jax[demo]', or leave {option} out")


def write_output(path: Path, write: Callable[[], object]) -> bool:
    """Call `write`, then announce the file on stderr, or say why it is not there. Returns whether it is."""
    try:
        write()
    except (MSDataError, OSError) as error:
        click.echo(f"msdata: {path} was not written: {error}", err=True)
        return False
    click.echo(f"msdata: wrote {path}", err=True)
    return True
