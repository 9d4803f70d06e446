"""A strategy as text and as a flowchart."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from msdata_jax.planning.place_tree import axes_tuple

if TYPE_CHECKING:
    from msdata_jax.planning.graph import DGraph


def lines(graph: "DGraph") -> Iterator[tuple[str, str]]:
    """Name and text of each primitive of a chain, in order."""
    if graph.mixture:
        yield "mix", f"by {graph.mixture.unit}: {graph.mixture.describe()}; {graph.mixture.on_exhausted}"
    yield from _content(graph)
    for name, cost in (
        ("backbone", graph.backbone_cost),
        ("encoder", graph.encoder_cost),
        ("memory", graph.memory_cost),
    ):
        if cost:
            yield "cost", f"{name}: {_brief(cost)}"
    yield from _placement(graph)


def _content(graph: "DGraph") -> Iterator[tuple[str, str]]:
    pack = graph.packing
    if pack:
        name = "pad" if pack.method == "pad" else "pack" if len(pack.shapes) == 1 else "bucket"
        shapes = ", ".join(f"{shape.rows} rows of {shape.seq_len} places" for shape in pack.shapes)
        method = "" if pack.method == "pad" else f", {pack.method}"
        together = f"; together by {pack.together}" if pack.together else ""
        yield name, f"{shapes}{method}; oversize: {pack.oversize}{together}"
    if graph.losses.per != "tokens" or graph.losses.sources:
        factors = ", ".join(f"{name} x{factor:g}" for name, factor in graph.losses.sources.items())
        yield "loss", f"per {graph.losses.per}{'; ' + factors if factors else ''}"
    if graph.regrouped_steps > 1:
        yield "regroup", f"rows of {graph.regrouped_steps} steps by cost (changes which step a sample is in)"


def _placement(graph: "DGraph") -> Iterator[tuple[str, str]]:
    spread = graph.distribution
    if spread.axis:
        text = f"rows over {_axes(spread.axis)}"
        text += f", in groups of {spread.group_size} ranks" if spread.group_size else ""
        text += f", {spread.microbatches} microbatches" if spread.microbatches > 1 else ""
        if spread.context_axis:
            text += f"; places over {_axes(spread.context_axis)} ({spread.context_layout})"
        text += f"; stages along {spread.pipeline_axis}" if spread.pipeline_axis else ""
        text += f"; images over {_axes(spread.encoder_axis)}" if spread.encoder_axis else ""
        yield "distribute", text
    if graph.balancing.method != "none":
        unrefined = "" if graph.balancing.refine else ", not refined"
        yield "balance", f"{graph.balancing.method}, objective {graph.balancing.objective}{unrefined}"
    if graph.broadcast.axes:
        yield "broadcast_at", f"{', '.join(graph.broadcast.axes)} via {graph.broadcast.via}"


def _brief(cost: Any) -> str:
    """A formula with the values that are not the usual ones; a function by its name."""
    if is_dataclass(cost):
        values = [(each.name, getattr(cost, each.name)) for each in fields(cost) if each.repr]
        usual = {each.name: each.default for each in fields(cost)}
        chosen = ", ".join(f"{name}={value}" for name, value in values if value != usual[name])
        return f"{type(cost).__name__}({chosen})"
    return getattr(cost, "__qualname__", repr(cost))


def _axes(axes: str | tuple[str, ...] | None) -> str:
    return " x ".join(axes_tuple(axes))


def mermaid(graph: "DGraph") -> str:
    """A flowchart from the sources to the ranks, as Mermaid text."""
    chain = list(lines(graph))
    nodes = [f'    {i}["<b>{name}</b><br>{_quoted(text)}"]' for i, (name, text) in enumerate(chain)]
    edges = [f"    {i} --> {i + 1}" for i in range(len(chain) - 1)]
    return "\n".join(["flowchart TD", *nodes, *edges])


def _quoted(text: str) -> str:
    return text.replace('"', "#quot;")
