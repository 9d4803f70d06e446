"""What changes for each process when the mesh changes."""

from dataclasses import dataclass

import numpy as np

from msdata_jax.errors import RecipeError
from msdata_jax.planning.place_tree import Axes, ClientPlaceTree


@dataclass(frozen=True, kw_only=True)
class ProcessDiff:
    """The rows of one process, before and after; all are rows of the same global batch, increasing.

    Attributes:
        process: its index, in both meshes.
        kept: int64, rows that it holds and goes on to need.
        fetched: int64, rows that it needs and does not hold.
        holders: for each fetched row, the processes of the mesh before that hold it, increasing.
        dropped: int64, rows that it holds and no longer needs.
    """

    process: int
    kept: np.ndarray
    fetched: np.ndarray
    holders: tuple[tuple[int, ...], ...]
    dropped: np.ndarray

    def describe(self) -> str:
        """One line for people."""
        text = f"process {self.process}: keeps {_rows_text(self.kept)}, fetches {_rows_text(self.fetched)}"
        if self.holders:
            text += f" from {_ranges_text(sorted({p for each in self.holders for p in each}))}"
        return f"{text}, drops {_rows_text(self.dropped)}"


def fetch_diff(
    before: ClientPlaceTree, after: ClientPlaceTree, axes_before: Axes, axes_after: Axes, num_rows: int
) -> list[ProcessDiff]:
    """Compare what each process holds of a global batch before and after the mesh changes.

    Rows keep their numbers: it is the placement of one given batch that changes. Processes that need no data
    (middle pipeline stages) hold no rows.

    Args:
        before: the mesh that the rows were delivered on.
        after: the mesh that needs them.
        axes_before: mesh axes that cut the rows before.
        axes_after: mesh axes that cut the rows after.
        num_rows: rows of the global batch.

    Returns:
        One entry for each process of either mesh, by increasing index.

    Raises:
        RecipeError: a mesh has no such axis, or the rows do not divide by it.
    """
    for tree, axes in ((before, axes_before), (after, axes_after)):
        if num_rows % tree.axis_size(axes):
            raise RecipeError(
                f"{num_rows} rows do not divide by {tree.axis_size(axes)} parts along {axes!r}; give a "
                "number of rows that both meshes cut into equal parts"
            )
    holders = _holders(before, axes_before)
    rows_per_part = num_rows // len(holders)
    diffs = []
    for process in sorted({*before.processes, *after.processes}):
        held = _needed_rows(before, process, axes_before, num_rows)
        needed = _needed_rows(after, process, axes_after, num_rows)
        fetched = np.setdiff1d(needed, held, assume_unique=True)
        diffs.append(
            ProcessDiff(
                process=process,
                kept=np.intersect1d(held, needed, assume_unique=True),
                fetched=fetched,
                holders=tuple(holders[part] for part in (fetched // rows_per_part).tolist()),
                dropped=np.setdiff1d(held, needed, assume_unique=True),
            )
        )
    return diffs


def _holders(tree: ClientPlaceTree, axes: Axes) -> list[tuple[int, ...]]:
    """For each part of the rows, the processes that hold it."""
    holders: list[list[int]] = [[] for _ in range(tree.axis_size(axes))]
    for process in filter(tree.needs_data, tree.processes):
        for part in tree.parts_of_process(process, axes).tolist():
            holders[part].append(process)
    return [tuple(each) for each in holders]


def _needed_rows(tree: ClientPlaceTree, process: int, axes: Axes, num_rows: int) -> np.ndarray:
    if not tree.needs_data(process):
        return np.empty(0, dtype=np.int64)
    return tree.rows_of_process(process, axes, num_rows)


def _rows_text(rows: np.ndarray) -> str:
    return f"{len(rows)} rows ({_ranges_text(rows.tolist())})" if len(rows) else "0 rows"


def _ranges_text(numbers: list[int]) -> str:
    """Increasing numbers as ranges: `0-3, 8`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
