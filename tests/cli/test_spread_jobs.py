"""What `msdata launch` does around srun; whole jobs are in tests/slurm."""

import sys
import threading
from pathlib import Path

import pytest

from msdata_jax.cli import running
from msdata_jax.cli.running import Spread, run_until_done
from msdata_jax.cli.srun import Part, Wanted, lost_nodes, plan_layout, vital_nodes

JOB = """
import os, sys, time
from msdata_transport.shared_folder import SharedRunFolder
folder = SharedRunFolder(os.environ["MSDATA_RUN_FOLDER"])
exec(sys.argv[1])
"""
WELL = "folder.write_outcome({'ok': True, 'lost': [], 'stopped': False});"
FOR_EVER = "time.sleep(600)"


@pytest.fixture
def spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spread:
    for name, seconds in (
        ("OVERDUE_SECONDS", 0.2),
        ("FAILED_SECONDS", 0.2),
        ("NODES_SECONDS", 0.2),
        ("LATE_SECONDS", 1.0),
    ):
        monkeypatch.setattr(running, name, seconds)
    return Spread(parent=tmp_path, name="msdata-run-7", lost_nodes=list)


@pytest.mark.parametrize(
    ("program", "status"),
    [
        (WELL, 0),
        ("pass", 1),  # no word of the planner, whatever srun says
        (WELL + "sys.exit(3)", 1),
        ("folder.write_outcome({'ok': True, 'lost': [{'rank': 3, 'why': 'silent'}]}); sys.exit(137)", 0),
        ("folder.write_outcome({'ok': True, 'lost': [], 'stopped': True})", 85),
        (WELL + "folder.report_failure(4, 'killed by signal 9')", 1),
        ("folder.hold_vital(4);" + WELL, 1),  # its node went, with a word from nobody
        ("folder.hold_vital(4);" + WELL + "folder.release_vital(4)", 0),
        ("folder.report_failure(4, 'ended with status 1');" + FOR_EVER, 1),  # the others wait for it
        (WELL + FOR_EVER, 0),  # a rank that the job did without hangs
    ],
)
def test_the_planners_word_counts(spread: Spread, program: str, status: int) -> None:
    assert run_until_done([sys.executable, "-c", JOB, program], spread=spread) == status
    assert not list(spread.parent.iterdir())


def test_a_word_that_comes_late(spread: Spread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LATE_SECONDS", 30.0)
    program = (
        f"import subprocess; subprocess.Popen([sys.executable, '-c', {JOB!r}, {'time.sleep(1);' + WELL!r}])"
    )
    assert run_until_done([sys.executable, "-c", JOB, program], spread=spread) == 0


def test_a_lost_node_that_the_job_needs(
    spread: Spread, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    there = threading.Event()
    lost = Spread(parent=tmp_path, name="run", lost_nodes=lambda: ["n3"] if there.is_set() else there.set())
    assert run_until_done([sys.executable, "-c", JOB, FOR_EVER], spread=lost) == 1
    assert "msdata: lost with ranks that the job needs: n3" in capfd.readouterr().err


def test_asked_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins answer as Slurm does."""
    answers = {"scontrol": 'case "$3" in "n[1-3]") seq -f n%g 3;; "n[1,3]") echo n1; echo n3;; esac'}
    answers["squeue"] = 'echo "n[1,3]"'
    for name, answer in answers.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    layout = plan_layout([Part(num_nodes=3, tasks_per_node=3)], Wanted(trainers=2))
    assert layout.roles == "trainers=1,loaders=1,planner=1,trainers=1,loaders=5"
    assert vital_nodes(layout, {"SLURM_JOB_NODELIST": "n[1-3]"}) == ["n1", "n2"]
    assert vital_nodes(layout, {"SLURM_JOB_NODELIST": "n[1,3]"}) == []
    assert lost_nodes("7", ["n1", "n2"]) == ["n2"]
    assert lost_nodes("7", ["n1"]) == []
    (tmp_path / "squeue").write_text("#!/bin/sh\necho 'slurm_load_jobs error' >&2; exit 1\n")
    assert lost_nodes("7", ["n1", "n2"]) == []
