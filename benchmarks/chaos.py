"""Makes trouble for real jobs, by a seed: kills, stops and slows loader ranks, and says what came of it."""

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

JOB = Path(__file__).parent / "recovery_job"
SCENARIOS = (
    "kill",
    "kill two",
    "kill one after another",
    "stop",
    "slow",
    "kill in mid-send",
    "kill the shadow",
)
DEADLINE_SECONDS = 120.0
SLOW_SECONDS = 0.5
"""How long a slowed loader stands still: less than the 2 s after which it would count as lost."""


class ChaosProblem(RuntimeError):
    """A job did not survive; the message has what it printed last."""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What is done to a job.

    Attributes:
        scenario: one of `SCENARIOS`; empty for a job that is left in peace.
        seed: picks victims and moments.
        loaders, shadows: ranks of the job, beside a planner and a trainer.
        steps: of the job.
    """

    scenario: str = ""
    seed: int = 0
    loaders: int = 3
    shadows: int = 1
    steps: int = 40


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the trainer of one job saw.

    Attributes:
        trouble: what was done to it.
        steps: digest of each step's bytes, by number.
        samples: how often each piece of a sample was delivered.
        stall_seconds: the longest time between two steps, less the usual one.
        figures: of all ranks.
        struck: ranks that were hit, and how.
    """

    trouble: Trouble
    steps: dict[int, str]
    samples: Counter
    stall_seconds: float
    figures: dict[str, Any]
    struck: list[tuple[int, str]] = field(default_factory=list)


def run_job(folder: Path, trouble: Trouble, step_seconds: float = 0.02) -> Outcome:
    """Run one job under `msdata launch` and strike it as told.

    Raises:
        ChaosProblem: it did not end well, or not in time.
    """
    folder.mkdir(parents=True)
    env = environment(folder)
    if trouble.scenario == "kill in mid-send":
        rng = random.Random(trouble.seed)
        env["MSDATA_CHAOS_MID_SEND"] = (
            f"{rng.randint(1, trouble.loaders)}:{rng.randint(1, trouble.steps // 2)}"
        )
    line = launch_line(folder, trouble, step_seconds)
    with (
        (folder / "output").open("wb") as output,
        subprocess.Popen(line, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output) as process,
    ):
        try:
            struck = _strike(folder, trouble, process)
            status = process.wait(DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                process.terminate()
    if status != 0:
        text = (folder / "output").read_text(errors="replace")[-3000:]
        raise ChaosProblem(f"{trouble}: the job ended with status {status}; it printed\n{text}")
    return _outcome(folder, trouble, struck)


def launch_line(folder: Path, trouble: Trouble, step_seconds: float = 0.02) -> list[str]:
    """The command of a job that leaves its traces in `folder`."""
    options = {"--heartbeat-seconds": 2, "--loaders": trouble.loaders, "--shadows": trouble.shadows}
    given = [text for option, value in options.items() for text in (option, str(value))]
    train = [str(JOB / "train.py"), str(folder), str(trouble.steps), str(step_seconds)]
    return [sys.executable, "-m", "msdata_jax", "launch", *given, str(JOB / "recipe.py"), "--", *train]


def environment(folder: Path) -> dict[str, str]:
    """Of all ranks: where to leave traces, and this source tree first."""
    path = os.pathsep.join([str(JOB.parent.parent), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "MSDATA_CHAOS_FOLDER": str(folder), "PYTHONPATH": path}


def ranks(folder: Path, role: str) -> dict[int, int]:
    """Process ids by rank."""
    files = folder.glob(f"rank-*-{role}")
    return {int(file.name.split("-")[1]): int(file.read_text() or 0) for file in files}


def read_steps(folder: Path) -> list[dict[str, Any]]:
    """What the trainer wrote of each step so far."""
    file = folder / "steps.jsonl"
    whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def _strike(folder: Path, trouble: Trouble, process: subprocess.Popen) -> list[tuple[int, str]]:
    """Hit ranks when their steps have come; returns whom, and how. Each is hit once, but for a slowed one."""
    struck: list[tuple[int, str]] = []
    rng = random.Random(trouble.seed)
    for step, role, how in _blows(trouble, rng) if trouble.scenario else []:
        _wait_for_step(folder, step, process)
        time.sleep(SLOW_SECONDS if how == signal.SIGCONT else 0.05 * rng.random())  # anywhere within a step
        there = ranks(folder, role)
        victims = sorted(there.keys() - {rank for rank, _ in struck})
        if trouble.scenario == "slow":
            victims = [rank for rank, _ in struck[:1]] or victims
        if process.poll() is None and victims:
            rank = rng.choice(victims)
            with contextlib.suppress(ProcessLookupError):
                os.kill(there[rank], how)
            struck.append((rank, how.name))
    return struck


def _blows(trouble: Trouble, rng: random.Random) -> list[tuple[int, str, signal.Signals]]:
    """(step after which, role, signal) of each blow, in order. Step -1: as soon as the ranks are there."""
    last = trouble.steps - 1
    middle = [rng.randrange(2, last - 2) for _ in range(4)]
    first = rng.choice([-1, 0, *middle, last - 1])
    kill, stop = signal.SIGKILL, signal.SIGSTOP
    match trouble.scenario:
        case "kill two":
            return [(first, "loader", kill), (first, "loader", kill)]
        case "kill one after another":
            return [(first, "loader", kill), (min(first + rng.randrange(1, 8), last), "loader", kill)]
        case "stop":
            return [(middle[0], "loader", stop)]
        case "slow":
            return [(step, "loader", each) for step in sorted(middle) for each in (stop, signal.SIGCONT)]
        case "kill in mid-send":
            return []  # it does so itself
        case "kill the shadow":
            return [(first, "shadow", kill), (min(first + 3, last), "loader", kill)]
        case _:
            return [(first, "loader", kill)]


def _wait_for_step(folder: Path, step: int, process: subprocess.Popen) -> None:
    """Wait until the trainer took `step`, or until the job is over."""
    log = folder / "steps.jsonl"
    deadline = time.monotonic() + DEADLINE_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if log.exists() and log.read_bytes().count(b"\n") > step:
            return
        time.sleep(0.002)


def _outcome(folder: Path, trouble: Trouble, struck: Sequence[tuple[int, str]]) -> Outcome:
    lines = read_steps(folder)
    gaps = [b["at"] - a["at"] for a, b in pairwise(lines)]
    return Outcome(
        trouble=trouble,
        steps={line["step"]: line["digest"] for line in lines},
        samples=Counter((line["step"], *key) for line in lines for key in map(tuple, line["samples"])),
        stall_seconds=max(gaps) - statistics.median(gaps),
        figures=json.loads((folder / "figures.json").read_text()),
        struck=list(struck),
    )


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What a job delivered otherwise than the one that was left in peace.

    Attributes:
        lost, duplicated: pieces of samples that are missing, or there more often.
        differing: steps whose bytes differ, missing ones among them.
    """

    lost: int
    duplicated: int
    differing: int


def compare(peaceful: Outcome, troubled: Outcome) -> Difference:
    """Hold a job against the one that was left in peace."""
    steps = peaceful.steps.keys() | troubled.steps.keys()
    return Difference(
        lost=(peaceful.samples - troubled.samples).total(),
        duplicated=(troubled.samples - peaceful.samples).total(),
        differing=sum(peaceful.steps.get(step) != troubled.steps.get(step) for step in steps),
    )
