"""Trains on a grain pipeline as a source; writes the tokens and what every rank loaded.

usage: pipeline_train.py OUT
"""

import json
import sys
from pathlib import Path

from pipeline_recipe import recipe

import msdata_jax as msd

processes = msd.initialize(num_cpu_devices=4)

import jax  # noqa: E402
import numpy as np  # noqa: E402

with msd.DataLoader(recipe, mesh=jax.make_mesh((4,), ("dp",)), num_steps=6) as loader:
    tokens = [np.asarray(batch["tokens"]).tolist() for batch in loader]
report = {"tokens": tokens, "job": dict(loader.job_figures), "grain": "grain" in sys.modules}
Path(sys.argv[1]).write_text(json.dumps(report))
