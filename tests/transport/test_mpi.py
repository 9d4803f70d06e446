"""The MPI twin. pytest never imports MPI: it starts `mpi_program.py` under mpiexec."""

import subprocess
import sys
from pathlib import Path

import pytest
from msdata_transport import find_mpiexec

PROGRAM = Path(__file__).with_name("mpi_program.py")

pytestmark = pytest.mark.mpi


def run(
    *ranks: tuple[int, str],
    options: tuple[str, ...] = (),
    wrapper: tuple[str, ...] = (),
    timeout_seconds: float = 60.0,
) -> tuple[int, str]:
    """Run groups of ranks, (how many, arguments), as one job; its status and output."""
    mpiexec = find_mpiexec()
    assert mpiexec is not None, "no mpiexec: install the mpi extra"
    command = [mpiexec, *options]
    for index, (num_ranks, arguments) in enumerate(ranks):
        command += [":"] * (index > 0)
        command += [
            "-n",
            str(num_ranks),
            *wrapper,
            sys.executable,
            "-m",
            "mpi4py",
            str(PROGRAM),
            *arguments.split(),
        ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
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
    """With auto-cleanup off and a shell around each rank, so that mpiexec sees no death by signal."""
    shell = ("sh", "-c", 'trap "" USR1; "$@"; exit 0', "sh")
    _, output = run((3, f"outlives {how}"), options=("-disable-auto-cleanup",), wrapper=shell)
    assert output.count("survived") == 2, output


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
