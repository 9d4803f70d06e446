"""Jobs by sbatch, with the project's own scripts, get what one process alone gets."""

import json
from pathlib import Path

import pytest
from slurm_cluster import JOB, Cluster, Job

pytestmark = [pytest.mark.slurm, pytest.mark.multiprocess]

STEPS = 12
RECIPE, TRAIN = str(JOB / "recipe.py"), str(JOB / "train.py")


def trainers_of(job: Job) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(job.out.glob("trainer-*.json"))]


def test_trainers_and_loaders_on_the_same_nodes(cluster: Cluster, alone: Job, tmp_path: Path) -> None:
    small = ("--gpus-per-node=2", "--ntasks-per-node=4", "--cpus-per-task=1")
    job = cluster.submit(tmp_path, "train.sbatch", *small, "--", RECIPE, TRAIN, str(STEPS), "--jax")
    assert job.wait() == "COMPLETED", job.log
    assert job.shards(4) == {step: alone.shards(1)[step] for step in range(STEPS)}
    first, second = sorted({each["host"] for each in trainers_of(job)})
    expect = [(first, "0"), (first, "1"), (second, "0"), (second, "1")]  # one GPU each
    assert [(each["host"], each["gpus"]) for each in trainers_of(job)] == expect
    loaders, planners = job.ranks("loader"), job.ranks("planner")
    assert {rank: each["host"] for rank, each in loaders.items()} == {2: first, 6: second, 7: second}
    assert {rank: each["host"] for rank, each in planners.items()} == {3: first}
    data_ranks = [*loaders.values(), *planners.values()]
    assert {(each["gpus"], each["loads_jax"]) for each in data_ranks} == {("", False)}
    assert list(tmp_path.glob("msdata-run-*")) == []


def test_trainers_and_loaders_on_parts_of_their_own(cluster: Cluster, alone: Job, tmp_path: Path) -> None:
    parts = ("--nodes=2", "--gpus-per-node=2", "--ntasks-per-node=2", "--cpus-per-task=1")
    parts += (":", "--nodes=1", "--ntasks-per-node=3")
    job = cluster.submit(tmp_path, "train_hetjob.sbatch", *parts, "--", RECIPE, TRAIN, str(STEPS), "--jax")
    assert job.wait() == "COMPLETED", job.log
    assert job.shards(4) == {step: alone.shards(1)[step] for step in range(STEPS)}
    assert {each["host"] for each in trainers_of(job)} == {"n0", "n1"}
    assert len({each["host"] for each in job.ranks("loader").values()} - {"n0", "n1"}) == 1
    assert sorted(job.ranks("loader")) == [4, 5]
    assert sorted(job.ranks("planner")) == [6]


def test_mpiexec_in_the_allocation(cluster: Cluster, alone_without_jax: Job, tmp_path: Path) -> None:
    job = cluster.submit(
        tmp_path,
        "train.sbatch",
        *("--partition=cpu", "--gpus-per-node=0", "--ntasks-per-node=2", "--cpus-per-task=1"),
        *("--", RECIPE, TRAIN, str(STEPS)),
        LAUNCH_OPTIONS="--launcher mpiexec --trainers 1",
    )
    assert job.wait() == "COMPLETED", job.log
    assert job.shards(1) == {step: alone_without_jax.shards(1)[step] for step in range(STEPS)}
    assert {rank: each["host"] for rank, each in job.ranks("loader").items()} == {2: "n3", 3: "n3"}
    assert {rank: each["host"] for rank, each in job.ranks("planner").items()} == {1: "n2"}
