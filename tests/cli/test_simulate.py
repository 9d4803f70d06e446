import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from msdata_jax.cli import simulate
from msdata_jax.errors import RecipeError

SMALL = ("--gpus", "64", "--context", "1024,2048", "--distribution", "text_pile,coyo", "--steps", "1")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(simulate.command, [*SMALL, *arguments], catch_exceptions=False)


def test_json() -> None:
    result = run("--json", "--seed", "5", "--samples-per-microbatch", "4")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert set(report) == {"assumptions", "rows", "memory", "summary"}
    assert report["assumptions"]["seed"] == 5
    assert report["assumptions"]["cluster"]["samples_per_microbatch"] == 4
    assert len(report["rows"]) == 2 * 2 * 2 * 2 * 3
    assert {row["strategy"] for row in report["rows"]} == {"vanilla", "backbone", "hybrid"}
    assert set(report["rows"][0]) == {
        *("gpus", "context", "distribution", "baseline", "sync", "placement", "models", "strategy"),
        *("speedup", "ideal_speedup", "imbalance", "step_seconds"),
    }
    assert report == json.loads(run("--json", "--seed", "5", "--samples-per-microbatch", "4").stdout)


def test_table() -> None:
    result = run("--baseline", "count", "--sync", "step")
    assert result.exit_code == 0
    for text in (
        "baseline count, sync step, placement pipe, models llama-12b+vit-2b, gpus 64",
        "hybrid speedup",
        "mean speedup",
        "max speedup",
        "Host memory",
        "reader mb",
        "nic_bytes_per_second 4.5e+10",
        "loaders_per_worker 0.6",
    ):
        assert text in result.stdout
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith(("text_pile", "coyo"))]
    assert [row[:2] for row in rows] == [
        ["text_pile", "1,024"],
        ["text_pile", "2,048"],
        ["coyo", "1,024"],
        ["coyo", "2,048"],
    ]


def test_plot(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    for name, contexts, begin in (
        ("speedup.png", "1024,2048", b"\x89PNG\r\n"),
        ("speedup.svg", "1024", b"<?xml"),
        ("speedup.pdf", "1024", b"%PDF"),
    ):
        picture = tmp_path / name
        result = run("--plot", str(picture), "--context", contexts)
        assert result.exit_code == 0
        assert f"wrote {picture}\n" in result.stderr
        assert picture.read_bytes().startswith(begin)


def test_one_context_is_points_with_their_range(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    from msdata_jax.simulate.plot import _panel

    rows = json.loads(run("--json", "--context", "1024", "--distribution", "coyo").stdout)["rows"]
    axes = Figure().subplots()
    _panel(axes, rows)
    shown = {bars.get_label(): bars for bars in axes.containers}
    assert list(shown) == ["backbone balanced", "backbone and encoder balanced", "all work in equal parts"]
    for strategy, label in (("backbone", "backbone balanced"), ("hybrid", "backbone and encoder balanced")):
        speedups = [row["speedup"] for row in rows if row["strategy"] == strategy]
        point, _, (bar,) = shown[label].lines
        assert point.get_ydata()[0] == pytest.approx(sum(speedups) / len(speedups))
        ends = bar.get_segments()[0][:, 1]
        assert sorted(ends) == pytest.approx([min(speedups), max(speedups)])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_where_the_disk_is_full_the_tables_are_shown_first(tmp_path: Path) -> None:
    (tmp_path / "full.svg").symlink_to("/dev/full")
    line = [sys.executable, "-m", "msdata_jax", "simulate", *SMALL, "--plot", str(tmp_path / "full.svg")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Assumptions" in done.stdout
    assert "full.svg was not written: " in done.stderr
    assert "Traceback" not in done.stderr


def test_progress_of_long_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    progress = simulate._Progress()
    progress.see(1, 3)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(simulate, "SECONDS_BETWEEN_LINES", 0.0)
    progress.see(2, 3)
    assert capsys.readouterr().err == "row 2 of 3\n"


def test_plot_into_a_missing_folder(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(RecipeError, match=r"--plot .*missing/speedup\.png cannot be written: No such file"):
        run("--plot", str(tmp_path / "missing" / "speedup.png"))


def test_plot_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RecipeError, match=r"pip install 'msdata-jax\[demo\]'"):
        run("--plot", str(tmp_path / "speedup.png"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--distribution", "pile"), "'pile' is none of text_pile, text_wlb"),
        (("--baseline", "count,padded"), "'padded' is none of packed, count"),
        (("--sync", "dp"), "'dp' is none of step, pipeline, microbatch"),
        (("--placement", ""), "'' is none of pipe, phase, stage0"),
        (("--models", "gpt"), "'gpt' is none of llama-12b+vit-1b"),
        (("--context", "4k"), "'4k' is no list of integers such as 576,4096"),
        (("--gpus", "0"), "each is at least 1, got 0"),
    ],
)
def test_bad_values(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_gpus_that_do_not_divide() -> None:
    with pytest.raises(RecipeError, match="tensor_parallel x pipeline_stages = 4 x 8 = 32, got 600"):
        run("--gpus", "600")


def test_sizes_that_would_run_for_hours_are_refused_at_once() -> None:
    for arguments, message in (
        (("--gpus", "100000000"), "gpus is at most 131072, got 100000000"),
        (("--context", "2000000"), "at most 1048576, got 2000000"),
        (("--pipeline-stages", "2048", "--gpus", "8192"), "pipeline_stages is at most 1024, got 2048"),
        (("--gpus", "131072", "--context", "131072"), "at most 4294967296 tokens"),
        (("--microbatches", "100000000"), "200000000 microbatches of 2048; take fewer"),
        (("--samples-per-microbatch", "1000000"), "at most 16777216 samples"),
    ):
        with pytest.raises(RecipeError, match=message):
            run(*arguments)


def test_a_picture_with_another_suffix_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"--plot writes \.png, \.pdf or \.svg, .*got speedup\.gif"):
        run("--plot", "speedup.gif")


def test_help_explains_itself() -> None:
    text = CliRunner().invoke(simulate.command, ["--help"]).output
    for word in ("vanilla", "hybrid", "ideal", "packed", "msdata simulate --gpus 4096"):
        assert word.lower() in text.lower()
