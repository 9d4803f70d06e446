"""The recipe of `benchmarks.many_sources`: files of the folder MSDATA_BENCH_FOLDER, bytes as tokens."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

import msdata_jax as msd

SEQ_LEN = 4096

folder = Path(os.environ["MSDATA_BENCH_FOLDER"])
settings = json.loads((folder / "settings.json").read_text())


def bytes_as_tokens(record: dict[str, Any]) -> dict[str, Any]:
    """The text of a record, under whatever name its format gives it."""
    text = next(record[name] for name in ("text", "txt", "record") if name in record)
    content = text.encode() if isinstance(text, str) else text
    return {"tokens": np.frombuffer(content, np.uint8).astype(np.int32)}


recipe = msd.Recipe(
    sources={
        name: msd.Source(str(folder / pattern), [bytes_as_tokens, msd.Truncate(SEQ_LEN)], block_size=32)
        for name, pattern in settings["patterns"].items()
    },
    strategy=msd.DGraph()
    .mix(dict.fromkeys(settings["patterns"], 1), unit="samples")
    .pack(seq_len=SEQ_LEN, rows=64)
    .distribute("dp")
    .balance("lpt"),
    seed=11,
)
