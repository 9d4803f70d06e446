"""From a `DeviceMesh` and placements to the plain values that the planner understands, and back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard

from msdata_jax.errors import LaunchError, RecipeError
from msdata_jax.meshes import NO_MESH_IS_FOR
from msdata_jax.planning.graph import DGraph
from msdata_jax.planning.place_tree import Axes, ClientPlaceTree, MeshLayout, Spec, axes_tuple
from msdata_jax.runtime.fields import layout_without_mesh
from msdata_jax.runtime.job import current_job
from msdata_jax.torch.tensors import TensorEmitter

if TYPE_CHECKING:
    from msdata_jax.meshes import Complete, Emit


@dataclass(frozen=True)
class TorchMesh:
    """A `DeviceMesh` for `DataLoader(mesh=...)`, and what its batches are made of.

    `DataLoader(mesh=device_mesh)` is short for `DataLoader(mesh=TorchMesh(device_mesh))`: each process gets
    its own window of every field as a tensor on the CPU.

    Attributes:
        device_mesh: over all training processes, its dims named; None for one process that uses no
            `torch.distributed`, and gets the whole batch.
        dtensor: deliver `DTensor`s over `device_mesh`, placed as the specs say.
        device: where tensors are moved to, on the current stream of the thread that takes the batch; None
            leaves them on the CPU, and takes DTensors to where their mesh is.
        pin_memory: hold tensors in page-locked memory, ahead of their use, where torch sees an accelerator;
            moves to it then do not wait.

    Raises:
        RecipeError: it is no DeviceMesh; or there are to be DTensors without a mesh.
    """

    device_mesh: DeviceMesh | None = None
    dtensor: bool = False
    device: torch.device | str | None = None
    pin_memory: bool = False

    def __post_init__(self) -> None:
        """Refuse what is no mesh, and what does not fit together."""
        if not isinstance(self.device_mesh, DeviceMesh | None):
            raise RecipeError(
                "a torch mesh is a torch.distributed.device_mesh.DeviceMesh, made by init_device_mesh, got "
                f"{self.device_mesh!r:.200}"
            )
        if self.dtensor and self.device_mesh is None:
            raise RecipeError("DTensors lie on a mesh: TorchMesh(init_device_mesh(...), dtensor=True)")

    # --- as a DataLoader sees it (`msdata_jax.meshes.MeshEdge`) -------------------------------------------

    @property
    def is_for(self) -> str:
        """What the number of the mesh's processes says, for people."""
        return NO_MESH_IS_FOR if self.device_mesh is None else "the mesh has devices of"

    def way_out(self, *, in_job: bool) -> str:
        """What to do where the mesh is not over all training processes."""
        if self.device_mesh is None:
            return "give TorchMesh(device_mesh) over them"
        if in_job:
            return "build the mesh over all of them, behind msdata_jax.torch.initialize()"
        return (
            "start them with `msdata launch` or `msdata serve`, and call msdata_jax.torch.initialize() first"
        )

    def layout(self, graph: DGraph) -> MeshLayout:
        """The mesh in plain values. Errors as `layout_of`."""
        if self.device_mesh is None:
            return layout_without_mesh(graph)
        _check_rank()
        return layout_of(self.device_mesh)

    def plain_specs(self, specs: Mapping[str, Any]) -> dict[str, Spec]:
        """Specs of axis names, and placements, as tuples of axis names."""
        if self.device_mesh is None and specs:
            raise RecipeError(f"specs {sorted(specs)} need a mesh: TorchMesh(init_device_mesh(...))")
        names = tuple((self.device_mesh and self.device_mesh.mesh_dim_names) or ())
        return {name: plain_spec(name, spec, names) for name, spec in specs.items()}

    def emitter(
        self, specs: Mapping[str, Spec], tree: ClientPlaceTree, graph: DGraph
    ) -> "tuple[Emit, Complete]":
        """What makes tensors of a step's rows ahead of its use, and what moves and places them.

        Raises:
            RecipeError: rows were to be completed by a collective on the devices; or DTensors are asked for
                and a spec has no placements.
        """
        if graph.broadcast.axes and graph.broadcast.via == "device":
            raise RecipeError(
                f"broadcast_at{graph.broadcast.axes} with via='device' completes batches in JAX; on a torch "
                "mesh let the hosts pass samples on: broadcast_at(..., via='host')"
            )
        emitter = TensorEmitter(
            device_of_process=dist.get_rank() if self.device_mesh is not None else 0,
            specs=specs,
            tree=tree,
            device=self._device(),
            pin_memory=self.pin_memory and torch.accelerator.is_available(),
        )
        mesh = self.device_mesh
        if mesh is None or not self.dtensor:
            return emitter.emit, emitter.complete
        placements = {name: placements_of(name, spec, tree.layout.axis_names) for name, spec in specs.items()}
        return emitter.emit, lambda tensors: emitter.complete_on(tensors, mesh, placements)

    def _device(self) -> torch.device | None:
        if self.device is not None:
            return torch.device(self.device)
        return torch.device(self.device_mesh.device_type) if self.dtensor and self.device_mesh else None


def layout_of(device_mesh: DeviceMesh) -> MeshLayout:
    """The mesh in plain values: axes, sizes, and the process of every device, which is its rank.

    Raises:
        RecipeError: its dims have no names.
        LaunchError: its ranks are not those of all processes, each once.
    """
    if not device_mesh.mesh_dim_names:
        raise RecipeError(
            f"a DeviceMesh needs names of its dims, which strategies and specs speak of; this one of shape "
            f'{tuple(device_mesh.mesh.shape)} has none: init_device_mesh(..., mesh_dim_names=("dp", "tp"))'
        )
    ranks = device_mesh.mesh.flatten().tolist()
    world_size = dist.get_world_size()
    if sorted(ranks) != list(range(world_size)):
        raise LaunchError(
            f"a DeviceMesh holds each rank from 0 to {world_size - 1} once, for batches go to all training "
            f"processes; this one of dims {device_mesh.mesh_dim_names} holds {ranks}: give the whole mesh, "
            "not a part of it"
        )
    return MeshLayout(
        axis_names=tuple(device_mesh.mesh_dim_names),
        axis_sizes=tuple(device_mesh.mesh.shape),
        process_of_device=tuple(ranks),
    )


def plain_spec(name: str, spec: Any, axis_names: Sequence[str]) -> Spec:
    """A tuple of axis names for each dim of an array, from such a tuple or from a placement for each axis.

    Args:
        name: of the field, for errors.
        spec: as `jax.sharding.PartitionSpec` has it, or as `DTensor` has it.
        axis_names: of the mesh, outermost first.

    Raises:
        RecipeError: it is neither.
    """
    entries = None if isinstance(spec, str) or not isinstance(spec, Sequence) else tuple(spec)
    if entries is not None and any(isinstance(each, Placement) for each in entries):
        return _spec_of_placements(name, entries, axis_names)
    if entries is None or not all(map(_is_entry, entries)):
        raise RecipeError(
            f"specs[{name!r}] = {spec!r} is no spec: name the mesh dims that cut each dim of the field, "
            f"(('dp', None) or so), or give placements, [Shard(0), Replicate()] or so"
        )
    return tuple(tuple(each) if isinstance(each, list) else each for each in entries)


def _is_entry(entry: object) -> bool:
    if entry is None or isinstance(entry, str):
        return True
    return isinstance(entry, tuple | list) and all(isinstance(each, str) for each in entry)


def _spec_of_placements(name: str, placements: Sequence[Any], axis_names: Sequence[str]) -> Spec:
    if len(placements) != len(axis_names):
        raise RecipeError(
            f"specs[{name!r}] has {len(placements)} placements on a mesh of {tuple(axis_names)}: one for each"
        )
    axes_of_dim: dict[int, tuple[str, ...]] = {}
    for axis, placement in zip(axis_names, placements, strict=True):
        if type(placement) is Shard and placement.dim >= 0:
            axes_of_dim[placement.dim] = (*axes_of_dim.get(placement.dim, ()), axis)
        elif type(placement) is not Replicate:
            raise RecipeError(
                f"specs[{name!r}] has the placement {placement!r} along {axis!r}: a batch is cut by "
                "Shard(dim) with a dim from 0 up, or repeated by Replicate()"
            )
    return tuple(_entry(axes_of_dim.get(dim, ())) for dim in range(max(axes_of_dim, default=-1) + 1))


def _entry(axes: tuple[str, ...]) -> Axes:
    return axes if len(axes) > 1 else axes[0] if axes else None


def placements_of(name: str, spec: Spec, axis_names: Sequence[str]) -> list[Placement]:
    """A placement for each axis of the mesh.

    Args:
        name: of the field, for errors.
        spec: the axes that cut each dim.
        axis_names: of the mesh, outermost first.

    Raises:
        RecipeError: a dim is cut along several axes in another order than the mesh has them.
    """
    dim_of = {axis: dim for dim, axes in enumerate(spec) for axis in axes_tuple(axes)}
    for axes in map(axes_tuple, spec):
        in_order = tuple(axis for axis in axis_names if axis in axes)
        if axes != in_order:
            raise RecipeError(
                f"specs[{name!r}] cuts a dim along {axes}; DTensors are cut in the order of the mesh, "
                f"{in_order}: name the axes so, or take plain tensors"
            )
    return [Shard(dim_of[axis]) if axis in dim_of else Replicate() for axis in axis_names]


def _check_rank() -> None:
    """Refuse ranks of `torch.distributed` that are other than those of the job."""
    job = current_job()
    if job is not None and (dist.get_rank(), dist.get_world_size()) != (job.process_index, job.num_processes):
        raise LaunchError(
            f"torch.distributed calls this process {dist.get_rank()} of {dist.get_world_size()}; among the "
            f"training processes of the job it is {job.process_index} of {job.num_processes}: let "
            "msdata_jax.torch.initialize() start torch.distributed, over the training processes alone"
        )
