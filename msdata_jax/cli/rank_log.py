"""Log files of ranks: what a rank prints goes to a file of its own, and where it went before."""

import os
import shutil
import sys
from pathlib import Path

from msdata_transport.run_folder import VARIABLE as RUN_FOLDER_VARIABLE

from msdata_jax.errors import LaunchError

VARIABLE = "MSDATA_LOG"
"""Names the log file for what the process of a rank becomes, which must not begin another."""


def log_name(rank: int | None, role: str) -> str:
    """The file's name, such as `rank-3-loader.log`."""
    shown = "trainer" if role == "constructor" else role
    return f"rank-{0 if rank is None else rank}-{shown}.log"


def check_folder(folder: Path) -> None:
    """Make the folder of the logs.

    Raises:
        LaunchError: it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"--log-dir {folder} cannot be made: {error}; name another folder") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise LaunchError(f"--log-dir {folder} may not be written to; name another folder")


def begin_log(folder: Path, rank: int | None, role: str) -> None:
    """Append what this process prints from now on, and whatever it becomes, to a file in `folder` as well.

    A `tee` for stdout and one for stderr copy it. They get nothing else to do with the job: they end with the
    last process of the rank that could print, however it ends. A file that cannot be written costs itself,
    not the job.
    """
    path = folder / log_name(rank, role)
    if os.environ.get(VARIABLE) == str(path):
        return
    os.environ[VARIABLE] = str(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
        tee = shutil.which("tee")
        if tee is None:
            raise FileNotFoundError("there is no tee on PATH")
        for descriptor in (1, 2):
            _copy(tee, path, descriptor)
    except OSError as error:
        print(f"msdata: no log of rank {rank} in {folder}: {error}", file=sys.stderr, flush=True)


def _copy(tee: str, path: Path, descriptor: int) -> None:
    """Put a tee behind a file descriptor of this process."""
    reading, writing = os.pipe()
    try:
        os.posix_spawn(
            tee,
            [tee, "-ia", str(path)],
            # By which the launcher knows it for one of the job's, and waits until all is copied.
            {RUN_FOLDER_VARIABLE: os.environ.get(RUN_FOLDER_VARIABLE, "")},
            file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0), (os.POSIX_SPAWN_DUP2, descriptor, 1)],
            setsid=True,  # a launcher that kills the rank's process group leaves it the last words
        )
        os.dup2(writing, descriptor)
    finally:
        os.close(reading)
        os.close(writing)
