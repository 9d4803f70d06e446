"""Rows of one process to global `jax.Array`s in the trainer's own sharding, without any collective."""

from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from msdata_jax.planning.place_tree import Axes, ClientPlaceTree, Spec, axes_tuple
from msdata_jax.spmd.mesh import layout_of

Index = tuple[slice, ...]


class ProcessRows:
    """The rows of global arrays that this process holds, for any number of rows.

    Args:
        mesh: the trainer's mesh.
        axes: the mesh axes that cut the rows.
    """

    def __init__(self, mesh: Mesh, axes: Axes) -> None:
        self._tree, self._axes = ClientPlaceTree(layout_of(mesh)), axes
        self._process = jax.process_index()
        self._num_parts = len(self._tree.parts_of_process(self._process, axes))
        self._rows: dict[int, np.ndarray] = {}

    def global_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the global array of which this process holds rows of `shape`.

        Raises:
            ValueError: the rows are not equally many for each part that the process holds.
        """
        rows_per_part, rest = divmod(shape[0], self._num_parts)
        if rest:
            raise ValueError(f"{shape[0]} rows for {self._num_parts} parts of the global batch")
        return (rows_per_part * self._tree.axis_size(self._axes), *shape[1:])

    def window(self, field: np.ndarray, num_rows: int, index: Index) -> np.ndarray:
        """The window `index` of a global array of `num_rows` rows, from the rows of this process."""
        if num_rows not in self._rows:
            self._rows[num_rows] = self._tree.rows_of_process(self._process, self._axes, num_rows)
        first, stop, _ = index[0].indices(num_rows)
        local = int(np.searchsorted(self._rows[num_rows], first))
        return np.ascontiguousarray(field[(slice(local, local + stop - first), *index[1:])])


class ArrayEmitter:
    """Makes the global arrays of a step. Their shapes follow from the rows, and may differ from step to step.

    Arrays on the CPU may share memory with the rows they were made from; those rows are fresh in every step
    and never written again.

    Args:
        mesh: the trainer's mesh, of Auto or Explicit axes.
        specs: for each field, the mesh axes that cut its dims.
    """

    def __init__(self, mesh: Mesh, specs: Mapping[str, Spec]) -> None:
        row_axes = {name: axes_tuple(spec[0] if spec else None) for name, spec in specs.items()}
        rows_of_axes = {axes: ProcessRows(mesh, axes) for axes in set(row_axes.values())}
        self.rows = {name: rows_of_axes[axes] for name, axes in row_axes.items()}
        self.shardings = {name: NamedSharding(mesh, PartitionSpec(*spec)) for name, spec in specs.items()}

    def emit(self, fields: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """Global arrays from the process's rows; any thread may call it.

        Args:
            fields: for each field, the rows of the global batch that this process holds, increasing.

        Raises:
            ValueError: the rows are not equally many for each part that the process holds.
        """
        return {name: self._emit(name, field) for name, field in fields.items()}

    def _emit(self, name: str, field: np.ndarray) -> jax.Array:
        rows = self.rows[name]
        shape = rows.global_shape(field.shape)
        windows: dict[tuple[tuple[int, int], ...], np.ndarray] = {}

        def window(index: Index | None) -> np.ndarray:
            assert index is not None  # JAX gives one for every array that has dims
            bounds = tuple(each.indices(size)[:2] for each, size in zip(index, shape, strict=True))
            if bounds not in windows:
                windows[bounds] = rows.window(field, shape[0], index)
            return windows[bounds]

        return jax.make_array_from_callback(shape, self.shardings[name], window)
