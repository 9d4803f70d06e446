"""The recipe of the jobs that benchmarks start: text files of the folder that MSDATA_BENCH_FOLDER names.

`settings.json` there says which files, weights and shapes; see `benchmarks.text_data.write_job`.
"""

import json
import os
from pathlib import Path

import msdata_jax as msd

folder = Path(os.environ["MSDATA_BENCH_FOLDER"])
settings = json.loads((folder / "settings.json").read_text())
transforms = [msd.Tokenize(str(folder / "tokenizer.json")), msd.Split(settings["seq_len"])]

recipe = msd.Recipe(
    sources={
        name: msd.Source(str(folder / file), transforms, block_size=settings["block_size"])
        for name, file in settings["files"].items()
    },
    strategy=msd.DGraph()
    .mix(settings["weights"], unit=settings["unit"])
    .pack(seq_len=settings["seq_len"], rows=settings["rows"])
    .distribute("dp")
    .balance("lpt"),
    seed=11,
)
