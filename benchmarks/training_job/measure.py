"""Plans real steps for many ranks, and times every row of them alone: one process, one thread, CPU time.

The planner gives the rows of a step the same content whatever balances them, so a row is timed once and its
seconds count wherever an order puts it; that the bytes are the same is checked here, batch by batch.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

import msdata_jax as msd
from benchmarks.training_job import model
from benchmarks.training_job.recipes import Job, backbone_cost, encoder_cost, make_recipe
from benchmarks.training_job.sizes import BLOCK, ENCODER_FLOPS, FLOPS, PATCH_VALUES, PATCHES_PER_ROW

SHORT_TOKENS = 1024
"""Samples shorter than this are timed several in a row, so that they fill as much."""

Row = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to measure.

    Attributes:
        jobs: cases, without balancing.
        balanced: what each is balanced for, `none` first.
        steps: of each case.
        repeats: times that a row is timed; the least counts.
        row_lengths: a row is cut to the shortest of these that holds what it holds; a program each.
    """

    jobs: Sequence[Job]
    balanced: Sequence[Any]
    steps: int
    repeats: int
    row_lengths: Sequence[int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    found = json.loads((folder / "measure.json").read_text())
    settings = Settings(**{**found, "jobs": [Job(**each) for each in found["jobs"]]})
    most = max(job.ranks * job.stages for job in settings.jobs)
    msd.initialize(num_cpu_devices=most)
    timer = Timer(settings)
    calibrate(folder, timer)
    cases = [measure(folder, job, settings, timer) for job in settings.jobs]
    (folder / "measured.json").write_text(json.dumps(cases))


# --- timing -------------------------------------------------------------------------------------------------


class Timer:
    """Times the gradients of single rows. Making a program is not timed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._params = model.init(0)
        self._ones = np.ones_like(model.NO_IMAGES)

    def backbone(self, rows: Sequence[Row], length: int | None = None) -> list[float]:
        """CPU seconds of each row, forward and backward, cut to one of the `row_lengths` or to `length`."""
        shown = [self._cut(model.shown_row(row), length) for row in rows]
        return self._least(shown, lambda row: model.row_gradients(self._params, row, self._ones))

    def encoder(self, patches: Sequence[Row]) -> list[float]:
        """The same of `patches` and their `segments`, as `patches_of` gives them."""
        return self._least(
            patches,
            lambda row: model.encoder_gradients(self._params, row["patches"], row["segments"], self._ones),
        )

    def _cut(self, row: Mapping[str, np.ndarray], length: int | None) -> Row:
        used = np.count_nonzero(row["segment_ids"])
        length = length or min(each for each in self.settings.row_lengths if each >= used)
        fill = {"patch_index": -1}
        return {name: _resized(values, length, fill.get(name, 0)) for name, values in row.items()}

    def _least(self, rows: Sequence[Row], compute: Callable[[Any], Any]) -> list[float]:
        """The least of several rounds over all rows: a slow moment of the machine hits no row twice."""
        shown = jax.device_put(rows)
        for row in {len(jax.tree.leaves(row)[0]): row for row in shown}.values():
            jax.block_until_ready(compute(row))  # makes the program
        seconds = np.full(len(rows), math.inf)
        for _ in range(self.settings.repeats):
            for number, row in enumerate(shown):
                begin = time.process_time()
                jax.block_until_ready(compute(row))
                seconds[number] = min(seconds[number], time.process_time() - begin)
        return seconds.tolist()


def _resized(values: np.ndarray, length: int, fill: int = 0) -> np.ndarray:
    if len(values) >= length:
        return values[:length]
    return np.pad(values, (0, length - len(values)), constant_values=fill)


# --- what a sample costs ------------------------------------------------------------------------------------


def calibrate(folder: Path, timer: Timer) -> None:
    """Save what samples cost here by their length: `packed.json`, `unpacked.json`, `patches.json`.

    In a row of many samples each costs its share of what the row takes more than an empty one; alone in its
    row it pays for the row as well.
    """
    longest = max(timer.settings.row_lengths)
    lengths = _ladder(longest)
    alone = timer.backbone([_equal_samples(length, 1) for length in lengths])
    _save(folder / "unpacked.json", lengths, alone, "tokens")
    copies = [max(1, SHORT_TOKENS // length) for length in lengths]
    rows = [_equal_samples(1, 1), *map(_equal_samples, lengths, copies)]
    empty, *together = timer.backbone(rows, longest)
    shares = [max(0.0, seconds - empty) / n for seconds, n in zip(together, copies, strict=True)]
    _save(folder / "packed.json", lengths, shares, "tokens")
    if any(job.mode == "hybrid" for job in timer.settings.jobs):
        lengths = _ladder(PATCHES_PER_ROW)
        copies = [PATCHES_PER_ROW // length for length in lengths]
        seconds = timer.encoder(list(map(_equal_pictures, lengths, copies)))
        shares = [each / n for each, n in zip(seconds, copies, strict=True)]
        _save(folder / "patches.json", lengths, shares, "patches")


def _ladder(longest: int) -> list[int]:
    """Lengths of a half and of three quarters of each power of two, up to the longest."""
    powers = [BLOCK // 2 * 2**i for i in range((2 * longest // BLOCK).bit_length())]
    return [n for power in powers for n in (power, 3 * power // 2) if n <= longest]


def _equal_samples(length: int, copies: int) -> Row:
    """A row of them; what the tokens are decides no time."""
    zeros = np.zeros(length * copies, np.int32)
    return {
        "tokens": zeros,
        "targets": zeros,
        "segment_ids": _segments(length, copies),
        "positions": np.tile(np.arange(length, dtype=np.int32), copies),
        "loss_mask": np.ones(length * copies, np.float32),
    }


def _equal_pictures(length: int, copies: int) -> Row:
    return {
        "patches": np.zeros((PATCHES_PER_ROW, PATCH_VALUES), np.uint8),
        "segments": _resized(_segments(length, copies), PATCHES_PER_ROW),
    }


def _segments(length: int, copies: int) -> np.ndarray:
    return np.repeat(np.arange(1, copies + 1, dtype=np.int32), length)


def _save(path: Path, lengths: Sequence[int], seconds: Sequence[float], column: str) -> None:
    msd.costs.fitted(zip(lengths, seconds, strict=True), column=column).save(path)


def patches_of(row: Row) -> Row:
    """The patches of a row, and the sample of each."""
    return {"patches": row["patches"], "segments": model.segments_of_patches(row, len(row["patches"]))}


# --- planned steps ------------------------------------------------------------------------------------------


def measure(folder: Path, job: Job, settings: Settings, timer: Timer) -> dict[str, Any]:
    """Plans and times of one case, all `[steps][content rows]` or `[steps][rows]`.

    Returns:
        `job`; `orders` by objective: the content row that each row of the batch shows; `samples`: keys of the
        step's samples by objective, sorted; `fitted` and `flops`: `[2]` costs (backbone, encoder) of content
        rows; `seconds`: `[2]` measured; `tokens` of each step.
    """
    planned = {name: plan(folder, replace(job, balanced=name), settings.steps) for name in settings.balanced}
    first = planned["none"]
    for other in planned.values():
        check_same_rows(first, other)
    rows = [row for each in first for row in each["rows"]]
    backbone = timer.backbone(rows)
    encoder = timer.encoder([*map(patches_of, rows)]) if job.mode == "hybrid" else [0.0] * len(rows)
    seconds = np.stack([backbone, encoder]).reshape(2, len(first), -1)
    return {
        "job": vars(job),
        "orders": {name: [each["order"] for each in steps] for name, steps in planned.items()},
        "samples": {name: [each["samples"] for each in steps] for name, steps in planned.items()},
        "fitted": [each["fitted"] for each in first],
        "flops": [each["flops"] for each in first],
        "seconds": seconds.swapaxes(0, 1).tolist(),
        "tokens": [each["tokens"] for each in first],
    }


def plan(folder: Path, job: Job, num_steps: int) -> list[dict[str, Any]]:
    """The steps of a job, as its DataLoader delivers them to a mesh of so many devices."""
    recipe = make_recipe(folder, job)
    shape, axes = (job.ranks, job.stages), ("dp", "pp")
    devices = np.array(jax.devices()[: math.prod(shape)]).reshape(shape)
    mesh = jax.sharding.Mesh(devices, axes) if job.stages > 1 else jax.sharding.Mesh(devices[:, 0], axes[:1])
    costs = {
        "fitted": (backbone_cost(folder, job.mode), encoder_cost(folder, job.mode)),
        "flops": (FLOPS, ENCODER_FLOPS if job.mode == "hybrid" else None),
    }
    steps = []
    with msd.DataLoader(recipe, mesh=mesh, num_steps=num_steps) as loader:
        for batch in loader:
            expect = loader.last_step
            order = expect.global_row
            rows = content_rows(batch, order)
            steps.append(
                {
                    "order": order.tolist(),
                    "samples": sample_keys(expect),
                    "rows": rows,
                    "tokens": int(expect.length.sum()),
                    **{name: row_costs(expect, *pair) for name, pair in costs.items()},
                }
            )
    return steps


def content_rows(batch: Mapping[str, Any], order: np.ndarray) -> list[Row]:
    """Rows of a batch by their content's number, as numpy arrays."""
    fields = {name: np.asarray(batch[name]) for name in batch}
    place = np.argsort(order, kind="stable")
    return [{name: values[g] for name, values in fields.items()} for g in place]


def sample_keys(expect: Any) -> list[list[int]]:
    """Source, position, part, first token and length of every sample of a step, sorted."""
    columns = [expect.infos[name].tolist() for name in ("source", "position", "part")]
    return sorted(map(list, zip(*columns, expect.start.tolist(), expect.length.tolist(), strict=True)))


def row_costs(expect: Any, backbone: msd.costs.Cost, encoder: msd.costs.Cost | None) -> list[list[int]]:
    """`[2][content rows]`: work of the samples in each row, in the unit of the costs."""
    used = expect.infos.copy()
    used["tokens"] = expect.length
    content = expect.global_row[expect.row]
    costs = (backbone(used), np.zeros(len(used), np.int64) if encoder is None else encoder(used))
    return [np.bincount(content, each, len(expect.global_row)).astype(int).tolist() for each in costs]


def check_same_rows(steps: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> None:
    """Raise AssertionError unless both deliver the same rows, byte for byte, in whatever order."""
    for step, other in zip(steps, others, strict=True):
        for row, same in zip(step["rows"], other["rows"], strict=True):
            for name, values in row.items():
                if not np.array_equal(values, same[name]):
                    raise AssertionError(f"balancing changed {name} of a row; it may only move rows")


if __name__ == "__main__":
    main()
