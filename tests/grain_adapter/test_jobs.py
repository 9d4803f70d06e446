"""The same in jobs: a planner, a loader and two training processes of two devices; and in one of four."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grain_adapter.pipelines import PIPELINES
from grain_adapter.recipe import NUM_STEPS, ROWS, make_recipe
from jobs_runner import launch_line
from oracle import oracle_steps

FOLDER = Path(__file__).parent
SAVE_AT = 2

pytestmark = [pytest.mark.mpi, pytest.mark.multiprocess]


def run(case: str, out: Path, trainers: int, recipe: Path = FOLDER / "recipe.py") -> list[Any]:
    """What each training process wrote; nothing was said on stderr."""
    train = [str(FOLDER / "program.py"), case, str(out)]
    line = launch_line(1, trainers, *train, recipe=recipe) if trainers > 1 else [sys.executable, *train]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "MSDATA_TEST_TRAINERS": str(trainers)}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Exception ignored" not in done.stderr
    assert "Traceback" not in done.stderr
    return [json.loads((out / f"{case}{process}.json").read_text()) for process in range(trainers)]


@pytest.mark.parametrize("trainers", [1, 2])
def test_every_pipeline_goes_on_exactly_from_every_element(tmp_path: Path, trainers: int) -> None:
    for names in run("pipelines", tmp_path, trainers):
        assert names == list(PIPELINES)


@pytest.mark.parametrize("trainers", [1, 2])
def test_processes_have_their_rows_of_the_batch(tmp_path: Path, trainers: int) -> None:
    got = run("views", tmp_path, trainers)
    steps = list(oracle_steps(make_recipe(), 4, limit=3))
    for step, wanted in enumerate(steps):
        rows = [np.array(each["tokens"][step]) for each in got]
        assert {len(each) for each in rows} == {ROWS // trainers}
        assert np.array_equal(np.concatenate(rows), wanted["tokens"])


def test_checkpoints_go_on_in_other_jobs_of_any_number_of_processes(tmp_path: Path) -> None:
    wanted, other = run("save", tmp_path, 2)
    assert wanted == other
    assert len(wanted) == NUM_STEPS - SAVE_AT - 1
    for trainers, kinds in ((2, {"grain", "ours", "v1"}), (1, {"ours", "v1"})):
        for found in run("restore", tmp_path, trainers):
            assert found == dict.fromkeys(kinds, wanted)


def test_checkpoints_of_one_process_go_on_in_several(tmp_path: Path) -> None:
    (wanted,) = run("save", tmp_path, 1)
    for found in run("restore", tmp_path, 2):
        assert found == {"ours": wanted, "v1": wanted}


def test_a_maxtext_style_loop_trains_resumes_and_evaluates(tmp_path: Path) -> None:
    results = []
    for trainers in (1, 2):
        (tmp_path / str(trainers)).mkdir()
        got = run("maxtext", tmp_path / str(trainers), trainers)
        assert all(each == got[0] for each in got)
        results.append(got[0])
    one, two = results
    assert one == two
    assert len(one["whole"]) == NUM_STEPS
    assert one["resumed"] == one["whole"]
    assert one["short"] == one["whole"][:4]
    assert one["evaluations"] == [one["whole"][1]] * 2
    assert one["moved"] == 0


def test_loaders_run_a_grain_pipeline_without_jax(tmp_path: Path) -> None:
    train = str(FOLDER / "pipeline_train.py")
    reports = []
    for line in (
        [sys.executable, train, str(tmp_path / "alone.json")],
        launch_line(2, 1, train, str(tmp_path / "job.json"), recipe=FOLDER / "pipeline_recipe.py"),
    ):
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=150, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        reports.append(json.loads(Path(line[-1]).read_text()))
    alone, job = reports
    assert alone["tokens"] == job["tokens"]
    data_ranks = [job["job"]["planner"], *job["job"]["loaders"]]
    # grain tries to import orbax.checkpoint, which without JAX leaves the name of its namespace behind.
    assert all(set(rank["heavy_modules"]) <= {"orbax"} for rank in data_ranks)
    assert all(rank["pss_mb"] < 80 for rank in data_ranks), data_ranks
    assert not job["grain"]  # the training process never made the pipeline


def test_the_fields_of_a_maxtext_style_batch(tmp_path: Path) -> None:
    (refused,) = run("fields", tmp_path, 1)
    wanted = ["no weights for its targets", "no weights for its targets", "no axis 'tp'", "say via='host'"]
    assert len(refused) == len(wanted)
    assert all(part in text for part, text in zip(wanted, refused, strict=True)), refused


def test_a_position_alone_is_saved_where_there_is_no_state(tmp_path: Path) -> None:
    (found,) = run("positions", tmp_path, 1)
    assert found["same"] == [True] * (NUM_STEPS - 4)
    assert "holds no position.json" in found["refused"]


@pytest.mark.parametrize("kind", ["raw", "prefetch"])
def test_closes_within_a_second_while_a_loader_hangs(tmp_path: Path, kind: str) -> None:
    line = launch_line(
        1, 2, str(FOLDER / "blocked_train.py"), str(tmp_path), kind, recipe=FOLDER / "blocked_recipe.py"
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Exception ignored" not in done.stderr
    seconds = [json.loads((tmp_path / f"closed{process}.json").read_text()) for process in range(2)]
    assert max(seconds) < 1.0, seconds
