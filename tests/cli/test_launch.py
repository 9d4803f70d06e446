"""What `msdata launch` does around mpiexec; whole jobs are in tests/mpi."""

import itertools
import os
import pty
import re
import shlex
import signal
import sys
import threading
import time
from pathlib import Path

import click
import pytest
from msdata_transport import run_folder

from msdata_jax.cli import launch, mpiexec, running, serve, who_runs
from msdata_jax.errors import LaunchError, PlanError, RecipeError


@pytest.fixture
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for /dev/shm, and `proc` beside it with one process that maps one file."""
    monkeypatch.setattr(running, "LOOK_AGAIN_SECONDS", 0.0)
    folder, process = tmp_path / "shm", tmp_path / "proc" / "17"
    folder.mkdir()
    process.mkdir(parents=True)
    (process / "maps").write_text(f"7f00-7f01 rw-s 00000000 00:01 5   {folder}/mpich_shm_mapped\n")
    for name in ("mpich_shm_mapped", "mpich_shm_old", "mpich_shm_new", "other_new"):
        (folder / name).write_bytes(b"")
    return folder


def test_removes_what_is_new_and_mapped_by_nobody(shared_memory: Path, tmp_path: Path) -> None:
    running.remove_new_segments({shared_memory / "mpich_shm_old"}, shared_memory, tmp_path / "proc")
    assert sorted(path.name for path in shared_memory.iterdir()) == [
        "mpich_shm_mapped", "mpich_shm_old", "other_new",
    ]  # fmt: skip


JOB = """
import os, sys
from msdata_transport import RunFolder
folder = RunFolder.from_environment()
exec(sys.argv[1])
"""

FORMED = "folder.announce_formed();"
WELL = FORMED + "folder.write_outcome({'ok': True, 'lost': []});"
LOST = FORMED + "folder.write_outcome({'ok': True, 'lost': [{'rank': 3, 'why': 'killed by signal 9'}]});"


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("pass", 0),  # the ranks never met
        ("sys.exit(3)", 1),
        (WELL, 0),
        (WELL + "sys.exit(9)", 1),
        (WELL + "folder.report_failure(4, 'killed by signal 9')", 1),
        (LOST, 0),
        (LOST + "sys.exit(9)", 0),
        (LOST + "folder.report_failure(4, 'ended with status 1')", 1),
        (FORMED, 1),  # no word of the planner
        (FORMED + "folder.write_outcome({'ok': False})", 1),
        (FORMED + "open(folder.path + '/outcome.json', 'w').write('{')", 1),
    ],
)
def test_success_is_the_word_of_the_program(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, program: str, status: int
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(running, "remove_new_segments", calls.append)
    assert running.run_until_done([sys.executable, "-c", JOB, program]) == status
    assert len(calls) == 1
    shown = capfd.readouterr().err
    assert ("the job failed" in shown) == (status == 1)
    assert ("1 loader was lost and replaced: rank 3 (killed by signal 9)\n" in shown) == (LOST in program)


def test_the_run_folder_goes_with_the_job(capfd: pytest.CaptureFixture, tmp_path: Path) -> None:
    note = tmp_path / "note"
    program = f"open({str(note)!r}, 'w').write(folder.path)"
    assert running.run_until_done([sys.executable, "-c", JOB, program]) == 0
    assert note.read_text()
    assert not Path(note.read_text()).exists()


@pytest.mark.parametrize(
    ("lost", "lines"),
    [
        (None, []),
        ([], []),
        ("nonsense", []),
        ([7, {"rank": 3, "why": "x"}], ["1 loader was lost and replaced: rank 3 (x)"]),
        (
            [{"rank": 3, "why": "x"}, {"rank": 2, "why": "y", "role": "loader"}],
            ["2 loaders were lost and replaced: rank 3 (x), rank 2 (y)"],
        ),
        ([{"rank": 5, "why": "x", "role": "shadow"}], ["1 shadow was lost: rank 5 (x)"]),
    ],
)
def test_the_lost_are_named(lost: object, lines: list[str]) -> None:
    assert running.describe_lost({"ok": True, "lost": lost}) == lines
    assert running.describe_lost(None) == []


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with recipe.py and train.py."""
    (tmp_path / "recipe.py").write_text(RECIPE)
    (tmp_path / "train.py").write_text("raise SystemExit('nobody runs it')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dry_run(capsys: pytest.CaptureFixture, *options: str) -> list[str]:
    """The words of the command that it prints on stdout."""
    launch.command.main(
        ["--dry-run", *options, "recipe.py", "--", "train.py", "--fast"], standalone_mode=False
    )
    return shlex.split(capsys.readouterr().out)


@pytest.mark.usefixtures("scripts")
def test_a_dry_run_shows_the_command(capsys: pytest.CaptureFixture) -> None:
    words = dry_run(capsys, "--loaders", "3", "--shadows", "1", "--heartbeat-seconds", "2.5")
    python, guard = sys.executable, [sys.executable, "-m", "msdata_transport.guard"]
    blocks = [list(block) for is_colon, block in itertools.groupby(words[2:], ":".__eq__) if not is_colon]
    assert words[1] == "-disable-auto-cleanup"
    assert [block[1] for block in blocks] == ["1", "3", "1", "1"]
    assert [block[2:5] for block in blocks] == [guard] * 4
    assert [block[5:7] for block in blocks] == [
        ["--vital", "--"],
        ["--", python],
        ["--", python],
        ["--vital", "--"],
    ]
    assert [block[-2] for block in blocks[:3]] == ["planner", "loader", "shadow"]
    assert blocks[0][blocks[0].index("--heartbeat-seconds") + 1] == "2.5"
    assert blocks[3][7:] == ["env", "MSDATA_ROLE=constructor", python, "train.py", "--fast"]


@pytest.mark.usefixtures("scripts")
def test_with_log_files_trainers_start_through_serve(capsys: pytest.CaptureFixture) -> None:
    words = dry_run(capsys, "--log-dir", "logs")
    python = sys.executable
    trainer = words[words.index(":", words.index("loader")) + 1 :]
    assert trainer[:9] == [
        "-n", "1", python, "-m", "msdata_transport.guard", "--vital", "--", python, "-m",
    ]  # fmt: skip
    assert trainer[trainer.index("--log-dir") + 1] == "logs"
    assert trainer[trainer.index("--role") + 1 :] == ["constructor", "recipe.py", "--", "train.py", "--fast"]


def test_a_dry_run_says_who_would_run_what_and_starts_nothing(
    scripts: Path, capsys: pytest.CaptureFixture
) -> None:
    options = ["--dry-run", "--loaders", "3", "--trainers", "2", "--shadows", "1", "--log-dir", "logs"]
    assert launch.command.main([*options, "recipe.py", "--", "train.py"], standalone_mode=False) == 0
    first, head, *rows = capsys.readouterr().err.splitlines()
    assert first == "recipe.py: 1 source: s"
    assert head.split() == ["rank", "role"]
    assert [row.split()[:2] for row in rows] == [
        ["0", "planner"], ["1-3", "loader"], ["4", "shadow"], ["5-6", "trainer"],
    ]  # fmt: skip
    assert sorted(path.name for path in scripts.iterdir()) == ["recipe.py", "train.py"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.py", "--", "train.py"), "the recipe file nowhere.py does not exist"),
        (("recipe.py", "--", "nowhere.py"), "the training script nowhere.py does not exist"),
        (
            ("--summary", "x.txt", "recipe.py", "--", "train.py"),
            "--summary writes .json, by the file's suffix",
        ),
        (("--summary", "/proc/x.json", "recipe.py", "--", "train.py"), "cannot be written"),
    ],
)
@pytest.mark.usefixtures("scripts")
def test_a_dry_run_refuses_what_a_real_one_refuses(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises((LaunchError, RecipeError), match=re.escape(message)):
        launch.command.main(["--dry-run", *arguments], standalone_mode=False)


def test_ranks_of_several_nodes_are_shown_by_node() -> None:
    roles = "trainers=2,loaders=1,planner=1,trainers=2,loaders=2"
    rows = who_runs.describe_ranks(roles, [4, 4], guarded=False)
    assert [(row["rank"], row["node"], row["role"]) for row in rows] == [
        ("0-1", "0", "trainer"), ("2", "0", "loader"), ("3", "0", "planner"),
        ("4-5", "1", "trainer"), ("6-7", "1", "loader"),
    ]  # fmt: skip
    assert "the job ends with it" in rows[1][""]


@pytest.mark.parametrize("folder", ["file/logs", "/proc/logs"])
def test_a_log_folder_that_cannot_be_made_is_told_before_any_rank_starts(scripts: Path, folder: str) -> None:
    (scripts / "file").touch()
    with pytest.raises(LaunchError, match=f"--log-dir {folder} cannot be made: .*; name another folder"):
        launch.command.main(["--log-dir", folder, "recipe.py", "--", "train.py"], standalone_mode=False)


@pytest.mark.usefixtures("scripts")
def test_another_mpi_gets_no_guards(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "mpiexec"
    other.write_text("#!/bin/sh\necho 'mpiexec (OpenRTE) 4.1.4'\n")
    other.chmod(0o755)
    monkeypatch.setattr(mpiexec, "find_mpiexec", lambda: str(other))
    words = dry_run(capsys)
    assert words[:4] == [str(other), "-n", "1", sys.executable]
    assert "msdata_transport.guard" not in words
    assert "shadow" not in words


DEAF = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_kills_what_does_not_listen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture, number: signal.Signals
) -> None:
    monkeypatch.setattr(running, "STOP_SECONDS", 0.1)
    monkeypatch.setattr(running, "remove_new_segments", lambda before: None)
    ready = tmp_path / "ready"

    def interrupt() -> None:
        deadline = time.monotonic() + 30
        while not ready.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    begin = time.monotonic()
    assert running.run_until_done([sys.executable, "-c", DEAF, str(ready)]) == 128 + number
    assert time.monotonic() - begin < 30
    thread.join()
    assert "interrupted" in capfd.readouterr().err


def test_under_nohup_the_job_outlives_its_terminal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(running, "remove_new_segments", lambda before: None)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        program = "import os, signal; os.kill(os.getppid(), signal.SIGHUP)"
        assert running.run_until_done([sys.executable, "-c", program]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


CLOSED = """
import sys
from msdata_jax.cli.running import run_until_done
program = "import os, sys, time; print('READY', os.environ['MSDATA_RUN_FOLDER'], flush=True); time.sleep(60)"
status = run_until_done([sys.executable, "-c", program])
open(sys.argv[1], "w").write(str(status))
sys.exit(status)
"""


def test_a_closed_terminal_leaves_nothing(tmp_path: Path) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-c", CLOSED, str(tmp_path / "status")])
    shown = b""
    while not (found := re.search(rb"READY (\S+)\r?\n", shown)):
        shown += os.read(terminal, 4096)
    assert Path(os.fsdecode(found[1])).is_dir()
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 128 + signal.SIGHUP
    assert (tmp_path / "status").read_text() == "129"
    assert not Path(os.fsdecode(found[1])).exists()


def test_no_room_for_a_run_folder_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    monkeypatch.setattr(run_folder, "_LONGEST_PATH", 1000)
    with pytest.raises(LaunchError, match=r"no folder for the job can be made: .*; set TMPDIR to one"):
        running.run_until_done([sys.executable, "-c", "pass"])


def test_a_training_script_that_is_not_there_is_told_before_any_rank_starts(tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(
        "import msdata_jax as msd\n"
        "strategy = msd.DGraph().mix({'s': 1}).pack(seq_len=8, rows=2)\n"
        "recipe = msd.Recipe(sources={'s': msd.Source([])}, strategy=strategy)\n"
    )
    with pytest.raises(LaunchError, match=r"the training script nowhere\.py does not exist"):
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
    with pytest.raises(LaunchError, match=r"(?s)train\.py is no Python:.*line 2.*expected ':'"):
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
    with pytest.raises((LaunchError, click.UsageError), match=message):
        serve.command.main(arguments, standalone_mode=False)
