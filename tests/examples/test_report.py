import io
import json
from pathlib import Path

import numpy as np
import pytest
import report
from PIL import Image
from rich.console import Console

SOURCES = [
    {
        "name": name,
        "samples": 10,
        "tokens": 1000,
        "share_asked": 0.5,
        "share_realised": 0.5,
        "bad_samples": bad,
    }
    for name, bad in (("code_py", 0), ("photos", 1))
]
REPORT = {
    "sources": SOURCES,
    "imbalance_balanced": 1.01,
    "imbalance_unbalanced": 1.2,
    "fill": 0.98,
    "data_wait_ms": {"p50": 1.0, "p95": 3.0},
    "step_ms": {"p50": 900.0},
    "memory_pss_mb": {"planner": 40.0, "loader": [90.0, 91.0], "constructor": [300.0]},
    "loss_first": 9.0,
    "loss_last": 7.0,
    "losses": [9.0, 8.0, 7.0],
    "steps": 3,
    "mesh": {"dp": 2, "cp": 2, "tp": 2},
    "versions": {"jax": "0.10.2"},
}


def test_imbalance_is_heaviest_over_mean_and_one_without_work() -> None:
    assert report.imbalance(np.array([[3.0, 1.0], [2.0, 2.0], [0.0, 0.0]])).tolist() == [1.5, 1.0, 1.0]


@pytest.mark.parametrize("ranks", [1, 2, 16])
def test_write_makes_the_report_and_pictures_that_open(ranks: int, tmp_path: Path) -> None:
    costs = np.random.default_rng(0).uniform(1e9, 2e9, (3, ranks))
    paths = report.write(tmp_path / "out", REPORT, costs, costs[:, ::-1])
    assert json.loads(paths[0].read_text()) == REPORT
    for path in paths[1:]:
        with Image.open(path) as picture:
            picture.load()
            assert min(picture.size) > 400


def test_pictures_of_a_job_without_a_step(tmp_path: Path) -> None:
    report.write(tmp_path, {"losses": [], "sources": []}, np.zeros((0, 2)), np.zeros((0, 2)))


def test_tables_say_what_the_report_holds() -> None:
    text = io.StringIO()
    report.print_report(REPORT, Console(file=text, width=160))
    for words in (
        "1 skipped",
        "50.0%",
        "loader 90 + 91 MB",
        "9.000 -> 7.000 in 3 steps",
        "dp=2 x cp=2 x tp=2",
    ):
        assert words in text.getvalue()


def test_a_missing_key_is_left_out() -> None:
    assert [name for name, _ in report.job_lines({"fill": 0.5})] == ["rows filled"]


@pytest.mark.parametrize(("largest", "unit"), [(2.5e10, "GFLOP"), (999, "FLOP"), (1e15, "PFLOP")])
def test_flop_unit(largest: float, unit: str) -> None:
    assert report.flop_unit(largest)[1] == unit
