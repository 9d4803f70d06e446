"""A picture of a study: speed-up over context, a panel for each distribution and baseline."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msdata_jax.errors import RecipeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, GREY = "#222222", "#8a8a8a"
COLOURS = {"backbone": "#0072B2", "hybrid": "#D55E00"}  # told apart by colour-blind readers too
LABELS = {"backbone": "backbone balanced", "hybrid": "backbone and encoder balanced"}
BASELINE_TITLES = {"packed": "packed to the context", "count": "fixed number of samples"}
STYLE: dict[Any, Any] = {
    "figure.dpi": 120,
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Draw the result of `run_study` into a file, in the format of its suffix (.png, .pdf or .svg).

    Each panel has a line for each strategy, the mean over cluster sizes, synchronisation, placement and
    models, and a band from the least to the greatest. Of one context they are points with their range.

    Raises:
        RecipeError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise RecipeError(
            "--plot needs matplotlib: pip install 'msdata-jax[demo]', or leave --plot out"
        ) from error
    rows = result["rows"]
    distributions = list(dict.fromkeys(row["distribution"] for row in rows))
    baselines = list(dict.fromkeys(row["baseline"] for row in rows))
    with plt.rc_context(STYLE):
        width = max(8.0, 3.4 * len(distributions))
        figure, grid = plt.subplots(
            len(baselines),
            len(distributions),
            figsize=(width, 2.2 + 2.7 * len(baselines)),
            sharex=True,
            sharey="row",
            squeeze=False,
            layout="constrained",
        )
        for axes_of_baseline, baseline in zip(grid, baselines, strict=True):
            for axes, distribution in zip(axes_of_baseline, distributions, strict=True):
                here = [r for r in rows if r["distribution"] == distribution and r["baseline"] == baseline]
                _panel(axes, here)
                axes.set_title(f"{distribution}, against {BASELINE_TITLES[baseline]}")
            axes_of_baseline[0].set_ylabel("times faster")
        contexts = sorted({row["context"] for row in rows})
        for axes in grid[-1]:
            one = f"context {_thousands(contexts[0])} tokens"
            axes.set_xlabel("context (tokens)" if len(contexts) > 1 else one)
        handles, labels = max(
            (axes.get_legend_handles_labels() for axes in grid.flat), key=lambda each: len(each[1])
        )
        figure.legend(
            handles,
            labels,
            loc="outside upper left",
            ncols=2,
            title="Speed-up of a training step from balancing its samples (simulated)",
            title_fontproperties={"weight": "bold", "size": 12},
            alignment="left",
        )
        figure.supxlabel(_footer(result, int(width * 17)), x=0.01, ha="left", fontsize=7.5, color=GREY)
        try:
            figure.savefig(path, format=path.suffix[1:].lower())
        except OSError as error:
            raise RecipeError(f"cannot write the picture to {path}: {error}") from error
        finally:
            plt.close(figure)


def _panel(axes: "Axes", rows: Sequence[Mapping[str, Any]]) -> None:
    contexts = sorted({row["context"] for row in rows})
    speedups_of = {
        strategy: [
            [r["speedup"] for r in rows if r["strategy"] == strategy and r["context"] == context]
            for context in contexts
        ]
        for strategy in COLOURS
    }
    if speedups_of["hybrid"] == speedups_of["backbone"]:
        del speedups_of["hybrid"]
        axes.text(
            0.03, 0.95, "text only: both strategies are one", transform=axes.transAxes, va="top", color=GREY
        )
    series = [(speedups, COLOURS[s], LABELS[s], "o-") for s, speedups in speedups_of.items()]
    ideal = [[r["ideal_speedup"] for r in rows if r["context"] == context] for context in contexts]
    series.append((ideal, GREY, "all work in equal parts", ":"))
    if len(contexts) == 1:
        _draw_points(axes, series)
    else:
        _draw_lines(axes, contexts, series)
    axes.axhline(1, color=INK, linewidth=1, label="not balanced (1)")


Series = tuple[list[list[float]], str, str, str]
"""Speed-ups of each context, colour, label and style."""


def _draw_lines(axes: "Axes", contexts: Sequence[int], series: Sequence[Series]) -> None:
    for speedups, colour, label, style in series:
        if style != ":":
            low, high = [min(each) for each in speedups], [max(each) for each in speedups]
            axes.fill_between(contexts, low, high, color=colour, alpha=0.15, linewidth=0)
        means = [sum(each) / len(each) for each in speedups]
        axes.plot(contexts, means, style, color=colour, markersize=4, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(contexts, [_thousands(context) for context in contexts])
    axes.minorticks_off()


def _draw_points(axes: "Axes", series: Sequence[Series]) -> None:
    for place, ((speedups,), colour, label, style) in enumerate(series):
        mean = sum(speedups) / len(speedups)
        # Rounding can put the mean of equal values a little outside them.
        reach = [[max(mean - min(speedups), 0)], [max(max(speedups) - mean, 0)]]
        marker = "D" if style == ":" else "o"
        axes.errorbar([place], [mean], reach, color=colour, marker=marker, ls="", capsize=5, label=label)
        axes.annotate(f"{mean:.2f}", (place, mean), (8, 0), textcoords="offset points", va="center")
    axes.set_xlim(-0.6, len(series) - 0.2)
    axes.margins(y=0.25)  # room for the note above
    axes.set_xticks([])


def _thousands(context: int) -> str:
    return f"{context // 1024}k" if context % 1024 == 0 else str(context)


def _footer(result: Mapping[str, Any], width: int) -> str:
    """What is averaged, and the assumptions, wrapped into lines."""
    rows, cluster = result["rows"], result["assumptions"]["cluster"]

    def values(name: str) -> str:
        return ", ".join(str(value) for value in dict.fromkeys(row[name] for row in rows))

    is_one = len({row["context"] for row in rows}) == 1
    shown = "Point: mean, bar" if is_one else "Line: mean, band"
    text = (
        f"{shown}: least to greatest, over GPUs {values('gpus')}; synchronisation {values('sync')}; "
        f"encoder placement {values('placement')}; models {values('models')}. Assumed, not measured: "
    )
    text += ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in cluster.items()) + "."
    return "\n".join(textwrap.wrap(text, width))
