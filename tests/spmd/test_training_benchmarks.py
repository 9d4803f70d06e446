"""The benchmarks `training` and `convergence`: what they compose and compare, and their jobs at work."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

COLUMNS = {
    "context", "mode", "sync", "imbalance_without", "imbalance_with", "step_seconds_without",
    "step_seconds_with", "wait_percent_without", "wait_percent_with", "tokens_per_second_without",
    "tokens_per_second_with", "gain", "simulated_gain", "bound_seconds", "percent_above_bound",
}  # fmt: skip
TEXTS = {
    "docstrings": [f"Returns {'the ' * n}value." for n in range(1, 60)],
    "blocks": [f"def f():\n    return {'1 + ' * n}1\n" for n in range(1, 90, 3)],
    "modules": ["import os\n" * 40, "import sys\n" * 15],
}


@pytest.fixture
def benchmarks(import_benchmark) -> SimpleNamespace:
    return SimpleNamespace(
        convergence=import_benchmark("convergence"),
        training=import_benchmark("training"),
        recipes=import_benchmark("training_job.recipes"),
    )


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    for name, documents in TEXTS.items():
        lines = [json.dumps({"text": text}) for text in documents]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


# --- the model ----------------------------------------------------------------------------------------------


def test_model() -> None:
    program = Path(__file__).with_name("model_program.py")
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, str(program)], env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["gradients", "reaches"]


# --- composing ----------------------------------------------------------------------------------------------


def pipeline_in_a_loop(times: list[float], stages: int) -> float:
    """1F1B by its rule: each stage's passes in order, each as soon as the pass that it needs has ended."""
    count = len(times)
    orders = []
    for stage in range(stages):
        ahead = min(stages - 1 - stage, count)
        order = [("f", m) for m in range(ahead)]
        for m in range(count - ahead):
            order += [("f", ahead + m), ("b", m)]
        orders.append(order + [("b", m) for m in range(count - ahead, count)])
    ended: dict[tuple[str, int, int], float] = {}
    while any(orders):
        for stage, order in enumerate(orders):
            if not order:
                continue
            kind, m = order[0]
            needed = ("f", stage - 1, m) if kind == "f" else ("b", stage + 1, m)
            if 0 <= needed[1] < stages and needed not in ended:
                continue
            done_before = [end for (_, s, _), end in ended.items() if s == stage]
            start = max([*done_before, ended.get(needed, 0.0)], default=0.0)
            ended[kind, stage, m] = start + times[m] / stages * (1 / 3 if kind == "f" else 2 / 3)
            order.pop(0)
    return max(ended.values())


def test_step_seconds_against_loops(benchmarks) -> None:
    step_seconds = benchmarks.training.step_seconds
    for seed in range(5):
        work = np.random.default_rng(seed).uniform(0.1, 2.0, (2, 3, 4))
        ranks, turns = range(3), range(4)
        phases = [max(sum(work[phase, r, m] for m in turns) for r in ranks) for phase in (0, 1)]
        assert step_seconds(work, "step", 1) == pytest.approx(sum(phases))
        together = [max(work[0, r, m] + work[1, r, m] for r in ranks) for m in turns]
        assert step_seconds(work, "microbatch", 1) == pytest.approx(sum(together))
        for stages in (1, 2, 4):
            slowest = max(pipeline_in_a_loop(list(work[:, r].sum(axis=0)), stages) for r in ranks)
            assert step_seconds(work, "pipeline", stages) == pytest.approx(slowest)


def make_case() -> dict:
    """Two ranks of two microbatches of one row; costs are the seconds in hundredths."""
    seconds = [[4.0, 3.0, 1.0, 2.0], [0.0, 0.0, 0.0, 0.0]]
    costs = (100 * np.array(seconds)).astype(int).tolist()
    return {
        "job": {"mode": "packed", "context": 256, "ranks": 2, "microbatches": 2, "rows": 1, "stages": 1},
        "orders": {
            "none": [[0, 1, 2, 3]],  # ranks 7 and 3; microbatches 4 and 3
            "step": [[0, 2, 1, 3]],  # ranks 5 and 5
            "microbatch": [[0, 2, 1, 3]],  # microbatches 4 and 2
            "pipeline": [[0, 2, 1, 3]],
        },
        "samples": {name: [[[0, 1, 0, 0, 9]]] for name in ("none", "step", "microbatch", "pipeline")},
        "seconds": [seconds],
        "fitted": [costs],
        "flops": [costs],
        "tokens": [70],
    }


def test_composed_rows(benchmarks) -> None:
    step, microbatch, pipeline = benchmarks.training.compose_rows(make_case())
    assert set(step) == COLUMNS
    assert (step["step_seconds_without"], step["step_seconds_with"], step["bound_seconds"]) == (7, 5, 5)
    assert (step["imbalance_without"], step["imbalance_with"]) == (1.4, 1)
    assert (step["wait_percent_without"], step["wait_percent_with"]) == (28.6, 0)
    assert (step["tokens_per_second_without"], step["tokens_per_second_with"]) == (10, 14)
    assert (step["gain"], step["simulated_gain"], step["percent_above_bound"]) == (1.4, 1.4, 0)
    assert (microbatch["step_seconds_without"], microbatch["step_seconds_with"]) == (7, 6)
    assert (microbatch["percent_above_bound"], microbatch["simulated_gain"]) == (20, 1.167)
    assert {name: pipeline[name] for name in COLUMNS - {"sync"}} == {
        name: step[name] for name in COLUMNS - {"sync"}
    }  # of one stage


def test_other_samples_end_the_benchmark(benchmarks) -> None:
    case = make_case()
    case["samples"]["step"] = [[[0, 2, 0, 0, 9]]]
    with pytest.raises(AssertionError, match="samples of a step"):
        benchmarks.training.compose_rows(case)


# --- measuring ----------------------------------------------------------------------------------------------


@pytest.mark.multiprocess
def test_measured_rows(benchmarks, texts: Path) -> None:
    training = benchmarks.training
    job = benchmarks.recipes.Job(mode="unpacked", context=512, ranks=2, microbatches=2, rows=2, stages=2)
    (case,) = training.measure(texts, [job], {"steps": 1, "repeats": 1, "row_lengths": [512]})
    assert set(map(tuple, case["samples"]["none"][0])) == set(map(tuple, case["samples"]["step"][0]))
    assert len(case["samples"]["none"][0]) == 8  # one a row
    assert case["orders"]["none"] == [list(range(8))]
    assert sorted(case["orders"]["pipeline"][0]) == list(range(8))
    assert min(case["seconds"][0][0]) > 0
    assert case["seconds"][0][1] == [0.0] * 8  # no encoder
    assert case["tokens"] == [sum(key[4] for key in case["samples"]["none"][0])]
    for row in training.compose_rows(case):
        assert set(row) == COLUMNS
        assert 1 <= row["imbalance_with"] <= row["imbalance_without"]


@pytest.mark.mpi
@pytest.mark.multiprocess
def test_two_processes_by_the_clock(benchmarks, texts: Path) -> None:
    training = benchmarks.training
    job = benchmarks.recipes.Job(mode="unpacked", context=512, ranks=2, microbatches=2, rows=1)
    (texts / "unpacked.json").write_text(
        json.dumps(
            {
                "format": "msdata_jax.costs.fitted", "version": 1, "column": "tokens",
                "lengths": [0, 256, 512], "nanoseconds": [1, 1000, 3000],
            }
        )
    )  # fmt: skip
    ranks = training.launch(texts, job, "microbatch", steps=2)
    assert [len(steps) for steps in ranks] == [2, 2]
    assert ranks[0][0]["group_costs"] == ranks[1][0]["group_costs"]
    for steps in zip(*ranks, strict=True):
        assert len(training.all_samples(steps)) == 4
    row = training.wall_row(job, "microbatch", ranks, ranks)
    assert (row["wall_gain"], row["computed_gain"], row["processes"]) == (1, 1, 2)
    assert 0 < row["wait_percent_with"] < 100
    other = [[{**step, "samples": step["samples"][1:]} for step in steps] for steps in ranks]
    with pytest.raises(AssertionError, match="samples of a step"):
        training.wall_row(job, "microbatch", ranks, other)


# --- convergence --------------------------------------------------------------------------------------------


@pytest.mark.multiprocess
def test_losses_are_equal_where_samples_are(benchmarks, texts: Path) -> None:
    convergence = benchmarks.convergence
    runs = convergence.train(texts, [(1, 1)], steps=3, rows=8, seq_len=64)
    row = convergence.compare(*runs)
    assert row["steps"] == 3
    assert row["moved_rows_percent"] > 0
    assert 5 < row["loss_first"] < 6  # nats of 256 equally likely bytes
    assert row["difference"] < 1e-5
    assert row["tokens"] == sum(key[4] for step in runs[1]["samples"] for key in step)


def make_run(**changes) -> dict:
    run = {"seed": 1, "cp": 1, "samples": [[[0, 0, 0, 0, 5]]] * 2, "orders": [[0, 1, 2, 3]] * 2, "tokens": 10}
    return run | {"losses": [2.0, 1.0]} | changes


def test_comparison(benchmarks) -> None:
    compare = benchmarks.convergence.compare
    row = compare(make_run(), make_run(losses=[2.0, 1.25], orders=[[1, 0, 2, 3], [0, 1, 2, 3]]))
    assert (row["difference"], row["loss_last_with"], row["moved_rows_percent"]) == (0.25, 1.25, 25)
    with pytest.raises(AssertionError, match="step 1 had other samples"):
        compare(make_run(), make_run(samples=[[[0, 0, 0, 0, 5]], [[0, 1, 0, 0, 5]]]))


def test_picture(benchmarks, tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    curves = [{"seed": seed, "without": [2.0, 1.0], "with": [2.0, 1.5]} for seed in (1, 2)]
    benchmarks.convergence.draw({"curves": curves}, path)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
