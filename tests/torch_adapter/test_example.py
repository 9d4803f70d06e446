"""The torch example learns, and goes on from its checkpoint on another number of processes."""

import re
from pathlib import Path

import pytest
from examples.training_jobs import make_demo_text, run_example

pytestmark = [pytest.mark.mpi, pytest.mark.multiprocess, pytest.mark.torch]

STEPS = 8


@pytest.fixture(scope="module")
def data(job_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo_text")
    make_demo_text(job_data, folder)
    return folder


def losses(data: Path, *arguments: str, loaders: int = 0, trainers: int = 1) -> dict[int, float]:
    """By step."""
    printed = run_example(data, "train_torch.py", *arguments, loaders=loaders, trainers=trainers)
    return {int(step): float(loss) for step, loss in re.findall(r"step +(\d+)  loss (\S+)", printed)}


def test_learns_and_goes_on_in_another_world(data: Path, tmp_path: Path) -> None:
    alone = losses(data, "--steps", str(STEPS))
    assert list(alone) == list(range(STEPS))
    assert alone[STEPS - 1] < alone[0] - 0.4
    saving = ("--checkpoints", str(tmp_path / "checkpoint"))
    begun = losses(data, "--steps", "5", *saving, loaders=2, trainers=2)
    ended = losses(data, "--steps", str(STEPS), *saving)
    assert list(begun) == list(range(5))
    assert list(ended) == list(range(5, STEPS))
    assert begun | ended == pytest.approx(alone, abs=1e-3)
