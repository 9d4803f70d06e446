"""A job on threads of one process: what is counted is what happened."""

import json
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from observing.traces import arrows, check, slices
from roles.played import make_placement

import msdata_jax as msd
from msdata_jax.cli.trace_run import command as trace_command
from msdata_jax.errors import LaunchError, MSDataError
from msdata_jax.observing.files import read_lines, to_line
from msdata_jax.observing.metrics import Histogram
from msdata_jax.observing.prometheus import Exporter
from msdata_jax.observing.record import RunRecord, check_new
from msdata_jax.observing.report import make_page, read_figures, summarise
from msdata_jax.observing.tensorboard import TensorBoard, load_writer
from msdata_jax.observing.trace import build, find_window, process_of
from msdata_jax.runtime.monitoring import Watching, start_monitor

STEPS, TRAINER = 30, 3
ROLES = {"0": "planner", "1": "loader", "2": "loader", "3": "constructor"}


def recipe(on_bad_sample="skip") -> msd.Recipe:
    """Two sources, one a loader; every tenth record of one of them cannot be read."""

    def read(record: dict) -> dict:
        if record["tokens"][0] % 10 == 9:
            raise ValueError("every tenth")
        return record

    records = [{"tokens": np.full(4 + i % 5, i, np.int32)} for i in range(200)]
    sources = {
        "good": msd.Source(records, block_size=8),
        "bad": msd.Source(records, [read], block_size=4, on_bad_sample=on_bad_sample),
    }
    strategy = msd.DGraph().mix({"good": 1, "bad": 1}).pack(seq_len=16, rows=4)
    return msd.Recipe(sources=sources, strategy=strategy, seed=3)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunRecord, msd.DataLoader]:
    """The record of a job, and its closed DataLoader."""
    folder = tmp_path_factory.mktemp("run") / "record"
    with msd.DataLoader(recipe(), num_steps=STEPS, num_loaders=2, record=folder) as loader:
        for _ in loader:
            pass
    return RunRecord(folder), loader


def last_line(record: RunRecord) -> dict:
    return list(record.lines())[-1]


def test_about_says_what_the_job_is(run: tuple[RunRecord, msd.DataLoader]) -> None:
    record, _ = run
    assert record.about["recipe"] == recipe().fingerprint()
    assert [source["name"] for source in record.about["sources"]] == ["good", "bad"]
    assert {rank: each["role"] for rank, each in record.about["ranks"].items()} == ROLES


def test_counters_are_what_the_job_did(run: tuple[RunRecord, msd.DataLoader]) -> None:
    record, loader = run
    line = last_line(record)
    ranks = line["ranks"]
    assert {rank: figures["role"] for rank, figures in ranks.items()} == ROLES
    planner, trainer = ranks["0"]["counters"], ranks["3"]["counters"]
    loaders = [ranks[rank]["counters"] for rank in ("1", "2")]
    assert trainer["steps"] == trainer["steps_assembled"] == STEPS
    assert planner["steps_planned"] == STEPS
    assert line["status"]["totals"]["steps"] == STEPS
    for name in ("leases", "blocks", "samples"):
        assert planner[name] == sum(each[name] for each in loaders)
    summary = loader.job_figures
    assert sum(each["samples"] for each in summary["loaders"]) == planner["samples"]
    assert line["sources"]["samples"] == [each["counters"]["samples"] for each in (ranks["1"], ranks["2"])]
    delivered = {each["name"]: each["samples"] for each in loader.figures.summary()["sources"]}
    for name, count in zip(("good", "bad"), line["sources"]["samples"], strict=True):
        assert count >= delivered[name] > 0
    assert line["sources"]["bad"] == [0, summary["sources"]["bad"]["bad_samples"]]
    assert line["sources"]["bad"][1] > 0


def test_the_record_says_how_the_job_ended_and_why_samples_were_bad(
    run: tuple[RunRecord, msd.DataLoader],
) -> None:
    record, loader = run
    listed = loader.job_figures["sources"]["bad"]["bad"]
    assert record.end is not None
    assert {name: record.end[name] for name in ("ok", "stopped", "bad")} == {
        "ok": True, "stopped": False, "bad": {"bad": listed},
    }  # fmt: skip
    page = make_page(read_figures(record))
    _, position, reason = listed[0]
    assert "every tenth" in reason
    assert f"{position:,}: {reason}"[:40] in page
    assert summarise(read_figures(record))["ending"] == "done"


def test_the_record_of_a_job_that_failed_says_so(tmp_path: Path) -> None:
    with (
        pytest.raises(MSDataError, match="every tenth"),
        msd.DataLoader(recipe("raise"), num_steps=STEPS, record=tmp_path / "record") as loader,
    ):
        for _ in loader:
            pass
    record = RunRecord(tmp_path / "record")
    assert record.end is not None
    assert (record.end["ok"], "every tenth" in record.end["error"]) == (False, True)
    figures = read_figures(record)
    assert summarise(figures)["ending"] == "failed"
    first = summarise(figures)["verdict"][0]
    assert first.startswith("The job failed")
    assert "every tenth" in first


def test_every_event_is_timed_once(run: tuple[RunRecord, msd.DataLoader]) -> None:
    record, loader = run
    ranks = last_line(record)["ranks"]
    counts = {
        rank: {name: each["count"] for name, each in figures["histograms"].items()}
        for rank, figures in ranks.items()
    }
    for rank in ("1", "2"):
        blocks = ranks[rank]["counters"]["blocks"]
        assert counts[rank]["read"] == counts[rank]["transform"] == counts[rank]["queue"] == blocks
        assert counts[rank]["open"] == 1
    assert counts["0"]["lease"] == ranks["0"]["counters"]["blocks"]
    assert counts["3"]["emit"] == counts["3"]["gather"] == counts["3"]["step"] == STEPS
    assert counts["3"]["wait"] == STEPS - 1  # the first wait is the job's start
    waits = Histogram.from_plain(ranks["3"]["histograms"]["wait"])
    p50, p95 = (1000 * waits.quantile(share) for share in (0.5, 0.95))
    told = loader.figures.summary()["data_wait_ms"]  # of `next`, a little longer than the wait alone
    assert p50 <= 1.5 * told["p50"] + 1
    assert p95 <= 1.5 * told["p95"] + 5
    read_seconds = sum(last_line(record)["sources"]["read_seconds"])
    timed = sum(ranks[rank]["histograms"]["read"]["sum"] for rank in ("1", "2"))
    assert read_seconds == pytest.approx(timed, abs=1e-3)


def test_bytes_that_are_sent_arrive(run: tuple[RunRecord, msd.DataLoader]) -> None:
    record, _ = run
    ranks = last_line(record)["ranks"]
    for rank in ("1", "2"):
        messages, num_bytes, seconds = ranks[rank]["peers"]["3"]
        assert messages >= 1
        assert num_bytes > 0
        assert seconds > 0
    sent = sum(figures["peers"].get("3", [0, 0])[1] for figures in ranks.values())
    assert ranks["3"]["counters"]["bytes_in"] == sent
    assert all(figures["memory_mb"] > 0 and figures["pss_mb"] > 0 for figures in ranks.values())


def test_spans_cover_each_step_on_each_part(run: tuple[RunRecord, msd.DataLoader]) -> None:
    record, _ = run
    by_name: dict[str, list[dict]] = {}
    for rank in record.spans:
        assert ROLES[str(rank.rank)] == rank.role
        for span in rank.spans:
            by_name.setdefault(span["name"], []).append(span)
    steps = list(range(STEPS))
    assert sorted(step for span in by_name["plan"] for step in span["steps"]) == steps
    for name in ("gather", "emit", "wait", "step"):
        assert [span["step"] for span in by_name[name]] == steps
    assert {span["step"] for span in by_name["send"]} == set(steps)
    begins = {name: {span["step"]: span["begin"] for span in by_name[name]} for name in ("emit", "step")}
    assert all(begins["emit"][step] <= begins["step"][step] for step in steps)


def test_a_trace_leads_from_blocks_to_the_steps_that_hold_them(
    run: tuple[RunRecord, msd.DataLoader],
) -> None:
    record, _ = run
    trace = json.loads(json.dumps(build(record, find_window(record, 5, 12))))
    check(trace)
    assert sorted(each["args"]["step"] for each in slices(trace, "step")) == list(range(5, 12))
    reached: dict[int, set[str]] = {}
    for chain in arrows(trace):
        kinds = [each["cat"] for each in chain]
        assert kinds[-3:] == ["assemble", "emit", "step"]
        assert kinds[-4] == "send"
        steps = {each["args"]["step"] for each in chain if "step" in each["args"]}
        assert len(steps) == 1
        begins = [each["ts"] for each in chain]
        assert begins == sorted(begins)
        if chain[0]["pid"] != process_of(TRAINER):
            reached.setdefault(steps.pop(), set()).add(chain[0]["args"].get("source", ""))
    assert reached.keys() == set(range(5, 12))
    assert all({"good", "bad"} <= sources for sources in reached.values())


def test_the_command_writes_a_trace(run: tuple[RunRecord, msd.DataLoader], tmp_path: Path) -> None:
    record, _ = run
    output = tmp_path / "trace.json"
    done = CliRunner().invoke(trace_command, [str(record.folder), "--steps", "28:", "-o", str(output)])
    assert done.exit_code == 0, done.output
    trace = json.loads(output.read_text())
    check(trace)
    assert {each["args"]["step"] for each in slices(trace, "step")} == {28, 29}
    assert trace["otherData"]["steps"] == "28:30"


@pytest.mark.parametrize(
    ("steps", "rule"),
    [("7", "FIRST:STOP"), ("a:b", "FIRST:STOP"), ("7:7", "no step"), ("700:800", "are of steps 0 to 29")],
)
def test_the_command_says_what_it_takes(
    run: tuple[RunRecord, msd.DataLoader], tmp_path: Path, steps: str, rule: str
) -> None:
    options = [str(run[0].folder), "--steps", steps, "-o", str(tmp_path / "t.json")]
    done = CliRunner().invoke(trace_command, options)
    assert isinstance(done.exception, MSDataError)
    assert rule in str(done.exception)


def test_a_folder_is_of_one_run(run: tuple[RunRecord, msd.DataLoader], tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in run[0].folder.rglob("*") if path.is_file()}
    with pytest.raises(LaunchError, match="holds the record of a run already; name a new folder"):
        msd.DataLoader(recipe(), record=run[0].folder)
    assert before == {path: path.read_bytes() for path in run[0].folder.rglob("*") if path.is_file()}
    (tmp_path / "notes").touch()
    with pytest.raises(LaunchError, match=r"a folder of its own, and .+ holds notes"):
        check_new(tmp_path)
    check_new(tmp_path / "new")
    with pytest.raises(LaunchError, match="cannot be kept"):
        check_new(tmp_path / "notes" / "below")
    with pytest.raises(MSDataError, match="holds no record of a run"):
        RunRecord(tmp_path)


def test_nothing_is_left_behind_and_nothing_changes(tmp_path: Path) -> None:
    """The batches are the same with a record and without."""
    threads = threading.active_count()
    digests = []
    for record in (None, tmp_path / "record"):
        with msd.DataLoader(recipe(), num_steps=10, record=record) as loader:
            digests.append([loader.last_step.digest for _ in loader])
    assert digests[0] == digests[1]
    assert threading.active_count() == threads
    assert not [name for name in os.listdir("/proc/self/fd") if str(tmp_path) in link_of(name)]


def link_of(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return ""


def test_lines_of_the_past_are_read_while_the_job_writes(
    run: tuple[RunRecord, msd.DataLoader], tmp_path: Path
) -> None:
    """A rank that is killed in the middle of a line leaves the spans before it."""
    record, _ = run
    path = record.folder / "spans" / "rank-1.jsonl"
    copy = tmp_path / "rank-1.jsonl"
    copy.write_bytes(path.read_bytes()[:-7])
    assert list(read_lines(copy)) == list(read_lines(path))[:-1]
    assert b"".join(map(to_line, read_lines(path))) == path.read_bytes()


# --- who else takes the lines ---------------------------------------------------------------------------


def test_prometheus_scrapes_what_the_last_line_says(run: tuple[RunRecord, msd.DataLoader]) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    line = last_line(run[0])
    exporter = Exporter(0, "127.0.0.1")
    try:
        url = f"http://127.0.0.1:{exporter.port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert b"msdata_step" not in answer.read()  # before the first line
        exporter.write(line)
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
        with pytest.raises(OSError, match="in use"):
            Exporter(exporter.port, "127.0.0.1")
    finally:
        exporter.close()
    values = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert values["msdata_steps_total",] == STEPS
    assert values["msdata_step",] == STEPS
    assert values["msdata_ranks", ("role", "loader")] == 2
    for index, name in enumerate(("good", "bad")):
        samples = values["msdata_source_samples_total", ("source", name)]
        assert samples == line["status"]["sources"]["samples"][index]
    read = [line["ranks"][rank]["histograms"]["read"]["count"] for rank in ("1", "2")]
    labels = (("name", "read"), ("role", "loader"))
    assert values["msdata_seconds_count", *labels] == sum(read)
    assert values["msdata_seconds_bucket", ("le", "+Inf"), *labels] == sum(read)
    assert values["msdata_memory_bytes", ("role", "planner")] > 2**20


def test_a_port_that_is_taken_costs_the_endpoint_alone(capsys: pytest.CaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monitor = start_monitor(Watching(metrics_port=port), recipe(), make_placement(), {})
    monitor.close()
    shown = capsys.readouterr().err
    assert shown.startswith(f"msdata: no metrics at 127.0.0.1:{port}: [Errno 98] Address already in use;")
    assert shown.count("\n") == 1


def test_sources_without_number_are_a_few_series(run: tuple[RunRecord, msd.DataLoader]) -> None:
    import copy

    from prometheus_client.core import CounterMetricFamily

    from msdata_jax.observing import prometheus

    line = copy.deepcopy(last_line(run[0]))
    count = 5 * prometheus.MOST_SOURCES
    line["status"]["sources"] = {
        "name": [f"s{i}" for i in range(count)],
        **{name: [1] * count for name, _ in prometheus._BY_SOURCE},
    }
    line["sources"] = {name: [1] * count for name in ("read_seconds", "transform_seconds")}
    exporter = Exporter(0, "127.0.0.1")
    try:
        exporter.write(line)
        families = [each for each in exporter.collect() if each.name.startswith("msdata_source")]
    finally:
        exporter.close()
    assert families
    for family in families:
        assert isinstance(family, CounterMetricFamily)
        assert len(family.samples) == prometheus.MOST_SOURCES + 1
        assert sum(sample.value for sample in family.samples) == count


def test_nothing_that_the_planner_loads_brings_a_framework() -> None:
    """tensorboardX imports torch where it can; what was hidden from it can be imported behind it."""
    program = (
        "import sys\n"
        "from msdata_jax.observing.tensorboard import load_writer\n"
        "from msdata_jax.observing.prometheus import Exporter\n"
        "load_writer(); Exporter(0, '127.0.0.1').close()\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'torch', 'jax', 'orbax', 'grain', 'tensorflow'}, loaded\n"
        "import torch"
    )
    line = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_tensorboard_files_hold_the_scalars(run: tuple[RunRecord, msd.DataLoader], tmp_path: Path) -> None:
    load_writer()  # before anything of it is imported, for it would import torch
    from tensorboardX.proto.event_pb2 import Event  # type: ignore[attr-defined] - made when imported
    from tensorboardX.record_writer import masked_crc32c

    board = TensorBoard(tmp_path)
    line = last_line(run[0])
    board.write(line)
    board.write(line)  # no step more
    board.close()
    (path,) = tmp_path.glob("events.out.tfevents.*")
    data, found = path.read_bytes(), {}
    while data:
        length = int.from_bytes(data[:8], "little")
        assert int.from_bytes(data[8:12], "little") == masked_crc32c(data[:8])
        event = Event.FromString(data[12 : 12 + length])
        for value in event.summary.value:
            assert (value.tag, event.step) not in found
            found[value.tag, event.step] = value.simple_value
        data = data[16 + length :]
    assert {step for _, step in found} == {STEPS}
    tags = {tag for tag, _ in found}
    assert {"job/imbalance", "job/fill", "memory_mb/loader", "source_share_of_tokens/good"} <= tags
    shares = [value for (tag, _), value in found.items() if tag.startswith("source_share_of_tokens/")]
    assert sum(shares) == pytest.approx(1, abs=1e-5)
