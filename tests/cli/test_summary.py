"""The summary of a job: the planner's last words, in lines and as JSON."""

import json
from pathlib import Path

import pytest

from msdata_jax.cli import summary
from msdata_jax.cli.showing import Showing

STATUS = {
    "lost": [],
    "wait_ms": {"p50": 0.125, "p95": 31.5},
    "totals": {
        "steps": 400,
        "steps_per_second": 4.25,
        "waited_seconds": 0.9,
        "stepping_seconds": 90.0,
        "imbalance": 1.0213,
        "imbalance_unbalanced": 1.3147,
        "fill": 0.971,
    },
    "sources": {
        "name": ["code", "pho\x1btos"],
        "samples": [3000, 200],
        "tokens": [750_000, 250_000],
        "bad": [0, 7],
        "waited_seconds": [0.0, 12.34],
    },
}
OUTCOME = {
    "ok": True,
    "stopped": True,
    "lost": [],
    "memory_mb": {"planner": [45.5], "loaders": [70.0, 75.2], "trainers": [812.0]},
}


def test_lines_for_people() -> None:
    found = summary.summarise(STATUS, OUTCOME, exit_status=85, seconds=134.26)
    assert summary.in_lines(found) == [
        "400 steps in 2 min 14 s, 44.3 s of it to start and to end; 4.25 steps/s, stopped early on request",
        "data wait 1.0 % of the time (a step 0.125 ms, p95 31.5 ms)",
        "dearest rank 1.021 times the mean cost, 1.315 without balancing; rows 97 % full",
        "memory (PSS): planner 46 MB, loaders 145 MB (most 75), trainers 812 MB",
        "source   samples   tokens  of tokens  bad  waited for",
        "code       3,000  750,000     75.0 %    0       0.0 s",
        "pho?tos      200  250,000     25.0 %    7      12.3 s",
    ]


def test_json_has_it_all(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    showing = Showing(summary=tmp_path / "s.json", quiet=True)
    showing.tell_end(STATUS, OUTCOME, 85, 134.26)
    found = json.loads((tmp_path / "s.json").read_text())
    assert capsys.readouterr().err == f"msdata: wrote {tmp_path}/s.json\n"
    assert (found["exit_status"], found["stopped"], found["seconds"], found["steps"]) == (
        85,
        True,
        134.3,
        400,
    )
    assert found["data_wait"] == 0.01
    assert found["memory_mb"] == OUTCOME["memory_mb"]
    assert found["sources"][1] == {
        "name": "pho\x1btos", "samples": 200, "tokens": 250_000, "bad": 7, "waited_seconds": 12.34,
        "share_of_tokens": 0.25,
    }  # fmt: skip


@pytest.mark.parametrize("outcome", [None, {"ok": False}])
def test_a_job_that_never_began_has_no_lines(tmp_path: Path, outcome: dict | None) -> None:
    found = summary.summarise(None, outcome, exit_status=1, seconds=3.0)
    assert summary.in_lines(found) == []
    assert found["steps"] == 0
    not_begun = {**STATUS, "totals": {**STATUS["totals"], "steps": 0, "stepping_seconds": 0.0}}
    assert summary.in_lines(summary.summarise(not_begun, outcome, exit_status=1, seconds=3.0)) == []


def test_one_step_has_no_rate() -> None:
    totals = {**STATUS["totals"], "steps": 1, "steps_per_second": None, "stepping_seconds": 0.0}
    found = summary.summarise({**STATUS, "totals": totals, "wait_ms": None}, None, exit_status=1, seconds=7.0)
    assert summary.in_lines(found)[0] == "1 step in 7.0 s"
    assert not any("data wait" in line or "memory" in line for line in summary.in_lines(found))


def test_many_sources_are_cut_to_those_with_most_tokens() -> None:
    count = summary.MOST_SOURCES + 5
    columns = {name: list(range(count)) for name in ("samples", "tokens", "bad", "waited_seconds")}
    sources = {"name": [f"s{i}" for i in range(count)], **columns}
    found = summary.summarise({**STATUS, "sources": sources}, None, exit_status=0, seconds=1.0)
    lines = summary.in_lines(found)
    assert lines[-1] == "and 5 more"
    assert [line.split()[0] for line in lines if line.startswith("s") and line[1].isdigit()] == [
        f"s{i}" for i in reversed(range(5, count))
    ]
    assert len(found["sources"]) == count


def test_files_of_another_program_cost_the_summary_alone(capsys: pytest.CaptureFixture) -> None:
    Showing(quiet=False).tell_end({"totals": 3}, {"ok": True}, 0, 1.0)
    assert capsys.readouterr().err == ""
