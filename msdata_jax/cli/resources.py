"""From a recipe and the profile of its sources to a partition, and what people see of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from msdata_jax.cli.json_files import read_json
from msdata_jax.cli.tables import make_console, make_table
from msdata_jax.errors import RecipeError
from msdata_jax.planning.graph import DGraph
from msdata_jax.planning.mixing import Mixture
from msdata_jax.recipe import Recipe
from msdata_jax.scaling.needs import needs_of, samples_per_step, stand_ins
from msdata_jax.scaling.partition import Budget, Partition, partition, partition_from_json
from msdata_jax.scaling.profile import Profile, profile_from_json

PARTITION_FILE = "partition.json"
"""In the run folder of a job."""
RUN = "run"
"""Stands for that file, where `msdata serve` takes a partition."""
RUN_STEPS = 1000
"""Steps of a run whose mixture is a function, where nobody says how many."""
_MOMENTS = 17
_MOST_ROWS = 60


def profile_path(recipe: Path) -> Path:
    """Where the profile of a recipe lies unless said otherwise: beside it."""
    return recipe.with_name(f"{recipe.stem}.profile.json")


def read_profile(path: Path) -> Profile:
    """Raises RecipeError."""
    return read_json(path, "profile", profile_from_json)


def read_partition(path: Path) -> Partition:
    """Raises RecipeError."""
    return read_json(path, "partition", partition_from_json)


@dataclass(frozen=True)
class Chosen:
    """A partition, and what to say of the profile that it rests on."""

    partition: Partition
    warnings: tuple[str, ...]


def choose(recipe: Recipe, profile: Profile, budget: Budget, run_steps: int | None = None) -> Chosen:
    """The partition of a recipe; sources that the profile is not about count as not measured.

    Args:
        recipe: whose sources.
        profile: of these, or of some.
        budget: what may be taken; the profile says what a process takes.
        run_steps: steps over which the mixture is looked at; None for those of its schedule.

    Raises:
        RecipeError: no source of the recipe is in the profile.
    """
    differing = profile.differences(recipe)
    warnings = [f"source {name!r} is not the one that was profiled: {why}" for name, why in differing.items()]
    usable = profile.only([name for name in recipe.source_names if name not in differing])
    failed = {each.name: each.error for each in usable.sources if each.error}
    warnings += [f"source {name!r} could not be profiled: {error}" for name, error in failed.items()]
    samples = demand(recipe, usable, run_steps)
    needs, notes = needs_of(usable, recipe.source_names, samples)
    if profile.process_bytes:
        budget = replace(budget, process_bytes=profile.process_bytes)
    made = partition(needs, budget, recipe=recipe.fingerprint())
    return Chosen(replace(made, notes=tuple(notes)), tuple(warnings))


def demand(recipe: Recipe, profile: Profile, run_steps: int | None) -> np.ndarray:
    """Samples of each source in a step, at some moments of the run: float64 `[moments, sources]`.

    By the mixture and by mean lengths, for steps that are full; no data are read.

    Raises:
        RecipeError: no source was measured.
    """
    graph = recipe.strategy
    assert isinstance(graph, DGraph)
    assert graph.mixture is not None
    assert graph.packing is not None
    figures = stand_ins(profile, recipe.source_names)
    means = [figures[name].means for name in recipe.source_names]
    unit = graph.mixture.unit
    per_row = graph.packing.segments_per_row
    shape = max(graph.packing.shapes, key=lambda shape: shape.rows * shape.seq_len)
    return samples_per_step(
        _weights(graph.mixture, recipe.source_names, run_steps),
        [1.0 if unit == "samples" else each.get(unit, 0.0) or 1.0 for each in means],
        [max(each.get("tokens", 0.0), 1.0) for each in means],
        places=shape.rows * shape.seq_len,
        most_samples=np.inf if per_row is None else shape.rows * per_row,
    )


def _weights(mixture: Mixture, names: Sequence[str], run_steps: int | None) -> np.ndarray:
    """`[moments, sources]`; a function that has no weights for late steps is looked at as far as it has.

    Raises:
        RecipeError: it has none for the first.
    """
    weights = [mixture.weights_at(0, names)]
    for step in _moments(mixture, run_steps)[1:]:
        try:
            weights.append(mixture.weights_at(step, names))
        except RecipeError:  # how many steps the run has is not known here
            break
    return np.array(weights)


def _moments(mixture: Mixture, run_steps: int | None) -> list[int]:
    """Steps at which to look: evenly over the run, and where a schedule has its knots."""
    is_schedule = isinstance(mixture.knots, Sequence)
    knots = [step for step, _ in mixture.knots] if isinstance(mixture.knots, Sequence) else []
    last = run_steps - 1 if run_steps else knots[-1] if is_schedule else RUN_STEPS - 1
    even = np.linspace(0, last, _MOMENTS).astype(int).tolist() if len(knots) != 1 else [0]
    return sorted({*even, *(step for step in knots if step <= last)})


# --- what people see --------------------------------------------------------------------------------------


def in_short(made: Partition) -> str:
    """Loaders and threads, in a few words."""
    many = "s" if made.loaders > 1 else ""
    same = len(set(made.threads)) == 1
    threads = str(made.threads[0]) if same else ", ".join(map(str, made.threads[:16]))
    each = " each" if same and made.loaders > 1 else ""
    thread = "thread" if threads == "1" else "threads"
    spare = f" and {made.shadows} spare" if made.shadows else ""
    rate = f"for {made.steps_per_second:.3g} steps/s"
    return f"{made.loaders} loader{many}{spare}, {threads} {thread}{each}, {rate}"


def show_partition(made: Partition, *, stderr: bool = False) -> None:
    """Tables: loaders, sources, and what limits the rate."""
    console = make_console(stderr=stderr)
    total = (sum(made.memory_bytes) + made.shadow_bytes) / 1e6
    console.print(f"[bold]{in_short(made)}[/bold]")
    console.print(f"they keep up to {made.cpus:.3g} CPUs busy and take up to {total:,.0f} MB", style="dim")
    console.print()
    console.print(make_table(_loader_rows(made)[:_MOST_ROWS], texts=("sources",)))
    console.print()
    console.print(make_table(_source_rows(made)[:_MOST_ROWS], texts=("loaders", "reads with")))
    hidden = max(len(made.sources) - _MOST_ROWS, 0)
    if hidden:
        console.print(f"and {hidden} more sources (--json has all)")
    console.print("\n[bold]What limits the rate[/bold]")
    for sentence in made.limits or ["Nothing: the rate wanted is reached."]:
        console.print(f"- {sentence}", markup=False)
    for sentence in made.notes:
        console.print(f"- {sentence}", markup=False)


def _loader_rows(made: Partition) -> list[dict[str, Any]]:
    return [
        {
            "loader": loader,
            "threads": made.threads[loader],
            "busy at most": f"{100 * made.utilisation[loader]:.0f} %",
            "memory, MB": round(made.memory_bytes[loader] / 1e6),
            "sources": _names(made.readers_of(loader)),
        }
        for loader in range(made.loaders)
    ]


def _names(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


_TIERS = {
    "shared": "a part of a thread",
    "threads": "several threads of a loader",
    "ranks": "several loaders",
}


def _source_rows(made: Partition) -> list[dict[str, Any]]:
    rows = [
        {
            "source": name,
            "threads busy": f"{made.needs[i]:.3g}",
            "at most": f"{made.worst_needs[i]:.3g}",
            "reads with": _TIERS[made.tiers[i]],
            "loaders": _ranges(made.affinity[i]),
        }
        for i, name in enumerate(made.sources)
    ]
    order = sorted(range(len(rows)), key=lambda i: (-made.worst_needs[i], i))
    return [rows[i] for i in order]


def _ranges(numbers: Sequence[int]) -> str:
    """Increasing numbers, those in a row as `0-3`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


def as_json(made: Partition, warnings: Sequence[str]) -> Mapping[str, Any]:
    """The partition as `Partition.to_json`, with the warnings beside it."""
    return {**made.to_json(), "warnings": list(warnings)}


# --- for a job --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a job was asked for.

    Attributes:
        mode: `auto` uses the profile beside the recipe where it is; `off` none; else a partition's file.
        budget: what it may take, and what was set by hand.
    """

    mode: str
    budget: Budget


def for_job(path: Path, recipe: Recipe, asked: Asked) -> tuple[Partition | None, list[str]]:
    """The partition that a job starts with, and sentences to show.

    A profile that cannot be used is told and left; a partition that was named is refused.

    Raises:
        RecipeError: the partition that was named cannot be read.
    """
    if asked.mode == "off":
        return None, []
    if asked.mode != "auto":
        return _from_file(Path(asked.mode), recipe, asked.budget)
    beside = profile_path(path)
    if not beside.is_file():
        return None, []
    try:
        chosen = choose(recipe, read_profile(beside), asked.budget)
    except RecipeError as error:
        return None, [f"{error}; loaders and threads are the usual ones"]
    return chosen.partition, [*chosen.warnings, f"by {beside.name}: {in_short(chosen.partition)}"]


def _from_file(path: Path, recipe: Recipe, budget: Budget) -> tuple[Partition | None, list[str]]:
    made = read_partition(path)
    why = made.why_not(recipe.source_names, budget.loaders or made.loaders)
    if why:
        return None, [f"the partition {path} is ignored: {why}"]
    threads = (budget.threads,) * made.loaders if budget.threads else made.threads
    shadows = made.shadows if budget.shadows is None else budget.shadows
    made = replace(made, threads=threads, shadows=shadows)
    other = made.recipe not in ("", recipe.fingerprint())
    about = " (it was made for another recipe with the same sources)" if other else ""
    return made, [f"by {path.name}{about}: {in_short(made)}"]
