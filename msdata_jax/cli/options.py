"""Options that several commands share."""

from pathlib import Path

import click

threads = click.option(
    "--threads", default=1, show_default=True, type=click.IntRange(1), help="Worker threads of a loader."
)
start_seconds = click.option(
    "--start-seconds",
    default=600.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Time for all ranks to come, and then to build their DataLoader.",
)
plan_log = click.option(
    "--plan-log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The planner writes each step's plan to this new file, which `msdata inspect` reads.",
)
heartbeat_seconds = click.option(
    "--heartbeat-seconds",
    default=15.0,
    show_default=True,
    type=click.FloatRange(1),
    help="A loader that is silent for so long counts as lost, and others take over (msdata launch only).",
)
read_seconds = click.option(
    "--read-seconds",
    default=600.0,
    show_default=True,
    type=click.FloatRange(1),
    help="So does a loader that reads one block for so long.",
)
