"""The plan log of a whole job under mpiexec holds what the trainers got."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from jobs.recipe import make_recipe
from jobs_runner import JOBS, environment, global_batch, launch_line, run_line

from msdata_jax.cli.mpiexec import command_line
from msdata_jax.lineage import PlanLog, row_segments, segment_origin
from msdata_jax.sources.reader import SourceReader

pytestmark = [pytest.mark.mpi, pytest.mark.multiprocess]
NUM_STEPS = 8


@pytest.fixture(scope="module")
def job(job_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a job of two loaders and two training processes filled, `plan.log` among it."""
    out = tmp_path_factory.mktemp("plan_log")
    options = ("--plan-log", str(out / "plan.log"))
    train = [str(JOBS / "train.py"), "dp4", str(NUM_STEPS), str(out)]
    run_line(launch_line(2, 2, *train, options=options), environment(job_data, MSDATA_TEST_TRAINERS="2"))
    return out


def test_digests_are_those_of_the_delivered_steps(job: Path) -> None:
    report = json.loads((job / "report0.json").read_text())
    log = PlanLog(job / "plan.log")
    assert [[each.plan.digest, each.plan.content_digest] for each in log] == report["digests"]
    assert log.steps == list(range(NUM_STEPS))
    assert log.delivered == NUM_STEPS - 1
    assert log.cut_off == ""
    assert log.header.mesh == "dp=4"
    assert log.header.process_of_device == [0, 0, 1, 1]
    assert log.header.loaders == [1, 2]


def test_origins_are_the_data_that_the_trainers_got(job: Path, job_data: Path) -> None:
    """Each segment, read again where the log says it came from, is in the global batch."""
    recipe, log = make_recipe(job_data), PlanLog(job / "plan.log")
    readers = {
        name: SourceReader(name, index, source, seed=recipe.seed)
        for index, (name, source) in enumerate(recipe.sources.items())
    }
    for logged in log:
        batch = global_batch(job, logged.plan.step)
        assert set(logged.owner.tolist()) <= set(log.header.loaders)
        for row in range(logged.plan.num_rows):
            for segment in row_segments(logged.plan, row):
                origin = segment_origin(log, logged, segment)
                block = readers[origin.source].read_block(origin.position, origin.position + 1)
                tokens = block.samples[origin.part]["tokens"][origin.start : origin.start + origin.length]
                shown = batch["tokens"][row, origin.offset : origin.offset + origin.length]
                text = tokens >= 0
                assert np.array_equal(shown[text], tokens[text])
    for reader in readers.values():
        reader.close()


def test_a_log_that_is_there_fails_before_any_rank_starts(job: Path, job_data: Path) -> None:
    line = launch_line(
        1, 1, str(JOBS / "train.py"), "dp4", "1", "out", options=("--plan-log", str(job / "plan.log"))
    )
    done = subprocess.run(
        line, env=environment(job_data), timeout=60, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "is there already" in done.stderr


RECIPE = """
import os
import numpy as np
import msdata_jax as msd
if os.environ.get("PMI_RANK") in os.environ.get("FAILING_RANKS", "").split(","):
    raise ValueError("the folder of the data is not mounted here")
records = [{"tokens": np.full(4, 3, np.int32)}] * 50
strategy = msd.DGraph().mix({"s": 1}).pack(seq_len=16, rows=4).distribute("dp")
recipe = msd.Recipe(sources={"s": msd.Source(records)}, strategy=strategy)
"""
TRAIN = """
import msdata_jax as msd
msd.initialize(use_jax=False)
from recipe import recipe
with msd.DataLoader(recipe) as loader:
    for _ in loader:
        pass
"""


def run_ranks(
    folder: Path, *options: str, **variables: str
) -> tuple[float, subprocess.CompletedProcess[str]]:
    """A planner, two loaders and a trainer, without the checks of `msdata launch`; the seconds it took."""
    (folder / "recipe.py").write_text(RECIPE)
    (folder / "train.py").write_text(TRAIN)
    line = command_line(
        loaders=2,
        trainers=1,
        data_options=options,
        recipe=folder / "recipe.py",
        train=[str(folder / "train.py")],
    )
    begin = time.monotonic()
    done = subprocess.run(
        line,
        env=environment(folder, **variables),
        timeout=60,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return time.monotonic() - begin, done


def test_a_log_that_the_planner_cannot_write_ends_the_job(tmp_path: Path) -> None:
    seconds, done = run_ranks(tmp_path, "--plan-log", "/nowhere/plan.log")
    assert done.returncode != 0
    assert seconds < 30
    assert done.stdout.count("the plan log /nowhere/plan.log cannot be written: No such file") == 1
    assert "msdata: rank 0 (planner) failed:\nPlanError: " in done.stdout
    assert "training stopped, since rank 0 failed" in done.stdout


@pytest.mark.parametrize(("ranks", "role"), [("0", "planner"), ("2", "loader"), ("0,1,2", "planner")])
def test_a_recipe_that_does_not_load_on_some_ranks_ends_the_job(
    tmp_path: Path, ranks: str, role: str
) -> None:
    seconds, done = run_ranks(tmp_path, FAILING_RANKS=ranks)
    assert done.returncode != 0
    assert seconds < 30
    assert f"rank {ranks[0]} ({role}) failed:\nRecipeError: the recipe file" in done.stdout
    assert done.stdout.count("ValueError: the folder of the data is not mounted here\n") == 1
    assert "serve.py" not in done.stdout


def test_inspect_reads_it(job: Path) -> None:
    line = [sys.executable, "-m", "msdata_jax", "inspect", str(job / "plan.log"), "--step", "3"]
    done = subprocess.run(line, timeout=60, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Step 3, delivered" in done.stdout
    assert "by rank 1" in done.stdout
