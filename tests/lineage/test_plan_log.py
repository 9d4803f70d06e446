"""The plan log gives back what was written, whatever the moment at which its writer was stopped."""

import struct
from pathlib import Path

import msgpack
import numpy as np
import pytest

import msdata_jax as msd
from msdata_jax.dry_run import DryRun
from msdata_jax.errors import PlanError
from msdata_jax.lineage import PlanLog, PlanLogWriter
from msdata_jax.lineage.plan_log import LOG_VERSION, MAGIC
from msdata_jax.planning.place_tree import MeshLayout

LAYOUT = MeshLayout(axis_names=("dp", "tp"), axis_sizes=(2, 2), process_of_device=(0, 0, 1, 1))


def twice(record: dict) -> list[dict]:
    return [record, record]


def make_recipe() -> msd.Recipe:
    documents = [{"tokens": np.arange(1 + (7 * i) % 40, dtype=np.int32)} for i in range(50)]
    return msd.Recipe(
        sources={"plain": msd.Source(documents), "twice": msd.Source(documents, [twice], block_size=8)},
        strategy=msd.DGraph()
        .mix({"plain": 1, "twice": 2})
        .pack(seq_len=32, rows=4, oversize="drop")
        .distribute("dp")
        .balance("lpt"),
        seed=3,
    )


def write_log(path: Path, num_steps: int = 4) -> list:
    """Logs a dry run as a planner would that hears of each delivery a step late; returns what was planned."""
    recipe = make_recipe()
    with DryRun(recipe, LAYOUT) as run:
        writer = PlanLogWriter(path, recipe)
        writer.start(LAYOUT, run.num_records, (1, 2))
        planned = []
        for each in run.steps(num_steps):
            owner = 1 + np.arange(len(each.plan.samples), dtype=np.int32) % 2
            writer.step(each.plan, owner, each.in_flight)
            if each.plan.step:
                writer.delivered(each.plan.step - 1)
            planned.append(each)
        writer.close()
    return planned


def assert_same(log: PlanLog, planned: list) -> None:
    assert log.steps == [each.plan.step for each in planned]
    for step, (logged, each) in enumerate(zip(log, planned, strict=True)):
        assert logged.plan.digest == each.plan.digest
        assert np.array_equal(logged.plan.dropped, each.plan.dropped)
        assert logged.owner.tolist() == [1 + i % 2 for i in range(len(each.plan.samples))]
        assert logged.delivered == max(step - 2, -1)
        for name, value in vars(each.in_flight).items():
            assert np.array_equal(getattr(logged.in_flight, name), value), name


def test_reads_what_was_written(tmp_path: Path) -> None:
    planned = write_log(tmp_path / "log")
    log = PlanLog(tmp_path / "log")
    assert_same(log, planned)
    assert log.delivered == 2
    assert log.cut_off == ""
    recipe = make_recipe()
    header = log.header
    assert header.source_names == ("plain", "twice")
    assert header.recipe == recipe.fingerprint()
    assert header.strategy == str(recipe.strategy)
    assert header.mesh == "dp=2,tp=2"
    assert header.process_of_device == [0, 0, 1, 1]
    assert header.loaders == [1, 2]
    described = [
        (source.data, source.transforms, source.num_records, source.block_size) for source in header.sources
    ]
    assert described == [("list", "", 50, 64), ("list", "twice", 50, 8)]


def test_a_log_that_is_cut_anywhere_gives_the_steps_that_are_whole(tmp_path: Path) -> None:
    planned = write_log(tmp_path / "log", num_steps=3)
    data = (tmp_path / "log").read_bytes()
    header_end = len(MAGIC) + 16 + struct.unpack_from("<Q", data, len(MAGIC))[0]
    cut = tmp_path / "cut"
    for size in range(len(data)):
        cut.write_bytes(data[:size])
        if size < header_end:
            with pytest.raises(PlanError, match=r"no plan log|header is cut off"):
                PlanLog(cut)
            continue
        log = PlanLog(cut)
        assert_same(log, planned[: len(log.steps)])
        assert log.delivered <= len(log.steps) - 2 or log.delivered == -1
        if log.cut_off:
            assert f"is cut off at byte {size}" in log.cut_off
    assert log.steps == [0, 1, 2]


def test_a_damaged_step_is_told_and_the_others_are_read(tmp_path: Path) -> None:
    write_log(tmp_path / "log")
    data = bytearray((tmp_path / "log").read_bytes())
    samples = PlanLog(tmp_path / "log").read(1).plan.samples
    at = data.index(samples[:2].tobytes())
    data[at + 8] ^= 1  # a position
    (tmp_path / "log").write_bytes(data)
    log = PlanLog(tmp_path / "log")
    with pytest.raises(PlanError, match=r"step 1 is damaged: the plan's digest is"):
        log.read(1)
    assert log.read(2).plan.step == 2


def test_a_step_that_is_not_there(tmp_path: Path) -> None:
    write_log(tmp_path / "log")
    with pytest.raises(PlanError, match=r"has no step 9; it has steps 0 to 3"):
        PlanLog(tmp_path / "log").read(9)


def test_a_log_without_steps(tmp_path: Path) -> None:
    recipe = make_recipe()
    writer = PlanLogWriter(tmp_path / "log", recipe)
    writer.start(LAYOUT, [50, 50], ())
    log = PlanLog(tmp_path / "log")
    assert log.steps == []
    assert log.delivered == -1
    with pytest.raises(PlanError, match=r"has no step 0; it has no steps"):
        log.read(0)
    writer.close()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is no plan log"),
        (b"something else entirely", "is no plan log"),
        (MAGIC + struct.pack("<QQ", 2**60, 0), "header is cut off"),
        (MAGIC + struct.pack("<QQ", 3, 0) + b"\xc1\xc1\xc1", "header is damaged"),
        (MAGIC + struct.pack("<QQ", 1, 0) + msgpack.packb(7), "header is damaged"),
    ],
)
def test_what_is_no_log(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "log").write_bytes(data)
    with pytest.raises(PlanError, match=message):
        PlanLog(tmp_path / "log")


def test_another_version(tmp_path: Path) -> None:
    head = msgpack.packb({"version": LOG_VERSION + 1})
    (tmp_path / "log").write_bytes(MAGIC + struct.pack("<QQ", len(head), 0) + head)
    with pytest.raises(PlanError, match=f"version {LOG_VERSION + 1}; this msdata_jax reads {LOG_VERSION}"):
        PlanLog(tmp_path / "log")


def test_counts_in_a_step_are_compared_with_the_file(tmp_path: Path) -> None:
    write_log(tmp_path / "log", num_steps=1)
    header_end = len(MAGIC) + 16 + struct.unpack_from("<Q", (tmp_path / "log").read_bytes(), len(MAGIC))[0]
    head = msgpack.packb({"num_segments": 2**40, "num_carried": 0, "digest": ""})
    body = len(head).to_bytes(4, "little") + head
    whole = (tmp_path / "log").read_bytes()[:header_end] + struct.pack("<QQ", len(body), 0) + body
    (tmp_path / "log").write_bytes(whole)
    with pytest.raises(PlanError, match=r"step 0 is damaged: its 1099511627776 values of owner are cut off"):
        PlanLog(tmp_path / "log").read(0)


def test_a_log_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("precious")
    with pytest.raises(PlanError, match="is there already"):
        PlanLogWriter(tmp_path / "log", make_recipe())
    assert (tmp_path / "log").read_text() == "precious"
    (tmp_path / "log").rename(tmp_path / "other.2")  # where the log of a second DataLoader would go
    with pytest.raises(PlanError, match=r"other\.2 is there already"):
        PlanLogWriter(tmp_path / "other", make_recipe())
    with pytest.raises(PlanError, match="cannot be written: No such file or directory"):
        PlanLogWriter(tmp_path / "no folder" / "log", make_recipe())
