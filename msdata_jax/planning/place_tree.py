"""The device mesh as a tree of places, without any framework.

A place is a device; it has a coordinate along every axis and belongs to a process. The tree answers what
each place and process needs of an array under a partition spec, and who feeds whom. Any order of axes will
do, and processes may own any devices.
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

WORLD = "world"
"""All axes of a mesh, wherever axes are named."""


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
        if any(size < 1 for size in self.axis_sizes):
            raise RecipeError(f"every axis of a mesh has at least 1 device, got {self.axis_sizes}")
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

    Wherever axes are named, `"world"` stands for all of them, outermost first.

    Attributes:
        layout: the mesh.
        broadcast_axes: axes along which one process feeds its peers.
        pipeline_axis: the axis of the pipeline stages. Only the first and the last stage read the batch;
            processes in between need its shapes only.

    Raises:
        RecipeError: the mesh has no such axis, or an axis is named twice.
    """

    layout: MeshLayout
    broadcast_axes: tuple[str, ...] = ()
    pipeline_axis: str | None = None

    def __post_init__(self) -> None:
        """Refuse axes that are not there."""
        self.axes(self.broadcast_axes)
        self.axes(self.pipeline_axis)

    # --- axes -------------------------------------------------------------------------------------------

    def axes(self, axes: Axes) -> tuple[str, ...]:
        """The axes that an entry of a spec names, outermost first.

        Raises:
            RecipeError: the mesh has no such axis, or an axis is named twice.
        """
        all_axes = self.layout.axis_names
        named: list[str] = []
        for axis in axes_tuple(axes):
            if axis not in all_axes and axis != WORLD:
                raise RecipeError(
                    f"the mesh has axes {all_axes}; it has no axis {axis!r}: name one of them, or {WORLD!r} "
                    "for all"
                )
            named += [axis] if axis in all_axes else all_axes
        if len(set(named)) != len(named):
            raise RecipeError(f"{axes!r} uses an axis twice on a mesh of {all_axes}; name each once")
        return tuple(named)

    def axis_size(self, axes: Axes) -> int:
        """Number of parts that `axes` cut a dim into; 1 for None.

        Raises:
            RecipeError: the mesh has no such axis, or an axis is named twice.
        """
        size_of = dict(zip(self.layout.axis_names, self.layout.axis_sizes, strict=True))
        return math.prod(size_of[axis] for axis in self.axes(axes))

    def spans_processes(self, axis: str) -> bool:
        """Whether devices that differ along this axis only belong to different processes, somewhere."""
        owner = np.array(self.layout.process_of_device).reshape(self.layout.axis_sizes)
        lines = np.moveaxis(owner, self._column(axis), 0)  # [axis, *others]
        return bool((lines != lines[:1]).any())

    # --- devices ----------------------------------------------------------------------------------------

    def part_of_devices(self, axes: Axes) -> np.ndarray:
        """int64 `[devices]`: which of the `axis_size(axes)` parts each device holds; first axis outermost."""
        return self._parts(self._coordinates, self.axes(axes))

    def check_spec(self, name: str, spec: Spec, shape: Sequence[int]) -> None:
        """Raise RecipeError where an array of `shape` cannot be cut by `spec` into equal windows."""
        if len(spec) > len(shape):
            raise RecipeError(
                f"specs[{name!r}] = {spec} has more entries than the array's shape {tuple(shape)}"
            )
        used = [axis for axes in spec for axis in self.axes(axes)]
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
        """The window of an array of `shape` that each device holds under `spec`, in C order of the mesh.

        Raises:
            RecipeError: `spec` does not cut `shape` into equal windows.
        """
        self.check_spec("array", spec, shape)
        padded = (*spec, *(None,) * (len(shape) - len(spec)))
        slices_of_dim = []
        for axes, size in zip(padded, shape, strict=True):
            parts = self.axis_size(axes)
            extent = size // parts
            slices = [slice(part * extent, (part + 1) * extent) for part in range(parts)]
            slices_of_dim.append([slices[part] for part in self.part_of_devices(axes).tolist()])
        return [tuple(each) for each in zip(*slices_of_dim, strict=True)] or [()] * len(self._coordinates)

    def sending_devices(self) -> np.ndarray:
        """Where the samples enter when devices complete their peers' arrays: bool `[devices]`.

        Of the devices that differ along broadcast axes only, at most one sends: the first that belongs to a
        process with samples. Exactly one does, except between the first and the last pipeline stage.
        """
        owner = np.array(self.layout.process_of_device)
        leaders = [p for p in self.processes if self.needs_data(p) and self.leader_of_process(p) == p]
        able = np.flatnonzero(np.isin(owner, leaders))
        _, first = np.unique(self._parts(self._coordinates[able], self._kept_axes), return_index=True)
        sends = np.zeros(len(owner), dtype=bool)
        sends[able[first]] = True
        return sends

    # --- processes --------------------------------------------------------------------------------------

    @property
    def processes(self) -> tuple[int, ...]:
        """The processes that own devices, increasing."""
        return tuple(self._coordinates_of)

    def parts_of_process(self, process: int, axes: Axes) -> np.ndarray:
        """int64, increasing: the parts, of `axis_size(axes)`, that a process holds; none without devices."""
        held = self._coordinates_of.get(process)
        return np.empty(0, dtype=np.int64) if held is None else np.unique(self._parts(held, self.axes(axes)))

    def rows_of_process(self, process: int, axes: Axes, num_rows: int) -> np.ndarray:
        """int64, increasing: rows of the global batch that a process holds any part of.

        Args:
            process: process index.
            axes: the spec's entry for the row dim.
            num_rows: rows of the global batch.
        """
        size = num_rows // self.axis_size(axes)
        return (self.parts_of_process(process, axes)[:, None] * size + np.arange(size)).reshape(-1)

    def stages_of_process(self, process: int) -> np.ndarray:
        """int64, increasing: pipeline stages that a process holds devices of; only 0 without a pipeline."""
        return self.parts_of_process(process, self.pipeline_axis)

    def needs_data(self, process: int) -> bool:
        """Whether a process holds a device of the first or the last stage; others need shapes only."""
        ends = {0, self.axis_size(self.pipeline_axis) - 1}
        return not ends.isdisjoint(self.stages_of_process(process).tolist())

    def leader_of_process(self, process: int) -> int:
        """The process that feeds `process`: the first of its peers; itself where it needs no data.

        Raises:
            RecipeError: the process has no devices.
        """
        return self.peers_of_process(process)[0]

    def peers_of_process(self, process: int) -> list[int]:
        """Processes, itself among them, that hold the same coordinates on all but the broadcast axes.

        Increasing; those that need no data are nobody's peers.

        Raises:
            RecipeError: the process has no devices.
        """
        if process not in self._peers:
            raise RecipeError(
                f"process {process} has no devices in the mesh; its processes are {self.processes}"
            )
        return list(self._peers[process])

    # --- for people -------------------------------------------------------------------------------------

    def describe(self, spec: Spec | None = None) -> str:
        """The tree, a level a line: axis, size, what it does, and whether it spans processes.

        Args:
            spec: of a `[row, place]` field; without it, what the axes cut is left out.

        Raises:
            RecipeError: the spec names an axis that is not there.
        """
        places = {True: "across processes", False: "inside a process"}
        table = [
            (axis, str(size), self._uses(axis, spec), places[self.spans_processes(axis)])
            for axis, size in zip(self.layout.axis_names, self.layout.axis_sizes, strict=True)
        ]
        lines = [f"{len(self._coordinates)} devices of {len(self.processes)} processes"]
        lines += ["  ".join(cells).rstrip() for cells in _aligned(table)]
        return "\n".join(lines)

    def __str__(self) -> str:
        """The tree, a level a line."""
        return self.describe()

    def _uses(self, axis: str, spec: Spec | None) -> str:
        cut = [
            f"cuts {name}"
            for name, axes in zip(("rows", "places"), spec or (), strict=False)
            if axis in self.axes(axes)
        ]
        uses = cut or (["replicates"] if spec is not None else [])
        uses += ["broadcast"] if axis in self.axes(self.broadcast_axes) else []
        uses += ["pipeline stages"] if axis in self.axes(self.pipeline_axis) else []
        return ", ".join(uses)

    # --- looked up once ---------------------------------------------------------------------------------

    def _column(self, axis: str) -> int:
        return self.layout.axis_names.index(axis)

    @cached_property
    def _coordinates(self) -> np.ndarray:
        """int64 `[devices, axes]`."""
        sizes = self.layout.axis_sizes
        return np.indices(sizes).reshape(len(sizes), math.prod(sizes)).T  # [axes, *mesh] -> [devices, axes]

    @cached_property
    def _coordinates_of(self) -> dict[int, np.ndarray]:
        """For each process, int64 `[its devices, axes]`."""
        owner = np.array(self.layout.process_of_device)
        order = np.argsort(owner, kind="stable")
        processes, first = np.unique(owner[order], return_index=True)
        parts = np.split(self._coordinates[order], first[1:])
        return dict(zip(processes.tolist(), parts, strict=True))

    def _parts(self, coordinates: np.ndarray, axes: tuple[str, ...]) -> np.ndarray:
        """int64 `[devices]` of those with these coordinates; `axes` are plain names."""
        part = np.zeros(len(coordinates), dtype=np.int64)
        for column in map(self._column, axes):
            part = part * self.layout.axis_sizes[column] + coordinates[:, column]
        return part

    @cached_property
    def _kept_axes(self) -> tuple[str, ...]:
        """Axes along which nothing is broadcast."""
        broadcast = self.axes(self.broadcast_axes)
        return tuple(axis for axis in self.layout.axis_names if axis not in broadcast)

    @cached_property
    def _peers(self) -> dict[int, list[int]]:
        groups: dict[bytes | int, list[int]] = {}
        peers = {}
        for process in self.processes:
            held = self.parts_of_process(process, self._kept_axes).tobytes()
            peers[process] = groups.setdefault(held if self.needs_data(process) else process, [])
            peers[process].append(process)
        return peers


def axes_tuple(axes: Axes) -> tuple[str, ...]:
    """The axes of one entry of a spec, outermost first; none for None."""
    return () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)


def _aligned(table: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The cells of a table, each as wide as its column; indented."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [("", *map(str.ljust, row, widths)) for row in table]
