import os
import sys
import time

from msdata_jax.cli import subprocesses
from msdata_jax.cli.subprocesses import run_with_deadline


def test_output_and_status() -> None:
    program = "import sys; print('said'); print('shouted', file=sys.stderr); sys.exit(3)"
    finished = run_with_deadline([sys.executable, "-c", program], 30)
    assert finished.status == 3
    assert sorted(finished.output.split()) == ["said", "shouted"]
    assert finished.how == "ended with status 3"


def test_deadline_ends_what_the_program_started(monkeypatch) -> None:
    monkeypatch.setattr(subprocesses, "END_SECONDS", 0.5)
    line = ["sh", "-c", "trap '' TERM; sleep 600 & echo $!; wait; wait"]
    begin = time.monotonic()
    finished = run_with_deadline(line, 0.5)
    assert time.monotonic() - begin < 30
    assert finished.status is None
    assert "deadline" in finished.how
    child = int(finished.output)
    assert not _is_running(child)


def test_a_launcher_of_our_own_is_forgotten() -> None:
    program = "import os; print('PMI_RANK' in os.environ, os.environ.get('KEPT'))"
    environment = {**os.environ, "PMI_RANK": "3", "PMI_SIZE": "9", "KEPT": "yes"}
    finished = run_with_deadline([sys.executable, "-c", program], 30, environment)
    assert finished.output.split() == ["False", "yes"]


def _is_running(pid: int) -> bool:
    """Killed processes may stay zombies for a while."""
    for _ in range(100):
        try:
            with open(f"/proc/{pid}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] == "Z":
                    return False
        except OSError:
            return False
        time.sleep(0.05)
    return True
