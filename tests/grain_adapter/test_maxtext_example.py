"""The example for MaxText: its iterator in the stand-in loop, and its configuration."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from jobs_runner import launch_line

EXAMPLE = Path(__file__).parents[2] / "examples" / "maxtext"
PROGRAM = Path(__file__).with_name("maxtext_example.py")


@pytest.mark.mpi
@pytest.mark.multiprocess
@pytest.mark.parametrize("trainers", [1, 2])
def test_trains_and_resumes(job_data: Path, tmp_path: Path, trainers: int) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name, made in {"books.parquet": "text.parquet", "code.jsonl": "text.jsonl"}.items():
        shutil.copyfile(job_data / made, data / name)
    shutil.copyfile(job_data / "tokenizer.json", data / "tokenizer.json")
    train = [str(PROGRAM), str(EXAMPLE), str(tmp_path)]
    line = launch_line(2, trainers, *train, recipe=EXAMPLE / "recipe.py") if trainers > 1 else None
    sizes = {"MSDATA_SEQ_LEN": "128", "MSDATA_ROWS": "4"}
    environment = {
        **os.environ,
        **sizes,
        "MSDATA_DATA": str(data),
        "MSDATA_TEST_TRAINERS": str(trainers),
        "JAX_PLATFORMS": "cpu",
        "TOKENIZERS_PARALLELISM": "false",
    }
    line = line or [sys.executable, *train]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    reports = [json.loads((tmp_path / f"report{process}.json").read_text()) for process in range(trainers)]
    assert all(report == reports[0] for report in reports)
    assert len(set(reports[0]["whole"])) == 6
    assert reports[0]["resumed"] == reports[0]["whole"]
    assert reports[0]["moved"] == 0
    assert "4 rows of 7 tokens, the recipe packs 4 of 128" in reports[0]["refused"]


def test_the_configuration_says_what_the_guide_says() -> None:
    lines = (EXAMPLE / "msdata.yml").read_text().splitlines()
    keys = dict(line.split(": ", 1) for line in lines if line and not line.startswith("#"))
    assert keys["dataset_type"] == '"grain"'
    assert keys["skip_jax_distributed_system"] == "true"
    assert keys["context_parallel_load_balance"] == "false"
    assert keys["eval_interval"] == "-1"
