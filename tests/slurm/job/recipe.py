"""The recipe of Slurm jobs: computed sources. Data ranks say in `MSDATA_TEST_OUT` who and where they are."""

import json
import os
import sys
from pathlib import Path

from benchmarks.recovery_job.recipe import recipe as recipe

role = os.environ.get("MSDATA_ROLE", "alone")
if role not in ("alone", "constructor"):
    rank = int(os.environ["PMI_RANK"])
    mine = {
        "rank": rank,
        "process": os.getpid(),
        "host": os.uname().nodename,
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "loads_jax": sys.modules.get("jax") is not None,
    }
    path = Path(os.environ["MSDATA_TEST_OUT"], f"rank-{rank}-{role}.json")
    path.with_suffix(".new").write_text(json.dumps(mine))
    path.with_suffix(".new").replace(path)
