"""`msdata inspect`: what a plan log says of a run, a step, a row or a sample; of checkpoints, the state."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from msdata_jax.cli.inspect_checkpoint import describe_checkpoint, is_checkpoint, show_checkpoint
from msdata_jax.cli.inspect_decisions import describe_decisions, is_record, show_decisions
from msdata_jax.cli.plan_figures import step_figures
from msdata_jax.cli.recipes import load_recipe
from msdata_jax.cli.tables import make_console, make_table
from msdata_jax.errors import PlanError, RecipeError
from msdata_jax.lineage import LoggedStep, PlanLog, Trace, row_segments, segment_origin, trace
from msdata_jax.planning.costs import cost_parts
from msdata_jax.planning.graph import DGraph
from msdata_jax.recipe import Recipe
from msdata_jax.sources.isolation import IsolatedReader, open_reader
from msdata_jax.sources.reader import SourceReader

MOST_STEPS_SHOWN = 16
LABELS = {
    "imbalance_unbalanced": "dearest rank / mean rank, rows as they come",
    "imbalance": "dearest rank / mean rank, balanced",
    "dominance": "least possible dearest rank / mean rank",
    "giants": "giants: rows dearer than a mean rank",
    "microbatch_spread": "dearest microbatch / mean microbatch",
    "encoder_share": "encoder's share of the work",
    "encoder_imbalance": "encoder: dearest rank / mean rank",
    "row_memory_bytes": "activations of the largest row, bytes",
}
"""Figures of a step in the words of `msdata plan`."""


@click.command("inspect")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--step", type=click.IntRange(0), help="Figures and costs of a step; of a checkpoint, its state."
)
@click.option("--row", type=click.IntRange(0), help="What is in a row of the step's global batch.")
@click.option("--sample", metavar="SOURCE:POSITION", help="Where the samples of a position are.")
@click.option(
    "--recipe",
    "recipe_file",
    type=click.Path(path_type=Path),
    help="Also say which record of which file a sample comes from; of a record, ask its policy again.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    file: Path,
    step: int | None,
    row: int | None,
    sample: str | None,
    recipe_file: Path | None,
    as_json: bool,
) -> int:
    """Ask a plan log what a run delivered, checkpoints where the data stand, a record what was decided.

    Without options: a summary; of checkpoints, the steps that there are and the state of the newest.
    `msdata launch --plan-log FILE`, `msdata serve --plan-log FILE` and `msdata plan --log FILE` write a log;
    it can be read while the job runs. Of checkpoints, FILE may also be a step, an item of it, its state.msd,
    or the folder of a journal. Of a record, the folder that `msdata launch --record` named, it shows which
    sources and threads were moved between loaders, when and why.

    \b
    msdata inspect plan.log
    msdata inspect plan.log --step 120
    msdata inspect plan.log --step 120 --row 17 --recipe recipe.py
    msdata inspect plan.log --sample web:48211
    msdata inspect checkpoints --step 500
    msdata inspect runs/7 --recipe recipe.py
    """
    if is_record(file):
        if step is not None or row is not None or sample is not None:
            raise click.UsageError("--step, --row and --sample ask a plan log; this is a record")
        return _show(describe_decisions(file, recipe_file), show_decisions, as_json)
    if is_checkpoint(file):
        if row is not None or sample is not None or recipe_file is not None:
            raise click.UsageError("--row, --sample and --recipe ask a plan log; this is a checkpoint")
        result, error = describe_checkpoint(file, step)
        _show(result, partial(show_checkpoint, error=error), as_json)
        if error is not None:
            raise error
        return 0
    return _inspect_log(file, step, row, sample, recipe_file, as_json)


def _inspect_log(
    file: Path,
    step: int | None,
    row: int | None,
    sample: str | None,
    recipe_file: Path | None,
    as_json: bool,
) -> int:
    if row is not None and step is None:
        raise click.UsageError("--row is a row of a step: say --step too")
    if sample is not None and step is not None:
        raise click.UsageError("--sample looks at all steps: say --step or --sample, not both")
    if not file.is_file():
        why = "it is no regular file" if file.exists() else "there is no such file"
        raise PlanError(f"{file} cannot be read: {why}; give the path of a plan log or of checkpoints")
    log = PlanLog(file)
    if log.cut_off:
        click.echo(f"msdata: {file}: {log.cut_off}", err=True)
    with _Records(log, recipe_file) as records:
        show: Callable[[Any, Mapping[str, Any]], None]
        if sample is not None:
            result, show = describe_sample(log, *_parse_sample(sample), records), _show_sample
        elif row is not None and step is not None:
            result, show = describe_row(log, log.read(step), row, records), _show_row
        elif step is not None:
            result, show = describe_step(log, log.read(step)), _show_step
        else:
            result, show = describe_log(log, file), _show_log
    return _show(result, show, as_json)


def _show(result: Mapping[str, Any], show: Callable[[Any, Mapping[str, Any]], None], as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        show(make_console(), result)
    return 0


def _parse_sample(text: str) -> tuple[str, int]:
    source, _, position = text.rpartition(":")
    if not source or not position.isascii() or not position.isdigit():
        raise click.UsageError(f"--sample is SOURCE:POSITION, such as web:48211, got {text!r}")
    return source, int(position)


# --- answers as plain values ------------------------------------------------------------------------------


def describe_log(log: PlanLog, file: Path) -> dict[str, Any]:
    """What holds for the whole log, the figures of each step, and where the sources stood at its end."""
    steps = [step_figures(logged.plan) for logged in log]
    return {
        "log": str(file),
        **asdict(log.header),
        "mesh": log.header.mesh,
        "delivered": log.delivered,
        "cut_off": log.cut_off,
        "steps": steps,
        "in_flight": in_flight_of(log, log.read(log.steps[-1])) if steps else [],
    }


def describe_step(log: PlanLog, logged: LoggedStep) -> dict[str, Any]:
    """Figures and costs of a step, who sends it, and where the sources stood when it was planned."""
    plan = logged.plan
    loaders, counts = np.unique(logged.owner[logged.owner >= 0], return_counts=True)
    return {
        "figures": step_figures(plan),
        "content_digest": plan.content_digest,
        "state": _state(log, plan.step),
        "group_costs": plan.group_costs().tolist(),
        "group_costs_unbalanced": plan.group_costs(np.arange(plan.num_rows)).tolist(),
        "segments_of_loader": dict(zip(loaders.tolist(), counts.tolist(), strict=True)),
        "in_flight": in_flight_of(log, logged),
    }


def in_flight_of(log: PlanLog, logged: LoggedStep) -> list[dict[str, Any]]:
    """Samples of each source by where they were when a step was planned."""
    flight, names = logged.in_flight, log.header.source_names
    planned = np.zeros(len(names), dtype=np.int64)
    for step in log.steps:
        if logged.delivered < step <= logged.plan.step:
            plan = logged.plan if step == logged.plan.step else log.read(step).plan
            planned += np.bincount(plan.samples["source"], minlength=len(names))
    carried = np.bincount(flight.carried["source"], minlength=len(names))
    return [
        {
            "source": name,
            "leased_positions": int(flight.leased_to[i] - flight.known_to[i]),
            "buffered": int(flight.buffered[i]),
            "carried": int(carried[i]),
            "pending": int(flight.pending[i]),
            "planned": int(planned[i]),
        }
        for i, name in enumerate(names)
    ]


def describe_row(log: PlanLog, logged: LoggedStep, row: int, records: "_Records") -> dict[str, Any]:
    """What is in a row of the global batch, and what the row costs."""
    plan = logged.plan
    segments = row_segments(plan, row)
    content_row = int(plan.order[row])
    per_group = plan.num_rows // plan.num_groups
    group, within = divmod(row, per_group)
    costs = plan.row_cost + plan.row_encoder_cost
    origins = [asdict(segment_origin(log, logged, segment)) for segment in segments]
    for origin, extra in zip(origins, records.of_segments(logged, segments), strict=True):
        origin |= extra
    return {
        "step": plan.step,
        "state": _state(log, plan.step),
        "row": row,
        "content_row": content_row,
        "group": group,
        "microbatch": within // (per_group // plan.num_microbatches),
        "cost": int(plan.row_cost[content_row]),
        "encoder_cost": int(plan.row_encoder_cost[content_row]),
        "share_of_group": int(costs[content_row]) / max(int(plan.group_costs()[group]), 1),
        "over_mean_row": float(costs[content_row] / max(float(costs.mean()), 1e-9)),
        "memory_bytes": int(plan.row_memory[content_row]),
        "seq_len": plan.seq_len,
        "segments": origins,
        "transforms": {
            source.name: source.transforms
            for source in log.header.sources
            if source.name in {origin["source"] for origin in origins}
        },
    }


def describe_sample(log: PlanLog, source: str, position: int, records: "_Records") -> dict[str, Any]:
    """Where the samples of a position are."""
    found: Trace = trace(log, source, position)
    index = log.header.source_names.index(source)
    return {
        **asdict(found),
        "epoch": position // log.header.sources[index].num_records,
        "transforms": log.header.sources[index].transforms,
        "record": records.of_position(index, position, with_yield=True),
    }


def _state(log: PlanLog, step: int) -> str:
    return "delivered" if step <= log.delivered else "planned"


class _Records:
    """Says which record a position shows, where a recipe is given; opens sources when they are asked for."""

    def __init__(self, log: PlanLog, recipe_file: Path | None) -> None:
        self._recipe = None if recipe_file is None else _matching_recipe(log, recipe_file)
        self._readers: dict[int, SourceReader | IsolatedReader] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "_Records":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def of_position(self, source: int, position: int, *, with_yield: bool = False) -> dict[str, Any]:
        """Record and file; with `with_yield` also what the position yields. Empty without a recipe."""
        if self._recipe is None:
            return {}
        reader = self._reader(self._recipe, source)
        _, record, where = reader.locate(position)
        found: dict[str, Any] = {"record": record, "where": where}
        if with_yield:
            block = reader.read_block(position, position + 1)
            found["tokens"] = block.infos["tokens"].tolist()
            found["bad"] = [bad.reason for bad in block.bad]
        return found

    def of_segments(self, logged: LoggedStep, segments: Sequence[int]) -> list[dict[str, Any]]:
        """Record, file and cost of segments."""
        if self._recipe is None:
            return [{} for _ in segments]
        graph = self._recipe.strategy
        assert isinstance(graph, DGraph)
        used = logged.plan.samples[list(segments)]
        used["tokens"] = logged.plan.length[list(segments)]
        backbone, encoder, _ = cost_parts(used, graph.backbone_cost, graph.encoder_cost)
        return [
            {**self.of_position(int(info["source"]), int(info["position"])), "cost": int(cost)}
            for info, cost in zip(used, backbone + encoder, strict=True)
        ]

    def _reader(self, recipe: Recipe, index: int) -> SourceReader | IsolatedReader:
        if index not in self._readers:
            name = recipe.source_names[index]
            reader = open_reader(name, index, recipe.sources[name], seed=recipe.seed, columns=recipe.columns)
            self._readers[index] = self._stack.enter_context(contextlib.closing(reader))
        return self._readers[index]


def _matching_recipe(log: PlanLog, recipe_file: Path) -> Recipe:
    recipe = load_recipe(recipe_file)
    if recipe.fingerprint() != log.header.recipe:
        raise RecipeError(
            f"{recipe_file} is not the recipe of this log: its fingerprint is {recipe.fingerprint()}, the "
            f"log's is {log.header.recipe}; give the recipe as it was, with its paths and environment"
        )
    return recipe


# --- for people -------------------------------------------------------------------------------------------


def _show_log(console: Any, result: Mapping[str, Any]) -> None:
    steps = result["steps"]
    what = f"steps {steps[0]['step']} to {steps[-1]['step']}" if steps else "no steps"
    origin = f"loader ranks {result['loaders']}" if result["loaders"] else "a dry run"
    console.print(f"[bold]{result['log']}[/bold]: {what}, mesh {result['mesh']}, {origin}")
    delivered = (
        f"delivered up to step {result['delivered']}" if result["delivered"] >= 0 else "none delivered"
    )
    console.print(f"recipe {result['recipe']}; {delivered}", style="dim")
    console.print(result["strategy"], style="dim", markup=False)
    console.print("\n[bold]Sources[/bold]")
    names = ("name", "num_records", "block_size", "data", "transforms")
    console.print(make_table([{name: source[name] for name in names} for source in result["sources"]]))
    if not steps:
        return
    console.print("\n[bold]Over the steps[/bold]")
    rows = [
        {
            "": text,
            "mean": float(np.mean([step[name] for step in steps])),
            "least": float(min(step[name] for step in steps)),
            "most": float(max(step[name] for step in steps)),
        }
        for text, name in (
            ("share of places filled", "fill"),
            ("dearest rank / mean rank, rows as they come", "imbalance_unbalanced"),
            ("dearest rank / mean rank, balanced", "imbalance"),
            ("samples dropped", "dropped"),
        )
    ]
    console.print(make_table(rows))
    if len(steps) > MOST_STEPS_SHOWN:
        console.print(f"\n[bold]The last {MOST_STEPS_SHOWN} steps[/bold] (--json has all)")
    else:
        console.print("\n[bold]Steps[/bold]")
    console.print(make_table([_step_row(step) for step in steps[-MOST_STEPS_SHOWN:]]))
    console.print("\n[bold]Samples in flight[/bold] behind the last step")
    console.print(make_table(result["in_flight"]))
    console.print(f"\ndigest of step {steps[-1]['step']}: {steps[-1]['digest']}")


def _step_row(step: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "step": step["step"],
        "rows x places": f"{step['rows']} x {step['seq_len']}",
        "samples": step["segments"],
        "fill %": f"{100 * step['fill']:.1f}",
        "as they come": f"{step['imbalance_unbalanced']:.3f}",
        "balanced": f"{step['imbalance']:.3f}",
        "by": step["balanced_by"],
        "digest": step["digest"],
    }


def _show_step(console: Any, result: Mapping[str, Any]) -> None:
    figures = result["figures"]
    console.print(f"[bold]Step {figures['step']}[/bold], {result['state']}")
    for name, value in figures.items():
        if name not in ("step", "note"):
            text = f"{value:.4g}" if isinstance(value, float) else value
            console.print(f"  {LABELS.get(name, name.replace('_', ' ')):46}{text}", markup=False)
    console.print(f"  {'content digest':46}{result['content_digest']}")
    if figures["note"]:
        console.print(f"  note: {figures['note']}", markup=False)
    if result["segments_of_loader"]:
        sent = ", ".join(f"{count} by rank {rank}" for rank, count in result["segments_of_loader"].items())
        console.print(f"  samples sent: {sent}")
    console.print("\n[bold]Cost of each data-parallel rank[/bold]")
    pairs = zip(result["group_costs"], result["group_costs_unbalanced"], strict=True)
    rows = [{"rank": rank, "balanced": a, "as they come": b} for rank, (a, b) in enumerate(pairs)]
    console.print(make_table(rows[:64]))
    if len(rows) > 64:
        console.print(f"... and {len(rows) - 64} more (--json has all)")
    console.print("\n[bold]Samples in flight[/bold] when it was planned")
    console.print(make_table(result["in_flight"]))


def _show_row(console: Any, result: Mapping[str, Any]) -> None:
    console.print(
        f"[bold]Step {result['step']}, row {result['row']}[/bold] of the global batch, {result['state']}: "
        f"content row {result['content_row']}, data-parallel rank {result['group']}, microbatch "
        f"{result['microbatch']}"
    )
    console.print(
        f"cost {result['cost'] + result['encoder_cost']:,} (encoder {result['encoder_cost']:,}), "
        f"{100 * result['share_of_group']:.1f} % of its rank, {result['over_mean_row']:.2f} times a mean row"
    )
    used = sum(segment["length"] for segment in result["segments"])
    console.print(f"{used} of {result['seq_len']} places used")
    if result["segments"]:
        console.print(make_table(result["segments"]))
        for name, transforms in result["transforms"].items():
            console.print(f"{name}: {transforms or 'no transforms'}", style="dim", markup=False)


def _show_sample(console: Any, result: Mapping[str, Any]) -> None:
    console.print(
        f"[bold]{result['source']}:{result['position']}[/bold], epoch {result['epoch']}: {result['text']}"
    )
    if result["record"]:
        record = result["record"]
        yields = f"samples of {record['tokens']} tokens" if record["tokens"] else "no sample"
        bad = f" ({'; '.join(record['bad'])})" if record["bad"] else ""
        console.print(f"{record['where']}; it yields {yields}{bad}", markup=False)
    places = [
        {"step": place["step"], "row": place["row"], "state": place["state"], **_short(place["origin"])}
        for place in result["places"]
    ]
    if places:
        console.print(make_table(places))
    if result["dropped"]:
        console.print(f"dropped in step {', '.join(map(str, result['dropped']))}")
    console.print(f"transforms: {result['transforms'] or 'none'}", style="dim", markup=False)


def _short(origin: Mapping[str, Any]) -> dict[str, Any]:
    return {name: origin[name] for name in ("offset", "length", "part", "start", "tokens", "loader")}
