"""`MSDataset`: the steps of a recipe as a `grain.IterDataset`."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import grain

from msdata_jax.batching.rows import field_shapes
from msdata_jax.errors import CheckpointError, RecipeError
from msdata_jax.grain.iterator import Bookmark, MSDatasetIterator
from msdata_jax.grain.position import NO_DIGEST, Position
from msdata_jax.grain.turns import Turns
from msdata_jax.grain.views import GlobalArrays, HostRows
from msdata_jax.loader import DataLoader
from msdata_jax.planning.graph import DGraph
from msdata_jax.recipe import Recipe
from msdata_jax.runtime.fields import field_specs, global_shapes, row_formats
from msdata_jax.runtime.job import current_job

_IN_JOB = Turns()
"""Of all iterators of a job of several ranks."""


class MSDataset(grain.IterDataset[dict[str, Any]]):
    """The steps of a recipe, each a dict of arrays, at the source of a grain pipeline.

    Planner and loaders read, mix, pack and balance; what comes behind in the pipeline runs in the training
    process. Positions are the same on every process and any mesh, and a few plain values.

    In a job of several ranks its iterators take turns (`grain.turns`): only one is read at a time, and all
    training processes read, move and close theirs alike.

    Args:
        recipe: what to deliver.
        mesh: as for `DataLoader`; elements are then global arrays.
        specs: as for `DataLoader`.
        as_numpy: with a mesh, elements are the rows of the global batch that this process holds, as numpy
            arrays: for stages that look into the data. Without a mesh elements are numpy in any case.
        options: further arguments of `DataLoader`. With `journal` an iterator goes on at once from any step
            that the journal has; without it where `DataLoader.skip_to` is not quick, going on costs reading.

    Raises:
        RecipeError: recipe, mesh, specs and options do not fit together.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        mesh: Any = None,
        specs: Mapping[str, Any] | None = None,
        as_numpy: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        if not isinstance(recipe, Recipe) or not isinstance(recipe.strategy, DGraph):
            raise RecipeError(f"an MSDataset reads a Recipe whose strategy is a DGraph, got {recipe!r:.200}")
        _check_options(options)
        view = mesh if isinstance(mesh, GlobalArrays) else (HostRows if as_numpy else GlobalArrays)(mesh)
        self._recipe, self._view, self._specs, self._options = recipe, view, specs, options
        self._graph = recipe.strategy
        self._fingerprint = recipe.fingerprint()
        self._fields()

    def __iter__(self) -> MSDatasetIterator:
        """An iterator before step 0. It reads nothing until it is asked to."""
        start = Position(step=0, recipe=self._fingerprint)
        return MSDatasetIterator(self.open, start, _IN_JOB if current_job() is not None else Turns())

    def __str__(self) -> str:
        return f"MSDataset(recipe={self._fingerprint[:8]}, sources={len(self._recipe.sources)})"

    def __reduce__(self) -> NoReturn:
        """Refuse to be sent to another process, as `mp_prefetch` would.

        Raises:
            RecipeError: always.
        """
        raise RecipeError(_NOT_IN_WORKERS)

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> NoReturn:
        """Refuse to be cut into slices, as `mp_prefetch` would.

        Raises:
            RecipeError: always.
        """
        raise RecipeError(
            f"an MSDataset gives all of a step or nothing, and is not cut by {sl}; {_NOT_IN_WORKERS}"
        )

    @property
    def _element_spec(self) -> dict[str, Any]:
        """Of the whole batch; with `as_numpy` of this process's rows. Nothing is read.

        Raises:
            RecipeError: steps differ in shape.
        """
        assert self._graph.packing is not None
        first, *others = shapes = list(self._graph.packing.shapes)
        if others:
            raise RecipeError(
                f"steps of this recipe have rows of {[s.seq_len for s in shapes]} tokens, in turns; "
                "an element spec is of one: use pack instead of bucket, or take the shapes from the batches"
            )
        tree, forms, specs = self._fields()
        types = field_shapes(forms[first.seq_len], first.rows, self._graph.slots(tree, first.rows))
        return self._view.element_spec(types, specs, tree)

    def _fields(self) -> tuple[Any, Any, Any]:
        """Place tree, row formats by length and specs by field; raises RecipeError where they do not fit."""
        tree = self._graph.place_tree(self._view.layout(self._graph))
        forms = row_formats(self._graph, tree)
        given = self._view.plain_specs(self._specs or {})
        specs = field_specs(given, self._graph, tree, global_shapes(self._graph, tree, forms))
        self._view.emitter(specs, tree, self._graph)
        return tree, forms, specs

    def open(self, position: Position, bookmark: Bookmark | None) -> DataLoader:
        """A DataLoader that is about to deliver the position's step, or the one before, to check it by.

        Args:
            position: where to stand.
            bookmark: a saved state not behind it, to go on from.
        """
        loader = DataLoader(self._recipe, mesh=self._view, specs=self._specs, **self._options)
        try:
            if not self._open_journal(loader, position.step) and bookmark is not None:
                bookmark.restore(loader)
            first = position.step - (position.plan_digest != NO_DIGEST)
            if first > loader.next_step:
                loader.skip_to(first)
        except BaseException:
            loader.close()
            raise
        return loader

    def _open_journal(self, loader: DataLoader, step: int) -> bool:
        """Go on from the journal where it has this step; whether it has."""
        folder = self._options.get("journal")
        if folder is None or step == 0:
            return False
        try:
            loader.restore_journal(Path(folder), step)
        except CheckpointError:
            return False
        return True


_NOT_IN_WORKERS = (
    "its loaders are threads or ranks of their own already. Leave mp_prefetch out; for more readers raise "
    "num_loaders or threads_per_loader (alone) or `msdata launch --loaders`"
)


def _check_options(options: Mapping[str, Any]) -> None:
    known = set(inspect.signature(DataLoader).parameters) - {"recipe", "mesh", "specs"}
    if unknown := sorted(options.keys() - known):
        raise RecipeError(f"a DataLoader has no option {unknown}; it has {sorted(known)}")
    if options.get("plan_log") is not None:
        raise RecipeError(
            "a plan log is of one run from end to end, and an MSDataset may begin several times; log the "
            "plans of a DataLoader, or say `msdata launch --plan-log`"
        )
