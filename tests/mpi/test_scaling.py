"""Real jobs whose loaders are given and taken sources and threads while training goes on."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from jobs_runner import launch_line

from msdata_jax.observing.files import read_lines
from msdata_jax.scaling.needs import SourceNeed
from msdata_jax.scaling.partition import Budget, partition

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


SWING = 50
RECIPE = f"""
import time
import numpy as np
import msdata_jax as msd

def slow(record):
    time.sleep(0.04)
    return record

data = [{{"tokens": np.arange(1, 9)}}] * 64
sources = {{"fast": msd.Source(data), "slow": msd.Source(data, [slow])}}
mixture = [(0, {{"fast": 1, "slow": 0}}), ({SWING}, {{"fast": 1, "slow": 1}})]
recipe = msd.Recipe(sources=sources, strategy=msd.DGraph().mix(mixture).pack(seq_len=8, rows=16))
"""
TRAIN = """
import time
from recipe import recipe
import msdata_jax as msd

msd.initialize(use_jax=False)
with msd.DataLoader(recipe, num_steps=52) as loader:
    for batch in loader:
        time.sleep(0.1)
"""


def test_a_source_that_was_never_read_is_widened_by_its_partition_before_its_swing(tmp_path: Path) -> None:
    """Eight slow samples a step keep 3 threads busy behind the swing, and none before."""
    (tmp_path / "recipe.py").write_text(RECIPE)
    (tmp_path / "train.py").write_text(TRAIN)
    needs = [
        SourceNeed(name=name, threads=(seconds,), cpus=(seconds,), sends=(0.0,), seconds_per_sample=seconds)
        for name, seconds in (("fast", 1e-4), ("slow", 0.04))
    ]
    made = partition(needs, Budget(loaders=2, steps_per_second=1.0))
    assert sorted(made.affinity) == [(0,), (1,)]
    (tmp_path / "made.json").write_text(json.dumps(made.to_json()))
    record = tmp_path / "record"
    options = ["--partition", str(tmp_path / "made.json"), "--max-threads", "1", "--record", str(record)]
    line = launch_line(2, 1, str(tmp_path / "train.py"), recipe=tmp_path / "recipe.py", options=options)
    done = subprocess.run(line, timeout=120, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    first = list(read_lines(record / "decisions.jsonl"))[1]
    seen = first["observation"]["sources"][1]
    assert first["step"] < SWING
    assert [(each["kind"], each["source"]) for each in first["decisions"]] == [("widen", 1)]
    assert (seen["samples_per_step"], seen["seconds_per_sample"]) == (0.0, 0.04)
