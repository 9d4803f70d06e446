"""A rank that fails ends the job within seconds, with its message shown once; nobody stays behind."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from jobs_runner import JOBS, environment, launch_line

GONE_SECONDS = 10.0

pytestmark = [pytest.mark.mpi, pytest.mark.multiprocess]


@dataclass
class Job:
    """A running job and what it has printed so far, with the time of each line."""

    process: subprocess.Popen
    mark: str
    lines: list[tuple[float, str]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def read(self) -> None:
        for line in self.process.stdout:
            with self.changed:
                self.lines.append((time.monotonic(), line))
                self.changed.notify_all()

    @property
    def text(self) -> str:
        return "".join(line for _, line in self.lines)

    def wait_for_text(self, text: str, seconds: float = 60.0) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: text in self.text, seconds), self.text

    def time_of(self, text: str) -> float:
        return next(when for when, line in self.lines if text in line)


@pytest.fixture
def start(tmp_path: Path) -> Iterator:
    jobs = []

    def start_job(
        fault: str, *options: str, train: Path = JOBS / "faulty_train.py", trainers: int = 2
    ) -> Job:
        mark = uuid.uuid4().hex
        line = launch_line(2, trainers, str(train), recipe=JOBS / "faulty_recipe.py", options=options)
        env = environment(tmp_path, MSDATA_TEST_FAULT=fault, MSDATA_TEST_MARK=mark)
        process = subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        job = Job(process, mark)
        reader = threading.Thread(target=job.read, daemon=True)
        reader.start()
        jobs.append((job, reader))
        return job

    yield start_job
    for job, reader in jobs:
        if job.process.poll() is None:
            job.process.kill()
        job.process.wait(30)
        reader.join(30)
        job.process.stdout.close()


def processes_with(mark: str) -> list[int]:
    """Processes whose environment carries the mark of a job."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:  # gone meanwhile
            continue
    return found


def is_trainer(pid: int) -> bool:
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return words[1:2] == [str(JOBS / "faulty_train.py")]


def shared_memory_of(job: Job) -> set[Path]:
    """Shared-memory files that the ranks of a job map."""
    found = set()
    for pid in processes_with(job.mark):
        words = Path(f"/proc/{pid}/maps").read_text().split()  # "(deleted)" may follow a name
        found |= {Path(word) for word in words if word.startswith("/dev/shm/")}
    return found


def assert_gone(job: Job, since: float) -> None:
    """The job ended, and no rank is left, within the stated time."""
    job.process.wait(max(since + 2 * GONE_SECONDS - time.monotonic(), 0.1))
    while (left := processes_with(job.mark)) and time.monotonic() < since + GONE_SECONDS:
        time.sleep(0.05)  # a process that was told to end takes its time
    elapsed = time.monotonic() - since
    assert not left, f"ranks {left} are still there after {elapsed:.1f} s\n{job.text}"
    assert elapsed < GONE_SECONDS, job.text


def test_an_error_in_a_transform_ends_the_data_on_all_trainers(start) -> None:
    job = start("transform")
    message = "source 'good', position 6: explode: RuntimeError: the decoder broke"
    job.wait_for_text(message)
    assert_gone(job, job.time_of(message))
    assert job.process.returncode == 1
    assert job.text.count(message) == 1


def test_a_loader_that_breaks_ends_the_job(start) -> None:
    job = start("reader")
    job.wait_for_text("no memory left for the reader")
    assert_gone(job, job.time_of("no memory left"))
    assert job.process.returncode == 1
    assert job.text.count("no memory left for the reader\n") == 1
    assert "(loader) failed" in job.text


def test_a_source_that_is_not_there_ends_the_job_before_training(start) -> None:
    job = start("missing")
    job.wait_for_text("/nowhere/at/all.parquet")
    assert_gone(job, job.time_of("/nowhere"))
    assert job.process.returncode == 1
    assert job.text.count("/nowhere/at/all.parquet") == 1
    assert "is under way" not in job.text


def test_a_trainer_that_raises_ends_the_job(start) -> None:
    job = start("trainer")
    job.wait_for_text("ValueError: the loss is not finite")
    assert_gone(job, job.time_of("the loss is not finite"))
    assert job.process.returncode == 1
    assert job.text.count("ValueError: the loss is not finite") == 1


def test_a_trainer_that_exits_ends_the_job(start) -> None:
    job = start("exit")
    job.wait_for_text("the trainer has had enough")
    assert_gone(job, job.time_of("had enough"))
    assert job.process.returncode == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all_ranks(start, number: signal.Signals) -> None:
    job = start("")
    job.wait_for_text("trainer 1 is under way")
    shared = shared_memory_of(job)
    begin = time.monotonic()
    job.process.send_signal(number)
    assert_gone(job, begin)
    assert job.process.returncode == 128 + number
    assert not [path for path in shared if path.exists()]


def test_killing_a_trainer_ends_the_job(start) -> None:
    job = start("")
    job.wait_for_text("trainer 1 is under way")
    victim = next(pid for pid in processes_with(job.mark) if is_trainer(pid))
    shared = shared_memory_of(job)
    begin = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    assert_gone(job, begin)
    assert job.process.returncode == 1
    assert shared
    assert not [path for path in shared if path.exists()]


def test_killing_the_launcher_ends_all_ranks(start) -> None:
    job = start("")
    job.wait_for_text("trainer 1 is under way")
    begin = time.monotonic()
    job.process.kill()
    assert_gone(job, begin)


@pytest.mark.parametrize("fault", ["leave", "generator", "good exit"])
def test_leaving_early_is_an_orderly_end(start, fault: str) -> None:
    job = start(fault)
    job.process.wait(60)
    assert job.process.returncode == 0, job.text
    assert all(f"trainer {i} is done" in job.text for i in range(2))
    assert not processes_with(job.mark)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("emit", "RuntimeError: no memory left on the device\n"),
        ("again", "ranks [4] build another DataLoader, and ranks [3] have ended"),
        ("second loader", "feeds one DataLoader at a time, and the one before is still open"),
        ("part of the mesh", "the mesh has devices of 1 processes; the job has 2 training processes"),
        ("spec", "it has no axis 'tp'"),
        ("unclosed", "ended before it closed its DataLoader; use `with"),
    ],
)
def test_what_a_trainer_does_wrong_is_shown(start, fault: str, message: str) -> None:
    job = start(fault)
    job.wait_for_text(message)
    assert_gone(job, job.time_of(message))
    assert job.process.returncode == 1
    if fault not in ("unclosed", "second loader"):  # where every trainer may be the first to say so
        assert job.text.count(message) == 1, job.text


def test_trainers_without_data_ranks_are_told_how_to_start() -> None:
    from msdata_transport import find_mpiexec

    line = [
        find_mpiexec(),
        "-n",
        "2",
        sys.executable,
        "-c",
        "import msdata_jax as msd; msd.initialize(use_jax=False)",
    ]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "none of them a data rank" in done.stdout + done.stderr
    assert "msdata launch --loaders 3 --trainers 2" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "failed: killed by signal 11"),
    ],
)
def test_a_trainer_that_ends_before_it_joins_ends_the_job_at_once(
    start, tmp_path: Path, program: str, message: str
) -> None:
    train = tmp_path / "train.py"
    train.write_text(program)
    job = start("", train=train, trainers=1)
    job.wait_for_text(message)
    assert_gone(job, job.time_of(message))
    assert job.process.returncode == 1
    assert job.text.count(message) == 1, job.text


def test_killing_the_guard_of_a_trainer_ends_the_job(start) -> None:
    job = start("")
    job.wait_for_text("trainer 1 is under way")
    victim = next(pid for pid in processes_with(job.mark) if is_trainer(pid))
    guard = int(Path(f"/proc/{victim}/stat").read_text().rpartition(")")[2].split()[1])
    begin = time.monotonic()
    os.kill(guard, signal.SIGKILL)
    assert_gone(job, begin)
    assert job.process.returncode == 1


def test_a_trainer_that_never_joins_ends_the_job_in_the_stated_time(start) -> None:
    begin = time.monotonic()
    job = start("absent", "--start-seconds", "4")
    assert_gone(job, begin + 4)
    assert job.process.returncode == 1
    assert "in join" in job.text  # where the ranks that came were waiting


def test_trainers_without_a_loader_end_the_job_in_the_stated_time(start) -> None:
    job = start("no loader", "--start-seconds", "3")
    message = "the job did not start within 3 s (--start-seconds); waiting for constructor ranks [3, 4]"
    job.wait_for_text(message)
    assert_gone(job, job.time_of(message))
    assert job.process.returncode == 1
    assert job.text.count(message) == 1


def test_spmd_start_by_a_spec_of_roles(tmp_path: Path) -> None:
    from msdata_transport import find_mpiexec

    serve = [sys.executable, "-m", "msdata_jax", "serve", "--roles", "planner=1,loaders=2,trainers=2"]
    line = [
        find_mpiexec(),
        "-n",
        "5",
        *serve,
        str(JOBS / "faulty_recipe.py"),
        "--",
        str(JOBS / "faulty_train.py"),
    ]
    env = environment(tmp_path, MSDATA_TEST_FAULT="leave")
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"trainer {i} is done" in done.stdout for i in range(2))
