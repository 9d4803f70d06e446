"""A recipe whose one source is a grain pipeline."""

from typing import Any

import numpy as np

import msdata_jax as msd
from msdata_jax.sources import GrainSource


def make() -> Any:
    import grain

    numbers = grain.MapDataset.range(50).seed(1).shuffle()
    return numbers.map(lambda n: {"tokens": np.full(1 + n % 9, n, np.int32)}).filter(
        lambda e: e["tokens"][0] % 4
    )


recipe = msd.Recipe(
    sources={"pipeline": msd.Source(GrainSource(make), block_size=8)},
    strategy=msd.DGraph().mix({"pipeline": 1}).pack(seq_len=16, rows=4).distribute("dp"),
    seed=2,
)
