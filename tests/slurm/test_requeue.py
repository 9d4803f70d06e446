"""Jobs that stop before their time limit and go on exactly."""

from pathlib import Path

import pytest
from slurm_cluster import JOB, Cluster, Job

pytestmark = pytest.mark.slurm

STEPS = 30
RECIPE, TRAIN = str(JOB / "recipe.py"), str(JOB / "train.py")
SMALL = ("--partition=cpu", "--gpus-per-node=0", "--ntasks-per-node=2", "--cpus-per-task=1")


def submit(cluster: Cluster, folder: Path, seconds: float, *options: str, **env: str) -> Job:
    train = ("--", RECIPE, TRAIN, str(STEPS), "--seconds", f"{seconds}")
    env = {"LAUNCH_OPTIONS": "--trainers 1", **env}
    return cluster.submit(folder, "requeue.sbatch", *SMALL, *options, *train, **env)


def check_went_on(job: Job, alone: Job) -> None:
    assert job.wait() == "COMPLETED", job.log
    assert job.restarts == 1
    assert [line["step"] for line in job.steps()] == list(range(STEPS))
    assert job.shards(1) == alone.shards(1)
    assert "ended with status 85 on 2 of 2 nodes: it is queued again" in job.log


def test_stops_at_a_step_and_goes_on_behind_it(
    cluster: Cluster, alone_without_jax: Job, tmp_path: Path
) -> None:
    job = submit(cluster, tmp_path, 0.3)
    job.wait_for(lambda: len(job.steps()) >= 4, "under way")
    cluster.call("scancel", "--batch", "--signal=USR1", job.number)  # as Slurm does before the limit
    job.hurry()
    check_went_on(job, alone_without_jax)


def test_restarts_are_bounded(cluster: Cluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, 0.3, MAX_RESTARTS="0")
    job.wait_for(lambda: len(job.steps()) >= 4, "under way")
    cluster.call("scancel", "--batch", "--signal=USR1", job.number)
    assert job.wait() == "FAILED", job.log
    assert job.exit_status == 85
    assert "is not queued again; MAX_RESTARTS is 0" in job.log
    assert (job.out / "state.json").exists()


@pytest.mark.slow
def test_the_time_limit_itself(cluster: Cluster, alone_without_jax: Job, tmp_path: Path) -> None:
    # Longer than the minute before the signal; what is left fits into the next one, also after a slow start.
    job = submit(cluster, tmp_path, 2.2, "--time=2", "--signal=B:USR1@60")
    job.wait(("PENDING",), 30)
    job.wait(("RUNNING",))
    job.hurry()
    check_went_on(job, alone_without_jax)
