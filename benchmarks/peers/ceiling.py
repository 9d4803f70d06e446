"""A few batches of the floor, over and over, out of memory: what taking and looking at them costs."""

import itertools
from collections.abc import Iterator
from typing import Any

from benchmarks.peers import floor
from benchmarks.peers.job import Job

NUM_BATCHES = 8

imports = floor.imports


def batches(job: Job, rank: int) -> Iterator[Any]:
    return itertools.cycle(list(itertools.islice(floor.batches(job, rank), NUM_BATCHES)))
