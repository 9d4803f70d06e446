"""Data-wait alarms of real jobs: a source that is too slow is named as it runs; a healthy job is quiet."""

import subprocess
from pathlib import Path

import pytest
from jobs_runner import environment, launch_line

from msdata_jax.observing.record import RunRecord
from msdata_jax.observing.report import read_figures, summarise

pytestmark = pytest.mark.mpi

RECIPE = """
import time
import numpy as np
import msdata_jax as msd

def slow(record):
    time.sleep({seconds})
    return record

records = [{{"tokens": np.arange(1, 9, dtype=np.int32)}} for _ in range(5000)]
recipe = msd.Recipe(
    sources={{n: msd.Source(records, t, block_size=8) for n, t in (("quick", []), ("scans", [slow]))}},
    strategy=msd.DGraph().mix({{"quick": 1, "scans": 1}}).pack(seq_len=16, rows=8),
)
"""

# Takes steps until the record holds an alarm, or for so many seconds where none is waited for.
TRAIN = """
import sys, time
from pathlib import Path
import msdata_jax as msd
from msdata_jax.observing.record import RunRecord
from recipe import recipe

msd.initialize(use_jax=False)
folder, seconds, step_seconds = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
begin = time.monotonic()
with msd.DataLoader(recipe) as loader:
    for batch in loader:
        if time.monotonic() - begin > seconds or (folder.exists() and list(RunRecord(folder).alarms())):
            break
        time.sleep(step_seconds)
"""


def launch(
    folder: Path, source_seconds: float, most_seconds: float, *options: str, step_seconds: float = 0.05
) -> str:
    """What a job of two loaders prints."""
    (folder / "recipe.py").write_text(RECIPE.format(seconds=source_seconds))
    (folder / "train.py").write_text(TRAIN)
    line = launch_line(
        2, 1, str(folder / "train.py"), str(folder / "record"), str(most_seconds), str(step_seconds),
        recipe=folder / "recipe.py", options=("--scaling", "off", *options),
    )  # fmt: skip
    done = subprocess.run(
        line, env=environment(folder), cwd=folder, timeout=90, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_slow_source_is_named_while_the_job_runs(tmp_path: Path) -> None:
    output = launch(tmp_path, 0.02, 45.0, "--record", str(tmp_path / "record"))
    (said,) = [
        line for line in output.splitlines() if line.startswith("msdata: data wait ") and "last" in line
    ]
    assert "of the last 10 s: steps lack samples of 'scans': all threads of its loader (rank " in said
    assert "most with its transforms" in said
    record = RunRecord(tmp_path / "record")
    (alarm,) = record.alarms()
    assert (alarm["event"], alarm["kind"], alarm["source"]) == ("began", "threads", "scans")
    assert said == f"msdata: {alarm['text']}"
    assert (
        "for samples of “scans”: its loaders had no thread to spare"
        in summarise(read_figures(record))["verdict"][1]
    )


def test_a_healthy_job_says_nothing(tmp_path: Path) -> None:
    """Longer than any alarm takes to be given; steps so long that a busy machine makes nobody wait."""
    assert "of the last 10 s" not in launch(tmp_path, 0.0, 14.0, step_seconds=1.0)
