"""A curriculum: plain texts first, rich ones later, by a difficulty that is measured on every sample.

For training that starts on what is simple. Difficulty is here the number of distinct tokens of a text; any
whole number that a function of the record can say will do, such as a quality score stored with it.

What this strategy does: three sources read the same file, each keeps one bucket of difficulty, and the shares
of the buckets move in straight lines between the knots of a schedule. `measure` hands the difficulty on as a
metadata column, so that it stands in every plan.

What to look at: the shares of the buckets by step, and the mean difficulty of a step's tokens. On the demo's
dictionary it rises from 70 in step 0 to 127 in step 20 and 225 in step 40.

What it costs: each bucket reads and tokenizes the whole file and throws away what is not in it.
"""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

import msdata_jax as msd

DATA = os.environ.get("MSDATA_DEMO_DATA", "out/demo/data")
SEQ_LEN, ROWS = 1024, 16


def difficulty(record: dict[str, Any]) -> int:
    """Distinct tokens."""
    return len(np.unique(record["tokens"]))


def measure(record: dict[str, Any]) -> dict[str, int]:
    """The metadata column."""
    return {"difficulty": difficulty(record)}


@dataclass(frozen=True)
class Keep:
    """Leaves out what is not in `[low, high)`. A dataclass, so that the fingerprint covers the bounds."""

    low: int
    high: int

    def __call__(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """The record, or None."""
        return record if self.low <= difficulty(record) < self.high else None


def bucket(low: int, high: int) -> msd.Source:
    """The texts of a range of difficulty."""
    transforms = [msd.Tokenize(f"{DATA}/tokenizer.json"), msd.Split(SEQ_LEN), Keep(low, high)]
    return msd.Source(f"{DATA}/dict_en.jsonl", transforms, measure=measure, columns=["difficulty"])


recipe = msd.Recipe(
    sources={"plain": bucket(0, 80), "medium": bucket(80, 160), "rich": bucket(160, SEQ_LEN + 1)},
    strategy=msd.DGraph()
    .mix(
        [
            (0, {"plain": 0.8, "medium": 0.2, "rich": 0.0}),
            (20, {"plain": 0.3, "medium": 0.5, "rich": 0.2}),
            (40, {"plain": 0.1, "medium": 0.2, "rich": 0.7}),
        ],
        unit="tokens",
        interpolation="linear",
    )
    .pack(seq_len=SEQ_LEN, rows=ROWS)
    .distribute("dp")
    .balance("lpt"),
    seed=17,
)
