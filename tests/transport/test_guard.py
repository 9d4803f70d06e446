"""The guard around one rank, here around small programs without MPI."""

import os
import queue
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msdata_transport import RunFolder, run_folder
from msdata_transport.guard import describe_exit

LAUNCHER_VARIABLES = ("PMI_FD", "PMI_RANK", "PMI_SIZE", run_folder.VARIABLE)

SLEEPS = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
IS_DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SLEEPS


class Guarded:
    """A guard and the program that it runs."""

    def __init__(
        self, program: str, *options: str, rank: int | None = None, folder: RunFolder | None = None
    ) -> None:
        env = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
        if rank is not None:
            env["PMI_RANK"] = str(rank)
        if folder is not None:
            env[run_folder.VARIABLE] = folder.path
        line = [sys.executable, "-m", "msdata_transport.guard", *options, "--", sys.executable, "-c", program]
        self.process = subprocess.Popen(
            line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def read_pid(self) -> int:
        """Of the program, which prints it first."""
        return int(self.process.stdout.readline())

    def wait(self, seconds: float = 20.0) -> int:
        return self.process.wait(seconds)

    def read_errors(self) -> str:
        return self.process.stderr.read()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)
        self.process.stdout.close()
        self.process.stderr.close()


@pytest.fixture
def start() -> Iterator:
    started: list[Guarded] = []

    def start_guarded(*arguments: str, **options: object) -> Guarded:
        started.append(Guarded(*arguments, **options))
        return started[-1]

    yield start_guarded
    for guarded in started:
        guarded.end()


@pytest.fixture
def folder() -> Iterator[RunFolder]:
    with RunFolder.temporary() as made:
        yield made


class Planner:
    """The planner's side of a run folder."""

    def __init__(self, folder: RunFolder) -> None:
        self._deaths: queue.Queue[tuple[int, str]] = queue.Queue()
        self._listener = folder.listen_for_deaths(lambda rank, how: self._deaths.put((rank, how)))
        folder.announce_formed()

    def hear(self) -> tuple[int, str]:
        return self._deaths.get(timeout=20)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def planner(folder: RunFolder) -> Iterator[Planner]:
    listening = Planner(folder)
    yield listening
    listening.close()


def is_running(pid: int) -> bool:
    """Whether the process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pid: int, seconds: float = 20.0) -> None:
    descriptor = os.pidfd_open(pid) if is_running(pid) else None
    if descriptor is not None:
        with os.fdopen(descriptor):
            assert select.select([descriptor], [], [], seconds)[0], f"{pid} is still there"


def wait_until_stopped(pid: int, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline
        os.sched_yield()


def test_a_program_that_ends_well_is_passed_through(start) -> None:
    for options in ((), ("--vital",)):
        guarded = start("print('said')", *options)
        assert guarded.wait() == 0
        assert guarded.process.stdout.read() == "said\n"
        assert guarded.read_errors() == ""


def test_a_program_can_see_that_it_has_a_guard(start) -> None:
    guarded = start("from msdata_transport.launch import has_guard; print(has_guard(), has_guard({}))")
    assert guarded.wait() == 0
    assert guarded.process.stdout.read() == "True False\n"


def test_the_status_of_a_vital_rank_is_passed_on(start, folder: RunFolder) -> None:
    guarded = start("raise SystemExit(3)", "--vital", rank=4, folder=folder)
    assert guarded.wait() == 3
    assert guarded.read_errors() == ""  # it has shown its own message
    assert folder.failures() == ["rank 4: ended with status 3"]


def test_the_death_of_a_vital_rank_is_told(start, folder: RunFolder, planner: Planner) -> None:
    guarded = start(SLEEPS, "--vital", rank=4, folder=folder)
    os.kill(guarded.read_pid(), signal.SIGSEGV)
    assert guarded.wait() == 128 + signal.SIGSEGV
    assert guarded.read_errors() == "msdata: rank 4 failed: killed by signal 11\n"
    assert folder.failures() == ["rank 4: killed by signal 11"]


def test_a_command_that_cannot_be_started() -> None:
    line = [sys.executable, "-m", "msdata_transport.guard", "--vital", "--", "/nowhere/at/all"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 127
    assert "/nowhere/at/all cannot be started: " in done.stderr


@pytest.mark.parametrize("arguments", [(), ("--vital",), ("--vital", "--"), ("--other", "--", "x")])
def test_usage(arguments: tuple[str, ...]) -> None:
    line = [sys.executable, "-m", "msdata_transport.guard", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2
    assert "usage" in done.stderr


@pytest.mark.parametrize("options", [(), ("--vital",)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on(start, options: tuple[str, ...], number: signal.Signals) -> None:
    program = (
        "import os, signal, sys, time\n"
        "for number in (signal.SIGTERM, signal.SIGINT):\n"
        "    signal.signal(number, lambda number, _: (print('got', number, flush=True), sys.exit()))\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(60)"
    )
    guarded = start(program, *options)
    child = guarded.read_pid()
    guarded.process.send_signal(signal.SIGUSR1)  # ignored
    guarded.process.send_signal(number)
    assert guarded.wait() == 0
    assert guarded.process.stdout.read() == f"got {int(number)}\n"
    assert not is_running(child)


def test_an_expendable_rank_that_is_told_to_end_leaves_no_guard(start) -> None:
    guarded = start(SLEEPS)
    child = guarded.read_pid()
    guarded.process.terminate()
    assert guarded.wait() == 128 + signal.SIGTERM
    assert not is_running(child)


@pytest.mark.parametrize("options", [(), ("--vital",)])
def test_a_guard_that_is_told_to_end_is_quiet(start, folder: RunFolder, options: tuple[str, ...]) -> None:
    folder.announce_formed()
    guarded = start(SLEEPS, *options, rank=2, folder=folder)
    guarded.read_pid()
    guarded.process.terminate()
    assert guarded.wait() == 128 + signal.SIGTERM
    assert guarded.read_errors() == ""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_the_death_of_an_expendable_rank_is_reported_and_hidden(
    start, folder: RunFolder, planner: Planner, number: signal.Signals
) -> None:
    guarded = start(SLEEPS, rank=3, folder=folder)
    child = guarded.read_pid()
    begin = time.monotonic()
    os.kill(child, number)
    assert planner.hear() == (3, f"killed by signal {int(number)}")
    print(f"detected after {1e3 * (time.monotonic() - begin):.1f} ms")
    assert not Path(f"/proc/{child}").exists()  # reaped
    assert guarded.process.poll() is None
    guarded.process.send_signal(signal.SIGUSR1)
    folder.done()
    assert guarded.wait() == 0
    assert guarded.read_errors() == ""  # the planner has heard of it
    assert folder.failures() == []


def test_a_death_that_nobody_hears_of_is_shown(start, folder: RunFolder) -> None:
    folder.announce_formed()
    guarded = start(SLEEPS, rank=3, folder=folder)
    os.kill(guarded.read_pid(), signal.SIGKILL)
    assert guarded.process.stderr.readline() == "msdata: rank 3 is lost: killed by signal 9\n"
    folder.write_outcome({"ok": True})
    assert guarded.wait() == 0


def test_a_bad_end_of_an_expendable_rank_is_reported_and_hidden(
    start, folder: RunFolder, planner: Planner
) -> None:
    guarded = start("raise SystemExit(5)", rank=3, folder=folder)
    assert planner.hear() == (3, "ended with status 5")
    folder.write_outcome({"ok": True})  # tells as well that the job is over
    assert guarded.wait() == 0


def test_an_expendable_rank_is_vital_until_the_job_has_formed(start, folder: RunFolder) -> None:
    guarded = start(SLEEPS, rank=3, folder=folder)
    os.kill(guarded.read_pid(), signal.SIGKILL)
    assert guarded.wait() == 128 + signal.SIGKILL
    assert guarded.read_errors() == "msdata: rank 3 failed: killed by signal 9\n"
    assert folder.failures() == ["rank 3: killed by signal 9"]


def test_a_stopped_rank_is_fenced(start, folder: RunFolder, planner: Planner) -> None:
    guarded = start(SLEEPS, rank=3, folder=folder)
    child = guarded.read_pid()
    os.kill(child, signal.SIGSTOP)
    wait_until_stopped(child)
    assert folder.kill(3)
    assert planner.hear() == (3, "killed by signal 9")
    assert not is_running(child)
    assert folder.kill(3)  # nobody left to kill, and no harm
    folder.done()
    assert guarded.wait() == 0


def test_nonsense_is_ignored(start, folder: RunFolder, planner: Planner) -> None:
    guarded = start(SLEEPS, rank=3, folder=folder)
    child = guarded.read_pid()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        for data in (b"", b"\xff", b"[]", b'{"event": ["kill"]}', b'{"event": "other"}', b"x" * 4096):
            sock.sendto(data, os.path.join(folder.path, "guard-3.sock"))
    os.kill(child, signal.SIGKILL)
    assert planner.hear() == (3, "killed by signal 9")
    folder.done()
    assert guarded.wait() == 0


def test_once_the_job_is_over_a_rank_may_end_in_its_time(start, folder: RunFolder, planner: Planner) -> None:
    listens = start(
        "import os, signal, time; print(os.getpid(), flush=True);"
        "signal.signal(signal.SIGALRM, lambda *_: os._exit(7)); signal.setitimer(signal.ITIMER_REAL, 1.0);"
        "time.sleep(60)",
        rank=4,
        folder=folder,
    )
    child = listens.read_pid()
    folder.done()
    assert listens.wait() == 0
    assert not is_running(child)
    assert listens.read_errors() == ""


def test_once_the_job_is_over_a_rank_that_does_not_end_is_killed(
    start, folder: RunFolder, planner: Planner
) -> None:
    guarded = start(IS_DEAF, rank=3, folder=folder)
    child = guarded.read_pid()
    os.kill(child, signal.SIGSTOP)
    folder.done()
    assert guarded.wait() == 0
    assert not is_running(child)


@pytest.mark.parametrize("options", [(), ("--vital",)])
def test_a_rank_dies_with_its_guard(start, options: tuple[str, ...]) -> None:
    guarded = start(IS_DEAF, *options)
    child = guarded.read_pid()
    guarded.process.kill()
    wait_until_gone(child)


def test_a_vital_guard_that_is_killed_is_missed_by_another(start, folder: RunFolder) -> None:
    first, second = (start(SLEEPS, "--vital", rank=rank, folder=folder) for rank in (4, 5))
    pids = first.read_pid(), second.read_pid()
    wait_for_files(folder, "vital-4", "vital-5")
    first.process.kill()
    assert second.wait() == 1
    assert second.read_errors() == "msdata: rank 5 ends the job: the guard of rank 4 is gone\n"
    assert folder.failures() == ["rank 4: its guard was killed"]
    for pid in pids:
        wait_until_gone(pid)


def test_a_vital_rank_that_ends_before_the_job_has_formed_ends_it(start, folder: RunFolder) -> None:
    guarded = start("print(1)", "--vital", rank=5, folder=folder)
    assert guarded.wait() == 1
    assert guarded.read_errors().startswith("msdata: rank 5 ended with status 0 before it joined the job; ")
    assert folder.failures() == ["rank 5: ended before it joined the job"]


def test_a_vital_rank_that_failed_is_ended_with_the_job(start, folder: RunFolder) -> None:
    program = "from msdata_transport.guard import report_failure; report_failure(60.0); print('left alone')"
    guarded = start(program, "--vital", rank=5, folder=folder)
    assert guarded.wait() == 1
    assert folder.failures() == ["rank 5: failed"]


def test_a_vital_rank_that_ends_well_is_not_missed(start, folder: RunFolder) -> None:
    folder.announce_formed()
    first = start(SLEEPS, "--vital", rank=4, folder=folder)
    pid = first.read_pid()
    second = start("print(1)", "--vital", rank=5, folder=folder)
    assert second.wait() == 0
    assert sorted(os.listdir(folder.path)) == ["formed", "vital-4"]
    os.kill(pid, signal.SIGTERM)
    assert first.wait() == 128 + signal.SIGTERM
    assert sorted(os.listdir(folder.path)) == ["failed-4", "formed"]


def wait_for_files(folder: RunFolder, *names: str) -> None:
    deadline = time.monotonic() + 20
    while not set(names) <= set(os.listdir(folder.path)):
        assert time.monotonic() < deadline
        os.sched_yield()


LAUNCHER = """
import subprocess, sys
line = [sys.executable, "-m", "msdata_transport.guard", "--", sys.executable, "-c", sys.argv[1]]
guard = subprocess.Popen(line)
print(guard.pid, flush=True)
guard.wait()
"""


@pytest.mark.parametrize("dead_first", [False, True])
def test_a_guard_goes_with_its_launcher(dead_first: bool) -> None:
    line = [sys.executable, "-c", LAUNCHER, IS_DEAF]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        pids = [int(launcher.stdout.readline()) for _ in range(2)]
        if dead_first:
            child = next(pid for pid in pids if parent_of(pid) in pids)
            os.kill(child, signal.SIGKILL)
        launcher.kill()
        for pid in pids:
            wait_until_gone(pid)
        said = "msdata: a rank is lost: killed by signal 9\n" if dead_first else ""
        assert launcher.stderr.read() in ("", said)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_words() -> None:
    assert describe_exit(-9) == "killed by signal 9"
    assert describe_exit(3) == "ended with status 3"
