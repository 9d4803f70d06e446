"""What of a strategy does not fit together: among its own parts, with the sources, and on a mesh."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msdata_jax.planning.place_tree import ClientPlaceTree, axes_tuple

if TYPE_CHECKING:
    from msdata_jax.planning.graph import DGraph

MOST_PATCHES = 2**31
"""`patch_index` is int32."""


def broken_rules(graph: "DGraph", source_names: Sequence[str], columns: Sequence[str]) -> Iterator[str]:
    """Rules that a strategy breaks whatever the mesh; it has a mixture and a packing."""
    pack, spread = graph.packing, graph.distribution
    assert pack is not None
    if pack.together is not None and pack.together not in (*columns, "position"):
        yield (
            f"pack(together={pack.together!r}) names a column; there are {(*columns, 'position')}; "
            "a source's measure adds columns"
        )
    unknown = sorted(set(graph.losses.sources) - set(source_names))
    if unknown:
        yield f"loss(sources=...) names the sources {unknown}; there are {list(source_names)}"
    if graph.balancing.objective == "pipeline" and spread.pipeline_axis is None:
        yield (
            "balance(objective='pipeline') counts the bubbles of a pipeline; name the axis of its stages: "
            "distribute(pipeline_axis=...), or take objective='step'"
        )
    if len(pack.shapes) > 1 and (graph.regrouped_steps > 1 or pack.together is not None):
        yield (
            "regroup(...) and pack(together=...) need steps of one shape; there are the shapes "
            f"{[(shape.rows, shape.seq_len) for shape in pack.shapes]}: use pack(...)"
        )
    yield from _broken_encoder(graph)


def _broken_encoder(graph: "DGraph") -> Iterator[str]:
    axis = graph.distribution.encoder_axis
    assert graph.packing is not None
    if axis is not None and not graph.packing.patches_per_row:
        yield (
            f"distribute(encoder_axis={axis!r}) spreads images; pack(patches_per_row=...) is 0: "
            "leave encoder_axis out, or give rows patches"
        )
    if axis is not None and graph.broadcast.via == "device":
        yield (
            "distribute(encoder_axis=...) sends patches to each process; "
            "broadcast_at(via='device') sends them to leaders only: use via='host'"
        )


def broken_on_mesh(graph: "DGraph", tree: ClientPlaceTree) -> Iterator[str]:
    """Rules that a strategy breaks on a mesh. Raises RecipeError for an axis that is not there."""
    yield from _broken_axes(graph, tree)
    pack, spread = graph.packing, graph.distribution
    assert pack is not None
    ranks = tree.axis_size(graph.row_axes(tree))
    if spread.group_size is not None and ranks % spread.group_size:
        yield (
            f"distribute(group_size={spread.group_size}) does not divide the {ranks} ranks along "
            f"{spread.axis!r}; take a divisor of {ranks}"
        )
    chunks = tree.axis_size(spread.context_axis) * (2 if spread.context_layout == "zigzag" else 1)
    for shape in pack.shapes:
        if shape.rows % (ranks * spread.microbatches):
            yield (
                f"pack(rows={shape.rows}) does not divide by {ranks} groups along {spread.axis!r} "
                f"x {spread.microbatches} microbatches = {ranks * spread.microbatches}; take a multiple"
            )
        if shape.seq_len % chunks:
            yield (
                f"pack(seq_len={shape.seq_len}) does not divide by {chunks} context-parallel chunks "
                f"along {spread.context_axis!r} ({spread.context_layout}); take a multiple"
            )
        num_slots, patches_per_slot = graph.slots(tree, shape.rows)
        if num_slots and patches_per_slot < pack.patches_per_row:
            yield (
                f"distribute(patches_per_slot={patches_per_slot}) cannot hold a sample of "
                f"pack(patches_per_row={pack.patches_per_row}) patches; raise it, or leave it out"
            )
        if num_slots * patches_per_slot >= MOST_PATCHES:
            yield (
                f"{num_slots} slots of {patches_per_slot} patches are more than {MOST_PATCHES - 1}, the most "
                "that patch_index counts; lower pack(patches_per_row=...) or pack(rows=...)"
            )


def _broken_axes(graph: "DGraph", tree: ClientPlaceTree) -> Iterator[str]:
    """An axis has one use, but that the encoder's batch may be cut along those of rows and places, too."""
    spread = graph.distribution
    named = {
        "distribute(axis=...)": spread.axis,
        "distribute(context_axis=...)": spread.context_axis,
        "distribute(pipeline_axis=...)": spread.pipeline_axis,
        "broadcast_at(...)": graph.broadcast.axes,
    }
    uses = {name: axes_tuple(tree.axes(axes)) for name, axes in named.items()}
    pairs = [(name, other) for i, name in enumerate(uses) for other in list(uses)[i + 1 :]]
    for name, other in pairs:
        both = sorted(set(uses[name]) & set(uses[other]))
        if both and "broadcast_at(...)" not in (name, other):
            yield f"{name} and {other} both name {both}; an axis has one use: take it out of one"
        elif both and name == "distribute(axis=...)":
            yield f"broadcast_at repeats rows along axes that cut them: {both}; leave those out of it"
    stages = sorted({*axes_tuple(tree.axes(spread.encoder_axis))} & {*uses["distribute(pipeline_axis=...)"]})
    if stages:
        yield (
            f"the stages along {stages} work on the same batch; "
            f"distribute(encoder_axis={spread.encoder_axis!r}) cuts images along them: name the others only"
        )
