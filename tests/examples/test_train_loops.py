"""The plain and the sharded loop run, and learn."""

import re
from pathlib import Path

import numpy as np
import pytest
from examples.training_jobs import make_demo_text, run_example

STEPS = 12

pytestmark = [pytest.mark.mpi, pytest.mark.multiprocess]


@pytest.fixture(scope="module")
def data(job_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo_text")
    make_demo_text(job_data, folder)
    return folder


def losses_in(printed: str) -> np.ndarray:
    """Of every step."""
    found = re.findall(r"step +(\d+)  loss (\S+)", printed)
    assert [int(step) for step, _ in found] == list(range(STEPS)), printed
    losses = np.array([float(loss) for _, loss in found])
    assert np.all(np.isfinite(losses))
    assert losses[0] == pytest.approx(np.log(500), abs=0.5)  # of the vocabulary, nothing learned yet
    return losses


def test_the_plain_loop_learns(data: Path) -> None:
    losses = losses_in(run_example(data, "train_plain.py", "--steps", str(STEPS)))
    assert losses[-1] < losses[0] - 0.5


def test_the_sharded_loop_learns_the_same_on_one_and_two_processes(data: Path) -> None:
    """Eight devices, as (dp, fsdp, tp) = (2, 2, 2)."""
    steps = ("--steps", str(STEPS))
    alone = losses_in(run_example(data, "train_pjit.py", *steps, "--cpu-devices", "8"))
    launched = run_example(data, "train_pjit.py", *steps, "--cpu-devices", "4", loaders=1, trainers=2)
    assert alone[-1] < alone[0] - 0.3
    assert losses_in(launched) == pytest.approx(alone, abs=1e-3)
