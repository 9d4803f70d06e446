"""Real jobs under mpiexec whose ranks are killed and stopped: training gets every byte all the same."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from jobs_runner import JOBS, environment, launch_line

from benchmarks import chaos

pytestmark = pytest.mark.mpi

STEPS = 40
LOST_SECONDS = 30.0


@pytest.fixture(scope="module")
def peaceful(tmp_path_factory: pytest.TempPathFactory) -> chaos.Outcome:
    return chaos.run_job(tmp_path_factory.mktemp("chaos") / "peaceful", chaos.Trouble(steps=STEPS))


@pytest.mark.parametrize("scenario", chaos.SCENARIOS)
def test_training_gets_every_byte(tmp_path: Path, peaceful: chaos.Outcome, scenario: str) -> None:
    seed = chaos.SCENARIOS.index(scenario)
    troubled = chaos.run_job(tmp_path / "job", chaos.Trouble(scenario=scenario, seed=seed, steps=STEPS))
    assert len(troubled.steps) == STEPS
    assert chaos.compare(peaceful, troubled) == chaos.Difference(lost=0, duplicated=0, differing=0)
    lost = {each["rank"] for each in troubled.figures["lost"]}
    killed = {rank for rank, how in troubled.struck if how in ("SIGKILL", "SIGSTOP")}
    if scenario == "slow":
        assert not lost
    elif scenario != "kill in mid-send":  # there it kills itself
        assert lost <= killed  # one that was hit when all steps were read is not missed
    assert lost or scenario == "slow"


def test_without_a_shadow_another_loader_takes_over(tmp_path: Path, peaceful: chaos.Outcome) -> None:
    trouble = chaos.Trouble(scenario="kill two", seed=11, shadows=0, steps=STEPS)
    troubled = chaos.run_job(tmp_path / "job", trouble)
    assert chaos.compare(peaceful, troubled) == chaos.Difference(lost=0, duplicated=0, differing=0)


@pytest.mark.parametrize("role", ["planner", "constructor"])
def test_a_job_whose_planner_or_trainer_died_goes_on_from_the_journal(
    tmp_path: Path, peaceful: chaos.Outcome, role: str
) -> None:
    job = Job(tmp_path, MSDATA_CHAOS_JOURNAL=str(tmp_path / "journal"))
    with job.running() as process:
        job.wait_for_steps(STEPS // 2, process)
        os.kill(job.rank(role), signal.SIGKILL)
        assert process.wait(LOST_SECONDS) == 1, job.output
    first = job.steps()
    assert STEPS // 2 <= len(first) < STEPS
    with job.running() as process:
        assert process.wait(LOST_SECONDS) == 0, job.output
    steps = job.steps()
    assert steps[: len(first)] == first
    assert dict(steps) == peaceful.steps
    assert [step for step, _ in steps] == list(range(STEPS))


def test_a_record_that_kills_its_loader_costs_one_loader_and_itself(tmp_path: Path) -> None:
    job = Job(tmp_path, MSDATA_CHAOS_POISON="123")
    with job.running() as process:
        assert process.wait(2 * LOST_SECONDS) == 0, job.output
    assert len(job.steps()) == STEPS
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert len(figures["lost"]) == 1
    assert figures["sources"]["short"]["bad_samples"] >= 1
    assert all("SIGKILL" in reason for _, _, reason in figures["sources"]["short"]["bad"])


def test_when_no_loader_is_left_the_trainer_is_told_within_seconds(tmp_path: Path) -> None:
    job = Job(tmp_path, loaders=2)
    with job.running() as process:
        job.wait_for_steps(5, process)
        begin = time.monotonic()
        for rank in (1, 2):
            os.kill(job.rank("loader", rank), signal.SIGKILL)
        assert process.wait(LOST_SECONDS) == 1, job.output
    assert time.monotonic() - begin < 20
    assert "no source loader is left (rank" in job.output
    assert "killed by signal 9" in job.output


@pytest.mark.multiprocess
def test_two_jax_trainers_get_every_byte_though_a_loader_is_killed(job_data: Path, tmp_path: Path) -> None:
    runs = []
    for name in ("peaceful", "troubled"):
        out, saves = tmp_path / name, tmp_path / f"{name}_checkpoints"
        out.mkdir()
        train = [str(JOBS / "train_and_save.py"), "20", str(out), str(saves), "v0"]
        line = launch_line(3, 2, *train, options=("--shadows", "1"))
        env = environment(job_data, MSDATA_TEST_TRAINERS="2", MSDATA_TEST_MARK=str(out))
        with (out / "output").open("wb") as output:
            process = subprocess.Popen(line, env=env, stdout=output, stderr=output)
        deadline = time.monotonic() + 2 * LOST_SECONDS
        while name == "troubled" and not (saves / "6").exists():
            assert process.poll() is None, (out / "output").read_text()
            assert time.monotonic() < deadline, (out / "output").read_text()
            time.sleep(0.005)  # between two looks
        if name == "troubled":
            os.kill(min(loaders_of(str(out))), signal.SIGKILL)
        assert process.wait(4 * LOST_SECONDS) == 0, (out / "output").read_text()
        runs.append([json.loads((out / f"process{i}.json").read_text()) for i in range(2)])
    assert "1 loader was lost and replaced: rank" in (tmp_path / "troubled" / "output").read_text()
    assert len(runs[0][0]) == 20
    assert runs[0] == runs[1]


def loaders_of(mark: str) -> list[int]:
    """Process ids of the loaders of a job, not of their guards."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if mark.encode() in (folder / "environ").read_bytes() and b"msdata_transport.guard" not in words:
                found += [int(folder.name)] * (b"loader" in words)
        except OSError:  # gone meanwhile
            continue
    return found


class Job:
    """A job of `benchmarks/recovery_job` that a test watches itself."""

    def __init__(self, folder: Path, loaders: int = 3, **env: str) -> None:
        self._folder = folder
        self._line = chaos.launch_line(folder, chaos.Trouble(loaders=loaders, shadows=0, steps=STEPS))
        self._env = {**chaos.environment(folder), **env}

    def running(self) -> subprocess.Popen:
        with (self._folder / "output").open("ab") as output:
            return subprocess.Popen(self._line, env=self._env, stdout=output, stderr=output)

    def wait_for_steps(self, count: int, process: subprocess.Popen) -> None:
        deadline = time.monotonic() + LOST_SECONDS
        while len(self.steps()) < count:
            assert process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.005)  # between two looks

    def steps(self) -> list[tuple[int, str]]:
        return [(line["step"], line["digest"]) for line in chaos.read_steps(self._folder)]

    def rank(self, role: str, rank: int | None = None) -> int:
        found = chaos.ranks(self._folder, role)
        return found[min(found) if rank is None else rank]

    @property
    def output(self) -> str:
        return (self._folder / "output").read_text(errors="replace")
