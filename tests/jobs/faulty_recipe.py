"""A recipe that fails where `MSDATA_TEST_FAULT` says."""

import os

import numpy as np

import msdata_jax as msd

FAULT = os.environ.get("MSDATA_TEST_FAULT", "")


def explode(record: dict) -> dict:
    """A transform that breaks at one record, on the loader."""
    if FAULT == "transform" and record["tokens"][0] == 7:
        raise RuntimeError("the decoder broke")
    return record


class Records:
    """Random access; may break in a way that no bad-sample policy covers."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> dict:
        if FAULT == "reader" and index > 300:
            raise MemoryError("no memory left for the reader")
        return {"tokens": np.full(1 + index % 8, 1 + index, np.int32)}


sources = {"good": msd.Source(Records(), [explode], shuffle=False), "other": msd.Source(Records())}
if FAULT == "missing":
    sources["other"] = msd.Source("/nowhere/at/all.parquet")
recipe = msd.Recipe(
    sources=sources,
    strategy=msd.DGraph().mix({"good": 1, "other": 1}).pack(seq_len=16, rows=4).distribute("dp"),
)
