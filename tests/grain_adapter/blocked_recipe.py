"""A recipe whose source gives two blocks and then waits for a file that never comes."""

import threading

import numpy as np

import msdata_jax as msd

SECONDS = 120


def wait(record: dict) -> dict:
    if record["tokens"][0] > 16:
        threading.Event().wait(SECONDS)
    return record


data = [{"tokens": np.full(5, 1 + i, np.int32)} for i in range(80)]
recipe = msd.Recipe(
    sources={"s": msd.Source(data, [wait], shuffle=False, block_size=8)},
    strategy=msd.DGraph().mix({"s": 1}).pack(seq_len=8, rows=4).distribute("dp"),
)
