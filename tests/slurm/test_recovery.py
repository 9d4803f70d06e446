"""Jobs over several nodes that lose ranks and nodes while training goes on."""

import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from slurm_cluster import ENDED, JOB, Cluster, Job

pytestmark = pytest.mark.slurm

STEPS = 30
RECIPE, TRAIN = str(JOB / "recipe.py"), str(JOB / "train.py")
# One trainer, a loader and the planner on n1; loaders alone on n2.
NODES = (
    "--partition=main",
    "--nodelist=n1,n2",
    "--gpus-per-node=0",
    "--ntasks-per-node=3",
    "--cpus-per-task=1",
)
ONE_TRAINER = "--trainers 1 --heartbeat-seconds 4"


def submit(
    cluster: Cluster, folder: Path, *more: str, script: str = "train.sbatch", options: str = ONE_TRAINER
) -> Job:
    train = ("--", RECIPE, TRAIN, str(STEPS), "--seconds", "0.1", *more)
    job = cluster.submit(folder, script, *NODES, *train, LAUNCH_OPTIONS=options)
    job.wait_for(lambda: len(job.steps()) >= 5, "under way")
    return job


@pytest.fixture
def spare_node(cluster: Cluster) -> Generator[str]:
    """A node that a test may lose; it is back afterwards."""
    yield "n2"
    cluster.control("start")  # and waits until it takes jobs


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_loader_of_another_node(
    cluster: Cluster, alone_without_jax: Job, tmp_path: Path, how: signal.Signals
) -> None:
    job = submit(cluster, tmp_path)
    loaders = job.ranks("loader")
    assert {rank: each["host"] for rank, each in loaders.items()} == {1: "n1", 3: "n2", 4: "n2", 5: "n2"}
    os.kill(loaders[4]["process"], how)
    assert job.wait() == "COMPLETED", job.log
    assert job.shards(1) == alone_without_jax.shards(1)
    assert "1 loader was lost and replaced: rank 4 (" in job.log


@pytest.mark.parametrize("how", ["set down", "crashed"])
def test_a_node_that_only_loads_is_lost(
    cluster: Cluster, alone_without_jax: Job, tmp_path: Path, spare_node: str, how: str
) -> None:
    """Training goes on; where MPI had messages to that node under way, the job may be queued again."""
    job = submit(cluster, tmp_path, "--journal", script="requeue.sbatch")
    if how == "crashed":
        cluster.control("crash", spare_node)
        # Slurm would find out after SlurmdTimeout, and wait for that node until then.
        job.wait_for(lambda: len(job.steps()) == STEPS or job.state != "RUNNING", "at its last step")
    cluster.call("scontrol", "update", f"nodename={spare_node}", "state=down", "reason=test")
    if job.wait((*ENDED, "PENDING")) == "PENDING":
        cluster.control("start")
        job.hurry()
        assert job.wait() == "COMPLETED", job.log
        assert job.restarts == 1
    else:
        assert job.state == "COMPLETED", job.log
        assert "3 loaders were lost and replaced" in job.log or how == "crashed"
    assert [line["step"] for line in job.steps()] == list(range(STEPS))
    assert job.shards(1) == alone_without_jax.shards(1)


def test_a_node_with_a_trainer_is_set_down_and_the_job_is_queued_again(
    cluster: Cluster, tmp_path: Path, spare_node: str
) -> None:
    two_trainers = "--heartbeat-seconds 4"
    job = submit(cluster, tmp_path, "--devices", "1", script="requeue.sbatch", options=two_trainers)
    cluster.call("scontrol", "update", f"nodename={spare_node}", "state=down", "reason=test")
    # It is COMPLETING until the processes of its nodes are gone.
    assert job.wait((*ENDED, "PENDING")) == "PENDING", job.log
    assert job.restarts == 1


def test_a_trainer_that_is_killed_ends_the_job_at_once(cluster: Cluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path)
    trainer = job.out / "trainer-0.json"
    os.kill(int(trainer.read_text().split('"process": ')[1].rstrip("}")), signal.SIGKILL)
    assert job.wait(seconds=30) == "FAILED", job.log
    assert job.exit_status == 1
    assert "rank 0 failed: killed by signal 9" in job.log
