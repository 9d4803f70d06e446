"""From a `jax.sharding.Mesh` and PartitionSpecs to the plain values that the planner understands."""

from collections.abc import Mapping

from jax.sharding import Mesh, PartitionSpec

from msdata_jax.errors import RecipeError
from msdata_jax.planning.place_tree import Axes, MeshLayout, Spec


def layout_of(mesh: Mesh) -> MeshLayout:
    """The mesh in plain values: axes, sizes, and the process of every device."""
    return MeshLayout(
        axis_names=tuple(str(name) for name in mesh.axis_names),
        axis_sizes=tuple(mesh.devices.shape),
        process_of_device=tuple(device.process_index for device in mesh.devices.flat),
    )


def plain_spec(spec: PartitionSpec) -> Spec:
    """A PartitionSpec as a tuple.

    Raises:
        RecipeError: an entry is neither None, an axis nor a tuple of axes.
    """
    entries: list[Axes] = []
    for entry in spec:
        if entry is None or isinstance(entry, str):
            entries.append(entry)
        elif isinstance(entry, tuple):
            entries.append(tuple(str(axis) for axis in entry))
        else:
            raise RecipeError(f"a batch field is cut along mesh axes; {spec} has the entry {entry!r}")
    return tuple(entries)


def plain_specs(specs: Mapping[str, PartitionSpec]) -> dict[str, Spec]:
    """All specs as tuples."""
    return {name: plain_spec(spec) for name, spec in specs.items()}
