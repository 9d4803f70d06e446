"""What a strategy and a mesh make of the batch: the row formats, and a spec for every field. Checked here."""

from collections.abc import Mapping, Sequence

from msdata_jax.batching.assembly import NOT_BY_PLACE
from msdata_jax.batching.rows import RowFormat, field_shapes
from msdata_jax.errors import RecipeError
from msdata_jax.planning.graph import DGraph
from msdata_jax.planning.place_tree import (
    WORLD,
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
    spread = graph.distribution
    named = [
        spread.axis, spread.context_axis, spread.pipeline_axis, spread.encoder_axis, graph.broadcast.axes,
    ]  # fmt: skip
    axes = dict.fromkeys(axis for each in named for axis in axes_tuple(each) if axis != WORLD)
    return single_process_layout(list(axes) or ["dp"])


def row_formats(graph: DGraph, tree: ClientPlaceTree) -> dict[int, RowFormat]:
    """The static shape of a row on this mesh, for each `seq_len` that a step may have.

    Raises:
        RecipeError: rows or places do not divide over the mesh.
    """
    graph.check_mesh(tree)
    pack, spread = graph.packing, graph.distribution
    assert pack is not None
    return {
        shape.seq_len: RowFormat(
            seq_len=shape.seq_len,
            patches_per_row=pack.patches_per_row,
            patch_values=pack.patch_values,
            context_parts=tree.axis_size(spread.context_axis),
            context_layout=spread.context_layout,
            loss=graph.losses.per,
        )
        for shape in pack.shapes
    }


def global_shapes(graph: DGraph, tree: ClientPlaceTree, forms: Mapping[int, RowFormat]) -> list[Shapes]:
    """The shape of every field of the global batch, for each shape that a step may have."""
    assert graph.packing is not None
    return [
        {
            name: shape
            for name, (shape, _) in field_shapes(
                forms[each.seq_len], each.rows, graph.slots(tree, each.rows)
            ).items()
        }
        for each in graph.packing.shapes
    ]


def field_specs(
    given: Mapping[str, Spec], graph: DGraph, tree: ClientPlaceTree, shapes: Sequence[Shapes]
) -> dict[str, Spec]:
    """A spec for every field, with as many entries as the field has dims.

    Fields that are not given follow `tokens`, whose default is the strategy's axes.

    Args:
        given: specs by field.
        graph: the strategy.
        tree: the mesh.
        shapes: of every field, for each shape that a step may have.

    Raises:
        RecipeError: specs name no field, do not divide, or contradict the strategy or one another.
    """
    names = shapes[0].keys()
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise RecipeError(f"specs name the fields {unknown}; a batch of this recipe has {sorted(names)}")
    by_strategy = (_entry(graph.row_axes(tree)), _entry(tree.axes(graph.distribution.context_axis)))
    tokens = given.get("tokens", by_strategy)
    encoder_axes = _entry(tree.axes(graph.distribution.encoder_axis))
    spread = [name for name in NOT_BY_PLACE if encoder_axes is not None and name in names]
    plain = {name: tokens if name not in NOT_BY_PLACE else tokens[:1] for name in names}
    plain |= dict.fromkeys(spread, (encoder_axes,)) | dict(given)
    specs = {name: (*spec, *(None,) * (len(shapes[0][name]) - len(spec))) for name, spec in plain.items()}
    for name, spec in specs.items():
        for each in shapes:
            tree.check_spec(name, spec, each[name])
        _check_pipeline(name, spec, tree)
        if name in spread:
            _check_slots(name, spec[0], encoder_axes)
            continue
        _check_rows(name, spec[0], specs["tokens"][0])
        if name not in NOT_BY_PLACE:
            _check_places(name, spec[1], graph, tree)
    _check_strategy(specs["tokens"][0], graph, tree)
    return specs


def _entry(axes: Axes) -> Axes:
    """Axes as people write them in a PartitionSpec."""
    named = axes_tuple(axes)
    return named if len(named) > 1 else named[0] if named else None


def _check_rows(name: str, axes: Axes, axes_of_tokens: Axes) -> None:
    if axes_tuple(axes) != axes_tuple(axes_of_tokens):
        raise RecipeError(
            f"every field cuts its rows alike; specs['tokens'] cuts them along {axes_of_tokens!r}, "
            f"specs[{name!r}] along {axes!r}"
        )


def _check_slots(name: str, axes: Axes, encoder_axes: Axes) -> None:
    if axes_tuple(axes) != axes_tuple(encoder_axes):
        raise RecipeError(
            f"distribute(encoder_axis=...) spreads images along {encoder_axes!r}; specs[{name!r}] cuts them "
            f"along {axes!r}: leave it out"
        )


def _check_pipeline(name: str, spec: Spec, tree: ClientPlaceTree) -> None:
    if tree.pipeline_axis in {axis for axes in spec for axis in axes_tuple(axes)}:
        raise RecipeError(
            f"the stages along {tree.pipeline_axis!r} work on the same batch; leave the axis out of "
            f"specs[{name!r}] = {spec}"
        )


def _check_places(name: str, axes: Axes, graph: DGraph, tree: ClientPlaceTree) -> None:
    spread = graph.distribution
    if spread.context_layout != "contiguous" and axes_tuple(axes) != tree.axes(spread.context_axis):
        raise RecipeError(
            f"distribute(context_axis={spread.context_axis!r}, context_layout={spread.context_layout!r}) "
            f"orders the places for that axis; specs[{name!r}] cuts them along {axes!r}: cut them along "
            f"{spread.context_axis!r}, or leave specs[{name!r}] out"
        )


def _check_strategy(row_axes: Axes, graph: DGraph, tree: ClientPlaceTree) -> None:
    wanted = axes_tuple(graph.row_axes(tree))
    if axes_tuple(row_axes)[: len(wanted)] != wanted:
        raise RecipeError(
            f"distribute({graph.distribution.axis!r}) balances the parts along that axis; "
            f"specs['tokens'] cuts rows along {row_axes!r}"
        )
    broadcast = set(tree.axes(tree.broadcast_axes)) & set(axes_tuple(row_axes))
    if broadcast:
        raise RecipeError(
            f"broadcast_at{tree.broadcast_axes} repeats rows along axes that cut them: {sorted(broadcast)}; "
            "name axes along which rows are the same, such as that of tensor parallelism"
        )
