"""The recipe of these tests: two small sources in memory, eight steps of four rows."""

import numpy as np

import msdata_jax as msd

NUM_STEPS = 8
ROWS, SEQ_LEN = 4, 16


def records(count: int, first: int) -> list[dict]:
    """Records of varied length, each filled with its own number."""
    return [{"tokens": np.full(3 + 5 * i % 11, first + i, np.int32)} for i in range(count)]


def make_recipe(*, seed: int = 3, **options) -> msd.Recipe:
    sources = {
        "long": msd.Source(records(40, 100), block_size=8, **options),
        "short": msd.Source(records(30, 1), block_size=4, **options),
    }
    strategy = (
        msd.DGraph()
        .mix({"long": 2, "short": 1}, unit="tokens")
        .pack(seq_len=SEQ_LEN, rows=ROWS)
        .distribute("dp")
        .balance("lpt")
    )
    return msd.Recipe(sources=sources, strategy=strategy, seed=seed)


recipe = make_recipe()
