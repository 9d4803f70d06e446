import base64
import json
import sys
from collections.abc import Iterator
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
    check_methods([row for row in report["rows"] if "digest" in row])
    (beside,) = [
        row
        for row in report["rows"]
        if row.get("alternative") == "object_karmarkar_karp"
        and row["dp"] == 64
        and row["distribution"] == "mix"
    ]
    assert beside["makespan_ratio"] <= 1.005
    assert all(row["vector_lpt"] <= 1.05 * row["decoupled"] for row in report["rows"] if "vector_lpt" in row)
    assert [row["samples"] for row in report["rows"] if "growth_plan_ms" in row] == [50_000, 100_000, 200_000]
    assert any("n^" in note for note in report["notes"])


def check_methods(rows: list[dict]) -> None:
    by_method = {(row["dp"], row["samples"], row["distribution"], row["method"]): row for row in rows}
    assert len(by_method) == len(rows)
    assert {key[:2] for key in by_method} == {
        (8, 64), (64, 1000), (128, 8000), (512, 8000), (512, 100_000)
    }  # fmt: skip
    assert {key[3] for key in by_method} == {"lpt", "lpt refined", "karmarkar_karp", "snake", "none"}
    for (*which, method), row in by_method.items():
        assert row["flat_ms"] > 0, row
        assert row["plan_ms"] > row["place_ms"] > 0, row
        none, lpt = by_method[*which, "none"], by_method[*which, "lpt"]
        assert 1 <= row["ratio"] <= row["ratio_worst"] + 1e-6, row
        assert row["ratio"] <= none["ratio"] <= row["imbalance_before"] + 1e-6, row
        assert row["plan_ratio"] <= none["plan_ratio"] or method == "karmarkar_karp", row
        if method == "lpt refined":
            assert row["ratio"] <= lpt["ratio"], row
    assert all(row["ratio"] < 1.03 for row in rows if row["method"] == "lpt")


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


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A source tree of three benchmarks: one with a picture, one that fails."""
    folder = tmp_path / "tree" / "benchmarks"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "fast.py").write_text(
        '"""How fast <it> is.\n\nMore."""\n\n\ndef run(quick):\n'
        '    rows = [{"what": "ours & theirs", "ms": 1234.5}]\n'
        '    return {"name": "fast", "rows": rows, "notes": ["a <note>"]}\n'
        '\n\ndef headlines(result):\n    ms = result["rows"][0]["ms"]\n'
        '    return [{"figure": "ms of <it>", "ours": ms, "beside": {"theirs": 2000, "none": None}}]\n'
        '\n\ndef draw(result, path):\n    path.write_bytes(b"picture of %d rows" % len(result["rows"]))\n'
    )
    (folder / "broken.py").write_text('"""Breaks."""\n\n\ndef run(quick):\n    raise OSError("no disk")\n')
    (folder / "small.py").write_text(
        '"""Small."""\n\nfrom random import random as draw\n\n\n'
        'def run(quick):\n    return {"name": "small", "rows": [{"quick": quick}]}\n'
    )
    monkeypatch.setattr(bench, "BENCHMARKS", folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]


def test_all_of_them_and_their_files(tree: Path) -> None:
    results = tree / "results"
    line = ["all", "--quick", "--json", "--results", str(results)]
    result = CliRunner().invoke(bench.command, line, standalone_mode=False)
    assert result.return_value == 1
    assert "broken failed: OSError: no disk" in result.stderr
    assert "small, 3 of 3" in result.stderr
    printed = json.loads(result.stdout)
    assert [each["name"] for each in printed["results"]] == ["fast", "small"]
    headline = {"benchmark": "fast", "figure": "ms of <it>", "ours": 1234.5}
    assert printed["headlines"] == [{**headline, "beside": {"theirs": 2000, "none": None}}]
    assert printed["results"][1]["rows"] == [{"quick": True}]
    assert sorted(path.name for path in results.iterdir()) == [
        "fast.json", "fast.png", "index.html", "small.json"
    ]  # fmt: skip
    assert json.loads((results / "fast.json").read_text()) == {
        "about": "How fast <it> is.", **printed["results"][0]
    }  # fmt: skip
    page = (results / "index.html").read_text()
    picture = base64.b64encode(b"picture of 1 rows").decode()
    for text in (
        "How fast &lt;it&gt; is.",
        "ours &amp; theirs",
        "1,234",
        "a &lt;note&gt;",
        "ms of &lt;it&gt;",
        "theirs 2,000, none -",
        picture,
        "--quick",
    ):
        assert text in page
    assert "<it>" not in page
    assert "no disk" not in page


def test_another_result_joins_the_page(tree: Path) -> None:
    for name in ("small", "fast"):
        result = CliRunner().invoke(bench.command, [name, "--results", str(tree / "results")])
        assert result.exit_code == 0, result.output
    page = (tree / "results" / "index.html").read_text()
    assert page.index('id="fast"') < page.index('id="small"')


def test_one_that_fails_raises_what_it_raised(tree: Path) -> None:
    result = CliRunner().invoke(bench.command, ["broken"])
    assert isinstance(result.exception, OSError)


def test_one_table_of_all(tree: Path) -> None:
    result = CliRunner().invoke(bench.command, ["all"], standalone_mode=False)
    table = result.stdout.partition("all: what they found")[2].split()
    assert table == [
        "benchmark",
        "figure",
        "ours",
        "beside",
        *["fast", "ms", "of", "<it>", "1,234", "theirs", "2,000,", "none", "-"],
    ]


@pytest.mark.parametrize(
    ("goals", "shown", "reached"),
    [
        ({}, "-", None),
        ({"at_most": 2.0}, "at most 2", True),
        ({"at_most": 1.0}, "at most 1", False),
        ({"at_least": 0.5}, "at least 0.5", True),
        ({"at_least": 3}, "at least 3", False),
    ],
)
def test_goals(import_benchmark, goals: dict, shown: str, reached: bool | None) -> None:
    row = import_benchmark("headline").headline("ms", 1.5, beside={"theirs": 2}, **goals)
    assert row == {"figure": "ms", "ours": 1.5, "beside": {"theirs": 2}, "goal": shown, "reached": reached}
    unknown = import_benchmark("headline").headline("ms", None, **goals)
    assert (unknown["ours"], unknown["reached"]) == (None, None)
