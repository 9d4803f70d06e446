"""The recipe of our job, for planner and loaders: what the file MSDATA_BENCH_JOB says."""

import os
from pathlib import Path

from benchmarks.peers.job import read_job
from benchmarks.peers.ours import make_recipe

recipe = make_recipe(read_job(Path(os.environ["MSDATA_BENCH_JOB"])))
