"""Loss curves with balanced ranks and without: the same samples in every step, so the same losses.

The demo's transformer (`examples/model.py`, float32, AdamW) learns real text, Python's standard library a
byte a token, on four forced CPU devices of one process: four data-parallel ranks, and as a variant two with
two context-parallel parts each, cut zigzag. The loss of a step is summed over all targets of the step and
divided by their number, so where a row lies decides nothing but the order in which floats are added.

For each seed, which is that of parameters, data and mixture, training runs twice: as the rows come, and with
`balance`. That every step had the same multiset of samples (source, position, part, first token, length) is
checked; that balancing moved rows at all is said in `moved_rows_percent`. Differences begin in the last bit
and grow with the steps, as training amplifies them; `difference_first_10` is before that.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import jobs
from benchmarks.headline import headline
from benchmarks.training import run_script
from benchmarks.training_job.recipes import write_texts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HERE = Path(__file__).parent
RANKS, ROWS, SEQ_LEN = 4, 16, 256
SEEDS = (1, 2, 3)
UNBALANCED_COLOUR, BALANCED_COLOUR, GREY = "#D55E00", "#0072B2", "#8a8a8a"

Row = dict[str, Any]


def run(quick: bool) -> dict[str, Any]:
    """A row for each seed; a full run has others for the variant with context parallelism."""
    runs = [(seed, parts) for parts in ((1,) if quick else (1, 2)) for seed in SEEDS]
    with jobs.data_folder() as folder:
        write_texts(folder)
        found = train(folder, runs, steps=10 if quick else 200)
    pairs = list(zip(found[::2], found[1::2], strict=True))
    return {
        "name": "convergence",
        "rows": [compare(*pair) for pair in pairs],
        "curves": [
            {"seed": without["seed"], "without": without["losses"], "with": balanced["losses"]}
            for without, balanced in pairs
            if without["cp"] == 1
        ],
        "notes": [
            f"losses in nats per byte, {ROWS} rows of {SEQ_LEN} places a step; differences are the largest "
            "over the steps, of one run to the other",
            "moved_rows_percent: rows that balancing gave to another rank",
        ],
    }


def headlines(result: Mapping[str, Any]) -> list[Row]:
    """The largest differences of losses: before training amplifies the last bit, and in the end."""
    found = []
    for parts in sorted({row["context_parts"] for row in result["rows"]}):
        rows = [row for row in result["rows"] if row["context_parts"] == parts]
        figure = "nats that a loss differs, balanced or not, first 10 steps"
        figure += f", {parts} context parts" if parts > 1 else ""
        in_all = {f"all {rows[0]['steps']} steps": max(row["difference"] for row in rows)}
        found.append(
            headline(figure, max(row["difference_first_10"] for row in rows), beside=in_all, at_most=1e-5)
        )
    return found


def train(
    folder: Path, runs: Sequence[tuple[int, int]], *, steps: int, rows: int = ROWS, seq_len: int = SEQ_LEN
) -> list[Row]:
    """What `training_job/converge.py` reports of each (seed, context parts), without and with balancing."""
    asked = {
        "ranks": RANKS,
        "rows": rows,
        "seq_len": seq_len,
        "steps": steps,
        "runs": [
            {"seed": seed, "cp": cp, "balanced": balanced} for seed, cp in runs for balanced in (False, True)
        ],
    }
    (folder / "converge.json").write_text(json.dumps(asked))
    print(f"convergence: {2 * len(runs)} trainings of {steps} steps", file=sys.stderr)
    line = [sys.executable, str(HERE / "training_job" / "converge.py"), str(folder)]
    run_script(line, folder)
    return json.loads((folder / "converged.json").read_text())


def compare(without: Mapping[str, Any], balanced: Mapping[str, Any]) -> Row:
    """The figures of one seed.

    Raises:
        AssertionError: a step had other samples.
    """
    for step, (samples, others) in enumerate(zip(without["samples"], balanced["samples"], strict=True)):
        if samples != others:
            raise AssertionError(f"step {step} had other samples with balancing; it may only move rows")
    losses = np.array([without["losses"], balanced["losses"]])
    differences = np.abs(losses[0] - losses[1])
    return {
        "seed": without["seed"],
        "context_parts": without["cp"],
        "steps": len(differences),
        "tokens": without["tokens"],
        "loss_first": round(float(losses[0, 0]), 5),
        "loss_last_without": round(float(losses[0, -1]), 5),
        "loss_last_with": round(float(losses[1, -1]), 5),
        "difference_first_10": float(f"{differences[:10].max():.3g}"),
        "difference": float(f"{differences.max():.3g}"),
        "moved_rows_percent": round(100 * moved_share(without, balanced), 1),
    }


def moved_share(without: Mapping[str, Any], balanced: Mapping[str, Any]) -> float:
    """Share of the rows that lie on another rank."""
    ranks = [_ranks(run) for run in (without, balanced)]
    return float((ranks[0] != ranks[1]).mean())


def _ranks(run: Mapping[str, Any]) -> np.ndarray:
    """The data-parallel rank of each content row, int64 `[steps, rows]`."""
    place = np.argsort(np.array(run["orders"]), axis=1, kind="stable")
    return place // (place.shape[1] // (RANKS // run["cp"]))


# --- the picture --------------------------------------------------------------------------------------------


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw the losses of each seed, without balancing and with it, and how far apart they are."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    curves = result["curves"]
    figure = Figure(figsize=(4 * len(curves), 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(2, len(curves), sharex=True, sharey="row", squeeze=False, height_ratios=(2, 1))
    for (above, below), curve in zip(grid.T, curves, strict=True):
        _draw_losses(above, curve)
        _draw_difference(below, np.abs(np.array(curve["without"]) - np.array(curve["with"])))
    grid[0, 0].set_ylabel("loss (nats per byte)")
    grid[1, 0].set_ylabel("difference")
    grid[0, 0].legend(frameon=False)
    figure.suptitle("Balancing moves rows between ranks; the loss stays what it was", x=0.01, ha="left")
    figure.savefig(path)


def _draw_losses(axes: "Axes", curve: Mapping[str, Any]) -> None:
    axes.plot(curve["without"], lw=3.5, alpha=0.5, color=UNBALANCED_COLOUR, label="without balancing")
    axes.plot(curve["with"], lw=1, color=BALANCED_COLOUR, label="with balancing")
    axes.set_title(f"seed {curve['seed']}", loc="left")
    axes.grid(color="#e6e6e6")


def _draw_difference(axes: "Axes", differences: np.ndarray) -> None:
    shown = np.maximum(differences, np.finfo(np.float32).eps)  # equal losses have no logarithm
    axes.semilogy(shown, lw=1, color=GREY)
    axes.set_xlabel("training step")
    axes.grid(color="#e6e6e6")
