"""Options that several commands share."""

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from msdata_jax.runtime.scaling import POLICIES


class ByteSize(click.ParamType):
    """Bytes, such as 512MB, 1.5GB or 2GiB; a plain number counts bytes."""

    name = "size"
    _UNITS = MappingProxyType({"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12})

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """A number of bytes."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(
            r"\s*([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([KMGT]?)(i?)B?\s*", str(value), re.IGNORECASE
        )
        if match is None:
            self.fail(f"{value!r} is no size such as 512MB, 1.5GB or 2GiB", param, ctx)
        number, unit, binary = match.groups()
        factor = self._UNITS[unit.upper()]
        return int(float(number) * (1024 ** "KMGT".index(unit.upper()) * 1024 if binary and unit else factor))


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
log_dir = click.option(
    "--log-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="What each rank prints goes to DIR/rank-3-loader.log too; files that are there are added to.",
)
_watching = (
    click.option(
        "--record",
        type=click.Path(file_okay=False, path_type=Path),
        help="Write figures and spans of all ranks to this new folder, for `msdata trace`.",
    ),
    click.option(
        "--metrics-port",
        type=click.IntRange(1, 65535),
        help="Serve metrics for Prometheus on the planner's host.  [default: off]",
    ),
    click.option(
        "--metrics-host",
        default="127.0.0.1",
        show_default=True,
        help="The address that it listens at; 0.0.0.0 for all.",
    ),
    click.option(
        "--tensorboard",
        type=click.Path(file_okay=False, path_type=Path),
        help="Write scalars for TensorBoard to this folder.",
    ),
)
_showing = (
    click.option(
        "--status/--no-status",
        default=True,
        help="On a terminal, a line below the ranks' output that says how the job goes.  [default: --status]",
    ),
    click.option(
        "--status-seconds",
        type=click.FloatRange(0.1),
        help="Print such a line every so many seconds instead, wherever stderr goes.",
    ),
    click.option(
        "--summary",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write the summary that is shown at the end to this file, as JSON.",
    ),
    click.option("--quiet", is_flag=True, help="No status, no alarms, and no summary at the end."),
)
_slurm = (
    click.option(
        "--launcher",
        default="auto",
        show_default=True,
        type=click.Choice(["auto", "mpiexec", "srun"]),
        help="What starts the ranks; auto is srun in a Slurm job, else mpiexec.",
    ),
    click.option(
        "--trainers-per-node",
        type=click.IntRange(1),
        help="In a Slurm job: training processes on each node.  [default: its GPUs, or 1]",
    ),
    click.option(
        "--loaders-per-node",
        type=click.IntRange(1),
        help="In a Slurm job: tasks on each node that load; one of them all plans.  [default: the others]",
    ),
    click.option(
        "--mpi",
        default="auto",
        show_default=True,
        help="srun's MPI plugin: pmi2 for MPICH, pmix for Open MPI; auto asks SLURM_MPI_TYPE, then mpiexec.",
    ),
    click.option(
        "--srun-option",
        "srun_options",
        multiple=True,
        help="One more option for srun, such as --srun-option=--container-image=IMAGE; may come again.",
    ),
    click.option(
        "--python",
        default=sys.executable,
        show_default="this one",
        help="In a Slurm job: the Python of the ranks, where theirs is another, as in a container.",
    ),
    click.option(
        "--run-folder",
        default=Path(),
        type=click.Path(file_okay=False, path_type=Path),
        help="Under srun: where to keep the run folder, msdata-run-JOB-..., which all nodes must see.  "
        "[default: the working directory]",
    ),
)


def watching(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of `runtime.monitoring.Watching`."""
    return _with_options(command, _watching)


_scaling = (
    click.option(
        "--scaling",
        default="auto",
        show_default=True,
        type=click.Choice(POLICIES),
        help="Whether sources move between loaders, and threads change, while the job runs: auto as the "
        "recipe's policy says, else the usual one; shuffled by chance, to see that steps stay the same.",
    ),
    click.option(
        "--max-threads",
        type=click.IntRange(1),
        help="Worker threads that a loader may come to.  [default: the planner's cores, --threads at least]",
    ),
    click.option(
        "--loader-memory",
        default="0",
        show_default="no limit",
        type=ByteSize(),
        help="Memory that a loader should stay under, such as 4GB: above it, sources go to others.",
    ),
)


def scaling(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of `runtime.scaling.ScaleOptions`."""
    return _with_options(command, _scaling)


partition = click.option(
    "--partition",
    default="auto",
    show_default=True,
    metavar="auto|off|FILE",
    help="Loaders, threads and who reads what: auto as the profile beside the recipe (msdata profile) "
    "suggests, where there is one; or a FILE of msdata plan --resources --write.",
)
step_seconds = click.option(
    "--step-seconds",
    type=click.FloatRange(0, min_open=True),
    help="Seconds of a training step, which data should keep up with.  [default: as fast as CPUs allow]",
)
_resources = (
    click.option("--resources", is_flag=True, help="Say how many loaders and threads, and who reads what."),
    click.option(
        "--profile",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Of the sources, by msdata profile.  [default: RECIPE.profile.json beside the recipe]",
    ),
    step_seconds,
    click.option(
        "--cpus",
        type=click.FloatRange(0, min_open=True),
        help="That loaders may keep busy.  [default: those of this machine]",
    ),
    click.option("--memory", type=ByteSize(), help="Of all loaders, such as 8GB.  [default: no limit]"),
    click.option("--loaders", type=click.IntRange(1, 4096), help="Exactly so many.  [default: as it takes]"),
    click.option(
        "--max-loaders", default=64, show_default=True, type=click.IntRange(1, 4096), help="At most so many."
    ),
    click.option("--threads", type=click.IntRange(1, 256), help="Of each loader.  [default: as it takes]"),
    click.option("--shadows", type=click.IntRange(0), help="Spare loaders.  [default: 1 beside 8 or more]"),
    click.option(
        "--buffer",
        default="256MiB",
        show_default=True,
        type=ByteSize(),
        help="buffer_bytes_per_loader of the job's DataLoader.",
    ),
    click.option(
        "--headroom",
        default=1.25,
        show_default=True,
        type=click.FloatRange(1, 100),
        help="Plan for so many times the mean need.",
    ),
    click.option("--run-steps", type=click.IntRange(1), help="Steps over which the mixture is looked at."),
    click.option(
        "--write",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write it to a file, for msdata launch --partition FILE.",
    ),
)


def resources(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of `msdata plan --resources`."""
    return _with_options(command, _resources)


def showing(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of `showing.Showing`."""
    return _with_options(command, _showing)


def slurm(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a job in a Slurm allocation."""
    return _with_options(command, _slurm)


def _with_options(command: Callable[..., Any], options: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command
