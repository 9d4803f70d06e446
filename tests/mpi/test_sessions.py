"""Several DataLoaders one after the other in a job under mpiexec, and jobs that are asked to stop."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from jobs_runner import JOBS, environment, launch_line

from msdata_jax.lineage import PlanLog

pytestmark = pytest.mark.mpi

SECONDS = 60.0


def line_of(action: str, *options: str, loaders: int = 2) -> list[str]:
    return launch_line(loaders, 1, str(JOBS / "sessions.py"), action, options=options)


def shown(printed: str) -> dict:
    return {key: value for line in printed.splitlines() for key, value in json.loads(line).items()}


def run(data: Path, action: str, *options: str, loaders: int = 2) -> tuple[dict, str]:
    done = subprocess.run(
        line_of(action, *options, loaders=loaders),
        env=environment(data),
        timeout=SECONDS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return shown(done.stdout), done.stderr


def test_each_dataloader_gives_the_same_steps_from_wherever_it_begins(job_data: Path, tmp_path: Path) -> None:
    log = tmp_path / "plan.log"
    given, _ = run(job_data, "several", "--plan-log", str(log))
    first = given["first"]
    assert len(set(first)) == 6
    assert "the one before is still open" in given["second"]
    assert given["restored"] == first[2:]
    assert given["skipped"] == first[4:]
    assert given["last"] == first[:1]
    logs = [log, *(tmp_path / f"plan.log.{number}" for number in (2, 3, 4, 5))]
    steps = [PlanLog(path).steps for path in logs]
    assert steps[:3] == [list(range(6)), list(range(2, 6)), [4, 5]]
    assert steps[3][0] == 0
    assert steps[4] == [0]


def test_a_loader_that_is_killed_between_two_dataloaders_is_not_missed(job_data: Path) -> None:
    given, said = run(job_data, "lose")
    assert given["second"] == given["first"]
    assert given["lost"] == ["killed by signal 9"]
    assert "1 loader was lost and replaced" in said


def test_a_training_process_that_ends_without_a_word_leaves_nobody_waiting(job_data: Path) -> None:
    given, said = run(job_data, "hard", "--quiet")
    assert len(given["first"]) == 2
    assert said == ""


def test_a_launcher_that_is_asked_to_stop_ends_the_job_in_order_and_says_so(job_data: Path) -> None:
    process = subprocess.Popen(
        line_of("stop"), env=environment(job_data), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"started": True}
        process.send_signal(signal.SIGUSR1)
        printed, said = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 85, said
    given = shown(printed)
    assert given["stopped"] is True
    assert given["next step"] == given["given"]
