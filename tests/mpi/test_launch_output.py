"""What a real job under mpiexec leaves to read: log files of its ranks, and the summary."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jobs_runner import environment, launch_line
from msdata_transport import find_mpiexec

pytestmark = pytest.mark.mpi

RECIPE = """
import os, sys
import numpy as np
import msdata_jax as msd

class Documents:
    def __init__(self, bad):
        self.bad = bad
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if index % 4 == self.bad:
            raise ValueError("this one is bad")
        return {"tokens": np.arange(8, dtype=np.int32)}

role = os.environ.get("MSDATA_ROLE", "none")
print(f"{role} reads the recipe", flush=True)
print(f"{role} says so on stderr", file=sys.stderr, flush=True)
recipe = msd.Recipe(
    sources={
        "first": msd.Source(Documents(-1), block_size=8),
        "second": msd.Source(Documents(3), block_size=8, on_bad_sample="skip"),
    },
    strategy=msd.DGraph().mix({"first": 0.75, "second": 0.25}).pack(seq_len=8, rows=4).balance("lpt"),
)
"""

TRAIN = """
import os, sys
import msdata_jax as msd
from recipe import recipe

msd.initialize(use_jax=False)
with msd.DataLoader(recipe, num_steps=12) as loader:
    for step, batch in enumerate(loader):
        os.write(1, f"step {step} is taken\\n".encode())
        if "--fail" in sys.argv and step == 5:
            raise ZeroDivisionError("as asked")
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "recipe.py").write_text(RECIPE)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def launch(job: Path, *options: str, train: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    line = launch_line(2, 1, str(job / "train.py"), *train, recipe=job / "recipe.py", options=options)
    env = environment(job)
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=100, check=False)


def logs(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


NAMES = ["rank-0-planner.log", "rank-1-loader.log", "rank-2-loader.log", "rank-3-trainer.log"]
STEPS = [f"step {step} is taken" for step in range(12)]


def test_each_rank_has_its_log_and_the_terminal_what_it_has_without(job: Path) -> None:
    done = launch(job, "--log-dir", str(job / "new" / "logs"))
    assert done.returncode == 0, done.stderr
    found = logs(job / "new" / "logs")
    assert list(found) == NAMES
    for name in NAMES[:3]:
        role = name.split("-")[2].removesuffix(".log")
        assert sorted(found[name].splitlines()) == [f"{role} reads the recipe", f"{role} says so on stderr"]
    trained = found[NAMES[3]].splitlines()
    assert [line for line in trained if line.startswith("step")] == STEPS
    assert "constructor reads the recipe" in found[NAMES[3]]  # before initialize() lines may mix
    plain = launch(job)
    assert plain.returncode == 0, plain.stderr
    assert sorted(plain.stdout) == sorted(done.stdout)


def test_a_trainer_that_fails_leaves_its_traceback_in_both(job: Path) -> None:
    done = launch(job, "--log-dir", str(job / "logs"), train=("--fail",))
    assert done.returncode == 1
    found = logs(job / "logs")
    for text in (done.stderr, found[NAMES[3]]):
        assert text.count("ZeroDivisionError: as asked") == 1
        assert f'File "{job}/train.py", line 11, in <module>' in text
    assert "ZeroDivisionError" not in found[NAMES[0]] + found[NAMES[1]]
    again = launch(job, "--log-dir", str(job / "logs"))
    assert again.returncode == 0
    trained = logs(job / "logs")[NAMES[3]].splitlines()
    assert [line for line in trained if line.startswith("step")] == [*STEPS[:6], *STEPS]


def test_ranks_that_mpiexec_starts_alike_have_logs_too(job: Path) -> None:
    mpiexec = find_mpiexec()
    assert mpiexec is not None
    line = [
        mpiexec, "-n", "4", sys.executable, "-m", "msdata_jax", "serve", "--roles",
        "planner=1,loaders=2,trainers=1", "--log-dir", "logs", "recipe.py", "--", "train.py",
    ]  # fmt: skip
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(line, cwd=job, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found = logs(job / "logs")
    assert list(found) == NAMES
    assert [each for each in found[NAMES[3]].splitlines() if each.startswith("step")] == STEPS


def test_the_summary_is_what_the_job_did(job: Path) -> None:
    done = launch(job, "--summary", str(job / "summary.json"))
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    shown = [line for line in said if line.startswith(("msdata: 12 steps", " " * 8))]
    assert f"msdata: wrote {job / 'summary.json'}" in said
    assert shown[0].startswith("msdata: 12 steps in ")
    assert any(line.strip().startswith("dearest rank 1.000 times the mean cost") for line in shown)
    table = {line.split()[0]: line.split()[1:] for line in shown[-2:]}
    assert table["first"][:5] == ["36", "288", "75.0", "%", "0"]
    assert table["second"][:4] == ["12", "96", "25.0", "%"]
    summary = json.loads((job / "summary.json").read_text())
    assert (summary["exit_status"], summary["steps"], summary["stopped"], summary["lost"]) == (
        0,
        12,
        False,
        [],
    )
    assert [(each["name"], each["samples"], each["tokens"]) for each in summary["sources"]] == [
        ("first", 36, 288), ("second", 12, 96),
    ]  # fmt: skip
    assert summary["sources"][1]["bad"] >= 1
    assert summary["fill"] == 1.0
    assert set(summary["data_wait_ms"]) == {"p50", "p95"}
    assert {role: len(each) for role, each in summary["memory_mb"].items()} == {
        "planner": 1, "loaders": 2, "trainers": 1,
    }  # fmt: skip
    assert all(each > 1 for of in summary["memory_mb"].values() for each in of)


def test_quiet_says_nothing(job: Path) -> None:
    done = launch(job, "--quiet")
    assert done.returncode == 0, done.stderr
    assert "msdata:" not in done.stderr


def test_a_job_that_failed_still_sums_up_what_it_did(job: Path) -> None:
    done = launch(job, "--summary", str(job / "summary.json"), train=("--fail",))
    assert done.returncode == 1
    summary = json.loads((job / "summary.json").read_text())
    assert summary["exit_status"] == 1
    assert summary["steps"] == 6
    assert done.stderr.rstrip().endswith("msdata: the job failed; the first message above says why")
