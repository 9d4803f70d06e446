"""Jobs under mpiexec that save behind each of 30 steps by orbax, and go on on other numbers of processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from jobs_runner import JOBS, environment, launch_line

from msdata_jax.checkpoint.finding import find_states

STEPS = 30
PROCESSES = (1, 2, 4)

pytestmark = [pytest.mark.mpi, pytest.mark.multiprocess]


def run(data: Path, folder: Path, processes: int, *arguments: str) -> list[list[dict]]:
    """What each training process says of its steps."""
    folder.mkdir()
    train = [str(JOBS / "train_and_save.py"), str(STEPS), str(folder), *arguments]
    line = launch_line(1 + processes % 3, processes, *train) if processes > 1 else [sys.executable, *train]
    env = environment(data, MSDATA_TEST_TRAINERS=str(processes))
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    reports = [folder / f"process{process}.json" for process in range(processes)]
    return [json.loads(report.read_text()) for report in reports]


@pytest.fixture(scope="module")
def saved(job_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Runs that save behind every step: where, and what they got; by processes and version of orbax."""
    runs = {}
    for processes, version in [(1, "v0"), (2, "v0"), (4, "v0"), (2, "v1")]:
        folder = tmp_path_factory.mktemp(f"saved_{processes}_{version}")
        got = run(job_data, folder / "out", processes, str(folder / "checkpoints"), version)
        runs[processes, version] = folder / "checkpoints", got
    return runs


CASES = [(before, after, "v0") for before in PROCESSES for after in PROCESSES]


@pytest.mark.parametrize(("before", "after", "version"), [*CASES, (2, 4, "v1"), (2, 2, "v1")])
def test_goes_on_exactly(
    job_data: Path, tmp_path: Path, saved: dict, before: int, after: int, version: str
) -> None:
    behind = (11 * before + 7 * after) % (STEPS - 1)
    checkpoints, same = saved[before, version]
    _, other = saved[after, "v0"]
    got = run(job_data, tmp_path / "out", after, str(checkpoints), version, str(behind))
    for mine, wanted in zip(got, other, strict=True):
        assert mine == wanted[behind + 1 :]  # plan, bytes of every shard, and the model itself
    content = [line["digests"][1] for line in same[0][behind + 1 :]]
    assert [line["digests"][1] for line in got[0]] == content


def test_saves_are_fulls_and_deltas(saved: dict) -> None:
    for checkpoints, _ in saved.values():
        kinds = [each.head.kind for each in find_states(checkpoints)]
        assert kinds == ["full" if step % 7 == 0 else "delta" for step in range(STEPS)]
