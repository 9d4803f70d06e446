"""What each strategy of the examples promises, on small data under the names of the demo's."""

import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msdata_jax as msd
from msdata_jax.batching.context import place_order
from msdata_jax.batching.rows import RowFormat, Segments, counts
from msdata_jax.dry_run import DryRun, PlannedStep
from msdata_jax.plan import StepPlan
from msdata_jax.planning.graph import DGraph
from msdata_jax.planning.mixing import WEIGHT_SCALE
from msdata_jax.planning.place_tree import MeshLayout

FOLDER = Path(__file__).parents[2] / "examples" / "strategies"
NAMES = {"annealing": 100, "curriculum": 42, "hybrid": 12, "long_short": 8}
DATA = {
    "code_py.jsonl": "text.jsonl",
    "dict_en.jsonl": "text.jsonl",
    "docs_rst.parquet": "text.parquet",
    "man_de.arrayrecord": "text.arrayrecord",
    "photos.tar": "images.tar",
    "tokenizer.json": "tokenizer.json",
}
MESH = MeshLayout(axis_names=("dp", "cp"), axis_sizes=(4, 2), process_of_device=(0,) * 8)


@pytest.fixture(scope="module")
def demo_data(job_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo_data")
    for name, made in DATA.items():
        shutil.copyfile(job_data / made, folder / name)
    return folder


@pytest.fixture(scope="module")
def files(demo_data: Path) -> dict[str, dict[str, Any]]:
    """What each recipe file defines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MSDATA_DEMO_DATA", str(demo_data))
        return {name: runpy.run_path(str(FOLDER / f"{name}.py")) for name in NAMES}


def dry_run(recipe: msd.Recipe, num_steps: int) -> list[PlannedStep]:
    with DryRun(recipe, MESH) as run:
        return list(run.steps(num_steps))


@pytest.fixture(scope="module")
def planned(files: dict[str, dict[str, Any]]) -> dict[str, list[PlannedStep]]:
    """The first steps of each strategy; two windows of the one that regroups."""
    return {name: dry_run(files[name]["recipe"], num_steps) for name, num_steps in NAMES.items()}


def plans_under(recipe: msd.Recipe, strategy: DGraph, num_steps: int) -> list[StepPlan]:
    """The plans of the recipe with another strategy."""
    return [step.plan for step in dry_run(replace(recipe, strategy=strategy), num_steps)]


def sums_by(values: np.ndarray, part: np.ndarray, num_parts: int) -> np.ndarray:
    sums = np.zeros(num_parts, dtype=np.int64)
    np.add.at(sums, part, values)
    return sums


def furthest_from_shares(steps: Sequence[PlannedStep]) -> int:
    """How far any source's drawn tokens are from its weights at the end of any step, in longest samples."""
    num_sources = len(steps[0].weights)
    owed = np.zeros(num_sources, dtype=np.int64)
    furthest, longest = 0, 1
    for step in steps:
        drawn = sums_by(step.drawn["tokens"], step.drawn["source"], num_sources)
        owed += drawn.sum() * step.weights - WEIGHT_SCALE * drawn
        longest = max(longest, int(step.drawn["tokens"].max()))
        furthest = max(furthest, int(abs(owed).max()))
    return -(-furthest // (WEIGHT_SCALE * longest))


# --- all of them


@pytest.mark.parametrize("name", NAMES)
def test_a_loader_delivers_what_the_dry_run_plans(
    name: str, files: dict[str, dict[str, Any]], planned: dict[str, list[PlannedStep]]
) -> None:
    with msd.DataLoader(files[name]["recipe"], num_steps=2) as loader:
        for step, batch in zip(planned[name][:2], loader, strict=True):
            step.plan.check()
            assert loader.last_step.content_digest == step.plan.content_digest
            assert batch["tokens"].shape == (step.plan.num_rows, step.plan.seq_len)


@pytest.mark.parametrize("name", NAMES)
def test_the_docstring_says_what_it_is_for(name: str, files: dict[str, dict[str, Any]]) -> None:
    text = files[name]["__doc__"]
    assert all(line in text for line in ("What this strategy does:", "What to look at:"))


# --- long and short contexts


@pytest.fixture(scope="module")
def not_regrouped(files: dict[str, dict[str, Any]]) -> list[StepPlan]:
    recipe = files["long_short"]["recipe"]
    return plans_under(recipe, recipe.strategy.regroup(steps=1), NAMES["long_short"])


def test_regroup_and_balance_each_even_out_the_ranks(
    planned: dict[str, list[PlannedStep]], not_regrouped: list[StepPlan]
) -> None:
    plans = [step.plan for step in planned["long_short"]]
    dearest = [sum(int(plan.group_costs().max()) for plan in each) for each in (plans, not_regrouped)]
    as_they_come = sum(int(plan.group_costs(np.arange(plan.num_rows)).max()) for plan in not_regrouped)
    even = sum(Fraction(int(plan.group_costs().sum()), plan.num_groups) for plan in plans)
    assert even <= dearest[0] < dearest[1] < as_they_come
    assert dearest[0] - even < (dearest[1] - even) / 2


def test_regroup_delivers_the_same_segments_in_each_window(
    planned: dict[str, list[PlannedStep]], not_regrouped: list[StepPlan]
) -> None:
    plans = [step.plan for step in planned["long_short"]]
    for first in (0, 4):
        ours, theirs = (
            sorted(
                (*sample.item()[:3], start)
                for plan in each[first : first + 4]
                for sample, start in zip(plan.samples, plan.start.tolist(), strict=True)
            )
            for each in (plans, not_regrouped)
        )
        assert ours == theirs


def work_of_parts(plan: StepPlan, layout: Any) -> np.ndarray:
    """int64 `[rows, parts]`: places that the places of each context part attend to."""
    form = RowFormat(seq_len=plan.seq_len, context_parts=4, context_layout=layout)
    patches = plan.samples["patches"]
    segments = Segments(row=plan.row, offset=plan.offset, length=plan.length, num_patches=patches)
    seen = np.zeros(plan.num_rows * plan.seq_len, dtype=np.int64)
    first = plan.row.astype(np.int64) * plan.seq_len + plan.offset
    seen[np.repeat(first, plan.length) + counts(plan.length)] = counts(plan.length) + 1
    seen = seen.reshape(plan.num_rows, plan.seq_len)
    order = place_order(form, segments, plan.num_rows)
    if order is not None:
        seen = np.take_along_axis(seen, np.broadcast_to(order, seen.shape), axis=1)
    return seen.reshape(plan.num_rows, 4, -1).sum(axis=2)


def test_context_parts_work_alike_where_each_document_is_cut(planned: dict[str, list[PlannedStep]]) -> None:
    dearest = {}
    for layout in ("contiguous", "zigzag", "zigzag_document"):
        work = np.concatenate([work_of_parts(step.plan, layout) for step in planned["long_short"]])
        dearest[layout] = work.max(axis=1) / work.mean(axis=1)
    assert dearest["zigzag_document"].max() < 1.02
    assert 1.1 < dearest["zigzag"].mean() < dearest["contiguous"].mean()


# --- encoder and backbone


def test_a_hybrid_waits_less_than_one_that_balances_the_backbone(
    files: dict[str, dict[str, Any]], planned: dict[str, list[PlannedStep]]
) -> None:
    recipe = files["hybrid"]["recipe"]
    blind = recipe.strategy.cost(backbone=recipe.strategy.backbone_cost)
    both, backbone = [step.plan for step in planned["hybrid"]], plans_under(recipe, blind, NAMES["hybrid"])
    assert [plan.content_digest for plan in both] == [plan.content_digest for plan in backbone]

    def waits(plan: StepPlan, order: np.ndarray) -> int:
        """Work until all ranks are through: the dearest encoder, then the dearest backbone."""
        costs = (plan.row_encoder_cost, plan.row_cost)
        return sum(int(each[order].reshape(plan.num_groups, -1).sum(axis=1).max()) for each in costs)

    as_they_come = [waits(plan, np.arange(plan.num_rows)) for plan in both]
    by_both = [waits(plan, plan.order) for plan in both]
    by_backbone = [waits(plan, other.order) for plan, other in zip(both, backbone, strict=True)]
    assert sum(by_both) < sum(by_backbone) < sum(as_they_come)
    assert all(ours <= plain for ours, plain in zip(by_both, as_they_come, strict=True))
    assert all(int(plan.row_encoder_cost.sum()) > 0 for plan in both)


def test_images_apart_from_their_rows_wait_less_still(
    files: dict[str, dict[str, Any]], planned: dict[str, list[PlannedStep]]
) -> None:
    recipe = files["hybrid"]["recipe"]
    graph = recipe.strategy.distribute("dp", encoder_axis="world")
    apart = plans_under(recipe, graph, NAMES["hybrid"])
    together = [step.plan for step in planned["hybrid"]]
    assert [plan.content_digest for plan in apart] == [plan.content_digest for plan in together]
    dearest = []
    for plan in apart:
        has_image = plan.slot >= 0
        costs = graph.encoder_cost(plan.samples[has_image])
        dearest.append(int(sums_by(costs, plan.slot[has_image], plan.num_slots).max()))
        assert costs.sum() == plan.row_encoder_cost.sum()
    in_rows = [int(each.row_encoder_cost[each.order].reshape(4, -1).sum(axis=1).max()) for each in together]
    # Slots lie on all 8 devices; two of them do what a rank of two devices does.
    assert sum(2 * each for each in dearest) < sum(in_rows)


# --- curriculum


def test_difficulty_rises_with_the_shares_of_the_buckets(planned: dict[str, list[PlannedStep]]) -> None:
    first_of_bucket = np.array([0, 80, 160])
    mean = []
    for step in planned["curriculum"]:
        samples, length = step.plan.samples, step.plan.length
        bucket = np.searchsorted(first_of_bucket, samples["difficulty"], side="right") - 1
        assert np.array_equal(bucket, samples["source"])
        mean.append(Fraction(int((samples["difficulty"] * length).sum()), int(length.sum())))
    assert mean[0] < mean[10] < mean[20] < mean[30] < mean[40]
    assert 2 not in planned["curriculum"][0].plan.samples["source"]


def test_shares_move_in_straight_lines_and_are_kept(planned: dict[str, list[PlannedStep]]) -> None:
    steps = planned["curriculum"]
    shares = np.array([step.weights for step in steps]) / WEIGHT_SCALE
    on_the_lines = {0: (0.8, 0.2, 0.0), 10: (0.55, 0.35, 0.1), 20: (0.3, 0.5, 0.2), 40: (0.1, 0.2, 0.7)}
    for step, expected in on_the_lines.items():
        assert shares[step] == pytest.approx(expected, abs=1e-6)
    assert np.array_equal(shares[41], shares[40])
    assert furthest_from_shares(steps) <= 2


# --- annealing


def test_code_takes_over_in_the_last_tenth(
    files: dict[str, dict[str, Any]], planned: dict[str, list[PlannedStep]]
) -> None:
    names = files["annealing"]["recipe"].source_names
    shares = np.array([step.weights for step in planned["annealing"]]) / WEIGHT_SCALE
    assert len(shares) == files["annealing"]["NUM_STEPS"]
    code = shares[:, names.index("python")]
    assert code[:90] == pytest.approx(0.2, abs=1e-6)
    assert np.diff(code[89:]) == pytest.approx(0.05, abs=1e-6)
    assert code[-1] == pytest.approx(0.7, abs=1e-6)
    text = shares[:, [names.index(name) for name in ("guides", "manuals", "entries")]]
    text /= text.sum(axis=1, keepdims=True)
    assert text == pytest.approx(np.tile([0.5, 0.25, 0.25], (100, 1)), abs=1e-6)


def test_annealed_shares_are_kept_to_the_last_step(
    files: dict[str, dict[str, Any]], planned: dict[str, list[PlannedStep]]
) -> None:
    steps = planned["annealing"]
    assert furthest_from_shares(steps) <= 2
    code = files["annealing"]["recipe"].source_names.index("python")

    def share(chosen: Sequence[PlannedStep]) -> float:
        tokens = [sums_by(each.plan.length, each.plan.samples["source"], 4) for each in chosen]
        return float(np.sum(tokens, axis=0)[code] / np.sum(tokens))

    assert share(steps[:90]) == pytest.approx(0.2, abs=0.01)
    assert share(steps[-3:]) == pytest.approx(0.65, abs=0.05)


def test_targets_of_the_dictionary_count_half(files: dict[str, dict[str, Any]]) -> None:
    recipe = files["annealing"]["recipe"]
    entries = recipe.source_names.index("entries")
    with msd.DataLoader(recipe, num_steps=1) as loader:
        (batch,) = loader
        expect = loader.last_step
    segments = zip(expect.infos["source"], expect.row, expect.offset, expect.length, strict=True)
    for source, row, offset, length in segments:
        weights = batch["loss_mask"][row, offset : offset + length]
        assert np.array_equal(weights[:-1], np.full(length - 1, 0.5 if source == entries else 1.0))
        assert weights[-1] == 0
    assert {entries} < set(expect.infos["source"].tolist())


# --- as a job


@pytest.mark.mpi
@pytest.mark.multiprocess
def test_the_training_script_sees_the_same_alone_and_as_a_job(demo_data: Path) -> None:
    inherited = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "PYTHONPATH")}
    env = {
        **inherited,
        "MSDATA_DEMO_DATA": str(demo_data),
        "JAX_PLATFORMS": "cpu",
        "TOKENIZERS_PARALLELISM": "false",
    }
    script = [str(FOLDER / "train.py"), "hybrid", "--steps", "3"]
    alone = [sys.executable, *script]
    launch = [str(Path(sys.executable).parent / "msdata"), "launch", "--loaders", "2"]
    job = [*launch, str(FOLDER / "hybrid.py"), "--", *script]
    printed = []
    for line in (alone, job):
        done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=150, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        printed.append([each for each in done.stdout.splitlines() if each.startswith("step ")])
    assert len(printed[0]) == 3
    assert printed[0] == printed[1]
