"""`msdata simulate`: what balancing would bring on clusters of this size, with the real planner."""

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from msdata_jax.cli.outputs import PICTURES, check_output, write_output
from msdata_jax.cli.tables import format_value, in_words, make_console, make_table
from msdata_jax.simulate.batches import BASELINES
from msdata_jax.simulate.cluster import MODELS, PLACEMENTS, SYNCS, Assumptions
from msdata_jax.simulate.distributions import DISTRIBUTIONS
from msdata_jax.simulate.plot import plot
from msdata_jax.simulate.study import MOST_GPUS, Study, run_study

SECONDS_BETWEEN_LINES = 10.0


class _Names(click.ParamType):
    """Names of a list, separated by commas."""

    name = "names"

    def __init__(self, allowed: Iterable[str]) -> None:
        self.allowed = tuple(allowed)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        names = tuple(value.split(",")) if isinstance(value, str) else tuple(value)
        for name in names:
            if name not in self.allowed:
                self.fail(f"{name!r} is none of {', '.join(self.allowed)}", param, ctx)
        return tuple(dict.fromkeys(names))


class _Integers(click.ParamType):
    """Integers from 1 up, separated by commas."""

    name = "integers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        parts = value.split(",") if isinstance(value, str) else value
        try:
            numbers = tuple(dict.fromkeys(int(part) for part in parts))
        except ValueError:
            self.fail(f"{value!r} is no list of integers such as 576,4096", param, ctx)
        if min(numbers) < 1:
            self.fail(f"each is at least 1, got {min(numbers)}", param, ctx)
        return numbers


def _listed(names: Iterable[str]) -> str:
    return "One or more of " + ", ".join(names) + "."


_STUDY = Study()
_CLUSTER = Assumptions()


def _joined(values: Sequence[Any]) -> str:
    return ",".join(map(str, values))


@click.command("simulate")
@click.option(
    "--gpus",
    type=_Integers(),
    default=_joined(_STUDY.gpus),
    show_default=True,
    help=f"Sizes of the job, up to {MOST_GPUS}; each a multiple of tensor-parallel x pipeline-stages.",
)
@click.option(
    "--context",
    type=_Integers(),
    default=_joined(_STUDY.contexts),
    show_default=True,
    help="Longest sample in tokens, and the microbatch of `packed`.",
)
@click.option(
    "--distribution",
    type=_Names(DISTRIBUTIONS),
    default=_joined(_STUDY.distributions),
    show_default=True,
    help="Lengths of the samples. " + _listed(DISTRIBUTIONS),
)
@click.option(
    "--baseline",
    type=_Names(BASELINES),
    default=_joined(_STUDY.baselines),
    show_default=True,
    help="Without a planner: samples concatenated up to the context, or a fixed number in a microbatch.",
)
@click.option(
    "--sync",
    type=_Names(SYNCS),
    default=_joined(_STUDY.syncs),
    show_default=True,
    help="Where ranks wait for each other: once a step without a pipeline, once a step with one, or in every "
    "microbatch (experts, ZeRO-3). " + _listed(SYNCS),
)
@click.option(
    "--placement",
    type=_Names(PLACEMENTS),
    default=_joined(_STUDY.placements),
    show_default=True,
    help="Encoder: first in the pipeline, before it, or within stage 0. " + _listed(PLACEMENTS),
)
@click.option(
    "--models",
    type=_Names(MODELS),
    default=_joined(_STUDY.models),
    show_default=True,
    help=_listed(MODELS),
)
@click.option(
    "--tensor-parallel", default=_CLUSTER.tensor_parallel, show_default=True, type=click.IntRange(1)
)
@click.option(
    "--pipeline-stages", default=_CLUSTER.pipeline_stages, show_default=True, type=click.IntRange(1)
)
@click.option(
    "--microbatches",
    default=_CLUSTER.microbatches,
    show_default=True,
    type=click.IntRange(1),
    help="Of a data-parallel rank in a step.",
)
@click.option(
    "--samples-per-microbatch",
    default=_CLUSTER.samples_per_microbatch,
    show_default=True,
    type=click.IntRange(1),
    help="Of the baseline `count`.",
)
@click.option(
    "--steps", default=_STUDY.steps, show_default=True, type=click.IntRange(1), help="Simulated for each row."
)
@click.option("--seed", default=_STUDY.seed, show_default=True, type=click.IntRange(0))
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object: assumptions, rows, memory, summary."
)
@click.option(
    "--plot",
    "picture",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also draw speed-up over context: .png, .pdf or .svg (needs the extra `demo`).",
)
def command(  # noqa: PLR0917 - click calls it by name
    gpus: tuple[int, ...],
    context: tuple[int, ...],
    distribution: tuple[str, ...],
    baseline: tuple[Any, ...],
    sync: tuple[Any, ...],
    placement: tuple[Any, ...],
    models: tuple[str, ...],
    tensor_parallel: int,
    pipeline_stages: int,
    microbatches: int,
    samples_per_microbatch: int,
    steps: int,
    seed: int,
    as_json: bool,
    picture: Path | None,
) -> int:
    """Simulate training steps on clusters, with the real planner and without one.

    Draws samples from published length distributions, groups them as a job without a planner would (strategy
    vanilla), and as the planner does: even work of the backbone (backbone), or of backbone and encoder at
    once (hybrid). A model of the cluster gives the time of a step; speed-up is that time under vanilla over
    that under the strategy. Ideal is the speed-up of equal parts everywhere, as if samples could be split; a
    pipeline that begins and ends with cheap microbatches can be faster still.

    Lists are separated by commas; every combination is simulated. Prints all assumptions with the rows.
    Nothing is measured: what a real job gains depends on how far the assumptions hold for it.

    \b
    msdata simulate
    msdata simulate --gpus 4096 --context 32768 --distribution text_pile --baseline count --sync microbatch
    msdata simulate --distribution mix,navit --placement pipe,phase,stage0 --plot speedup.png
    msdata simulate --gpus 4096 --pipeline-stages 1 --microbatches 4 --json
    """
    study = Study(
        gpus=gpus,
        contexts=context,
        distributions=distribution,
        baselines=baseline,
        syncs=sync,
        placements=placement,
        models=models,
        steps=steps,
        seed=seed,
        assumptions=Assumptions(
            tensor_parallel=tensor_parallel,
            pipeline_stages=pipeline_stages,
            microbatches=microbatches,
            samples_per_microbatch=samples_per_microbatch,
        ),
    )
    check_output(picture, "--plot", PICTURES)
    result = run_study(study, _Progress().see)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        show(result)
    return 0 if picture is None or write_output(picture, lambda: plot(result, picture)) else 1


class _Progress:
    """Says on stderr how far a study is: always on a terminal, else where it takes long."""

    def __init__(self) -> None:
        self._shows, self._said = sys.stderr.isatty(), time.monotonic()

    def see(self, done: int, total: int) -> None:
        """Count a row."""
        if self._shows:
            click.echo(f"\rrow {done} of {total}", err=True, nl=done == total)
        elif time.monotonic() - self._said > SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            click.echo(f"row {done} of {total}", err=True)


# --- tables -----------------------------------------------------------------------------------------------

_COMBINATION = ("distribution", "baseline", "sync", "placement", "models", "context", "gpus")


def show(result: Mapping[str, Any]) -> None:
    """Speed-ups, their means and extremes, memory, and the assumptions, as tables."""
    console = make_console()
    rows, same = _without_constant_columns(_combinations(result["rows"]))
    for title, table in (
        ("Speed-up over vanilla" + (f" ({same})" if same else ""), rows),
        ("Mean and extremes of the speed-up over all rows above", result["summary"]),
        ("Host memory: a loader for each rank, against source loaders and constructors", result["memory"]),
    ):
        console.print(f"[bold]{title}[/bold]")
        console.print(make_table(in_words(table), cell=_cell))
        console.print()
    console.print("[bold]Assumptions[/bold]")
    for part, values in result["assumptions"].items():
        text = (
            "  ".join(f"{name} {value:g}" for name, value in values.items())
            if isinstance(values, dict)
            else values
        )
        console.print(f"{part}: {text}", markup=False)


def _combinations(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for each combination, its strategies side by side."""
    by_key: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        by_key.setdefault(tuple(row[name] for name in _COMBINATION), {})[row["strategy"]] = row
    return [
        dict(zip(_COMBINATION, key, strict=True))
        | {
            "vanilla_seconds": each["vanilla"]["step_seconds"],
            "vanilla_imbalance": each["vanilla"]["imbalance"],
            "backbone_imbalance": each["backbone"]["imbalance"],
            "hybrid_imbalance": each["hybrid"]["imbalance"],
            "backbone_speedup": each["backbone"]["speedup"],
            "hybrid_speedup": each["hybrid"]["speedup"],
            "ideal_speedup": each["vanilla"]["ideal_speedup"],
        }
        for key, each in by_key.items()
    ]


def _without_constant_columns(rows: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The rows without what is the same in all of them, and that as a text."""
    same = [name for name in _COMBINATION if len({row[name] for row in rows}) == 1]
    text = ", ".join(f"{name} {rows[0][name]}" for name in same)
    return [{name: value for name, value in row.items() if name not in same} for row in rows], text


def _cell(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) and value < 10 else format_value(value)
