"""What an element holds: global arrays, the rows of this process, or the fields of a MaxText-style batch.

Each view is a mesh, as a DataLoader takes one (`meshes.MeshEdge`), which also knows the shapes of its fields.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from msdata_jax.errors import RecipeError
from msdata_jax.meshes import Complete, Emit, MeshEdge, as_is, edge_of
from msdata_jax.planning.graph import DGraph
from msdata_jax.planning.place_tree import ClientPlaceTree, MeshLayout, Spec

FieldTypes = Mapping[str, tuple[tuple[int, ...], np.dtype]]
"""Shape and dtype of every field of the whole batch."""

INPUTS_AND_TARGETS = {
    "inputs": "tokens",
    "inputs_position": "positions",
    "inputs_segmentation": "segment_ids",
    "targets": "targets",
    "targets_position": "positions",
    "targets_segmentation": "segment_ids",
}
"""Fields of a MaxText-style batch and those of ours that they are, but where a target does not count."""


class GlobalArrays(MeshEdge):
    """Global arrays in the trainer's sharding; without a mesh the numpy rows of the whole batch."""

    def __init__(self, mesh: Any) -> None:
        self._mesh, self._edge = mesh, edge_of(mesh)

    @property
    def is_for(self) -> str:
        return self._edge.is_for

    def way_out(self, *, in_job: bool) -> str:
        return self._edge.way_out(in_job=in_job)

    def layout(self, graph: DGraph) -> MeshLayout:
        return self._edge.layout(graph)

    def plain_specs(self, specs: Mapping[str, Any]) -> dict[str, Spec]:
        return self._edge.plain_specs(specs)

    def emitter(
        self, specs: Mapping[str, Spec], tree: ClientPlaceTree, graph: DGraph
    ) -> tuple[Emit, Complete]:
        return self._edge.emitter(specs, tree, graph)

    def element_spec(
        self, types: FieldTypes, specs: Mapping[str, Spec], tree: ClientPlaceTree
    ) -> dict[str, Any]:
        """Shape and dtype of each field of an element: `jax.ShapeDtypeStruct`s.

        Args:
            types: of the fields of the whole batch.
            specs: of those fields, with an entry for each dim.
            tree: the mesh.
        """
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        def sharding(spec: Spec) -> NamedSharding | None:
            return NamedSharding(self._mesh, PartitionSpec(*spec)) if isinstance(self._mesh, Mesh) else None

        return {
            name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding(specs[name]))
            for name, (shape, dtype) in types.items()
        }


class HostRows(GlobalArrays):
    """The numpy rows of the global batch that this process holds; each row is whole."""

    def emitter(
        self, specs: Mapping[str, Spec], tree: ClientPlaceTree, graph: DGraph
    ) -> tuple[Emit, Complete]:
        """The rows as they are.

        Raises:
            RecipeError: the strategy completes batches on the devices.
        """
        if graph.broadcast.axes and graph.broadcast.via == "device":
            raise RecipeError(
                f"broadcast_at{graph.broadcast.axes} with via='device' brings rows to one process of each "
                "group and completes them on the devices; for numpy rows say via='host'"
            )
        return as_is, as_is

    def element_spec(
        self, types: FieldTypes, specs: Mapping[str, Spec], tree: ClientPlaceTree
    ) -> dict[str, Any]:
        """As of the whole batch."""
        import jax

        process = jax.process_index() if len(tree.processes) > 1 else min(tree.processes)
        elements = {}
        for name, ((num_rows, *others), dtype) in types.items():
            rows = tree.rows_of_process(process, specs[name][0], num_rows)
            elements[name] = jax.ShapeDtypeStruct((len(rows), *others), dtype)
        return elements


class InputsAndTargets(GlobalArrays):
    """The fields of a MaxText-style batch as global arrays; images keep their names.

    Args:
        mesh: the model's.
        spec: the model's own, so that arrays come in the very sharding that it would put them into.
    """

    def __init__(self, mesh: Any, spec: Any = None) -> None:
        super().__init__(mesh)
        given = self.plain_specs({} if spec is None else {"tokens": spec})
        self._given = dict.fromkeys(INPUTS_AND_TARGETS, given["tokens"]) if given else {}

    def emitter(
        self, specs: Mapping[str, Spec], tree: ClientPlaceTree, graph: DGraph
    ) -> tuple[Emit, Complete]:
        """As that of the mesh, under other names.

        Raises:
            RecipeError: the strategy weighs targets, which these fields cannot say.
        """
        losses = graph.losses
        if losses.per != "tokens" or not set(losses.sources.values()) <= {0, 1}:
            raise RecipeError(
                f"a MaxText-style batch has no weights for its targets, only targets that count and others; "
                f"the strategy says loss(per={losses.per!r}, sources={dict(losses.sources)!r}). Leave it "
                "out, say factors 0 and 1 alone, or iterate over an MSDataset"
            )
        emit, complete = self._edge.emitter(_renamed(specs) | self._given, tree, graph)
        return lambda fields: emit(_as_inputs_and_targets(fields)), complete

    def element_spec(
        self, types: FieldTypes, specs: Mapping[str, Spec], tree: ClientPlaceTree
    ) -> dict[str, Any]:
        """As of the whole batch."""
        return super().element_spec(_renamed(types), _renamed(specs) | self._given, tree)


def _renamed(fields: Mapping[str, Any]) -> dict[str, Any]:
    named = {name: fields[ours] for name, ours in INPUTS_AND_TARGETS.items()}
    return named | {name: fields[name] for name in fields.keys() - _OURS}


def _as_inputs_and_targets(fields: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    counts = fields["loss_mask"] > 0
    return _renamed(fields) | {"targets_segmentation": np.where(counts, fields["segment_ids"], 0)}


_OURS = {*INPUTS_AND_TARGETS.values(), "loss_mask"}
