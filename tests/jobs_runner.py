"""Starts the jobs of `tests/jobs` and puts their batches together."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

JOBS = Path(__file__).parent / "jobs"


@dataclass(frozen=True)
class JobResult:
    """What a job left: global batches by step, and each process's report."""

    batches: list[dict[str, np.ndarray]]
    reports: list[dict]


def environment(data: Path, **extra: str) -> dict[str, str]:
    return {
        **os.environ,
        "MSDATA_TEST_DATA": str(data),
        "JAX_PLATFORMS": "cpu",
        "TOKENIZERS_PARALLELISM": "false",
        **extra,
    }


def launch_line(
    loaders: int,
    trainers: int,
    *train: str,
    recipe: Path = JOBS / "recipe.py",
    options: Sequence[str] = (),
) -> list[str]:
    line = [
        sys.executable,
        "-m",
        "msdata_jax",
        "launch",
        "--loaders",
        str(loaders),
        "--trainers",
        str(trainers),
        *options,
    ]
    return [*line, str(recipe), "--", *train]


def run_line(line: Sequence[str], env: Mapping[str, str]) -> None:
    """Run a job that must end well."""
    done = subprocess.run(line, env=env, timeout=150, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


def run_job(
    data: Path,
    out: Path,
    *,
    mesh: str,
    steps: int,
    variant: str,
    loaders: int,
    trainers: int,
    explicit: bool = False,
    process: str = "*",
) -> JobResult:
    """Run `train.py`: in one process when `loaders` is 0, else under mpiexec.

    `process` as in `global_batch`.
    """
    train = [str(JOBS / "train.py"), mesh, str(steps), str(out), *(["explicit"] if explicit else [])]
    line = launch_line(loaders, trainers, *train) if loaders else [sys.executable, *train]
    run_line(line, environment(data, MSDATA_TEST_VARIANT=variant, MSDATA_TEST_TRAINERS=str(trainers)))
    reports = [json.loads((out / f"report{i}.json").read_text()) for i in range(trainers)]
    num_steps = len(reports[0]["sums"])
    return JobResult([global_batch(out, step, process) for step in range(num_steps)], reports)


def global_batch(out: Path, step: int, process: str = "*") -> dict[str, np.ndarray]:
    """Put the shards of all processes together, or those of one.

    Shards that overlap must agree, and all must cover everything.
    """
    batch: dict[str, np.ndarray] = {}
    covered: dict[str, np.ndarray] = {}
    for described in sorted(out.glob(f"step{step:03d}-process{process}.json")):
        plan = json.loads(described.read_text())
        with np.load(described.with_suffix(".npz")) as shards:
            for key, window in plan["windows"].items():
                name = key.split("/")[0]
                data, index = shards[key], tuple(slice(*bounds) for bounds in window)
                if name not in batch:
                    batch[name] = np.zeros(plan["shapes"][name], data.dtype)
                    covered[name] = np.zeros(plan["shapes"][name], bool)
                assert np.array_equal(batch[name][index][covered[name][index]], data[covered[name][index]])
                batch[name][index], covered[name][index] = data, True
    assert all(each.all() for each in covered.values())
    return batch
