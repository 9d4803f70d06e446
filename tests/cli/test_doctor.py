import json
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from msdata_jax.cli import doctor, doctor_job, mpiexec


def run(arguments: Sequence[str]) -> tuple[int, str]:
    """Status and standard output of `msdata doctor`."""
    result = CliRunner().invoke(doctor.command, list(arguments), standalone_mode=False)
    assert result.exception is None, result.exception
    return result.return_value, result.stdout


def use_mpiexec(monkeypatch: pytest.MonkeyPatch, path: str | None) -> None:
    for module in (doctor, mpiexec):
        monkeypatch.setattr(module, "find_mpiexec", lambda: path)


def fake_mpiexec(folder: Path, script: str) -> str:
    path = folder / "mpiexec"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.mpi
def test_here_all_is_well() -> None:
    status, output = run(["--json"])
    report = json.loads(output)
    assert status == 0, report["checks"]
    assert set(report) == {"checks", "versions", "ranks"}
    for check in report["checks"]:
        assert set(check) == {"name", "status", "detail", "way_out"}
        assert check["status"] in ("OK", "WARNING"), check
    assert report["versions"]["python"].startswith("3.")
    ranks = report["ranks"]
    assert [ranks[role]["count"] for role in ("planner", "loaders", "trainers")] == [1, 2, 1]
    assert len(ranks["hosts"]) == 4
    for role in ("planner", "loaders"):
        assert ranks[role]["heavy_modules"] == []
        assert all(5 < pss < 120 for pss in ranks[role]["pss_mb"])
    said = {check["name"]: check["detail"] for check in report["checks"]}
    assert said["data ranks"].startswith("no jax")
    assert "THREAD_" in said["MPI library"]


def test_no_mpiexec(monkeypatch: pytest.MonkeyPatch) -> None:
    use_mpiexec(monkeypatch, None)
    status, output = run([])
    assert status == 1
    assert "TROUBLE  mpiexec" in output
    assert "way out: pip install 'msdata-jax[mpi]'" in output
    assert "trouble with mpiexec" in output
    assert "a real job" not in output


def test_mpiexec_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_mpiexec(monkeypatch, fake_mpiexec(tmp_path, "echo 'proxy: cannot execvp' >&2; exit 7"))
    status, output = run(["--json"])
    assert status == 1
    job = next(check for check in json.loads(output)["checks"] if check["name"] == "a real job")
    assert job["status"] == "TROUBLE"
    assert "status 7" in job["detail"]
    assert "cannot execvp" in job["detail"]
    assert job["way_out"]


def test_mpiexec_that_did_nothing_is_no_success(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_mpiexec(monkeypatch, fake_mpiexec(tmp_path, "exit 0"))
    job = doctor_job.run_tiny_job(2, 1, 30)
    assert job.report is None
    assert doctor_job.check_job(job).status == "TROUBLE"
    assert doctor_job.check_data_ranks(job).status == "WARNING"


def test_mpiexec_hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_mpiexec(monkeypatch, fake_mpiexec(tmp_path, "exec sleep 600"))
    check = doctor_job.check_job(doctor_job.run_tiny_job(2, 1, 0.5))
    assert check.status == "TROUBLE"
    assert "deadline" in check.detail
    assert "--deadline" in check.way_out


def test_a_heavy_data_rank_is_trouble() -> None:
    lean = {"pss_mb": 30.0, "heavy_modules": []}
    fat = {"pss_mb": 200.0, "heavy_modules": ["jax"]}
    figures = {"planner": lean, "loaders": [lean, fat], "constructors": [fat]}
    report = {"steps": 20, "hosts": ["a"] * 4, "figures": figures}
    job = doctor_job.TinyJob(num_loaders=2, num_trainers=1, seconds=1.0, report=report)
    check = doctor_job.check_data_ranks(job)
    assert check.status == "TROUBLE"
    assert "jax" in check.detail
    assert job.plain()["trainers"]["heavy_modules"] == ["jax"]


def test_several_trainers_need_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "package_versions", lambda: {"python": "3.11"})
    result = CliRunner().invoke(doctor.command, ["--trainers", "2"])
    assert result.exit_code == 2
    assert "needs jax" in result.output


def test_jax_is_optional() -> None:
    assert doctor_job.check_jax({}, 1.0).status == "OK"
