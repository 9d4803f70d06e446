"""Rows of one process to global `jax.Array`s in the trainer's own sharding, without any collective."""

from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from msdata_jax.planning.place_tree import Spec


class ArrayEmitter:
    """Makes the global arrays of a step.

    Arrays on the CPU may share memory with the rows they were made from; those rows are fresh in every step
    and never written again.

    Args:
        mesh: the trainer's mesh, of Auto or Explicit axes.
        specs: for each field, the mesh axes that cut its dims.
        shapes: for each field, the global shape.
        rows: int64 `[process rows]`, rows of the global batch that this process holds, increasing.
    """

    def __init__(
        self,
        mesh: Mesh,
        specs: Mapping[str, Spec],
        shapes: Mapping[str, tuple[int, ...]],
        rows: np.ndarray,
    ) -> None:
        self._rows = rows
        self._shapes = dict(shapes)
        self.shardings = {name: NamedSharding(mesh, PartitionSpec(*specs[name])) for name in shapes}

    def emit(self, fields: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """Global arrays from the process's rows; any thread may call it."""
        return {name: self._emit(name, field) for name, field in fields.items()}

    def _emit(self, name: str, field: np.ndarray) -> jax.Array:
        shape = self._shapes[name]
        windows: dict[tuple[tuple[int, int], ...], np.ndarray] = {}

        def window(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None  # JAX gives one for every array that has dims
            bounds = tuple(each.indices(size)[:2] for each, size in zip(index, shape, strict=True))
            if bounds not in windows:
                first = int(np.searchsorted(self._rows, bounds[0][0]))
                stop = first + bounds[0][1] - bounds[0][0]
                windows[bounds] = np.ascontiguousarray(field[(slice(first, stop), *index[1:])])
            return windows[bounds]

        return jax.make_array_from_callback(shape, self.shardings[name], window)
