"""Checkpoints that keep transformed samples in flight: they are read, not made again; all else is equal."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from jobs.recipe import make_recipe

import msdata_jax as msd
from msdata_jax.checkpoint.writer import Saver

STEPS, BEHIND = 10, 4


def recipe(data: Path) -> msd.Recipe:
    made = make_recipe(data)
    kept = {name: replace(source, snapshot=name != "files") for name, source in made.sources.items()}
    return replace(made, sources=kept)


@pytest.fixture(scope="module")
def saved(job_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    """The item of a checkpoint behind a step, and the batches behind it."""
    item, batches = tmp_path_factory.mktemp("checkpoint") / "4" / "data", []
    item.mkdir(parents=True)
    with msd.DataLoader(recipe(job_data), num_steps=STEPS, steps_ahead=4) as loader:
        for step, batch in enumerate(loader):
            batches.append(batch)
            if step == BEHIND:
                write = Saver().freeze(str(item), loader, None)
                assert write is not None
                write()
    return item, batches[BEHIND + 1 :]


def go_on(data: Path, item: Path, wanted: list[dict]) -> list[dict]:
    """Go on from an item; figures of the loaders."""
    with msd.DataLoader(recipe(data), num_steps=STEPS, num_loaders=3) as loader:
        assert Saver().restore(str(item), loader, accept_changes=False) == []
        for batch, expected in zip(loader, wanted, strict=True):
            assert all(np.array_equal(batch[name], expected[name]) for name in expected)
    return list(loader.job_figures["loaders"])


def test_blocks_are_read_and_not_made_again(job_data: Path, saved: tuple[Path, list[dict]]) -> None:
    item, wanted = saved
    assert (item / "blocks").is_dir()
    loaders = go_on(job_data, item, wanted)
    assert sum(each["restored_blocks"] for each in loaders) > 2


@pytest.mark.parametrize("damage", ["gone", "empty"])
def test_without_them_all_is_read_again(
    job_data: Path, saved: tuple[Path, list[dict]], tmp_path: Path, damage: str
) -> None:
    item, wanted = saved
    copy = tmp_path / "4" / "data"
    shutil.copytree(item, copy)
    shutil.rmtree(copy / "blocks")
    if damage == "empty":
        (copy / "blocks" / "rank_1").mkdir(parents=True)
    loaders = go_on(job_data, copy, wanted)
    assert sum(each["restored_blocks"] for each in loaders) == 0


def test_a_folder_that_cannot_be_written_costs_the_blocks_alone(job_data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with msd.DataLoader(recipe(job_data), num_steps=3) as loader:
        next(loader)
        loader.pin_blocks()
        saved = loader.save_blocks(tmp_path / "file" / "blocks", 1)
        assert saved is not None
        assert saved["num_blocks"] == 0
        assert saved["error"]
        assert len(list(loader)) == 2


def test_no_source_asks_for_it(job_data: Path, tmp_path: Path) -> None:
    with msd.DataLoader(make_recipe(job_data), num_steps=2) as loader:
        next(loader)
        loader.pin_blocks()
        assert loader.save_blocks(tmp_path / "blocks", 1) is None
    assert not (tmp_path / "blocks").exists()
