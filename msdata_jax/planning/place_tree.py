"""The device mesh as a tree of places, without any framework.

A place is a device; it has a coordinate along every axis and belongs to a process. The tree answers what
each place and process needs of an array under a partition spec, and who feeds whom.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from msdata_jax.errors import RecipeError

Axes: TypeAlias = str | tuple[str, ...] | None
Spec: TypeAlias = tuple[Axes, ...]
"""One entry per array dim: the mesh axes that it is cut along, as in `jax.sharding.PartitionSpec`."""


@dataclass(frozen=True, kw_only=True)
class MeshLayout:
    """A device mesh in plain values.

    Attributes:
        axis_names: names, outermost first.
        axis_sizes: devices along each axis.
        process_of_device: process index of each device, in C order of the mesh.
    """

    axis_names: tuple[str, ...]
    axis_sizes: tuple[int, ...]
    process_of_device: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse layouts whose parts do not fit together."""
        if len(self.axis_names) != len(self.axis_sizes) or len(set(self.axis_names)) != len(self.axis_names):
            raise RecipeError(
                f"a mesh has one size for each of its distinct axes, got {self.axis_names}, {self.axis_sizes}"
            )
        if math.prod(self.axis_sizes) != len(self.process_of_device):
            raise RecipeError(
                f"a mesh of {self.axis_sizes} has {math.prod(self.axis_sizes)} devices, "
                f"got {len(self.process_of_device)}"
            )

    @property
    def num_processes(self) -> int:
        """Number of processes that own devices of the mesh."""
        return len(set(self.process_of_device))


def single_process_layout(axis_names: Sequence[str]) -> MeshLayout:
    """One device of one process, on every axis at coordinate 0."""
    return MeshLayout(axis_names=tuple(axis_names), axis_sizes=(1,) * len(axis_names), process_of_device=(0,))


@dataclass(frozen=True)
class ClientPlaceTree:
    """What each device and process needs, and who feeds whom.

    Attributes:
        layout: the mesh.
        broadcast_axes: axes along which one process feeds its peers.
    """

    layout: MeshLayout
    broadcast_axes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse to broadcast along an axis that is not there."""
        self.axis_size(self.broadcast_axes)

    def axis_size(self, axes: Axes) -> int:
        """Number of parts that `axes` cut a dim into; 1 for None.

        Raises:
            RecipeError: the mesh has no such axis.
        """
        size = 1
        for axis in axes_tuple(axes):
            if axis not in self.layout.axis_names:
                raise RecipeError(f"the mesh has axes {self.layout.axis_names}; it has no axis {axis!r}")
            size *= self.layout.axis_sizes[self.layout.axis_names.index(axis)]
        return size

    @cached_property
    def _coordinates(self) -> np.ndarray:
        """int64 `[devices, axes]`."""
        sizes = self.layout.axis_sizes
        return np.indices(sizes).reshape(len(sizes), math.prod(sizes)).T  # [axes, *mesh] -> [devices, axes]

    def part_of_devices(self, axes: Axes) -> np.ndarray:
        """int64 `[devices]`: which of the `axis_size(axes)` parts each device holds; first axis outermost."""
        self.axis_size(axes)
        part = np.zeros(len(self.layout.process_of_device), dtype=np.int64)
        for axis in axes_tuple(axes):
            column = self.layout.axis_names.index(axis)
            part = part * self.layout.axis_sizes[column] + self._coordinates[:, column]
        return part

    def check_spec(self, name: str, spec: Spec, shape: Sequence[int]) -> None:
        """Raise RecipeError where an array of `shape` cannot be cut by `spec` into equal windows."""
        if len(spec) > len(shape):
            raise RecipeError(
                f"specs[{name!r}] = {spec} has more entries than the array's shape {tuple(shape)}"
            )
        used = [axis for axes in spec for axis in axes_tuple(axes)]
        if len(set(used)) != len(used):
            raise RecipeError(f"specs[{name!r}] = {spec} uses an axis twice")
        for dim, axes in enumerate(spec):
            parts = self.axis_size(axes)
            if shape[dim] % parts:
                raise RecipeError(
                    f"specs[{name!r}] cuts dim {dim} of size {shape[dim]} along {axes!r} into {parts} equal "
                    f"parts; {shape[dim]} does not divide by {parts}"
                )

    def windows(self, spec: Spec, shape: Sequence[int]) -> list[tuple[slice, ...]]:
        """The window of an array of `shape` that each device holds under `spec`, in C order of the mesh."""
        self.check_spec("array", spec, shape)
        padded = (*spec, *(None,) * (len(shape) - len(spec)))
        slices_of_dim = []
        for axes, size in zip(padded, shape, strict=True):
            extent = size // self.axis_size(axes)
            parts = self.part_of_devices(axes).tolist()
            slices_of_dim.append([slice(part * extent, (part + 1) * extent) for part in parts])
        return [
            tuple(slices[device] for slices in slices_of_dim)
            for device in range(len(self.layout.process_of_device))
        ]

    def rows_of_process(self, process: int, axes: Axes, num_rows: int) -> np.ndarray:
        """int64, increasing: rows of the global batch that a process holds any part of.

        Args:
            process: process index.
            axes: the spec's entry for the row dim.
            num_rows: rows of the global batch.
        """
        mine = np.asarray(self.layout.process_of_device) == process
        size = num_rows // self.axis_size(axes)
        parts = np.unique(self.part_of_devices(axes)[mine])
        return (parts[:, None] * size + np.arange(size)).reshape(-1)

    def leader_of_process(self, process: int) -> int:
        """The process that feeds `process`: the first one that differs from it along broadcast axes only."""
        return min(self.peers_of_process(process))

    def peers_of_process(self, process: int) -> list[int]:
        """Processes, itself among them, that hold the same coordinates on all but the broadcast axes."""
        others = [i for i, axis in enumerate(self.layout.axis_names) if axis not in self.broadcast_axes]
        owner = np.asarray(self.layout.process_of_device)

        def places(p: int) -> frozenset[tuple[int, ...]]:
            return frozenset(map(tuple, self._coordinates[owner == p][:, others].tolist()))

        mine = places(process)
        return [p for p in sorted(set(self.layout.process_of_device)) if places(p) == mine]


def axes_tuple(axes: Axes) -> tuple[str, ...]:
    """The axes of one entry of a spec, outermost first; none for None."""
    return () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
