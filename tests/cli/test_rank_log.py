"""Log files of ranks: what a process prints, and whatever it becomes; jobs under mpiexec are in tests/mpi."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from msdata_jax.cli.rank_log import VARIABLE, log_name

PROGRAM = """
import os, sys
from pathlib import Path
from msdata_jax.cli.rank_log import begin_log
begin_log(Path(sys.argv[1]), 7, "loader")
begin_log(Path(sys.argv[1]), 7, "loader")
os.write(1, b"out \\xff\\n")
os.write(2, b"err\\n")
sys.stdout.flush()
os.execv(sys.executable, [sys.executable, "-c", sys.argv[2], *sys.argv])
"""

BECOMES = """
import os, sys
from pathlib import Path
from msdata_jax.cli.rank_log import begin_log
begin_log(Path(sys.argv[2]), 7, "loader")  # as serve does once more under a guard
os.write(1, b"became another\\n")
os.kill(os.getpid(), 9) if "--die" in sys.argv else sys.exit(3)
"""


def run(folder: Path | str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    line = [sys.executable, "-c", PROGRAM, str(folder), BECOMES, *arguments]
    env = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return subprocess.run(line, env=env, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize(("arguments", "status"), [((), 3), (("--die",), -9)])
def test_all_is_written_once_and_shown_once(tmp_path: Path, arguments: tuple[str, ...], status: int) -> None:
    done = run(tmp_path / "a" / "b", *arguments)
    assert done.returncode == status
    assert done.stdout == b"out \xff\nbecame another\n"
    assert done.stderr == b"err\n"
    log = tmp_path / "a" / "b" / "rank-7-loader.log"
    assert sorted(log.read_bytes().splitlines()) == sorted([b"out \xff", b"err", b"became another"])


def test_a_file_that_is_there_is_added_to(tmp_path: Path) -> None:
    for _ in range(2):
        run(tmp_path)
    assert (tmp_path / "rank-7-loader.log").read_bytes().count(b"became another\n") == 2


def test_a_folder_that_cannot_be_made_costs_the_log_alone() -> None:
    done = run("/proc/nowhere")
    assert done.returncode == 3
    assert done.stdout == b"out \xff\nbecame another\n"
    assert done.stderr.startswith(b"msdata: no log of rank 7 in /proc/nowhere: [Errno 2]")
    assert done.stderr.count(b"no log") == 1


def test_names() -> None:
    assert [log_name(3, "loader"), log_name(12, "constructor"), log_name(None, "planner")] == [
        "rank-3-loader.log", "rank-12-trainer.log", "rank-0-planner.log",
    ]  # fmt: skip
