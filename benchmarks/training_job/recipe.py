"""The recipe of a launched job: `job.json` in the folder that MSDATA_BENCH_FOLDER names says which."""

import json
import os
from pathlib import Path

from benchmarks.training_job.recipes import Job, make_recipe

folder = Path(os.environ["MSDATA_BENCH_FOLDER"])
recipe = make_recipe(folder, Job(**json.loads((folder / "job.json").read_text())))
