"""What `msdata launch` shows of a job while it runs and when it is over."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from msdata_transport import RunFolder

from msdata_jax.cli.outputs import check_output, write_output
from msdata_jax.cli.status_line import StatusView, can_show_live
from msdata_jax.cli.summary import in_lines, summarise, write_json
from msdata_jax.runtime.monitoring import QUIET_VARIABLE


@dataclass(frozen=True, kw_only=True)
class Showing:
    """What to show.

    Attributes:
        status: keep a live line where stderr is a terminal.
        status_seconds: print a line so often instead, wherever stderr goes; None for never.
        summary: a file for the summary, as JSON.
        quiet: show neither status nor alarms nor summary.
    """

    status: bool = False
    status_seconds: float | None = None
    summary: Path | None = None
    quiet: bool = True

    @property
    def environment(self) -> dict[str, str]:
        """What tells the planner, which shows alarms itself."""
        return {QUIET_VARIABLE: "1"} if self.quiet else {}

    def check(self) -> None:
        """Raise RecipeError where the summary could not be written."""
        check_output(self.summary, "--summary", (".json",))

    def view(self, folder: RunFolder) -> StatusView | None:
        """What shows the status of the job that has this folder."""
        if self.quiet:
            return None
        if self.status_seconds is not None:
            return StatusView(folder, self.status_seconds)
        return StatusView(folder) if self.status and can_show_live() else None

    def tell_end(
        self,
        status: Mapping[str, Any] | None,
        outcome: Mapping[str, Any] | None,
        exit_status: int,
        seconds: float,
    ) -> None:
        """Show the summary; see `summary.summarise`."""
        with contextlib.suppress(LookupError, TypeError, AttributeError):  # the files are another program's
            summary = summarise(status, outcome, exit_status=exit_status, seconds=seconds)
            lines = [] if self.quiet else in_lines(summary)
            if lines:
                click.echo("msdata: " + f"\n{' ' * len('msdata: ')}".join(lines), err=True)
            if self.summary is not None:
                path = self.summary
                write_output(path, lambda: write_json(summary, path))
