"""Starts the training processes of a loader, leads them through their phases, and measures."""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers import measure
from benchmarks.peers.convert import write_missing
from benchmarks.peers.job import Cell, Job
from benchmarks.peers.meeting import Meeting, MeetingProblem
from benchmarks.peers.registry import OURS, Peer, PeerProblem, python_of
from msdata_jax.cli.machine import memory_bytes
from msdata_jax.cli.mpiexec import command_line

REPOSITORY = Path(__file__).resolve().parents[2]
RANK = Path(__file__).parent / "rank.py"
PHASE_SECONDS = 180.0
END_SECONDS, OTHERS_END_SECONDS = 5.0, 1.0
"""Time to leave, for our ranks and for other loaders' processes; both are ended then."""
SETTLING_SECONDS = 0.5  # until whatever reads ahead has done so
LEAST_FREE_MB = 3000.0


@dataclass(kw_only=True)
class Run:
    """What was measured.

    Attributes:
        job: what ran.
        base_mb: memory of the training processes after their imports.
        steady_mb: of all processes behind the last step, when whatever reads ahead has done so.
        processes: how many there were besides the training processes, launchers included.
        cpu_seconds: of all processes in the fast steps.
        phases: reports of the training processes by phase.
    """

    job: Job
    base_mb: float = 0.0
    steady_mb: float = 0.0
    processes: int = 0
    cpu_seconds: float = 0.0
    phases: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def loader_mb(self) -> float:
        """Memory that the loader takes."""
        return self.steady_mb - self.base_mb


def interleaved(
    peers: Sequence[Peer], cell: Cell, rounds: int
) -> tuple[dict[Peer, list[Run]], list[dict[str, Any]]]:
    """All loaders in turn, several times over, on data that are written where they are missing.

    Returns:
        the runs of each loader that could run, and rows that say what went wrong with the others.
    """
    found: dict[Peer, list[Run]] = {}
    problems: dict[Peer, str] = {}
    for number, peer in itertools.product(range(rounds), peers):
        if peer in problems:
            continue
        say(
            f"{len(cell.sources)} sources, {cell.trainers} training processes, "
            f"round {number + 1} of {rounds}: {peer.label}"
        )
        try:
            write_missing(cell.folder, peer.format, cell.sources, python_of(peer))
            found.setdefault(peer, []).append(run(peer, cell))
        except PeerProblem as problem:
            problems[peer] = problem.what
            found.pop(peer, None)
            say(str(problem))
    where = {"sources": len(cell.sources), "trainers": cell.trainers}
    rows = [
        {"peer": peer.name, "format": peer.format, **where, "failed": text} for peer, text in problems.items()
    ]
    return found, rows


def run(peer: Peer, cell: Cell) -> Run:
    """A run of a loader.

    Raises:
        PeerProblem: one of its processes failed, or took too long, or the machine is short of memory.
    """
    with tempfile.TemporaryDirectory(prefix="msdata_peers_") as scratch:
        own = {
            "adapter": peer.adapter,
            "format": peer.format,
            "workers": peer.workers(cell),
            "trainers": peer.trainers or cell.trainers,
        }
        job = Job(**{**vars(cell), **own}, scratch=Path(scratch), socket=Path(scratch) / "socket")
        job.write(Path(scratch) / "job.json")
        with _processes(peer, job) as processes:
            meeting = Meeting(job.socket, job.trainers, lambda: _check(processes))
            try:
                return _lead(meeting, job, [process.pid for process in processes])
            except MeetingProblem as problem:
                said = (Path(scratch) / "output").read_text(errors="replace")
                raise PeerProblem(str(problem), said) from problem
            finally:
                meeting.close()


def _lead(meeting: Meeting, job: Job, roots: Sequence[int]) -> Run:
    found = Run(job=job)
    reports = found.phases["imported"] = meeting.gather("imported", PHASE_SECONDS)
    trainers = {report["pid"] for report in reports}
    found.base_mb = measure.pss_mb(trainers)
    for phase in ("first", "warm", "fast", "paced", "content"):
        if phase == "paced":
            time.sleep(SETTLING_SECONDS)
        before = measure.cpu_seconds(measure.tree(roots))
        meeting.release()
        found.phases[phase] = meeting.gather(phase, PHASE_SECONDS)
        if phase == "fast":
            found.cpu_seconds = measure.cpu_seconds(measure.tree(roots)) - before
        if phase == "paced":
            time.sleep(SETTLING_SECONDS)
            everything = measure.tree(roots)
            found.steady_mb = measure.pss_mb(everything)
            found.processes = len(everything - trainers)
    meeting.release()
    return found


@contextlib.contextmanager
def _processes(peer: Peer, job: Job) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes of a run; at its end they have a moment to leave, then they are ended."""
    lines = _command_lines(peer, job)
    port = _free_port()
    processes: list[subprocess.Popen[bytes]] = []
    with (job.scratch / "output").open("wb") as output:
        try:
            for rank, line in enumerate(lines):
                environment = _environment(peer, job, rank, port)
                processes.append(
                    subprocess.Popen(
                        line,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                        cwd=job.scratch,
                    )
                )
            yield processes
            seconds = END_SECONDS if peer.adapter == OURS else OTHERS_END_SECONDS
            deadline = time.monotonic() + seconds
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            _end(processes)


def _command_lines(peer: Peer, job: Job) -> list[list[str]]:
    """Of a job under mpiexec, or of training processes that each have workers of their own."""
    settings = job.scratch / "job.json"
    if peer.adapter != OURS:
        line = [python_of(peer), "-m", "benchmarks.peers.rank", str(settings)]
        return [[*line, str(rank)] for rank in range(job.trainers)]
    return [
        command_line(
            loaders=peer.loaders or max(1, job.trainers * job.workers - 1),  # and a planner
            trainers=job.trainers,
            recipe=RANK.with_name("recipe.py"),
            train=["-m", "benchmarks.peers.rank", str(settings)],
        )
    ]


def _environment(peer: Peer, job: Job, rank: int, port: int) -> dict[str, str]:
    """Every thread that computes counts as a worker; ranks as torch's launcher names them."""
    names: Mapping[str, Any] = {
        "PYTHONPATH": REPOSITORY,
        "MSDATA_BENCH_JOB": job.scratch / "job.json",
        "TMPDIR": job.scratch,
        "OMP_NUM_THREADS": 1,
        "OPENBLAS_NUM_THREADS": 1,
        "MKL_NUM_THREADS": 1,
    }
    if peer.adapter != OURS:
        names = {
            **names,
            # Less memory for whoever has many threads or reads Parquet; our data ranks set their own.
            "MALLOC_ARENA_MAX": 4,
            "ARROW_DEFAULT_MEMORY_POOL": "system",
            "HF_HOME": job.scratch / "hf",
            "HF_HUB_OFFLINE": 1,
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": job.trainers,
            "LOCAL_WORLD_SIZE": job.trainers,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "GLOBAL_RANK": rank,
            "NODE_RANK": 0,
            "NNODES": 1,
        }
    return {**os.environ, **{name: str(value) for name, value in names.items()}}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _check(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is not None:
            raise MeetingProblem(f"a process ended with status {process.returncode}")
    if memory_bytes()[1] < LEAST_FREE_MB * (1 << 20):
        raise MeetingProblem(f"the machine has less than {LEAST_FREE_MB:.0f} MB of memory left")


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End all that is left: each process is the head of a session; what left that is a descendant."""
    left = measure.tree(process.pid for process in processes)
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in processes:
        process.wait()


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)
