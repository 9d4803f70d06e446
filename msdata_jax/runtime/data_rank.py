"""Runs a planner or a source loader over an endpoint."""

import time
from collections.abc import Mapping
from typing import Any

from msdata_transport import Endpoint

from msdata_jax.recipe import Recipe
from msdata_jax.roles.placement import Placement
from msdata_jax.roles.planner import Planner
from msdata_jax.roles.source_loader import Reader, SourceLoader
from msdata_jax.runtime.figures import process_figures
from msdata_jax.runtime.loop import RoleLoop
from msdata_jax.sources.reader import SourceReader


def run_planner(recipe: Recipe, placement: Placement, endpoint: Endpoint) -> Mapping[str, Any]:
    """Plan until every trainer left; returns everybody's figures. Raises JobFailed."""
    return RoleLoop(Planner(recipe, placement, process_figures=process_figures), endpoint).run()


def run_loader(
    recipe: Recipe, placement: Placement, endpoint: Endpoint, num_threads: int
) -> Mapping[str, Any]:
    """Serve the sources until the planner says stop. Raises JobFailed."""

    def open_reader(index: int) -> Reader:
        name = recipe.source_names[index]
        return SourceReader(name, index, recipe.sources[name], seed=recipe.seed, columns=recipe.columns)

    role = SourceLoader(placement, open_reader, process_figures, time.perf_counter)
    return RoleLoop(role, endpoint, num_workers=num_threads).run()
