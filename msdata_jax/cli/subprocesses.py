"""Running another program with a deadline, so that nothing outlives it."""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

END_SECONDS = 5.0
"""How long mpiexec may take to end its ranks before all are killed."""

_LAUNCHER_PREFIXES = (
    *("PMI_", "PMIX_", "OMPI_COMM_WORLD_"),
    *("MSDATA_ROLE", "MSDATA_RUN_FOLDER", "MSDATA_GUARD"),
)


@dataclass(frozen=True, kw_only=True)
class Finished:
    """How a program ended.

    Attributes:
        status: exit status; negative for a signal; None when it was stopped at the deadline.
        output: what it wrote to stdout and stderr.
    """

    status: int | None
    output: str

    @property
    def last_lines(self) -> str:
        """The end of the output, for people."""
        return "\n".join(self.output.strip().splitlines()[-12:])

    @property
    def how(self) -> str:
        """How it ended, in words."""
        return "was stopped at its deadline" if self.status is None else f"ended with status {self.status}"


def run_with_deadline(
    line: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None
) -> Finished:
    """Run a program in a session of its own; at the deadline end it and all that it started.

    Args:
        line: the program and its arguments.
        seconds: the deadline.
        environment: the program's; None for this process's own. What a launcher told this process about its
            place in a job is left out either way.

    Raises:
        OSError: the program cannot be started.
    """
    inherited = os.environ if environment is None else environment
    clean = {name: value for name, value in inherited.items() if not name.startswith(_LAUNCHER_PREFIXES)}
    # A file, not a pipe: a rank that survives for a moment cannot keep us waiting for its end.
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen(
            line,
            env=clean,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            try:
                status: int | None = process.wait(seconds)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                _end(process)
        output.seek(0)
        return Finished(status=status, output=output.read().decode(errors="replace"))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the program to end its ranks, then kill what is left of its process group."""
    if process.poll() is not None:
        return
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
