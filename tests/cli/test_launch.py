"""What `msdata launch` does around mpiexec; whole jobs are in tests/mpi."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import click
import pytest

from msdata_jax.cli import launch, serve
from msdata_jax.errors import PlanError


@pytest.fixture
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for /dev/shm, and `proc` beside it with one process that maps one file."""
    monkeypatch.setattr(launch, "LOOK_AGAIN_SECONDS", 0.0)
    folder, process = tmp_path / "shm", tmp_path / "proc" / "17"
    folder.mkdir()
    process.mkdir(parents=True)
    (process / "maps").write_text(f"7f00-7f01 rw-s 00000000 00:01 5   {folder}/mpich_shm_mapped\n")
    for name in ("mpich_shm_mapped", "mpich_shm_old", "mpich_shm_new", "other_new"):
        (folder / name).write_bytes(b"")
    return folder


def test_removes_what_is_new_and_mapped_by_nobody(shared_memory: Path, tmp_path: Path) -> None:
    launch.remove_new_segments({shared_memory / "mpich_shm_old"}, shared_memory, tmp_path / "proc")
    assert sorted(path.name for path in shared_memory.iterdir()) == [
        "mpich_shm_mapped", "mpich_shm_old", "other_new",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("program", "status", "removes"), [("pass", 0, False), ("raise SystemExit(3)", 1, True)]
)
def test_cleans_up_after_a_job_that_failed_only(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, program: str, status: int, removes: bool
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(launch, "remove_new_segments", calls.append)
    assert launch.run_until_done([sys.executable, "-c", program]) == status
    assert bool(calls) == removes
    assert ("the job failed" in capfd.readouterr().err) == (status == 1)


DEAF = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""


def test_an_interrupt_kills_what_does_not_listen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(launch, "STOP_SECONDS", 0.1)
    monkeypatch.setattr(launch, "remove_new_segments", lambda before: None)
    ready = tmp_path / "ready"

    def interrupt() -> None:
        deadline = time.monotonic() + 30
        while not ready.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    begin = time.monotonic()
    assert launch.run_until_done([sys.executable, "-c", DEAF, str(ready)]) == 128 + signal.SIGINT
    assert time.monotonic() - begin < 30
    thread.join()
    assert "interrupted" in capfd.readouterr().err


def test_a_training_script_that_is_not_there_is_told_before_any_rank_starts(tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(
        "import msdata_jax as msd\n"
        "strategy = msd.DGraph().mix({'s': 1}).pack(seq_len=8, rows=2)\n"
        "recipe = msd.Recipe(sources={'s': msd.Source([])}, strategy=strategy)\n"
    )
    with pytest.raises(launch.LaunchError, match=r"the training script nowhere\.py does not exist"):
        launch.command.main([str(tmp_path / "recipe.py"), "--", "nowhere.py"], standalone_mode=False)


RECIPE = """
import msdata_jax as msd
strategy = msd.DGraph().mix({'s': 1}).pack(seq_len=8, rows=2)
recipe = msd.Recipe(sources={'s': msd.Source([])}, strategy=strategy)
"""


@pytest.mark.parametrize("folder", ["nowhere", "/proc"])
def test_a_plan_log_that_cannot_be_written_is_told_before_any_rank_starts(
    tmp_path: Path, folder: str
) -> None:
    (tmp_path / "recipe.py").write_text(RECIPE)
    (tmp_path / "train.py").write_text("")
    log = tmp_path / folder / "plan.log"
    arguments = ["--plan-log", str(log), str(tmp_path / "recipe.py"), "--", str(tmp_path / "train.py")]
    with pytest.raises(PlanError, match=rf"the plan log {log} cannot be written: .*; name another file"):
        launch.command.main(arguments, standalone_mode=False)


def test_a_training_script_that_is_no_python_is_told_before_any_rank_starts(tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(RECIPE)
    (tmp_path / "train.py").write_text("x = 1\nif x\n")
    arguments = [str(tmp_path / "recipe.py"), "--", str(tmp_path / "train.py")]
    with pytest.raises(launch.LaunchError, match=r"(?s)train\.py is no Python:.*line 2.*expected ':'"):
        launch.command.main(arguments, standalone_mode=False)


@pytest.mark.parametrize(
    ("size", "train", "message"),
    [
        (7, ("--", "train.py"), "name 6 ranks, and 7 were started: start 6"),
        (5, ("--", "train.py"), "name 6 ranks, and 5 were started: start 6"),
        (6, (), "training ranks need their script"),
    ],
)
@pytest.mark.parametrize("rank", [0, 4])
def test_every_rank_refuses_what_only_some_would_meet(
    monkeypatch: pytest.MonkeyPatch, size: int, train: tuple[str, ...], message: str, rank: int
) -> None:
    monkeypatch.setenv("PMI_RANK", str(rank))
    monkeypatch.setenv("PMI_SIZE", str(size))
    arguments = ["--roles", "planner=1,loaders=3,trainers=2", "recipe.py", *train]
    with pytest.raises((launch.LaunchError, click.UsageError), match=message):
        serve.command.main(arguments, standalone_mode=False)
