"""What a strategy and a mesh make of the batch: the row format, and a spec for every field. Checked here."""

from collections.abc import Mapping

from msdata_jax.batching.assembly import RowFormat, field_shapes
from msdata_jax.batching.context import context_order
from msdata_jax.errors import RecipeError
from msdata_jax.planning.graph import DGraph
from msdata_jax.planning.place_tree import (
    Axes,
    ClientPlaceTree,
    MeshLayout,
    Spec,
    axes_tuple,
    single_process_layout,
)

Shapes = Mapping[str, tuple[int, ...]]


def layout_without_mesh(graph: DGraph) -> MeshLayout:
    """One device on every axis that the strategy names."""
    axes: list[str] = []
    for each in (graph.distribution.axis, graph.distribution.context_axis, graph.broadcast_axes):
        axes += [axis for axis in axes_tuple(each) if axis not in axes]
    return single_process_layout(axes or ["dp"])


def row_format(graph: DGraph, tree: ClientPlaceTree) -> RowFormat:
    """The static shape of a row on this mesh. Raises RecipeError where rows or places do not divide."""
    graph.check_mesh(tree)
    pack, spread = graph.packing, graph.distribution
    assert pack is not None
    order = context_order(pack.seq_len, tree.axis_size(spread.context_axis), spread.context_layout)
    return RowFormat(
        seq_len=pack.seq_len,
        patches_per_row=pack.patches_per_row,
        patch_values=pack.patch_values,
        context_order=order,
    )


def global_shapes(graph: DGraph, form: RowFormat) -> dict[str, tuple[int, ...]]:
    """The shape of every field of the global batch."""
    assert graph.packing is not None
    return {name: shape for name, (shape, _) in field_shapes(form, graph.packing.rows).items()}


def field_specs(
    given: Mapping[str, Spec], graph: DGraph, tree: ClientPlaceTree, shapes: Shapes
) -> dict[str, Spec]:
    """A spec for every field, with as many entries as the field has dims.

    Fields that are not given follow `tokens`, whose default is the strategy's axes.

    Raises:
        RecipeError: specs name no field, do not divide, or contradict the strategy or one another.
    """
    unknown = sorted(set(given) - set(shapes))
    if unknown:
        raise RecipeError(f"specs name the fields {unknown}; a batch of this recipe has {sorted(shapes)}")
    spread = graph.distribution
    tokens = given.get("tokens", (spread.axis, spread.context_axis))
    plain = {name: tokens if name != "patches" else tokens[:1] for name in shapes} | dict(given)
    specs = {name: (*spec, *(None,) * (len(shapes[name]) - len(spec))) for name, spec in plain.items()}
    for name, spec in specs.items():
        tree.check_spec(name, spec, shapes[name])
        _check_rows(name, spec[0], specs["tokens"][0])
        if name != "patches":
            _check_places(name, spec[1], graph)
    _check_strategy(specs["tokens"][0], graph, tree)
    return specs


def _check_rows(name: str, axes: Axes, axes_of_tokens: Axes) -> None:
    if axes_tuple(axes) != axes_tuple(axes_of_tokens):
        raise RecipeError(
            f"every field cuts its rows alike; specs['tokens'] cuts them along {axes_of_tokens!r}, "
            f"specs[{name!r}] along {axes!r}"
        )


def _check_places(name: str, axes: Axes, graph: DGraph) -> None:
    spread = graph.distribution
    if spread.context_layout == "zigzag" and axes_tuple(axes) != axes_tuple(spread.context_axis):
        raise RecipeError(
            f"distribute(context_axis={spread.context_axis!r}, context_layout='zigzag') orders the "
            f"places for that axis; specs[{name!r}] cuts them along {axes!r}"
        )


def _check_strategy(row_axes: Axes, graph: DGraph, tree: ClientPlaceTree) -> None:
    wanted = axes_tuple(graph.distribution.axis)
    if axes_tuple(row_axes)[: len(wanted)] != wanted:
        raise RecipeError(
            f"distribute({graph.distribution.axis!r}) balances the parts along that axis; "
            f"specs['tokens'] cuts rows along {row_axes!r}"
        )
    broadcast = set(tree.broadcast_axes) & set(axes_tuple(row_axes))
    if broadcast:
        raise RecipeError(
            f"broadcast_at{tree.broadcast_axes} repeats rows along axes that cut them: {sorted(broadcast)}"
        )
