"""The demo, as people call it, with few steps; and what its script keeps from the terminal."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

DEMO = Path(__file__).parents[2] / "scripts" / "demo"
SOURCES = {
    *(
        "code_py",
        "docs_rst",
        "man_de",
        "man_fr",
        "man_ja",
        "man_ru",
        "help_de",
        "dict_en",
        "photos",
        "stamps",
    ),
}
KEYS = {
    *("sources", "steps", "fill", "imbalance_balanced", "imbalance_unbalanced", "data_wait_ms", "step_ms"),
    *("memory_pss_mb", "loss_first", "loss_last", "losses", "mesh", "versions", "num_dropped", "num_cut"),
    *("imbalance_least", "num_giants"),
}


def demo(*arguments: str, timeout: float = 60, **env: str) -> subprocess.CompletedProcess[str]:
    line = [str(DEMO), *arguments]
    env = {**os.environ, **env}
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=timeout, check=False)


from_debian = pytest.mark.skipif(
    shutil.which("apt-get") is None, reason="the demo's data come from Debian packages"
)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's folder."""
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def done(out: Path) -> subprocess.CompletedProcess[str]:
    """The demo, run."""
    return demo("--steps", "3", timeout=300, MSDATA_DEMO_OUT=str(out))


@pytest.mark.mpi
@pytest.mark.multiprocess
@from_debian
def test_demo(out: Path, done: subprocess.CompletedProcess[str]) -> None:
    tmp_path = out
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert set(report) == KEYS
    assert {source["name"] for source in report["sources"]} == SOURCES
    assert report["steps"] == len(report["losses"]) == 3
    assert all(math.isfinite(loss) for loss in report["losses"])
    assert report["mesh"] == {"dp": 2, "cp": 2, "tp": 2}
    assert 1.0 <= report["imbalance_least"] <= report["imbalance_balanced"] <= report["imbalance_unbalanced"]
    assert 0.9 < report["fill"] <= 1.0
    assert len(report["memory_pss_mb"]["loader"]) == 3
    for name in ("cost_per_rank.png", "training.png"):
        with Image.open(tmp_path / name) as picture:
            picture.load()
            assert min(picture.size) > 400
    for words in ("Sources", "share realised", "The job", "heaviest rank / mean", "step    3/3", *SOURCES):
        assert words in done.stdout, done.stdout
    for name in ("report.json", "cost_per_rank.png", "training.png"):
        assert f"{tmp_path}/{name}" in done.stdout
    assert "Gloo" not in done.stdout
    assert "peer ranks" not in done.stdout
    assert losses_in_one_process(tmp_path / "data") == pytest.approx(report["losses"][:2], abs=2e-3)


@pytest.mark.mpi
@pytest.mark.multiprocess
@from_debian
def test_training_goes_on_to_the_last_bit(
    out: Path, done: subprocess.CompletedProcess[str], tmp_path: Path
) -> None:
    """Twice, from checkpoints that hold model and data: the losses of training that never stopped."""
    assert done.returncode == 0, done.stdout + done.stderr
    wanted = losses(out / "data", tmp_path / "whole", "--steps", "3")
    saving = ("--checkpoints", str(tmp_path / "checkpoints"), "--save-every", "1")
    got = [losses(out / "data", tmp_path / steps, "--steps", steps, *saving) for steps in ("1", "2", "3")]
    assert len(wanted) == 3
    assert got == [wanted[:1], wanted[1:2], wanted[2:]]


def losses(data: Path, report: Path, *arguments: str) -> list[float]:
    """Of the training script in one process of one device."""
    line = [sys.executable, str(DEMO.parents[1] / "examples" / "train.py"), "--mesh", "1,1,1", *arguments]
    env = {**os.environ, "MSDATA_DEMO_DATA": str(data), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [*line, "--report", str(report)], env=env, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((report / "report.json").read_text())["losses"]


def losses_in_one_process(data: Path) -> list[float]:
    """The same training script alone, without launcher: it has to see the same batches."""
    line = [sys.executable, str(DEMO.parents[1] / "examples" / "train.py"), "--steps", "2"]
    env = {**os.environ, "MSDATA_DEMO_DATA": str(data), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", done.stdout)]


def test_help_installs_nothing_and_says_the_default() -> None:
    done = demo("--help", PATH="/usr/bin:/bin", PYTHON="/nonexistent")
    assert done.returncode == 0, done.stderr
    assert "--steps N    training steps (default 40)" in done.stdout
    assert "MSDATA_DEMO_OUT" in done.stdout


@pytest.mark.parametrize("arguments", [("--stesp", "3"), ("--steps",), ("--steps", "0"), ("--steps", "many")])
def test_wrong_arguments_end_before_anything_starts(arguments: tuple[str, ...]) -> None:
    done = demo(*arguments, PYTHON="/nonexistent")
    assert done.returncode == 2
    assert "scripts/demo: " in done.stderr


# --- Gloo's sentences

WHOLE = "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\n"


def without_gloo(text: str) -> str:
    """The text through the filter of scripts/demo."""
    (function,) = re.findall(r"^without_gloo\(\) \(\n.*?^\)$", DEMO.read_text(), re.DOTALL | re.MULTILINE)
    line = ["bash", "-c", f"{function}\nwithout_gloo"]
    return subprocess.run(line, input=text, capture_output=True, text=True, timeout=20, check=True).stdout


@pytest.mark.parametrize(
    "noise",
    [
        WHOLE,
        WHOLE + "1\n3\n",
        "[Gloo] Rank [Gloo] Rank 01 is connected to \n3 peer ranks. \n\n",
        WHOLE.strip() + WHOLE,
        " is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\n1\n",
        WHOLE.strip() + "[Gloo] Rank \n3\n",
    ],
)
def test_gloo_is_not_shown_and_all_else_is(noise: str) -> None:
    before, after = "== training\n\n  1\n40\n", "step    1/3  loss 9.0\n\n7\nSources 3\n"
    assert without_gloo(before + noise + after) == before + after


def test_a_sentence_of_somebody_else_about_gloo_is_shown() -> None:
    text = "[Gloo] Rank 0 failed: connection refused\nRank 0 is connected to 1 peer ranks. Really.\n1\n"
    assert without_gloo(text) == text


def test_a_job_that_fails_fails_the_script_through_the_filter() -> None:
    """As the script pipes: what stands before the filter decides the status."""
    (function,) = re.findall(r"^without_gloo\(\) \(\n.*?^\)$", DEMO.read_text(), re.DOTALL | re.MULTILINE)
    script = f"set -euo pipefail\n{function}\n(echo shown; exit 3) | without_gloo\necho not reached"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (3, "shown\n")
    assert "set -euo pipefail" in DEMO.read_text()
