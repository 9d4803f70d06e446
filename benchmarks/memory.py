"""Memory of our loader and of other loaders, as sources and training processes grow.

Every loader feeds the same training processes from the same records, of text, mixed evenly: as Parquet with a
row group of about 2.7 MB in each source, and as ArrayRecord; loaders that read neither have the records in a
format of their own, in chunks (a block format, as Parquet is) or record by record. Each takes as many steps
as let a worker meet every source. `loader_pss_mb` is the proportional set size of all processes behind the
last step, less that of the training processes after their imports: worker processes, our planner, loaders and
mpiexec, and what training processes have grown by. `workers` counts the worker processes of each training
process; ours has as many data processes in all, planner included, but at least two. Its loaders need not grow
with the training processes, so ours with two loaders has rows of its own. `ratio_to_ours` is to the former,
in the same cell, of a block format or of a record format.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.headline import headline
from benchmarks.peers import data, measure, registry
from benchmarks.peers.job import Cell
from benchmarks.peers.registry import (
    OUR_NAME,
    PEERS,
    QUICK_PEERS,
    Peer,
    is_block,
    name_in,
    take_ours,
)
from benchmarks.peers.runs import Run, interleaved

BATCH_SIZE = 16
RECORDS_PER_SOURCE = 2048
SOURCES, TRAINERS = (8, 64, 256), (1, 4, 8)
GOAL_CELL, GOAL_MB = (64, 8), 568.0


def run(quick: bool) -> dict[str, Any]:
    """A row for each loader, format, number of sources and number of training processes."""
    cells = ((16, 2),) if quick else tuple(itertools.product(SOURCES, TRAINERS))
    return compare(QUICK_PEERS if quick else PEERS, cells, rounds=1, workers=1 if quick else 2)


def headlines(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Block and record formats in the cell that the goal is for, or the largest."""
    measured = [row for row in result["rows"] if "loader_pss_mb" in row]
    cells = sorted({(row["sources"], row["trainers"]) for row in measured})
    cell = GOAL_CELL if GOAL_CELL in cells else cells[-1]
    found = []
    for in_blocks in (True, False):
        values: dict[str, float] = {}
        for row in measured:
            if (row["sources"], row["trainers"]) == cell and is_block(row) == in_blocks:
                values[name_in(row)] = row["loader_pss_mb"]
        ours = min(take_ours(values), default=None)
        figure = (
            f"MB of all data processes, {cell[0]} sources, {cell[1]} training processes, "
            f"{'block' if in_blocks else 'record'} formats"
        )
        goal = GOAL_MB if in_blocks and cell == GOAL_CELL else None
        found.append(headline(figure, ours, beside=values, at_most=goal))
    return found


def compare(
    peers: Sequence[Peer],
    cells: Sequence[tuple[int, int]],
    *,
    rounds: int,
    workers: int = 1,
    records_per_source: int = RECORDS_PER_SOURCE,
    folder: Path | None = None,
) -> dict[str, Any]:
    """All loaders in all cells of (sources, training processes)."""
    folder = folder or data.cache_folder()
    runnable, absent = registry.split(peers)
    rows, failures = [], []
    for num_sources, trainers in cells:
        cell = make_cell(folder, num_sources, trainers, workers, records_per_source)
        found, failed = interleaved(runnable, cell, rounds)
        rows += describe(found)
        failures += failed
    rows = [*rows, *growth(rows), *failures, *absent]
    return {"name": "memory", "rows": rows, "notes": _notes(rounds, runnable)}


def make_cell(folder: Path, num_sources: int, trainers: int, workers: int, records_per_source: int) -> Cell:
    """Steps enough for a worker that draws at random to meet every source (coupons to collect)."""
    sources = data.mixture(num_sources, 0, records_per_source, even=True)
    draws = num_sources * (math.log(num_sources) + 1)
    return Cell(
        folder=folder,
        sources=sources,
        trainers=trainers,
        workers=workers,
        batch_size=BATCH_SIZE,
        mean_tokens=data.mean_tokens(sources),
        warm_up=math.ceil(draws / BATCH_SIZE) * workers,
    )


def describe(found: Mapping[Peer, Sequence[Run]]) -> list[dict[str, Any]]:
    """The rows of a cell."""
    rows = []
    for peer, runs in found.items():
        job = runs[0].job
        used = [each.loader_mb for each in runs]
        rows.append(
            {
                "peer": peer.name,
                "format": peer.format,
                "sources": len(job.sources),
                "trainers": job.trainers,
                "workers": job.workers,
                "data_processes": runs[0].processes,
                "loader_pss_mb": measure.median(used, 1),
                "loader_pss_mb_spread": measure.spread(used, 1),
                "total_pss_mb": measure.median([each.steady_mb for each in runs], 1),
                "ratio_to_ours": None,
            }
        )
    ours = {is_block(row): row["loader_pss_mb"] for row in rows if row["peer"] == OUR_NAME}
    for row in rows:
        if (least := ours.get(is_block(row))) is not None:
            row["ratio_to_ours"] = round(row["loader_pss_mb"] / least, 2)
    return rows


def growth(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a source, a training process, and a source in each of them add, fitted for each loader and format.

    Least squares of `fixed + s sources + t trainers + p sources x trainers`; left out where a loader has too
    few cells to tell them apart. Where the last is near 0 memory grows with sources plus processes.
    """
    by_loader: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        by_loader.setdefault((name_in(row), row["format"]), []).append(row)
    fits = []
    for (peer, name), mine in by_loader.items():
        sources, trainers, used = (
            np.array([row[column] for row in mine], float)
            for column in ("sources", "trainers", "loader_pss_mb")
        )
        terms = np.stack([np.ones(len(mine)), sources, trainers, sources * trainers], axis=1)
        if len(mine) <= terms.shape[1] or np.linalg.matrix_rank(terms) < terms.shape[1]:
            continue
        factors = np.linalg.lstsq(terms, used)[0]
        error = float(np.abs(terms @ factors - used).max())
        fits.append(
            {
                "peer": peer,
                "format": name,
                "fixed_mb": round(float(factors[0]), 1),
                "mb_a_source": round(float(factors[1]), 3),
                "mb_a_trainer": round(float(factors[2]), 2),
                "mb_a_source_in_each_trainer": round(float(factors[3]), 4),
                "largest_error_mb": round(error, 1),
            }
        )
    return fits


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw the memory of all loaders: a row of charts for block formats, one for record formats."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in result["rows"] if "loader_pss_mb" in row]
    figure = Figure(figsize=(11, 8), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(2, 2, sharey="row")
    for charts, in_blocks in zip(grid, (True, False), strict=True):
        mine = [row for row in rows if is_block(row) == in_blocks]
        for axes, along, fixed in zip(charts, ("trainers", "sources"), ("sources", "trainers"), strict=True):
            _draw_lines(axes, mine, along, fixed)
        charts[0].set_ylim(bottom=0)
        charts[0].set_ylabel(f"{'block' if in_blocks else 'record'} formats: MB of all data processes")
        charts[1].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    figure.suptitle(
        "Memory that loading takes, beyond what the training processes have anyway", ha="left", x=0.01
    )
    figure.savefig(path, dpi=120)


def _draw_lines(axes: Any, rows: Sequence[Mapping[str, Any]], along: str, fixed: str) -> None:
    """A line for each loader and format, at the middle of the other number."""
    numbers = sorted({row[fixed] for row in rows})
    at = numbers[len(numbers) // 2] if numbers else 0
    names = dict.fromkeys(peer.name for peer in (*PEERS, *registry.BOUNDS))
    colours = {name: f"C{place % 10}" for place, name in enumerate(names)}
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row[fixed] == at:
            label = f"{name_in(row)}, {row['format']}"
            lines.setdefault(label, []).append((row[along], row["loader_pss_mb"]))
    for label, points in sorted(lines.items()):
        is_ours = label.startswith(OUR_NAME)
        loader = label.partition(",")[0]
        style = (
            {"lw": 2.6, "zorder": 3} if is_ours else {"lw": 1.2, "ls": ":" if "threads" in loader else "--"}
        )
        style["color"] = colours[loader.removesuffix(" on threads")]
        axes.plot(*zip(*sorted(points), strict=True), marker="o", ms=4, label=label, **style)
    axes.set_xlabel(f"{along}, with {at} {fixed}")
    axes.grid(color="#e6e6e6")


def _notes(rounds: int, peers: Sequence[Peer]) -> list[str]:
    return [
        f"medians of {rounds} interleaved runs, and the lowest and the highest",
        f"sources of {RECORDS_PER_SOURCE} texts, batches of {BATCH_SIZE} for each training process",
        f"left out: {registry.left_out(peers)}",
        registry.versions(peers),
    ]
