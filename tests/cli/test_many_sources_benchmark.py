"""Many sources on few loaders: open files are bounded, and memory does not grow from epoch to epoch."""

import numpy as np
import pytest

GROWTH_MB = 25.0


@pytest.fixture
def many_sources(import_benchmark):
    return import_benchmark("many_sources")


@pytest.mark.mpi
def test_open_files_and_memory_are_bounded(many_sources) -> None:
    """Two loaders of 48 sources, 96 files each; the second and third epoch against the end of the first."""
    result = many_sources.measure((96,), 2, docs_per_source=48, epochs=3)
    (row,) = result["rows"]
    assert row["files"] == 192
    assert (
        row["most_open_files_of_a_loader"] == many_sources.MAX_OPEN_FILES
    )  # it has more, and is at its bound
    assert len(row["pss_mb_of_each"]) == 2
    assert row["mean_pss_mb"] - row["mean_pss_mb_after_an_epoch"] < GROWTH_MB


def test_a_slope_is_that_of_the_line(many_sources) -> None:
    x = np.arange(10.0)
    assert many_sources.slope(x, 3 * x + 1) == (pytest.approx(3.0), pytest.approx(0.0, abs=1e-9))
    fitted, error = many_sources.slope(x, np.array([1.0, -1.0] * 5))
    assert abs(fitted) < 3 * error


def test_too_many_open_files_end_the_benchmark(many_sources) -> None:
    looks = [{"epoch": epoch, "pss_mb": [50.0], "open_files": [67]} for epoch in (0.0, 1.0, 1.5, 2.0)]
    with pytest.raises(AssertionError, match="67 data files open, not 64"):
        many_sources.describe(1, {"looks": looks, "first_seconds": 1.0, "seconds": 2.0})
