"""`msdata plan`: a dry run of a recipe on a mesh, with figures, pictures and advice."""

import json
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
from click.core import ParameterSource

from msdata_jax.cli import options
from msdata_jax.cli.advice import advise
from msdata_jax.cli.json_files import write_json
from msdata_jax.cli.outputs import PICTURES, check_output, write_output
from msdata_jax.cli.plan_figures import DryRunFigures, as_json, gather
from msdata_jax.cli.recipes import load_recipe
from msdata_jax.cli.resources import as_json as resources_as_json
from msdata_jax.cli.resources import choose, profile_path, read_profile, show_partition
from msdata_jax.cli.tables import make_console, make_table
from msdata_jax.dry_run import DryRun, PlannedStep
from msdata_jax.errors import PlanError, RecipeError
from msdata_jax.lineage.plan_log import PlanLogWriter, check_new
from msdata_jax.planning.graph import DGraph
from msdata_jax.planning.place_tree import MeshLayout
from msdata_jax.profiling import num_cpus
from msdata_jax.recipe import Recipe
from msdata_jax.runtime.fields import layout_without_mesh
from msdata_jax.scaling.partition import Budget

MOST_STEPS_SHOWN = 16
MOST_DEVICES = 2**20


@click.command("plan")
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--mesh", help="Axes and sizes, outermost first: dp=8,cp=2,tp=4. One device without it.")
@click.option(
    "--processes", default=1, show_default=True, type=click.IntRange(1), help="That share the devices."
)
@click.option("--steps", default=20, show_default=True, type=click.IntRange(1), help="To plan.")
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw the figures: .png, .pdf or .svg."
)
@click.option(
    "--draw",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the strategy: .png, .pdf or .svg, or .mmd for Mermaid text. Alone it plans no step.",
)
@click.option(
    "--log", type=click.Path(dir_okay=False, path_type=Path), help="Write a plan log, for msdata inspect."
)
@click.option("--json", "as_json_object", is_flag=True, help="Print one JSON object.")
@options.resources
def command(  # noqa: PLR0917 - click calls it by name
    recipe: Path,
    mesh: str | None,
    processes: int,
    steps: int,
    plot: Path | None,
    draw: Path | None,
    log: Path | None,
    as_json_object: bool,
    resources: bool,
    **asked: Any,
) -> int:
    """Plan the first steps of RECIPE and say what they look like. No MPI, no JAX, no accelerator.

    RECIPE is a Python file that defines `recipe`. Its sources are read and transformed, as a job would, and
    every step is planned as a job on this mesh would; payloads are dropped at once.

    \b
    msdata plan recipe.py --mesh dp=8,tp=4 --steps 50 --plot plan.png
    msdata plan recipe.py --mesh dp=64,cp=2 --json
    msdata plan recipe.py --draw strategy.png

    With --resources it plans no step: from what `msdata profile` has measured it says how many loaders and
    threads the sources take for the rate wanted, who reads what, and what limits the rate.

    \b
    msdata plan recipe.py --resources --step-seconds 0.5 --cpus 16 --memory 8GB
    """
    _refuse_what_does_not_go_together(resources)
    if resources:
        return plan_resources(recipe, as_json_object=as_json_object, **asked)
    check_output(plot, "--plot", PICTURES)
    check_output(draw, "--draw", (*PICTURES, ".mmd"))
    if log is not None:
        check_new(log)
    loaded = load_recipe(recipe)
    layout = _layout(mesh, processes, loaded)
    written: list[bool] = []
    if plot or log or as_json_object or mesh or draw is None:
        with DryRun(loaded, layout) as run, _Watch(run, steps, log) as watch:
            figures = gather(run, steps, watch.see)
        result = as_json(figures, recipe=str(recipe), mesh=_mesh_text(layout), advice=advise(figures))
        if as_json_object:
            click.echo(json.dumps(result, indent=2))
        else:
            show(figures, result)
        if log is not None:
            written.append(write_output(log, watch.finish_log))
        if plot is not None:
            title = f"{recipe.name} on {mesh or 'one device'}"
            written.append(write_output(plot, lambda: _plot(figures, plot, title)))
    if draw is not None:
        written.append(write_output(draw, lambda: _draw_strategy(loaded, layout, draw)))
    return 0 if all(written) else 1


def plan_resources(
    path: Path,
    *,
    as_json_object: bool,
    profile: Path | None,
    step_seconds: float | None,
    cpus: float | None,
    memory: int | None,
    buffer: int,
    run_steps: int | None,
    write: Path | None,
    **bounds: Any,
) -> int:
    """Print a partition, and write it where that is asked for. Gives the exit status."""
    check_output(write, "--write", (".json",))
    recipe = load_recipe(path)
    given = profile or profile_path(path)
    if not given.is_file():
        raise RecipeError(f"there is no profile {given}: run `msdata profile {path}` first, or say --profile")
    budget = Budget(
        steps_per_second=None if step_seconds is None else 1 / step_seconds,
        cpus=num_cpus() if cpus is None else cpus,
        memory_bytes=memory,
        buffer_bytes=buffer,
        **bounds,
    )
    chosen = choose(recipe, read_profile(given), budget, run_steps)
    for warning in chosen.warnings:
        click.echo(f"msdata: {warning}", err=True)
    if as_json_object:
        click.echo(json.dumps(resources_as_json(chosen.partition, chosen.warnings), indent=2))
    else:
        show_partition(chosen.partition)
    if write is None:
        return 0
    return int(not write_output(write, lambda: write_json(write, chosen.partition.to_json())))


def _refuse_what_does_not_go_together(resources: bool) -> None:
    """Raise UsageError where options of the one question are given with the other."""
    context = click.get_current_context()
    of_resources = {
        *("profile", "step_seconds", "cpus", "memory", "loaders", "max_loaders", "threads", "shadows"),
        *("buffer", "headroom", "run_steps", "write"),
    }
    of_steps = {"mesh", "processes", "steps", "plot", "draw", "log"}
    given = {
        each.name: each.opts[0]
        for each in context.command.params
        if each.name and context.get_parameter_source(each.name) is ParameterSource.COMMANDLINE
    }
    wrong = sorted(given[name] for name in given if name in (of_steps if resources else of_resources))
    if wrong:
        way_out = "leave --resources out" if resources else "say --resources"
        raise click.UsageError(f"{', '.join(wrong)}: {way_out}, or leave them out")


def parse_mesh(text: str, num_processes: int = 1) -> MeshLayout:
    """The mesh that a text such as `dp=8,tp=4` names, its devices shared out among processes in order.

    Raises:
        RecipeError: an axis without a size or with one that is no positive integer, an axis twice, or devices
            that do not divide by the processes.
    """
    names, sizes = [], []
    for part in text.split(","):
        name, equals, size = part.strip().partition("=")
        if not name or not equals or not re.fullmatch("[1-9][0-9]*", size):
            raise RecipeError(
                f"--mesh names axes and sizes of at least 1, such as dp=8,tp=4; {part!r} in {text!r} does not"
            )
        names.append(name)
        sizes.append(int(size[:20]))
    num_devices = math.prod(sizes)
    if num_devices > MOST_DEVICES:
        raise RecipeError(f"--mesh has at most {MOST_DEVICES} devices, got {text!r}; take smaller axes")
    if num_devices % num_processes:
        raise RecipeError(
            f"the {num_devices} devices of {text!r} do not divide by --processes {num_processes}; "
            "take a divisor"
        )
    per_process = num_devices // num_processes
    owner = tuple(device // per_process for device in range(num_devices))
    return MeshLayout(axis_names=tuple(names), axis_sizes=tuple(sizes), process_of_device=owner)


def _layout(mesh: str | None, processes: int, recipe: Recipe) -> MeshLayout:
    assert isinstance(recipe.strategy, DGraph)
    if mesh is not None:
        return parse_mesh(mesh, processes)
    if processes > 1:
        raise RecipeError(f"--processes {processes} share the devices of a mesh: give --mesh")
    return layout_without_mesh(recipe.strategy)


def _mesh_text(layout: MeshLayout) -> str:
    sizes = zip(layout.axis_names, layout.axis_sizes, strict=True)
    return ",".join(f"{name}={size}" for name, size in sizes)


def _plot(figures: DryRunFigures, path: Path, title: str) -> None:
    from msdata_jax.cli.plots import plot_dry_run

    plot_dry_run(figures, path, title)


def _draw_strategy(recipe: Recipe, layout: MeshLayout, path: Path) -> None:
    graph = recipe.strategy
    assert isinstance(graph, DGraph)
    if path.suffix == ".mmd":
        path.write_text(graph.to_mermaid() + "\n")
    else:
        from msdata_jax.cli.plots import draw_strategy

        draw_strategy(graph, recipe.source_names, layout, path)


class _Watch:
    """Shows progress on a terminal, and writes the plan log as far as it can be written."""

    def __init__(self, run: DryRun, num_steps: int, log: Path | None) -> None:
        self._num_steps, self._shows = num_steps, sys.stderr.isatty()
        self._failure: PlanError | None = None
        self._writer = None if log is None else PlanLogWriter(log, run.recipe)
        if self._writer is not None:
            self._writer.start(run.layout, run.num_records, ())

    def __enter__(self) -> "_Watch":
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def see(self, planned: PlannedStep) -> None:
        """Count a step."""
        if self._writer is not None and self._failure is None:
            nobody = np.full(len(planned.plan.samples), -1, dtype=np.int32)
            try:
                self._writer.step(planned.plan, nobody, planned.in_flight)
            except PlanError as error:
                self._failure = error
        if self._shows:
            done = planned.plan.step + 1
            click.echo(f"\rstep {done} of {self._num_steps}", err=True, nl=done == self._num_steps)

    def finish_log(self) -> None:
        """Raise PlanError where the log could not be written to its end."""
        if self._failure is not None:
            raise self._failure


# --- tables -----------------------------------------------------------------------------------------------


def show(figures: DryRunFigures, result: Mapping[str, Any]) -> None:
    """What was planned, as tables, and the advice."""
    console = make_console()
    devices, processes = len(figures.run.layout.process_of_device), figures.run.layout.num_processes
    many = "s" if devices > 1 else ""
    console.print(f"[bold]{result['recipe']}[/bold] on {result['mesh']}: {devices} device{many}, ", end="")
    console.print(f"{processes} process{'es' if processes > 1 else ''}; {len(figures.steps)} steps planned")
    console.print(result["strategy"], style="dim", markup=False)
    if figures.steps:
        console.print()
        console.print(make_table(_overview(figures)))
        console.print("\n[bold]" + _steps_title(figures) + "[/bold]")
        console.print(make_table([_step_row(step) for step in _steps_to_show(figures)], texts=("balanced",)))
        console.print(f"\n[bold]Sources[/bold], shares by {result['mix_unit']}")
        console.print(make_table([_source_row(source) for source in figures.sources]))
    console.print("\n[bold]Advice[/bold]")
    for sentence in result["advice"] or ["Nothing to change."]:
        console.print(f"- {sentence}", markup=False)


def _overview(figures: DryRunFigures) -> list[dict[str, Any]]:
    graph = figures.run.graph
    rows = [
        ("places filled, %", 100 * figures.mean("fill"), 100 * min(step["fill"] for step in figures.steps)),
        _ratio(figures, "dearest rank / mean rank, rows as they come", "imbalance_unbalanced"),
        _ratio(figures, f"dearest rank / mean rank, {graph.balancing.method}", "imbalance"),
        _ratio(
            figures,
            f"objective {graph.balancing.objective} / even work, rows as they come",
            "objective_unbalanced",
        ),
        _ratio(figures, f"objective {graph.balancing.objective} / even work", "objective"),
        _ratio(figures, "least possible dearest rank / mean rank", "dominance"),
        _ratio(figures, "giants: rows dearer than a mean rank", "giants"),
        _ratio(figures, "dearest microbatch / mean microbatch", "microbatch_spread"),
    ]
    if figures.mean("encoder_share"):
        rows += [
            (
                "encoder's share of the work, %",
                *(100 * f("encoder_share") for f in (figures.mean, figures.most)),
            ),
            _ratio(figures, "encoder: dearest rank / mean rank", "encoder_imbalance"),
        ]
    if figures.most("row_memory_bytes"):
        mega = [f("row_memory_bytes") / 1e6 for f in (figures.mean, figures.most)]
        rows.append(("activations of the largest row, MB", *mega))
    rows += [
        _ratio(figures, "planner: content of a step, CPU ms", "compose_ms"),
        _ratio(figures, "planner: placement, CPU ms", "place_ms"),
    ]
    return [{"": text, "mean": float(mean), "worst": float(worst)} for text, mean, worst in rows]


def _ratio(figures: DryRunFigures, text: str, name: str) -> tuple[str, float, float]:
    return text, figures.mean(name), figures.most(name)


def _steps_to_show(figures: DryRunFigures) -> list[dict[str, Any]]:
    if len(figures.steps) <= MOST_STEPS_SHOWN:
        return figures.steps
    dearest = sorted(figures.steps, key=lambda step: -step["objective"])[:MOST_STEPS_SHOWN]
    return sorted(dearest, key=lambda step: step["step"])


def _steps_title(figures: DryRunFigures) -> str:
    if len(figures.steps) <= MOST_STEPS_SHOWN:
        return "Steps"
    return f"The {MOST_STEPS_SHOWN} steps of least even work, of {len(figures.steps)} (--json has all)"


def _step_row(step: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "step": step["step"],
        "rows x places": f"{step['rows']} x {step['seq_len']}",
        "samples": step["segments"],
        "fill %": f"{100 * step['fill']:.1f}",
        "as they come": f"{step['imbalance_unbalanced']:.3f}",
        "balanced": f"{step['imbalance']:.3f} {step['balanced_by']}",
        "objective": f"{step['objective']:.3f}",
        "least": f"{step['dominance']:.3f}",
        "giants": step["giants"],
        "cut": step["cut"],
        "dropped": step["dropped"],
        "wait": step["carried"],
        "plan ms": f"{step['compose_ms'] + step['place_ms']:.1f}",
    }


def _source_row(source: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "source": source["name"],
        "asked %": f"{source['asked_percent']:.2f}",
        "drawn %": f"{source['realised_percent']:.2f}",
        "% of tokens": f"{source['percent_of_tokens']:.2f}",
        "samples": source["samples"],
        "mean tokens": f"{source['mean_tokens']:.0f}",
        "longest": source["longest"],
        "too long": source["too_long"],
        "cut": source["cut"],
        "dropped": source["dropped"],
        "bad": source["bad"],
        "epochs": f"{source['epochs']:.2f}",
        "waited %": f"{source['waited_percent']:.1f}",
        "longest wait": source["longest_wait_steps"],
    }
