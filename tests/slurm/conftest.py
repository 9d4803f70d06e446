"""One Slurm cluster for all tests of this folder, and what one process alone delivers, to compare with."""

import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from slurm_cluster import JOB, ROOT, Cluster, Job

PORT = 27817


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cluster]:
    """A cluster of its own; where none can be, CI fails and others skip."""
    if os.geteuid() or not shutil.which("unshare"):
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(
            "a Slurm cluster of this machine needs root and unshare (scripts/slurm/local_cluster.sh)"
        )
    made = Cluster(tmp_path_factory.mktemp("slurm"), PORT)
    made.control("start")
    try:
        yield made
    finally:
        made.control("stop")


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The job's training script, run by one process of four devices: 30 steps."""
    return run_alone(tmp_path_factory.mktemp("alone"), "--devices", "4")


@pytest.fixture(scope="session")
def alone_without_jax(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The same without JAX."""
    return run_alone(tmp_path_factory.mktemp("alone_without_jax"))


def run_alone(folder: Path, *arguments: str) -> Job:
    job = Job(Cluster(folder, PORT), folder, "")
    job.out.mkdir()
    path = os.pathsep.join(map(str, (ROOT, ROOT / "transport", JOB)))
    subprocess.run(
        [sys.executable, str(JOB / "train.py"), "30", *arguments],
        env={**os.environ, "PYTHONPATH": path, "MSDATA_TEST_OUT": str(job.out)},
        timeout=120,
        check=True,
    )
    return job
