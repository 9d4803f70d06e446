"""Real jobs whose loaders are given and taken sources and threads while training goes on."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from jobs_runner import launch_line

from msdata_jax.observing.files import read_lines

pytestmark = pytest.mark.mpi

JOB = Path(__file__).parents[2] / "benchmarks" / "recovery_job"
STEPS = 50


def run(folder: Path, *options: str) -> list[dict]:
    """The lines of its steps."""
    folder.mkdir()
    line = launch_line(
        3,
        1,
        *(str(JOB / "train.py"), str(folder), str(STEPS), "0.1"),
        recipe=JOB / "recipe.py",
        options=["--quiet", "--record", str(folder / "record"), *options],
    )
    done = subprocess.run(
        line, env=dict(os.environ), timeout=120, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert not done.stderr.strip(), done.stderr
    lines = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    return [{name: each[name] for name in ("step", "digest", "samples")} for each in lines]


def test_bytes_are_the_same_whoever_reads_what(tmp_path: Path) -> None:
    fixed = run(tmp_path / "off", "--scaling", "off")
    assert len(fixed) == STEPS
    assert not list(read_lines(tmp_path / "off" / "record" / "decisions.jsonl"))
    assert run(tmp_path / "shuffled", "--scaling", "shuffled", "--max-threads", "3") == fixed
    rounds = list(read_lines(tmp_path / "shuffled" / "record" / "decisions.jsonl"))[1:]
    kinds = {decision["kind"] for each in rounds for decision in each["decisions"]}
    assert kinds == {"widen", "narrow", "threads"}
    assert not any(each["note"] for each in rounds)
    # What was decided was done: who reads a source is another one later.
    seen = {
        (source["name"], *source["loaders"]) for each in rounds for source in each["observation"]["sources"]
    }
    assert len(seen) > 4
