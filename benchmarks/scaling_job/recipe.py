"""Eight sources, one of which takes a hundred times as long, in a mixture that swings to it and back.

A transform waits as long as its source costs, as storage far away or a decoder on another device does, so
that the comparison is the same on any number of cores. With MSDATA_BENCH_COST=cpu it computes, half as long.
"""

import os
import time
from pathlib import Path

import msdata_jax as msd

COSTS = {"wait": (0.0002, 0.02), "cpu": (0.0001, 0.01)}
"""Seconds of a sample of a cheap source, and of the dear one."""
NUM_CHEAP = 7
SEQ_LEN, ROWS = 64, 32
QUIET_SHARE, SWING_SHARE = 0.04, 0.4

folder = Path(os.environ["MSDATA_BENCH_FOLDER"])
cost = os.environ.get("MSDATA_BENCH_COST", "wait")
cheap_seconds, dear_seconds = COSTS[cost]
swing_at, swing_stop = map(int, os.environ.get("MSDATA_BENCH_SWING", "100,200").split(","))


class Take:
    """Takes `seconds` for a record, and keeps its first tokens."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, record: dict) -> dict:
        """The record's sample."""
        if cost == "wait":
            time.sleep(self._seconds)
        stop = time.thread_time() + self._seconds
        while cost == "cpu" and time.thread_time() < stop:
            pass
        return {"tokens": record["tokens"][:SEQ_LEN]}


def weights(share: float) -> dict[str, float]:
    """Shares of the samples where the dear source has `share`."""
    return {"dear": share, **{f"cheap{i}": (1 - share) / NUM_CHEAP for i in range(NUM_CHEAP)}}


recipe = msd.Recipe(
    sources={
        name: msd.Source(
            str(folder / f"{name}.parquet"),
            [Take(dear_seconds if name == "dear" else cheap_seconds)],
            block_size=8,
        )
        for name in weights(QUIET_SHARE)
    },
    strategy=msd.DGraph()
    .mix([(0, weights(QUIET_SHARE)), (swing_at, weights(SWING_SHARE)), (swing_stop, weights(QUIET_SHARE))])
    .pad(seq_len=SEQ_LEN, rows=ROWS),
    scaling=msd.scaling.Hysteresis(lookahead_seconds=4.0),
)
