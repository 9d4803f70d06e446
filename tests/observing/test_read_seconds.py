"""A block says how much of its time went into getting its records, also from a child process."""

import time
from dataclasses import replace

import numpy as np
import pytest

import msdata_jax as msd
from msdata_jax.sources.isolation import open_reader

READ, TRANSFORM, COUNT = 0.004, 0.008, 5


def spend(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class SlowRecords:
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> dict:
        spend(READ)
        return {"tokens": np.array([index], np.int32)}


def slow(record: dict) -> dict:
    spend(TRANSFORM)
    return record


@pytest.mark.parametrize("isolate", [False, True])
def test_reading_is_told_from_transforming(isolate: bool) -> None:
    source = msd.Source(SlowRecords(), [slow], isolate=isolate)
    reader = open_reader("slow", 0, source, seed=0, columns=())
    try:
        begin = time.perf_counter()
        block = reader.read_block(0, COUNT, {})
        seconds = time.perf_counter() - begin
    finally:
        reader.close()
    assert COUNT * READ <= block.read_seconds <= seconds - COUNT * TRANSFORM
    assert repr(block) == repr(replace(block, read_seconds=0.0))  # it is no part of what the block is
