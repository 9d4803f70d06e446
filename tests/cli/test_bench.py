import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from msdata_jax.cli import bench


def test_list_says_what_each_measures() -> None:
    result = CliRunner().invoke(bench.command, [])
    assert result.exit_code == 0
    lines = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert {"planner", "sources", "throughput"} <= lines.keys()
    assert "jobs" not in lines  # a helper, no benchmark
    listed = CliRunner().invoke(bench.command, ["--list", "--json"])
    assert json.loads(listed.stdout)["benchmarks"] == lines


def test_unknown_name() -> None:
    result = CliRunner().invoke(bench.command, ["plannner"])
    assert result.exit_code == 2
    assert "no benchmark 'plannner'" in result.output
    assert "planner" in result.output


def test_no_source_tree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench, "BENCHMARKS", tmp_path / "benchmarks")
    result = CliRunner().invoke(bench.command, ["planner"])
    assert result.exit_code == 2
    assert "source tree" in result.output


def test_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    result = CliRunner().invoke(bench.command, ["planner", "--quick", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["name"] == "planner"
    assert report["quick"] is True
    assert {"cpu", "cores", "memory_gb"} <= report["machine"].keys()
    assert "numpy" in report["versions"]
    assert {row["balance"] for row in report["rows"]} == {"lpt", "snake", "none"}
    by_method = {(row["rows"], row["balance"]): row for row in report["rows"]}
    for (num_rows, method), row in by_method.items():
        assert row["compose_cpu_ms"] > 0
        assert 1 <= row["imbalance"] <= by_method[num_rows, "none"]["imbalance"], (num_rows, method)


def test_table_of_rows_that_differ(capsys: pytest.CaptureFixture[str]) -> None:
    machine = {"cpu": "a cpu", "cores": 2, "memory_gb": 4.0, "load_1min": 0.1}
    rows = [{"what": "a", "time_ms": 1.23456}, {"what": "b", "num_bytes": 12345, "each": [1, 2.5]}]
    result = {
        "name": "x",
        "rows": rows,
        "notes": ["[see] this"],
        "machine": machine,
        "seconds": 1.0,
        "quick": True,
    }
    bench.show(result, "what it is")
    printed = capsys.readouterr().out
    for text in (
        "x: what it is",
        "time ms",
        "1.235",
        "num bytes",
        "12,345",
        "1 2.5",
        "[see] this",
        "a cpu",
        "--quick",
    ):
        assert text in printed
