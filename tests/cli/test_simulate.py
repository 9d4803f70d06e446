import json
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
    picture = tmp_path / "speedup.png"
    result = run("--plot", str(picture))
    assert result.exit_code == 0
    assert f"wrote {picture}" in result.stderr
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")


def test_plot_into_a_missing_folder(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(RecipeError, match=r"cannot write the picture to .*missing"):
        run("--plot", str(tmp_path / "missing" / "speedup.png"))


def test_plot_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
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


def test_help_explains_itself() -> None:
    text = CliRunner().invoke(simulate.command, ["--help"]).output
    for word in ("vanilla", "hybrid", "ideal", "packed", "msdata simulate --gpus 4096"):
        assert word.lower() in text.lower()
