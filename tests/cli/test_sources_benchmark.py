"""A hundred sources and four training processes: a source is open on its loaders alone."""

import pytest


@pytest.fixture
def sources(import_benchmark):
    return import_benchmark("sources")


@pytest.mark.mpi
@pytest.mark.multiprocess
def test_each_source_is_open_on_its_loaders_alone(sources) -> None:
    result = sources.measure(100, 3, 4, docs_per_source=64, steps=5, workers_per_trainer=(1,))
    job, *others = result["rows"]
    assert (job["processes"], job["readers_per_source"], job["readers"], job["open_files"]) == (
        4,
        1,
        100,
        100,
    )
    assert [each["readers_per_source"] for each in others] == [4, 4]
    assert all(each["total_pss_mb"] > 0 for each in result["rows"])


def test_check_finds_a_source_open_twice(sources) -> None:
    rank = {"heavy_modules": []}
    loaders = [{**rank, "open_files": {"0": 1, "1": 1}}, {**rank, "open_files": {"1": 1}}]
    with pytest.raises(AssertionError, match="readers"):
        sources.check_readers({"planner": rank, "loaders": loaders}, num_sources=2, loaders=2)
    fewer_sources = [{**rank, "open_files": {"0": 1}}, {**rank, "open_files": {"0": 1}}]
    sources.check_readers({"planner": rank, "loaders": fewer_sources}, num_sources=1, loaders=2)
