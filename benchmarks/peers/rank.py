"""A training process that takes batches of any loader, through the same phases.

usage: python -m benchmarks.peers.rank SETTINGS [RANK]

Phases: `imported`, `first` batch, `warm`, `fast` (steps as fast as they come), `paced` (a pause behind each
step). After each it waits until all training processes are as far, so that all begin each phase together.
RANK is left out where the loader says which one it is.
"""

import importlib
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import work
from benchmarks.peers.job import Job, read_job
from benchmarks.peers.meeting import Attendant


class Steps:
    """Takes steps, and keeps what was in them."""

    def __init__(self, batches: Iterator[Any], adapter: Any) -> None:
        self._batches = batches
        self._samples_of = getattr(adapter, "samples_of", work.samples_of)
        self._found: list[tuple[np.ndarray, np.ndarray]] = []

    def take(self, count: int, pause_seconds: float = 0.0) -> dict[str, Any]:
        """Take `count` steps; how long each was waited for, and how long all of them took."""
        begin = time.perf_counter()
        waits = []
        for _ in range(count):
            before = time.perf_counter()
            batch = next(self._batches)
            waits.append(time.perf_counter() - before)
            work.touch(batch)
            self._found.append(self._samples_of(batch))
            if pause_seconds:
                time.sleep(pause_seconds)
        return {"waits": waits, "seconds": time.perf_counter() - begin}

    def contents(self) -> dict[str, Any]:
        """Source and number of each sample, and their lengths, by step."""
        return {
            "samples": [samples.tolist() for samples, _ in self._found],
            "lengths": [lengths.tolist() for _, lengths in self._found],
        }


def go_through(job: Job, rank: int | None, attendant: Attendant, adapter: Any) -> None:
    """All phases."""
    begin = time.perf_counter()
    adapter.imports()
    attendant.meet("imported", pid=os.getpid(), seconds=time.perf_counter() - begin)
    begin = time.perf_counter()
    batches = iter(adapter.batches(job, rank))
    steps = Steps(batches, adapter)
    steps.take(1)
    attendant.meet("first", seconds=time.perf_counter() - begin)
    attendant.meet("warm", **steps.take(job.warm_up))
    attendant.meet("fast", **steps.take(job.fast))
    attendant.meet("paced", **steps.take(job.paced, job.pause_seconds))
    attendant.meet("content", **steps.contents())
    if hasattr(batches, "close"):
        batches.close()


def main() -> None:
    job = read_job(Path(sys.argv[1]))
    rank = int(sys.argv[2]) if len(sys.argv) > 2 else None
    attendant = Attendant(job.socket)
    adapter = importlib.import_module(f"benchmarks.peers.{job.adapter}")
    try:
        go_through(job, rank, attendant, adapter)
    except Exception as error:
        attendant.say("error", error="".join(traceback.format_exception_only(error))[:1000])
        raise


if __name__ == "__main__":
    main()
