"""What a DataLoader asks of the framework whose mesh it is given. No framework is imported before that."""

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from msdata_jax.errors import RecipeError
from msdata_jax.planning.graph import DGraph
from msdata_jax.planning.place_tree import ClientPlaceTree, MeshLayout, Spec
from msdata_jax.runtime.fields import layout_without_mesh

if TYPE_CHECKING:
    from jax.sharding import Mesh, PartitionSpec

Emit: TypeAlias = Callable[[Mapping[str, np.ndarray]], Mapping[str, Any]]
"""Makes arrays of the rows of a step that this process holds; any thread may call it."""

Complete: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Makes of them what the trainer gets; on the training thread, in order of the steps."""

NO_MESH_IS_FOR = "without a mesh a batch is for"


@runtime_checkable
class MeshEdge(Protocol):
    """A mesh of some framework, or the lack of one, as a DataLoader sees it."""

    @property
    def is_for(self) -> str:
        """The beginning of a sentence that goes on with the number of its processes, for people."""
        ...

    def way_out(self, *, in_job: bool) -> str:
        """What to do where the mesh is not over all training processes, for people.

        Args:
            in_job: whether this process joined a job of several ranks.
        """
        ...

    def layout(self, graph: DGraph) -> MeshLayout:
        """The mesh in plain values.

        Raises:
            RecipeError: the mesh lacks what the planner needs, such as names of its axes.
            LaunchError: it is not over the processes of the job.
        """
        ...

    def plain_specs(self, specs: Mapping[str, Any]) -> dict[str, Spec]:
        """The framework's own specs as tuples.

        Raises:
            RecipeError: a spec is none.
        """
        ...

    def emitter(
        self, specs: Mapping[str, Spec], tree: ClientPlaceTree, graph: DGraph
    ) -> tuple[Emit, Complete]:
        """What makes arrays of a step's rows ahead of its use, and what completes them.

        Args:
            specs: of every field, with an entry for each dim.
            tree: the mesh.
            graph: the strategy.

        Raises:
            RecipeError: the framework cannot deliver what specs or strategy ask for.
        """
        ...


def edge_of(mesh: Any) -> MeshEdge:
    """The edge of a mesh, or of None.

    Raises:
        RecipeError: it is no mesh that is known here.
    """
    if mesh is None:
        return _NoMesh()
    homes = {each.__module__.partition(".")[0] for each in type(mesh).__mro__}
    if "jax" in homes:
        return _JaxMesh(mesh)
    if "torch" in homes:
        # By name, for that package is built on DataLoader and so stands above this module.
        return importlib.import_module("msdata_jax.torch.mesh").TorchMesh(mesh)
    if isinstance(mesh, MeshEdge):
        return mesh
    raise RecipeError(
        "mesh= takes a jax.sharding.Mesh, a torch.distributed.device_mesh.DeviceMesh or a "
        f"msdata_jax.torch.TorchMesh, got {mesh!r:.200}"
    )


def as_is(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, unchanged."""
    return dict(fields)


class _NoMesh:
    """The numpy rows of the whole batch, for one process."""

    is_for = NO_MESH_IS_FOR

    def way_out(self, *, in_job: bool) -> str:
        return "give DataLoader(mesh=...) over them"

    def layout(self, graph: DGraph) -> MeshLayout:
        return layout_without_mesh(graph)

    def plain_specs(self, specs: Mapping[str, Any]) -> dict[str, Spec]:
        if specs:
            raise RecipeError(f"specs {sorted(specs)} need a mesh: DataLoader(recipe, mesh=..., specs=...)")
        return {}

    def emitter(
        self, specs: Mapping[str, Spec], tree: ClientPlaceTree, graph: DGraph
    ) -> tuple[Emit, Complete]:
        return as_is, as_is


class _JaxMesh:
    """Global `jax.Array`s; JAX is imported here and nowhere else in this module."""

    is_for = "the mesh has devices of"

    def __init__(self, mesh: "Mesh") -> None:
        self._mesh = mesh
        self._written: Mapping[Spec, Spec] = {}

    def way_out(self, *, in_job: bool) -> str:
        if in_job:
            return "build the mesh from jax.devices() of all of them"
        return "start them with `msdata launch` or `msdata serve`, and call msd.initialize() first"

    def layout(self, graph: DGraph) -> MeshLayout:
        from msdata_jax.spmd.mesh import layout_of

        return layout_of(self._mesh)

    def plain_specs(self, specs: "Mapping[str, PartitionSpec]") -> dict[str, Spec]:
        from msdata_jax.spmd.mesh import plain_specs

        plain = plain_specs(specs)
        self._written = {_without_trailing_none(spec): spec for spec in plain.values()}
        return plain

    def emitter(
        self, specs: Mapping[str, Spec], tree: ClientPlaceTree, graph: DGraph
    ) -> tuple[Emit, Complete]:
        if graph.broadcast.axes and graph.broadcast.via == "device":
            from msdata_jax.spmd.broadcast import BroadcastEmitter

            broadcast = BroadcastEmitter(self._mesh, specs, tree)
            return broadcast.emit_local, broadcast.complete
        from msdata_jax.spmd.arrays import ArrayEmitter

        # JAX tells P("dp") from P("dp", None), so arrays come in specs as the user writes them.
        as_written = {
            name: self._written.get(_without_trailing_none(spec), spec) for name, spec in specs.items()
        }
        return ArrayEmitter(self._mesh, as_written).emit, as_is


def _without_trailing_none(spec: Spec) -> Spec:
    while spec and spec[-1] is None:
        spec = spec[:-1]
    return spec
