"""Pictures of a dry run and of a strategy, in the format of the file's suffix; no display is needed."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from msdata_jax.cli.plan_figures import DryRunFigures
from msdata_jax.errors import RecipeError
from msdata_jax.plan import StepPlan
from msdata_jax.planning import describing
from msdata_jax.planning.graph import DGraph
from msdata_jax.planning.place_tree import MeshLayout

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, LIGHT = "#222222", "#8a8a8a", "#e6e6e6"
BALANCED, UNBALANCED, THIRD = "#0072B2", "#E69F00", "#009E73"  # told apart by colour-blind readers too
SOURCE_COLOURS = (
    "#332288", "#DDCC77", "#44AA99", "#CC6677", "#88CCEE", "#882255", "#999933", "#AA4499",
)  # fmt: skip
"""Of sources alone, so that no source looks like a series of another panel."""
MOST_BARS = 32
STYLE: dict[Any, Any] = {
    "figure.dpi": 110,
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": LIGHT,
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def plot_dry_run(figures: DryRunFigures, path: Path, title: str) -> None:
    """Draw what a dry run found, six panels.

    Raises:
        RecipeError: matplotlib is not installed, no step was planned, or the file cannot be written.
    """
    mpl = _matplotlib()
    plan = figures.worst
    if plan is None:
        raise RecipeError("there is no step to plot: the sources have too few samples for one")
    with mpl.rc_context(STYLE):
        figure = _new_figure(13.5, 14.0, "constrained")
        grid = figure.add_gridspec(3, 2)
        _draw_rank_costs(figure.add_subplot(grid[0, 0]), plan)
        _draw_heat_map(figure, figure.add_subplot(grid[0, 1]), plan)
        over_steps = grid[1, 0].subgridspec(2, 1)
        fill = figure.add_subplot(over_steps[0])
        _draw_fill(fill, figures)
        _draw_imbalance(figure.add_subplot(over_steps[1], sharex=fill), figures)
        _draw_mixture(figure.add_subplot(grid[1, 1]), figures)
        _draw_lengths(figure.add_subplot(grid[2, 0]), figures)
        _draw_rows(figure.add_subplot(grid[2, 1]), plan)
        note = f"{title}: {len(figures.steps)} steps planned; step {plan.step} has the least even work"
        figure.suptitle(note, x=0.01, ha="left", fontsize=12.5, weight="bold")
        _save(figure, path)


# --- panels -----------------------------------------------------------------------------------------------


def _draw_rank_costs(axes: "Axes", plan: StepPlan) -> None:
    balanced, unbalanced = plan.group_costs(), plan.group_costs(np.arange(plan.num_rows))
    mean = max(float(balanced.mean()), 1e-9)
    series = (
        (unbalanced / mean, UNBALANCED, "rows as they come"),
        (balanced / mean, BALANCED, f"balanced ({plan.balanced_by})"),
    )
    ranks = np.arange(plan.num_groups)
    for place, (values, colour, label) in enumerate(series):
        text = f"{label}: dearest {values.max():.2f}"
        if plan.num_groups <= MOST_BARS:
            axes.bar(ranks + 0.4 * place - 0.2, values, width=0.38, color=colour, label=text)
        else:
            axes.plot(ranks, np.sort(values)[::-1], color=colour, lw=1.8, label=text)
    axes.axhline(1, color=INK, lw=1, ls="--", label="mean rank")
    by_rank = plan.num_groups <= MOST_BARS
    if by_rank and plan.num_groups <= 16:
        axes.set_xticks(ranks)
    if not by_rank:
        axes.set_ylim(0.9 * min(float(values.min()) for values, _, _ in series), None)
    axes.set_title(f"Work of each data-parallel rank{_whose_work(plan)}, step {plan.step}")
    axes.set_xlabel("data-parallel rank" if by_rank else "data-parallel ranks, dearest first")
    axes.set_ylabel("cost / mean cost of a rank")
    _legend_above(axes)


def _whose_work(plan: StepPlan) -> str:
    """Which work `group_costs` counts, where there is an encoder."""
    if not plan.row_encoder_cost.any():
        return ""
    return " (backbone alone)" if plan.num_slots else " (backbone and encoder)"


def _draw_heat_map(figure: "Figure", axes: "Axes", plan: StepPlan) -> None:
    from matplotlib.ticker import MaxNLocator

    total = plan.phase_costs.sum(axis=0)[plan.order]
    of_rank = total.reshape(plan.num_groups, plan.num_microbatches, -1)
    by_microbatch = plan.num_microbatches > 1
    cells = of_rank.sum(axis=2) if by_microbatch else of_rank[:, 0]
    mean = max(float(cells.mean()), 1e-9)
    low, high = min(0.9, float(cells.min()) / mean), max(1.1, float(cells.max()) / mean)
    image = axes.imshow(
        cells / mean, aspect="auto", cmap="cividis", interpolation="nearest", vmin=low, vmax=high
    )
    what = "microbatch" if by_microbatch else "row"
    figure.colorbar(image, ax=axes, label=f"cost / mean cost of a {what}", fraction=0.05, pad=0.02)
    axes.grid(visible=False)
    if cells.size <= 128:
        for rank, of_rank_cells in enumerate(cells / mean):
            for place, value in enumerate(of_rank_cells):
                dark = value < low + 0.5 * (high - low)
                axes.text(place, rank, f"{value:.2f}", ha="center", va="center",
                          color="white" if dark else INK, fontsize=8.5)  # fmt: skip
    axes.set_title(f"Work of each {what}{_whose_work(plan)}, step {plan.step}")
    axes.set_xlabel(f"{what} of the rank, in the order in which it is taken")
    axes.set_ylabel("data-parallel rank")
    for axis, count in ((axes.xaxis, cells.shape[1]), (axes.yaxis, cells.shape[0])):
        axis.set_major_locator(MaxNLocator(integer=True))
        if count <= 16:
            axis.set_ticks(range(count))


def _draw_fill(axes: "Axes", figures: DryRunFigures) -> None:
    from matplotlib.ticker import MaxNLocator

    steps = [step["step"] for step in figures.steps]
    fill = [100 * step["fill"] for step in figures.steps]
    axes.plot(steps, fill, color=THIRD, marker="o", ms=3, lw=1.4)
    axes.set_title(f"Places filled: {np.mean(fill):.1f} % in the mean")
    axes.set_ylabel("% of places")
    axes.set_ylim(min(80.0, 0.9 * min(fill)), 101)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(labelbottom=False)


def _draw_imbalance(axes: "Axes", figures: DryRunFigures) -> None:
    from matplotlib.ticker import MaxNLocator

    steps = [step["step"] for step in figures.steps]
    for name, colour, label, style in (
        ("imbalance_unbalanced", UNBALANCED, "rows as they come", "-"),
        ("imbalance", BALANCED, "balanced", "-"),
        ("dominance", INK, "least possible", ":"),
    ):
        values = [step[name] for step in figures.steps]
        text = f"{label}: {np.mean(values):.2f}"
        axes.plot(steps, values, color=colour, marker="o" if style == "-" else "", ms=3, lw=1.4, ls=style,
                  label=text)  # fmt: skip
    axes.set_title("Dearest rank over mean rank (1 is even; means beside the names)")
    axes.set_ylabel("cost ratio")
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.99), high + 0.3 * (high - min(low, 0.99)))
    axes.legend(loc="upper left", ncols=3, fontsize=8.5)


def _draw_mixture(axes: "Axes", figures: DryRunFigures) -> None:
    mixture = figures.run.graph.mixture
    assert mixture is not None
    sources, left_out = _largest(figures.sources, 20)
    places = np.arange(len(sources))
    asked = [source["asked_percent"] for source in sources]
    drawn = [source["realised_percent"] for source in sources]
    colour_of = _source_colours(figures)
    colours = [colour_of.get(source["name"], GREY) for source in sources]
    axes.barh(places, drawn, height=0.6, color=colours)
    axes.vlines(asked, places - 0.4, places + 0.4, color=INK, lw=1.6, label="asked")
    for place, (most, value) in enumerate(zip(map(max, asked, drawn), drawn, strict=True)):
        axes.text(most, place, f"  {value:.1f} %", va="center", fontsize=8.5)
    axes.set_yticks(places, [source["name"] for source in sources])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.grid(visible=False, axis="y")
    more = f" ({left_out} smaller sources left out)" if left_out else ""
    axes.set_title(f"Mixture: what was drawn (bar, number){more}")
    axes.set_xlabel(f"% of {mixture.unit}")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 0.99), borderaxespad=0)


def _largest(sources: Sequence[dict[str, Any]], most: int) -> tuple[list[dict[str, Any]], int]:
    kept = sorted(sources, key=lambda source: -source["asked_percent"])[:most]
    return [source for source in sources if source in kept], max(len(sources) - most, 0)


def _draw_lengths(axes: "Axes", figures: DryRunFigures) -> None:
    from matplotlib.ticker import LogFormatter, ScalarFormatter

    pack = figures.run.graph.packing
    assert pack is not None
    colour_of = _source_colours(figures)
    by_name = dict(zip(figures.run.recipe.source_names, figures.lengths, strict=True))
    parts = [(name, by_name[name], colour) for name, colour in colour_of.items()]
    others = [lengths for name, lengths in by_name.items() if name not in colour_of]
    if others:
        parts.append((f"{len(others)} others", np.concatenate(others), GREY))
    longest = max(int(each.max(initial=1)) for each in figures.lengths)
    shortest = min((int(each.min()) for each in figures.lengths if len(each)), default=1)
    edges = np.geomspace(max(shortest, 1) * 0.95, max(longest, pack.seq_len) * 1.05, 41)
    tokens = sum(int(lengths.sum()) for _, lengths, _ in parts)
    unit, text = (1e6, "million tokens") if tokens > 4_000_000 else (1.0, "tokens")
    axes.hist(
        [lengths for _, lengths, _ in parts],
        bins=edges.tolist(),
        weights=[lengths / unit for _, lengths, _ in parts],
        stacked=True,
        color=[colour for _, _, colour in parts],
        label=[name for name, _, _ in parts],
    )
    axes.set_ylim(0, 1.12 * axes.get_ylim()[1])
    for shape in pack.shapes:
        axes.axvline(shape.seq_len, color=INK, lw=1.2, ls="--")
        axes.text(shape.seq_len, 0.99, f"row of {shape.seq_len} ", transform=axes.get_xaxis_transform(),
                  ha="right", va="top", fontsize=8.5)  # fmt: skip
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
    axes.set_title("Tokens by the length of their sample")
    axes.set_xlabel("tokens in a sample (dashed: places in a row)")
    axes.set_ylabel(f"{text} in all samples of such length")
    axes.legend(loc="upper left", fontsize=8.5)


def _source_colours(figures: DryRunFigures) -> dict[str, str]:
    """A colour for each source, in the recipe's order; of many sources, for those with most tokens."""
    tokens = [-int(each.sum()) for each in figures.lengths]
    kept = sorted(np.argsort(tokens, kind="stable")[: len(SOURCE_COLOURS)].tolist())
    names = figures.run.recipe.source_names
    return {names[source]: colour for source, colour in zip(kept, SOURCE_COLOURS, strict=False)}


def _draw_rows(axes: "Axes", plan: StepPlan) -> None:
    from matplotlib.ticker import MaxNLocator

    total = np.sort(plan.phase_costs.sum(axis=0))[::-1]
    mean = max(float(plan.group_costs().mean()), 1e-9)
    values = total / mean
    giants = int(np.count_nonzero(values > 1))
    places = np.arange(1, len(values) + 1)
    if len(values) <= 64:
        colours = [UNBALANCED if value > 1 else BALANCED for value in values]
        axes.bar(places, values, color=colours, width=0.8)
    else:
        axes.fill_between(places, values, step="mid", color=BALANCED, lw=0)
        axes.fill_between(places[:giants], values[:giants], step="mid", color=UNBALANCED, lw=0)
    axes.axhline(1, color=INK, lw=1, ls="--", label="mean rank: a row above it is a giant")
    axes.set_ylim(0, max(1.15, 1.1 * float(values.max())))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(f"Giants: {giants} of {len(values)} rows cost more than a mean rank, step {plan.step}")
    axes.set_xlabel("rows, dearest first")
    axes.set_ylabel("cost of a row / mean cost of a rank")
    axes.legend(loc="upper right")


# --- a strategy -------------------------------------------------------------------------------------------


def draw_strategy(graph: DGraph, source_names: Sequence[str], layout: MeshLayout, path: Path) -> None:
    """Draw a strategy as boxes, from the sources to the ranks.

    Raises:
        RecipeError: matplotlib is not installed, or the file cannot be written.
    """
    mpl = _matplotlib()
    boxes = [("sources", _few(source_names), GREY)]
    placing = {"distribute", "balance", "broadcast_at"}
    for name, text in describing.lines(graph):
        boxes.append((name, text, BALANCED if name in placing else THIRD))
    axes_text = ", ".join(
        f"{name} {size}" for name, size in zip(layout.axis_names, layout.axis_sizes, strict=True)
    )
    processes = f"{layout.num_processes} process{'es' if layout.num_processes > 1 else ''}"
    devices = len(layout.process_of_device)
    ranks = f"{devices} device{'s' if devices > 1 else ''} of {processes}: {axes_text}"
    boxes.append(("ranks", ranks, GREY))
    wrapped = [(name, textwrap.wrap(text, 92) or [""], colour) for name, text, colour in boxes]
    gap, line = 0.32, 0.2
    heights = [0.22 + line * len(lines) for _, lines, _ in wrapped]
    total = sum(heights) + gap * (len(wrapped) - 1) + 0.75
    with mpl.rc_context(STYLE):
        figure = _new_figure(10.0, total, None)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, 10)
        axes.set_ylim(total, 0)
        axes.text(0.3, 0.3, "Strategy", weight="bold", fontsize=13, va="center")
        for x, colour, text in (
            (5.3, THIRD, "decides what a step delivers"),
            (7.8, BALANCED, "where it goes"),
        ):
            axes.plot([x], [0.3], marker="s", color=colour, ms=8)
            axes.text(x + 0.15, 0.3, text, va="center")
        top = 0.6
        for place, ((name, lines, colour), height) in enumerate(zip(wrapped, heights, strict=True)):
            _draw_box(axes, top, height, name, lines, colour)
            if place + 1 < len(wrapped):
                arrow = {"arrowstyle": "-|>", "color": INK, "shrinkA": 0, "shrinkB": 0}
                axes.annotate("", (5, top + height + gap), (5, top + height), arrowprops=arrow)
            top += height + gap
        _save(figure, path)


def _draw_box(axes: "Axes", top: float, height: float, name: str, lines: Sequence[str], colour: str) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((0.3, top), 9.4, height, facecolor="white", edgecolor=colour, lw=1.4))
    axes.add_patch(Rectangle((0.3, top), 1.5, height, facecolor=colour, edgecolor=colour, lw=1.4))
    axes.text(1.05, top + height / 2, name, color="white", weight="bold", ha="center", va="center")
    axes.text(1.95, top + height / 2, "\n".join(lines), va="center", linespacing=1.25)


def _few(names: Sequence[str], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{len(names)}: {', '.join(names[:most])}{more}"


# --- figures ----------------------------------------------------------------------------------------------


def _matplotlib() -> Any:
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise RecipeError("pictures need matplotlib: pip install 'msdata-jax[demo]'") from error
    return mpl


def _new_figure(width: float, height: float, layout: Literal["constrained"] | None) -> "Figure":
    """A figure that needs no display and leaves no state behind, as pyplot would."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def _legend_above(axes: "Axes") -> None:
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.22 * (high - low))
    axes.legend(loc="upper left", ncols=2, fontsize=8.5)


def _save(figure: "Figure", path: Path) -> None:
    try:
        figure.savefig(path, format=path.suffix[1:].lower(), facecolor="white")
    except OSError as error:
        raise RecipeError(f"cannot write the picture to {path}: {error}") from error
