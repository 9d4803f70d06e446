"""The flax example: losses that depend on neither loaders, processes nor restarts, to the last bit."""

import json
from pathlib import Path

import numpy as np
import pytest
from examples.training_jobs import make_demo_text, run_example

STEPS = 8

pytestmark = [pytest.mark.mpi, pytest.mark.multiprocess]


@pytest.fixture(scope="module")
def data(job_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo_text")
    make_demo_text(job_data, folder)
    return folder


@pytest.fixture(scope="module")
def wanted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of one loader and one training process, never stopped."""
    return train(data, tmp_path_factory.mktemp("one"), range(STEPS), loaders=1)


def train(data: Path, folder: Path, steps: range, *, loaders: int, trainers: int = 1) -> list[float]:
    """The losses of `steps`, on two devices; checkpoints are in `folder`.

    The end of `steps` is no multiple of `--save-every`, so that it is the loop's end that saves.
    """
    options = ("--steps", steps.stop, "--save-every", 3, "--cpu-devices", 2 // trainers)
    folders = ("--checkpoints", folder / "checkpoints", "--losses", folder / "losses.json")
    line = [str(each) for each in (*options, *folders)]
    run_example(data, "train_flax.py", *line, loaders=loaders, trainers=trainers)
    losses = json.loads((folder / "losses.json").read_text())
    assert list(losses) == [str(step) for step in steps]
    return list(losses.values())


def test_the_loss_falls(wanted: list[float]) -> None:
    assert np.all(np.isfinite(wanted))
    assert wanted[0] == pytest.approx(np.log(500), abs=0.5)  # of the vocabulary, nothing learned yet
    assert wanted[-1] < wanted[0] - 0.3


def test_three_loaders(data: Path, tmp_path: Path, wanted: list[float]) -> None:
    assert train(data, tmp_path, range(STEPS), loaders=3) == wanted


def test_stopped_half_way_and_started_again_on_another_number_of_loaders(
    data: Path, tmp_path: Path, wanted: list[float]
) -> None:
    assert train(data, tmp_path, range(4), loaders=3) == wanted[:4]
    assert train(data, tmp_path, range(4, STEPS), loaders=0) == wanted[4:]


def test_two_training_processes(data: Path, tmp_path: Path, wanted: list[float]) -> None:
    """With two addends a sum over devices has one order only, wherever the devices are."""
    assert train(data, tmp_path, range(STEPS), loaders=2, trainers=2) == wanted
