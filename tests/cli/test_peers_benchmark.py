"""Our loader beside torch and grain: all get the asked mixture, lose and repeat nothing, and are measured."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

RECORDS = 256
OURS, TORCH, GRAIN = "msdata_jax arrayrecord", "torch parquet", "grain arrayrecord on threads"


@pytest.fixture
def benchmarks(import_benchmark) -> SimpleNamespace:
    return SimpleNamespace(memory=import_benchmark("memory"), side_by_side=import_benchmark("side_by_side"))


def peers_of(benchmarks, *labels: str) -> list:
    return [peer for peer in benchmarks.memory.PEERS if peer.label in labels]


@pytest.mark.mpi
@pytest.mark.torch
def test_loaders_get_the_same_mixture_from_the_same_records(benchmarks, tmp_path: Path) -> None:
    result = benchmarks.side_by_side.compare(
        peers_of(benchmarks, OURS, TORCH, GRAIN),
        texts=3, images=1, records_per_source=RECORDS, folder=tmp_path,
        trainers=2, workers=1, rounds=1, fast=3, paced=2, pause_seconds=0.01,
    )  # fmt: skip
    floor, ceiling, *rows = result["rows"]
    assert (floor["peer"], ceiling["peer"]) == ("floor", "ceiling")
    assert len({tuple(row) for row in result["rows"]}) == 1  # all have the same columns
    torch, ours, grain = rows
    assert (torch["peer"], ours["peer"], grain["peer"]) == ("torch", "msdata_jax", "grain")
    assert (torch["workers"], ours["workers"], grain["workers"]) == (1, 1, 0)
    # 1 + 6 + 3 + 2 steps of 16 samples for each of the training processes.
    assert [row["num_samples"] for row in (floor, torch, grain)] == [12 * 16, 2 * 12 * 16, 2 * 12 * 16]
    assert [row["duplicates"] for row in rows] == [0, 0, 0]
    # A mixture without dice is within a sample of each source; draws are as good as draws are.
    assert max(ours["mix_error"], grain["mix_error"]) <= 4 / ours["num_samples"]
    assert torch["mix_error"] < 4 * torch["mix_error_of_draws"]
    assert ours["imbalance"] < min(torch["imbalance"], grain["imbalance"])
    assert all(row["samples_per_second"] > 0 and row["cpu_ms_per_sample"] >= 0 for row in rows)
    headlines = benchmarks.side_by_side.headlines(result)
    assert headlines[0]["ours"] == ours["samples_per_second"]
    assert headlines[0]["beside"].keys() == {
        "floor parquet", "ceiling parquet", "torch parquet", "grain arrayrecord on threads"
    }  # fmt: skip


@pytest.mark.mpi
def test_memory_of_a_loader_is_over_what_its_imports_take(benchmarks, tmp_path: Path) -> None:
    floor = benchmarks.side_by_side.registry.BOUNDS[0]
    result = benchmarks.memory.compare(
        [*peers_of(benchmarks, OURS), floor], ((3, 1),), rounds=1, records_per_source=RECORDS, folder=tmp_path
    )
    ours, alone = result["rows"]
    assert (ours["sources"], ours["trainers"], ours["workers"]) == (3, 1, 1)
    assert ours["data_processes"] == 4  # mpiexec, its proxy, planner, loader
    assert (alone["workers"], alone["data_processes"]) == (0, 0)
    assert (ours["ratio_to_ours"], alone["ratio_to_ours"]) == (1.0, None)  # blocks are compared with blocks
    assert all(1 < row["loader_pss_mb"] < row["total_pss_mb"] for row in result["rows"])
    blocks, records = benchmarks.memory.headlines(result)
    assert (blocks["ours"], blocks["beside"]) == (None, {"floor on threads": alone["loader_pss_mb"]})
    assert (records["ours"], records["beside"]) == (ours["loader_pss_mb"], {})
    benchmarks.memory.draw(result, tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_loader_that_cannot_run_is_listed_with_the_reason(
    benchmarks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MSDATA_PEERS_VENV", str(tmp_path / "venv"))
    peers = peers_of(benchmarks, "streaming mds")
    result = benchmarks.memory.compare(peers, ((2, 1),), rounds=1, records_per_source=2, folder=tmp_path)
    (row,) = result["rows"]
    assert (row["peer"], row["format"]) == ("streaming", "mds")
    assert str(tmp_path / "venv") in row["not_measured"]
    assert "benchmarks/peers/setup" in row["not_measured"]
    (left_out,) = [note for note in result["notes"] if note.startswith("left out")]
    assert {peer.label in left_out for peer in benchmarks.memory.PEERS} == {True}


def test_a_loader_that_fails_is_listed_with_its_error(benchmarks, tmp_path: Path) -> None:
    """Its data are damaged; others would go on."""
    (source,) = benchmarks.memory.data.mixture(1, 0, RECORDS, even=True)
    (tmp_path / "parquet").mkdir()
    (tmp_path / "parquet" / f"{source.name}.parquet").write_bytes(b"not Parquet")
    floor = benchmarks.side_by_side.registry.BOUNDS[0]
    result = benchmarks.memory.compare(
        [floor], ((1, 1),), rounds=2, records_per_source=RECORDS, folder=tmp_path
    )
    (row,) = result["rows"]
    assert (row["peer"], row["sources"], row["trainers"]) == ("floor", 1, 1)
    assert "ArrowInvalid" in row["failed"]


def test_records_are_the_samples_that_they_hold(benchmarks) -> None:
    from benchmarks.peers import data, work

    text, image = data.mixture(1, 1, 3, even=False)
    assert (text.weight, image.weight) == (pytest.approx(0.8), pytest.approx(0.2))
    for number, record in enumerate(data.records_of(text)):
        sample = work.decode(record)
        words = np.frombuffer(record[work.HEADER_BYTES :], np.uint16)
        assert sample["tokens"][:2].tolist() == [text.number, number]
        assert sample["tokens"][2:].tolist() == words[: work.SEQ_LEN - 2].tolist()
    samples = [work.decode(record) for record in data.records_of(image)]
    assert all((sample["tokens"][2:] == work.IMAGE_TOKEN).all() for sample in samples)
    assert all(sample["patches"].shape == (256, 588) for sample in samples)
    identities, lengths = work.samples_of(work.collate(samples))
    assert identities.tolist() == [[image.number, number] for number in range(3)]
    assert lengths.tolist() == [258] * 3


def test_contents_are_counted_by_a_plain_loop(benchmarks) -> None:
    side_by_side = benchmarks.side_by_side
    sources = benchmarks.memory.data.mixture(2, 0, 3, even=True)
    cell = side_by_side.Cell(
        folder=Path(), sources=sources, trainers=2, workers=1, batch_size=2, mean_tokens=1.0, warm_up=0
    )
    # Source 0 repeats its sample 1 before its samples are used up; source 1 begins its second pass.
    content = [[[[0, 1], [1, 0]], [[1, 1]]], [[[0, 1], [1, 2]], [[1, 0]]]]
    found = side_by_side.contents(content, cell)
    assert (found["num_samples"], found["duplicates"]) == (6, 1)
    assert found["mix_error"] == pytest.approx(abs(2 / 6 - 1 / 2))
    with pytest.raises(AssertionError, match="no source has"):
        side_by_side.contents([[[[0, 3]]]], cell)
    # Squared lengths in step 0: 10 and 16; in step 1: 4 and 4.
    lengths = [[[1, 3], [2]], [[4], [2]]]
    assert side_by_side.imbalance(lengths) == pytest.approx((16 / 13 + 1) / 2)


def test_growth_is_fitted_for_each_loader(benchmarks) -> None:
    rows = [
        {
            "peer": peer,
            "format": "parquet",
            "workers": 2,
            "sources": s,
            "trainers": t,
            "loader_pss_mb": used(s, t),
        }
        for peer, used in (
            ("ours", lambda s, t: 50 + 3 * s + 12 * t),
            ("theirs", lambda s, t: 10 + 2 * s * t),
        )
        for s in (8, 64)
        for t in (1, 4, 8)
    ]
    ours, theirs = benchmarks.memory.growth(rows)
    assert ours == {
        "peer": "ours", "format": "parquet", "fixed_mb": 50.0, "mb_a_source": 3.0, "mb_a_trainer": 12.0,
        "mb_a_source_in_each_trainer": 0.0, "largest_error_mb": 0.0,
    }  # fmt: skip
    assert (theirs["fixed_mb"], theirs["mb_a_source_in_each_trainer"]) == (10.0, 2.0)
    assert benchmarks.memory.growth(rows[:4]) == []  # four numbers from four cells
    assert (
        benchmarks.memory.growth([{**row, "trainers": 1} for row in rows]) == []
    )  # processes cannot be told
