"""`msdata doctor`: what is installed, and whether ranks start, meet and stay lean."""

import json
import os
import resource
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
from msdata_transport import find_mpiexec, world_size_from_environment

from msdata_jax.cli import checks, doctor_job
from msdata_jax.cli.checks import Check
from msdata_jax.cli.machine import cgroup_memory_limit, memory_bytes, package_versions, usable_cores

_COLOURS = {"OK": "green", "WARNING": "yellow", "TROUBLE": "bold red"}


@click.command("doctor")
@click.option(
    "--loaders", default=2, show_default=True, type=click.IntRange(1, 64), help="Source loader ranks."
)
@click.option(
    "--trainers",
    default=1,
    show_default=True,
    type=click.IntRange(1, 64),
    help="Training processes; several need jax.",
)
@click.option(
    "--deadline",
    default=120.0,
    show_default=True,
    type=click.FloatRange(1),
    metavar="SECONDS",
    help="Time for each thing that is started.",
)
@click.option(
    "--remove-leftovers", is_flag=True, help="Delete shared memory and run folders that killed jobs left."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: checks, versions, ranks.")
def command(loaders: int, trainers: int, deadline: float, remove_leftovers: bool, as_json: bool) -> int:
    """Check what is installed, then start a tiny real job under mpiexec and look at its ranks.

    One planner, LOADERS loaders and TRAINERS training processes take some steps of a recipe in memory. Each
    line is OK, WARNING (it works, but may surprise) or TROUBLE (a job will not run), with the way out.

    Exit status: 0 without trouble, 1 with.
    """
    versions = package_versions()
    if trainers > 1 and "jax" not in versions:
        raise click.UsageError(
            f"--trainers {trainers} needs jax, for a mesh over them: pip install 'msdata-jax[jax]'"
        )
    found: list[Check] = []
    ranks: dict[str, Any] = {}
    for check, more in _examine(versions, loaders, trainers, deadline, remove_leftovers):
        found.append(check)
        ranks.update(more)
    if as_json:
        report = {"checks": [check.plain() for check in found], "versions": versions, "ranks": ranks}
        click.echo(json.dumps(report, indent=2))
    else:
        show(found)
    return 1 if any(check.status == "TROUBLE" for check in found) else 0


def _examine(
    versions: Mapping[str, str], num_loaders: int, num_trainers: int, seconds: float, remove_leftovers: bool
) -> Iterator[tuple[Check, dict[str, Any]]]:
    """Every check in turn, with figures of ranks where it has some."""
    yield Check(name="python", status="OK", detail=f"{versions['python']}, {sys.executable}"), {}
    yield checks.check_packages(versions), {}
    yield checks.check_mpi_wheels(versions), {}
    _progress("loading MPI in a process of its own")
    described, problem = doctor_job.describe_mpi(seconds)
    library = described["library"] if described else ""
    yield checks.check_mpi(described, problem), {}
    mpiexec = find_mpiexec()
    yield checks.check_mpiexec(mpiexec), {}
    for check in _check_machine(1 + num_loaders + num_trainers):
        yield check, {}
    yield checks.check_leftovers(remove=remove_leftovers), {}
    yield checks.check_run_folders(remove=remove_leftovers), {}
    yield checks.check_slurm(os.environ, library, shutil.which("srun") is not None), {}
    yield checks.check_alone(world_size_from_environment()), {}
    if "jax" in versions:
        _progress("asking JAX for its devices")
    yield doctor_job.check_jax(versions, seconds), {}
    if mpiexec is not None and described is not None:
        _progress(f"starting {doctor_job.describe_ranks(num_loaders, num_trainers)}")
        job = doctor_job.run_tiny_job(num_loaders, num_trainers, seconds)
        yield doctor_job.check_job(job), job.plain()
        yield doctor_job.check_data_ranks(job), {}


def _check_machine(num_ranks: int) -> Sequence[Check]:
    total, available = memory_bytes()
    return [
        checks.check_cores(usable_cores(), os.cpu_count() or 1, num_ranks),
        checks.check_memory(total, available, cgroup_memory_limit()),
        checks.check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        checks.check_shared_memory(),
    ]


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"msdata doctor: {text} ...", err=True)


def show(found: Sequence[Check]) -> None:
    """A table on a terminal, plain lines elsewhere, and one line that sums up."""
    if sys.stdout.isatty():
        _show_table(found)
    else:
        _show_lines(found)
    troubles = [check.name for check in found if check.status == "TROUBLE"]
    warnings = [check.name for check in found if check.status == "WARNING"]
    verdict = f"trouble with {', '.join(troubles)}" if troubles else "no trouble"
    click.echo(f"\n{verdict}" + (f"; warnings about {', '.join(warnings)}" if warnings else ""))


def _show_lines(found: Sequence[Check]) -> None:
    width = max(len(check.name) for check in found)
    indent = " " * (width + 11)
    for check in found:
        click.echo(f"{check.status:8} {check.name:{width}}  " + check.detail.replace("\n", f"\n{indent}"))
        if check.way_out:
            click.echo(f"{indent}way out: {check.way_out}")


def _show_table(found: Sequence[Check]) -> None:
    """The table; ways out stand below it, unbroken, since some are commands to copy."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("check", no_wrap=True)
    table.add_column("found", overflow="fold")
    for check in found:
        table.add_row(Text(check.status, style=_COLOURS[check.status]), check.name, Text(check.detail))
    Console().print(table)
    for check in found:
        if check.way_out:
            click.echo(f"\n{check.name}: {check.way_out}")
