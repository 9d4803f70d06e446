"""The MPI twin. pytest never imports MPI: it starts `mpi_program.py` under mpiexec."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msdata_transport import RunFolder, find_mpiexec
from msdata_transport.launch import is_hydra
from msdata_transport.mpich import PROVIDER, PROVIDER_VARIABLE
from msdata_transport.run_folder import VARIABLE

PROGRAM = Path(__file__).with_name("mpi_program.py")

pytestmark = pytest.mark.mpi


# With auto-cleanup off and a shell around each rank mpiexec sees no death by signal.
KEEP_GOING = ("-disable-auto-cleanup",)
SHELL = ("sh", "-c", 'trap "" USR1; "$@"; exit 0', "sh")
# As between hosts, where nobody keeps the sockets of a rank that is killed.
NETWORK = {
    "MPIR_CVAR_CH4_NETMOD": "ofi",
    "MPIR_CVAR_NOLOCAL": "1",
    PROVIDER_VARIABLE: PROVIDER,
    "FI_TCP_IFACE": "lo",
}
GUARD = (sys.executable, "-m", "msdata_transport.guard")


def run(
    *ranks: tuple[int, str],
    options: tuple[str, ...] = (),
    wrapper: tuple[str, ...] = (),
    folder: RunFolder | None = None,
    timeout_seconds: float = 60.0,
    **variables: str,
) -> tuple[int, str]:
    """Run groups of ranks, (how many, arguments), as one job; its status and output.

    With a run folder each rank has a guard; the arguments of a vital one begin with `!`. The variables are
    added to the environment.
    """
    mpiexec = find_mpiexec()
    assert mpiexec is not None, "no mpiexec: install the mpi extra"
    command = [mpiexec, *options]
    for index, (num_ranks, arguments) in enumerate(ranks):
        command += [":"] * (index > 0)
        vital, arguments = arguments.startswith("!"), arguments.removeprefix("!")
        guard = (*GUARD, *["--vital"] * vital, "--") if folder else ()
        command += [
            "-n",
            str(num_ranks),
            *wrapper,
            *guard,
            sys.executable,
            "-m",
            "mpi4py",
            str(PROGRAM),
            *arguments.split(),
        ]
    env = {**os.environ, **variables, **({VARIABLE: folder.path} if folder else {})}
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # mpiexec ends its ranks
            output, _ = process.communicate(timeout=10)
            pytest.fail(f"{' '.join(command)} took over {timeout_seconds} s:\n{output}")
    return process.returncode, output


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_conforms(num_ranks: int) -> None:
    status, output = run((num_ranks, "conforms"))
    assert status == 0, output
    assert output.count(f"checks at {num_ranks} ranks") == num_ranks, output


def test_forgets() -> None:
    status, output = run((3, "forgets"))
    assert status == 0, output
    assert output.count("passed ['forgets'] at 3 ranks") == 3, output


def test_failing_rank_ends_job_and_says_why() -> None:
    status, output = run((3, "fails"))
    assert status != 0
    assert "fails_on_last failed on rank 2: AssertionError: broken on purpose" in output


def test_three_programs_join_one_job() -> None:
    status, output = run((1, "joins planner"), (2, "joins loader"), (2, "joins constructor"))
    assert status == 0, output
    assert output.count("joined as") == 5, output


def test_garbage_is_a_bad_frame_of_its_sender() -> None:
    status, output = run((4, "sends_garbage"))
    assert output.count("went on") == 4, output
    assert status == 0, output


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_survivors_go_on_without_a_rank_that_vanished(how: str) -> None:
    _, output = run((3, f"outlives {how}"), options=KEEP_GOING, wrapper=SHELL)
    assert output.count("survived") == 2, output


def test_survivors_forget_a_rank_that_was_killed_and_leave_at_once() -> None:
    with RunFolder.temporary() as folder:
        status, output = run((2, "!gives_up"), (1, "gives_up"), options=KEEP_GOING, folder=folder)
        assert output.count("went on") == 2, output
        assert status == 0, output
        assert folder.read_outcome() == {"ok": True, "lost": [{"rank": 2, "why": "killed by signal 9"}]}
        assert folder.failures() == []


def test_a_job_outlives_a_killed_loader_and_a_stopped_one() -> None:
    with RunFolder.temporary() as folder:
        roles = [(1, "!outlives_two planner"), (3, "outlives_two loader"), (1, "!outlives_two trainer")]
        status, output = run(*roles, options=KEEP_GOING, folder=folder)
        for role in ("planner", "trainer", "loader"):
            assert output.count(f"{role} left") == 1, output
        assert status == 0, output
        assert folder.read_outcome() is not None
        assert folder.failures() == []


def test_nobody_waits_at_the_end_for_a_rank_that_was_killed() -> None:
    with RunFolder.temporary() as folder:
        status, output = run((2, "!leaves_well"), (1, "leaves_well"), options=KEEP_GOING, folder=folder)
        assert output.count("left well") == 2, output
        assert status == 0, output
        assert folder.failures() == []


@pytest.mark.parametrize("how", ["early", "killed", "status"])
def test_a_vital_rank_that_fails_ends_the_job_at_once(how: str) -> None:
    with RunFolder.temporary() as folder:
        begin = time.monotonic()
        status, output = run((3, f"!fails_under_guard {how}"), options=KEEP_GOING, folder=folder)
        assert time.monotonic() - begin < 15, output
        assert status != 0
        told = {
            "early": "ended with status 1",
            "killed": "killed by signal 9",
            "status": "ended with status 3",
        }
        assert folder.failures() == [f"rank 1: {told[how]}"]
        assert output.count("failed on purpose") == (how == "early"), output


def test_an_expendable_rank_that_fails_before_all_are_here_ends_the_job() -> None:
    with RunFolder.temporary() as folder:
        status, output = run((3, "fails_under_guard early"), options=KEEP_GOING, folder=folder)
        assert status != 0
        assert output.count("failed on purpose") == 1, output
        assert folder.failures() == ["rank 1: ended with status 1"]


def test_hydra_is_told_from_others(tmp_path: Path) -> None:
    mpiexec = find_mpiexec()
    assert mpiexec is not None
    assert is_hydra(mpiexec)
    assert not is_hydra(str(tmp_path / "nowhere"))
    other = tmp_path / "mpiexec"
    other.write_text("#!/bin/sh\necho mpiexec (OpenRTE) 4.1.4\n")
    other.chmod(0o755)
    assert not is_hydra(str(other))


def test_a_rank_that_raises_outside_any_guard_ends_the_job() -> None:
    command = [
        find_mpiexec(),
        "-n",
        "3",
        sys.executable,
        str(PROGRAM),
        "breaks",
    ]  # not `-m mpi4py`, which aborts
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode != 0
    assert "ValueError: broke on its way" in done.stderr


def test_leaving_before_others_stopped_sending() -> None:
    status, output = run((2, "leaves_early"))
    assert status == 0, output
    assert output.count("left") == 2, output


def test_nameless_errors_blame_nobody() -> None:
    status, output = run((1, "looks_past_errors"))
    assert status == 0, output


def test_a_receive_that_ends_without_its_bytes_is_a_lost_peer() -> None:
    status, output = run((1, "ends_short"))
    assert status == 0, output


def test_nothing_broken_of_a_rank_that_was_killed_is_given_out() -> None:
    _, output = run((4, "cut_off"), options=KEEP_GOING, wrapper=SHELL, **NETWORK)
    assert output.count("got whole messages only") == 1, output
