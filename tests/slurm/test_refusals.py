"""Jobs that cannot work say so and the way out, before any rank waits for others."""

import socket
from pathlib import Path

import pytest
from slurm_cluster import JOB, Cluster

pytestmark = pytest.mark.slurm

RECIPE, TRAIN = str(JOB / "recipe.py"), str(JOB / "train.py")
SOON = 40.0
"""Much less than the ten minutes for which ranks wait for one another."""


@pytest.mark.parametrize(
    ("script", "options", "message"),
    [
        (
            "train.sbatch",
            ["--ntasks-per-node=4"],
            "too few tasks: --ntasks-per-node=4, of which 4 to train (one for each GPU)",
        ),
        (
            "train_hetjob.sbatch",
            [
                *("--partition=cpu", "--nodes=1", "--gpus-per-node=0", "--cpus-per-task=1", ":"),
                *("--partition=gpu", "--nodes=1", "--gpus-per-node=1", "--cpus-per-task=1"),
            ],
            "the second part of this heterogeneous job has GPUs and the first has none",
        ),
        (
            "train_hetjob.sbatch",
            ["--nodes=1", "--ntasks-per-node=1", ":", "--nodes=1", "--ntasks-per-node=1"],
            "Use sbatch --ntasks-per-node=2 or more in the second part",
        ),
    ],
)
def test_allocations_that_are_no_job(
    cluster: Cluster, tmp_path: Path, script: str, options: list[str], message: str
) -> None:
    job = cluster.submit(tmp_path, script, *options, "--", RECIPE, TRAIN, "3")
    assert job.wait(seconds=SOON) == "FAILED"
    assert job.exit_status == 2
    assert message in " ".join(job.log.split())
    assert not list(job.out.iterdir())  # no rank was started


def test_srun_without_pmi(cluster: Cluster, tmp_path: Path) -> None:
    roles = "planner=1,loaders=2,trainers=1"
    script = f"#!/bin/bash\nsrun --mpi=none msdata serve --roles {roles} {RECIPE} -- {TRAIN} 3\n"
    job = cluster.submit(tmp_path, script, "--partition=cpu", "--nodes=2", "--ntasks-per-node=2")
    assert job.wait(seconds=SOON) == "FAILED"
    assert job.log.count("LaunchError: srun started 4 tasks without MPI") == 1
    assert "--mpi=pmi2" in job.log


def test_a_plugin_that_srun_does_not_have(cluster: Cluster, tmp_path: Path) -> None:
    script = f"#!/bin/bash\nmsdata launch --mpi pmix_v9 {RECIPE} -- {TRAIN} 3\n"
    job = cluster.submit(tmp_path, script, "--partition=cpu", "--nodes=1", "--ntasks-per-node=3")
    assert job.wait(seconds=SOON) == "FAILED"
    assert job.exit_status == 2
    assert "srun has no MPI plugin pmix_v9, only cray_shasta, none, pmi2, pmix, pmix_v4" in job.log


@pytest.mark.multiprocess
def test_two_jobs_on_one_port(cluster: Cluster, tmp_path: Path) -> None:
    with socket.socket() as other_job:
        other_job.bind(("127.0.0.1", 0))
        other_job.listen()
        port = other_job.getsockname()[1]
        train = ("--", RECIPE, TRAIN, "3", "--devices", "1", "--port", str(port))
        job = cluster.submit(
            tmp_path,
            "train.sbatch",
            *("--partition=cpu", "--gpus-per-node=0", "--ntasks-per-node=2", "--cpus-per-task=1"),
            *train,
        )
        assert job.wait(seconds=SOON) == "FAILED"
    assert f"JAX's coordinator cannot listen on port {port} of n2: Address already in use" in job.log
    assert job.log.count("cannot listen on port") == 1
