"""What the demo shows when it is done: tables on the terminal, `report.json` and two pictures.

Pure functions of plain values: they know neither the loader nor JAX. The keys of a report:

    sources               list of {name, samples, tokens, share_asked, share_realised, bad_samples}
    imbalance_balanced    mean over steps of (heaviest rank's cost / mean cost); 1.0 is perfect
    imbalance_unbalanced  the same, had the rows been dealt out in turn
    imbalance_least       the same, as far as any order of the rows could bring it down
    fill                  share of places in the rows that hold a token or a patch
    data_wait_ms          {p50, p95}: how long the training step waited for its batch
    step_ms               {p50}
    memory_pss_mb         {planner: x, loader: [...], constructor: [...]}
    loss_first, loss_last, losses, steps, mesh {dp, cp, tp}, versions {package: version}

A key that is missing is left out of tables and pictures.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Report = Mapping[str, Any]

BALANCED, UNBALANCED = "#0072B2", "#D55E00"  # told apart by colour-blind readers too
INK, GREY = "#222222", "#8a8a8a"
MOST_RANKS_NAMED = 8
STYLE = {
    "figure.dpi": 120,
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def write(
    folder: Path, report: Report, costs_balanced: np.ndarray, costs_unbalanced: np.ndarray
) -> list[Path]:
    """Write `report.json`, `cost_per_rank.png` and `training.png` into `folder`; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "report.json", folder / "cost_per_rank.png", folder / "training.png"]
    paths[0].write_text(json.dumps(report, indent=2) + "\n")
    plot_cost(costs_balanced, costs_unbalanced, paths[1])
    plot_training(report, paths[2])
    return paths


def imbalance(costs: np.ndarray) -> np.ndarray:
    """Per step, the heaviest rank's cost over the mean cost: [steps, ranks] to [steps]; 1.0 is perfect."""
    costs = np.asarray(costs, dtype=np.float64)
    mean = costs.mean(axis=1)
    return np.divide(costs.max(axis=1), mean, out=np.ones_like(mean), where=mean > 0)


# --------------------------------------------------------------------------------------------------- pictures


def plot_cost(costs_balanced: np.ndarray, costs_unbalanced: np.ndarray, path: Path) -> None:
    """Draw what each data-parallel rank has to compute, step by step, with balancing and without.

    Args:
        costs_balanced: estimated work in FLOP, [steps, ranks], as the step plans dealt it out.
        costs_unbalanced: the same rows dealt out in turn.
        path: a PNG file to write.
    """
    unbalanced, balanced = np.asarray(costs_unbalanced, float), np.asarray(costs_balanced, float)
    scale, unit = flop_unit(max(unbalanced.max(initial=0), balanced.max(initial=0)))
    with _styled():
        figure = _figure(12, 7.4)
        grid = figure.add_gridspec(2, 2, height_ratios=(3, 2))
        left = figure.add_subplot(grid[0, 0])
        right = figure.add_subplot(grid[0, 1], sharey=left, sharex=left)
        _draw_ranks(left, unbalanced / scale, "Without balancing: rows dealt out in turn", UNBALANCED)
        _draw_ranks(right, balanced / scale, "With balancing", BALANCED)
        left.set_ylabel(f"work of one rank in one step ({unit})")
        left.margins(y=0.3)
        _draw_imbalance(figure.add_subplot(grid[1, :]), unbalanced, balanced)
        figure.suptitle(
            "A training step is as slow as its most loaded rank",
            x=0.01,
            ha="left",
            fontsize=15,
            weight="bold",
        )
        figure.savefig(path)


def _draw_ranks(axes: "Axes", costs: np.ndarray, title: str, colour: str) -> None:
    steps, ranks = np.arange(len(costs)), costs.shape[1]
    low, high, mean = costs.min(axis=1), costs.max(axis=1), costs.mean(axis=1)
    waiting = 1 - mean.sum() / high.sum() if high.sum() > 0 else 0.0
    axes.fill_between(
        steps, low, high, step="mid", color=colour, alpha=0.18, lw=0, label="gap: lighter ranks wait"
    )
    for rank in range(ranks):
        shade = 1.0 if ranks == 1 else 1.0 - 0.65 * rank / (ranks - 1)
        label = f"dp rank {rank}" if ranks <= MOST_RANKS_NAMED else None
        axes.step(steps, costs[:, rank], where="mid", lw=1.3, color=colour, alpha=shade, label=label)
    axes.step(steps, mean, where="mid", lw=1.0, ls=":", color=INK, label="mean of all ranks")
    axes.set_title(f"{title}\nranks wait {waiting:.1%} of their time for the heaviest one", color=colour)
    _label_steps(axes)
    axes.legend(loc="upper left", ncols=2, fontsize=8.5)


def _draw_imbalance(axes: "Axes", unbalanced: np.ndarray, balanced: np.ndarray) -> None:
    for costs, name, colour in ((unbalanced, "without", UNBALANCED), (balanced, "with", BALANCED)):
        values = imbalance(costs)
        mean = values.mean() if len(values) else 1.0
        label = f"{name} balancing: mean {mean:.3f}, worst step {values.max(initial=1.0):.3f}"
        axes.plot(np.arange(len(values)), values, lw=1.6, color=colour, label=label)
        axes.axhline(mean, lw=1, ls="--", color=colour, alpha=0.7)
    axes.axhline(1.0, lw=1, color=INK)
    axes.annotate(
        "1.0 = every rank has the same work",
        (1, 1.0),
        xycoords=("axes fraction", "data"),
        xytext=(-4, -4),
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize=8.5,
        color=GREY,
    )
    top = max(imbalance(unbalanced).max(initial=1.0), imbalance(balanced).max(initial=1.0))
    span = max(top - 1.0, 0.02)
    axes.set_ylim(1 - 0.22 * span, top + 0.35 * span)
    axes.set_title("Imbalance: work of the heaviest rank over the mean (dashed: mean over the steps)")
    _label_steps(axes)
    axes.set_ylabel("heaviest / mean")
    axes.legend(loc="upper left", ncols=2, fontsize=9)


def plot_training(report: Report, path: Path) -> None:
    """Draw the loss over the steps, and the share of each source beside the share that was asked for."""
    with _styled():
        figure = _figure(12, 4.6)
        left, right = figure.subplots(1, 2)
        _draw_loss(left, report.get("losses", []))
        _draw_shares(right, report.get("sources", []))
        figure.savefig(path)


def _draw_loss(axes: "Axes", losses: Sequence[float]) -> None:
    axes.plot(np.arange(len(losses)), losses, lw=1, color=BALANCED, alpha=0.45, label="each step")
    window = min(8, len(losses))
    if window > 1:
        smooth = np.convolve(losses, np.ones(window) / window, mode="valid")
        steps = np.arange(len(smooth)) + (window - 1) / 2
        axes.plot(steps, smooth, lw=2.2, color=BALANCED, label=f"mean of {window} steps")
    title = f"Loss: {losses[0]:.2f} to {losses[-1]:.2f} in {len(losses)} steps" if losses else "Loss"
    axes.set_title(title)
    _label_steps(axes)
    axes.set_ylabel("cross-entropy (nats per token)")
    if losses:
        axes.legend(loc="upper right")


def _draw_shares(axes: "Axes", sources: Sequence[Mapping[str, Any]]) -> None:
    rows = np.arange(len(sources))
    asked = [100 * source["share_asked"] for source in sources]
    realised = [100 * source["share_realised"] for source in sources]
    axes.barh(rows - 0.19, asked, height=0.36, color="#c9c9c9", label="asked for")
    axes.barh(rows + 0.19, realised, height=0.36, color=BALANCED, label="delivered")
    for row, value, wanted in zip(rows, realised, asked, strict=True):
        axes.annotate(
            f"{value:.1f}",
            (max(value, wanted), row + 0.19),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=BALANCED,
        )
    axes.set_yticks(rows, [source["name"] for source in sources])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_title("The mixture: share of each source")
    axes.set_xlabel("share of all delivered tokens and patches (%)")
    if sources:
        axes.legend(loc="lower right")


def _label_steps(axes: "Axes") -> None:
    axes.set_xlabel("training step")
    axes.xaxis.get_major_locator().set_params(integer=True)


def flop_unit(largest: float) -> tuple[float, str]:
    """A scale and its name, such that `largest` reads as a number from 1 to 1000."""
    for scale, unit in ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP")):
        if largest >= scale:
            return scale, unit
    return 1.0, "FLOP"


def _styled() -> Any:
    import matplotlib as mpl

    return mpl.rc_context(STYLE)


def _figure(width: float, height: float) -> "Figure":
    """A figure that needs no display and leaves no state behind, as pyplot would."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


# ----------------------------------------------------------------------------------------------------- tables


def print_report(report: Report, console: Console | None = None) -> None:
    """Print the sources and the job as two tables."""
    console = console or Console()
    console.print(source_table(report.get("sources", [])))
    console.print(job_table(report))


def source_table(sources: Sequence[Mapping[str, Any]]) -> Table:
    """One line a source: how much of it was delivered, beside how much was asked for."""
    table = Table(title="Sources", title_justify="left", title_style="bold")
    table.add_column("source")
    for name in ("samples", "tokens", "share asked", "share realised", "bad samples"):
        table.add_column(name, justify="right")
    for source in sources:
        bad = source.get("bad_samples", 0)
        table.add_row(
            source["name"],
            f"{source['samples']:,}",
            f"{source['tokens']:,}",
            f"{source['share_asked']:.1%}",
            f"{source['share_realised']:.1%}",
            f"[yellow]{bad} skipped[/yellow]" if bad else "0",
        )
    return table


def job_table(report: Report) -> Table:
    """What balancing and prefetching bought, and what the parts cost in memory."""
    table = Table(title="The job", title_justify="left", title_style="bold", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for name, text in job_lines(report):
        table.add_row(name, text)
    return table


def job_lines(report: Report) -> list[tuple[str, str]]:
    """(name, text) of each line of the job's table; a key that the report lacks makes no line."""
    writers = {
        "mesh": lambda r: " x ".join(f"{axis}={size}" for axis, size in r["mesh"].items()),
        "loss": lambda r: f"{r['loss_first']:.3f} -> {r['loss_last']:.3f} in {r['steps']} steps",
        "step time": lambda r: f"{r['step_ms']['p50']:,.0f} ms (median)",
        "data wait per step": lambda r: (
            f"{r['data_wait_ms']['p50']:.1f} ms (median), {r['data_wait_ms']['p95']:.1f} ms (95 %)"
        ),
        "heaviest rank / mean": lambda r: (
            f"{r['imbalance_balanced']:.3f} with balancing, {r['imbalance_unbalanced']:.3f} without, "
            f"{r['imbalance_least']:.3f} at least"
        ),
        "rows filled": lambda r: f"{r['fill']:.1%}",
        "memory (PSS)": lambda r: "; ".join(memory_line(*item) for item in r["memory_pss_mb"].items()),
        "versions": lambda r: ", ".join(f"{name} {version}" for name, version in r["versions"].items()),
    }
    lines = []
    for name, write_line in writers.items():
        try:
            lines.append((name, write_line(report)))
        except KeyError:
            continue
    return lines


def memory_line(role: str, megabytes: float | Sequence[float]) -> str:
    values = [megabytes] if isinstance(megabytes, int | float) else list(megabytes)
    return f"{role} {' + '.join(f'{value:.0f}' for value in values)} MB"
