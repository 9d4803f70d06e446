"""Starting the processes of `text_job`, each with a deadline."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msdata_jax.cli.mpiexec import command_line
from msdata_jax.cli.subprocesses import Finished, run_with_deadline

TEXT_JOB = Path(__file__).parent / "text_job"
DEADLINE_SECONDS = 240.0


class JobProblem(RuntimeError):
    """A process of a benchmark failed; the message has the end of its output."""


def environment(folder: Path) -> dict[str, str]:
    """Of all processes: where the data are; JAX on the CPU; tokenizers on the loaders' own threads."""
    return {
        **os.environ,
        "MSDATA_BENCH_FOLDER": str(folder),
        "JAX_PLATFORMS": "cpu",
        "TOKENIZERS_PARALLELISM": "false",
    }


def run_line(
    line: Sequence[str],
    environment: Mapping[str, str],
    *,
    seconds: float = DEADLINE_SECONDS,
    report: Path | None = None,
) -> Finished:
    """Run a program to its end.

    Args:
        line: the program and its arguments.
        environment: all of its environment.
        seconds: the deadline.
        report: a file that it writes; None where it writes none.

    Raises:
        JobProblem: it failed, it took longer than `seconds`, or there is no report.
    """
    finished = run_with_deadline(line, seconds, environment)
    if finished.status != 0 or (report is not None and not report.exists()):
        raise JobProblem(f"{' '.join(line)} {finished.how}:\n{finished.last_lines}")
    return finished


def launch(folder: Path, *, loaders: int, trainers: int, steps: int, warm_up: int = 0) -> dict[str, Any]:
    """Run a job under mpiexec, as `msdata launch` does; returns the report of `text_job/train.py`."""
    report = folder / "report.json"
    options = ("--steps", str(steps), "--warm-up", str(warm_up), "--trainers", str(trainers))
    train = (str(TEXT_JOB / "train.py"), str(report), *options)
    line = command_line(loaders=loaders, trainers=trainers, recipe=TEXT_JOB / "recipe.py", train=train)
    return _report_of(line, folder, report)


def launch_script(job: Path, folder: Path, *, loaders: int, options: Sequence[str]) -> dict[str, Any]:
    """Run `train.py` of the folder `job` as one training process under mpiexec; returns its report."""
    report = folder / "report.json"
    train = (str(job / "train.py"), str(report), *options)
    line = command_line(loaders=loaders, trainers=1, recipe=job / "recipe.py", train=train)
    return _report_of(line, folder, report)


def run_in_process(folder: Path, *, loaders: int, steps: int, warm_up: int = 0) -> dict[str, Any]:
    """Run the same script alone: planner and loaders on threads."""
    report = folder / "report.json"
    options = ("--steps", str(steps), "--warm-up", str(warm_up), "--loaders", str(loaders))
    return _report_of([sys.executable, str(TEXT_JOB / "train.py"), str(report), *options], folder, report)


def read_floor(folder: Path, counts: dict[str, int]) -> dict[str, Any]:
    """Read as many samples with SourceReaders alone, on one thread."""
    path = folder / "counts.json"
    path.write_text(json.dumps(counts))
    line = [sys.executable, str(TEXT_JOB / "alone.py"), "floor", "--counts", str(path)]
    finished = run_line(line, environment(folder))
    return json.loads(finished.output.splitlines()[-1])


def read_every_source(folder: Path, num_processes: int) -> list[dict[str, Any]]:
    """Several processes that each open every source; memory is measured while all of them hold theirs."""
    line = [
        sys.executable,
        str(TEXT_JOB / "alone.py"),
        "every-source",
        "--shares",
        str(num_processes),
        "--share",
    ]
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(_talking([*line, str(share)], folder)) for share in range(num_processes)
        ]
        for process in processes:
            _expect(process, "ready")
        return [json.loads(_ask(process)) for process in processes]


@contextlib.contextmanager
def _talking(line: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        line, env=environment(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _expect(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    if line.strip() != word:
        raise JobProblem(f"{process.args} should say {word!r}, said {line!r}; its error is above")


def _ask(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline()


def _report_of(line: Sequence[str], folder: Path, report: Path) -> dict[str, Any]:
    report.unlink(missing_ok=True)
    run_line(line, environment(folder), report=report)
    return json.loads(report.read_text())


@contextlib.contextmanager
def data_folder() -> Iterator[Path]:
    """A temporary folder for the data of one benchmark."""
    with tempfile.TemporaryDirectory(prefix="msdata_bench_") as folder:
        yield Path(folder)
