"""Runs a planner or a source loader over an endpoint."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from msdata_transport import Endpoint

from msdata_jax.errors import JobFailed
from msdata_jax.recipe import Recipe
from msdata_jax.roles.placement import Placement
from msdata_jax.roles.planner import START_SECONDS, Planner
from msdata_jax.roles.recording import Recorder
from msdata_jax.roles.source_loader import Reader, SourceLoader
from msdata_jax.runtime.figures import process_figures
from msdata_jax.runtime.loop import RoleLoop
from msdata_jax.sources.reader import SourceReader

OnFailure = Callable[[JobFailed], None]


def run_planner(
    recipe: Recipe,
    placement: Placement,
    endpoint: Endpoint,
    *,
    start_seconds: float = START_SECONDS,
    on_failure: OnFailure | None = None,
    recorder: Recorder | None = None,
) -> Mapping[str, Any]:
    """Plan until every trainer left; returns everybody's figures. Raises JobFailed."""
    role = Planner(recipe, placement, start_seconds, process_figures, recorder)
    return RoleLoop(role, endpoint, on_failure=on_failure).run()


def run_loader(
    recipe: Recipe,
    placement: Placement,
    endpoint: Endpoint,
    *,
    num_threads: int,
    on_failure: OnFailure | None = None,
) -> Mapping[str, Any]:
    """Serve the sources until the planner says stop. Raises JobFailed."""
    readers: list[SourceReader] = []

    def open_reader(index: int) -> Reader:
        name = recipe.source_names[index]
        reader = SourceReader(name, index, recipe.sources[name], seed=recipe.seed, columns=recipe.columns)
        readers.append(reader)
        return reader

    role = SourceLoader(placement, open_reader, process_figures, time.perf_counter, recipe.source_names)
    try:
        return RoleLoop(role, endpoint, num_workers=num_threads, on_failure=on_failure).run()
    finally:
        for reader in readers:  # after a failure too, and those that were opened when the end had come
            reader.close()
