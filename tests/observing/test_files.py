"""Files of lines stay below their size, keep what they promise, and survive a cut."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msdata_jax.observing.files import Ring, ThinnedLog, old_of, read_lines

HEAD = {"head": 1}


def numbers(path: Path) -> list[int]:
    return [each["n"] for each in read_lines(path) if "n" in each]


@given(st.lists(st.integers(1, 5), max_size=60))
def test_a_ring_keeps_the_newest(tmp_path_factory: pytest.TempPathFactory, sizes: list[int]) -> None:
    path = tmp_path_factory.mktemp("ring") / "spans" / "rank-0.jsonl"
    ring, written = Ring(path, lambda: HEAD, most_bytes=120), []
    for size in sizes:
        more = list(range(len(written), len(written) + size))
        ring.write({"n": n} for n in more)
        written += more
    ring.close()
    kept = numbers(old_of(path)) + numbers(path)
    assert kept == written[len(written) - len(kept) :]
    for file in (path, old_of(path)):
        if file.exists():
            assert file.stat().st_size <= 120
            assert next(read_lines(file)) == HEAD
    assert not sizes or len(kept) >= min(len(written), 5)


@pytest.mark.parametrize("count", [1, 9, 10, 57, 1000])
def test_a_thinned_log_covers_all_of_the_run(tmp_path: Path, count: int) -> None:
    path = tmp_path / "metrics.jsonl"
    log = ThinnedLog(path, most_bytes=100)
    for n in range(count):
        log.write({"n": n})
    log.close()
    kept = numbers(path)
    assert path.stat().st_size <= 100
    assert (kept[0], kept[-1]) == (0, count - 1)
    assert kept == sorted(set(kept))
    steps = [b - a for a, b in itertools.pairwise(kept[:-1])]
    assert len(set(steps)) <= 1  # evenly, but for the last one
    assert len(kept) >= min(count, 5)


def test_a_line_that_is_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = ThinnedLog(path)
    for n in range(3):
        log.write({"n": n, "name": "ä"})
    log.close()
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert numbers(path) == list(range(whole[:length].count(b"\n")))


def test_nothing_is_read_where_nothing_is(tmp_path: Path) -> None:
    assert list(read_lines(tmp_path / "missing.jsonl")) == []


def test_a_file_that_is_there_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("another run's\n")
    log = ThinnedLog(path)
    for n in range(3):
        log.write({"n": n})
    log.close()
    assert path.read_text() == "another run's\n"
    shown = capsys.readouterr().err
    assert shown.count("is written no more") == 1
    assert "File exists" in shown


def test_a_disk_that_is_full_costs_the_file_alone(capsys: pytest.CaptureFixture) -> None:
    log = ThinnedLog(Path("/dev/full"))
    log.num_bytes = 1  # so that it is opened although it is there
    for n in range(3):
        log.write({"n": n})
    log.close()
    assert capsys.readouterr().err.count("/dev/full is written no more: [Errno 28]") == 1
