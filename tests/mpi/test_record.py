"""Records of real jobs under mpiexec: every rank is in them, also when one is killed."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from jobs_runner import JOBS, environment, launch_line, run_line
from observing.traces import arrows, check, slices

from msdata_jax.observing.record import RunRecord
from msdata_jax.observing.trace import build, find_window, process_of

pytestmark = pytest.mark.mpi

RECIPE = """
import numpy as np
import msdata_jax as msd
records = [{"tokens": np.arange(1 + i % 8, dtype=np.int32)} for i in range(200)]
strategy = msd.DGraph().mix({"a": 1, "b": 1}).pack(seq_len=16, rows=4)
recipe = msd.Recipe(sources={n: msd.Source(records, block_size=4) for n in "ab"}, strategy=strategy)
"""

# Takes steps until the record knows the process of loader 2, kills it, and takes some steps more.
TRAIN = """
import os, signal, sys, time, urllib.request
from pathlib import Path
import msdata_jax as msd
from msdata_jax.observing.record import RunRecord
from recipe import recipe

msd.initialize(use_jax=False)
folder, port = Path(sys.argv[1]), sys.argv[2]
deadline = time.monotonic() + 30
killed_at = None
with msd.DataLoader(recipe) as loader:
    for step, batch in enumerate(loader):
        lines = list(RunRecord(folder).lines()) if killed_at is None else []
        if lines and {"0", "1", "2", "3"} <= set(lines[-1]["ranks"]) and step > 20:
            os.kill(lines[-1]["ranks"]["2"]["pid"], signal.SIGKILL)
            killed_at = step
            url = f"http://127.0.0.1:{port}/metrics"
            Path("scraped").write_bytes(urllib.request.urlopen(url, timeout=10).read())
        if killed_at is not None and step == killed_at + 60:
            break
        assert time.monotonic() < deadline
        time.sleep(0.005)  # as long as a step may take
print(f"killed behind step {killed_at}")
"""


def launch(folder: Path, *options: str, port: str) -> tuple[str, RunRecord]:
    """What a job of two loaders and a trainer prints, one loader being killed; and its record."""
    (folder / "recipe.py").write_text(RECIPE)
    (folder / "train.py").write_text(TRAIN)
    record = folder / "record"
    train = [str(folder / "train.py"), str(record), port]
    line = launch_line(2, 1, *train, recipe=folder / "recipe.py", options=("--record", str(record), *options))
    done = subprocess.run(
        line,
        env=environment(folder),
        cwd=folder,
        timeout=90,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout, RunRecord(record)


def test_a_loader_that_is_killed_leaves_its_figures_and_spans(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    output, record = launch(tmp_path, "--metrics-port", port, port=port)
    assert "1 loader was lost and replaced: rank 2 (killed by signal 9)" in output
    lines = list(record.lines())
    assert {figures["role"] for figures in lines[-1]["ranks"].values()} == {
        "planner",
        "loader",
        "constructor",
    }
    assert [each["rank"] for each in lines[-1]["status"]["lost"]] == [2]
    assert len({figures["pid"] for figures in lines[-1]["ranks"].values()}) == 4
    (victim,) = [spans for spans in record.spans if spans.rank == 2]
    assert {"queue", "block", "send"} <= {span["name"] for span in victim.spans}
    assert [spans.rank for spans in record.spans] == [0, 1, 2, 3]
    check(build(record, find_window(record)))
    scraped = (tmp_path / "scraped").read_text()
    assert 'msdata_ranks{role="loader"} 2.0' in scraped
    assert 'msdata_source_samples_total{source="a"}' in scraped


def test_a_folder_of_another_run_is_refused_before_a_rank_starts(tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(RECIPE)
    (tmp_path / "train.py").touch()
    (tmp_path / "record").mkdir()
    (tmp_path / "record" / "about.json").write_text("{}")
    options = ("--record", str(tmp_path / "record"))
    line = launch_line(2, 1, str(tmp_path / "train.py"), recipe=tmp_path / "recipe.py", options=options)
    done = subprocess.run(line, timeout=60, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "holds the record of a run already; name a new folder" in done.stderr
    assert os.listdir(tmp_path / "record") == ["about.json"]


@pytest.mark.multiprocess
def test_the_record_of_a_job_of_two_trainers_adds_up(job_data: Path, tmp_path: Path) -> None:
    steps, record, board = 8, tmp_path / "runs" / "1", tmp_path / "board"
    options = ("--record", str(record), "--tensorboard", str(board), "--summary", str(tmp_path / "job.json"))
    train = [str(JOBS / "train.py"), "dp4", str(steps), str(tmp_path)]
    run_line(launch_line(2, 2, *train, options=options), environment(job_data, MSDATA_TEST_TRAINERS="2"))
    line = list(RunRecord(record).lines())[-1]
    ranks = line["ranks"]
    roles = {rank: figures["role"] for rank, figures in ranks.items()}
    assert roles == {**dict.fromkeys("12", "loader"), **dict.fromkeys("34", "constructor"), "0": "planner"}
    report = json.loads((tmp_path / "report0.json").read_text())
    assert line["status"]["totals"]["steps"] == steps
    for rank in "34":
        assert ranks[rank]["counters"]["steps"] == steps
        sent = [figures["peers"].get(rank, [0, 0])[1] for figures in ranks.values()]
        assert ranks[rank]["counters"]["bytes_in"] == sum(sent)
    read = sum(ranks[rank]["counters"]["samples"] for rank in "12")
    assert (
        read == ranks["0"]["counters"]["samples"] == sum(each["samples"] for each in report["job"]["loaders"])
    )
    summary = json.loads((tmp_path / "job.json").read_text())
    delivered = [each["samples"] for each in report["steps"]["sources"]]
    assert sorted(each["samples"] for each in summary["sources"]) == sorted(delivered)
    assert line["status"]["sources"]["samples"] == delivered
    trace = build(RunRecord(record), find_window(RunRecord(record), 0, steps))
    check(trace)
    assert len(slices(trace, "step")) == 2 * steps
    assert {chain[-1]["pid"] for chain in arrows(trace)} == {process_of(3), process_of(4)}
    assert list(board.glob("events.out.tfevents.*"))


def test_every_rank_under_serve_is_in_the_record(tmp_path: Path) -> None:
    """`msdata serve --roles` hands the training processes what it was told."""
    from msdata_transport import find_mpiexec

    (tmp_path / "recipe.py").write_text(RECIPE)
    (tmp_path / "train.py").write_text(
        "import msdata_jax as msd\n"
        "from recipe import recipe\n"
        "msd.initialize(use_jax=False)\n"
        "for evaluation in range(2):\n"
        "    with msd.DataLoader(recipe, num_steps=5) as loader:\n"
        "        assert len(list(loader)) == 5\n"
    )
    serve = [sys.executable, "-m", "msdata_jax", "serve", "--roles", "planner=1,loaders=1,trainers=1"]
    files = [str(tmp_path / "recipe.py"), "--", str(tmp_path / "train.py")]
    line = [str(find_mpiexec()), "-n", "3", *serve, "--record", str(tmp_path / "record"), *files]
    done = subprocess.run(line, timeout=60, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    record = RunRecord(tmp_path / "record")
    last = list(record.lines())[-1]
    assert [rank.role for rank in record.spans] == ["planner", "loader", "constructor"]
    assert last["ranks"]["2"]["counters"]["steps"] == 10  # of both sessions
    assert last["status"]["totals"]["steps"] == 10
