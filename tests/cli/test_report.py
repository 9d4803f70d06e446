"""`msdata report`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from observing.made_lines import MadeJob, write_record

from msdata_jax.cli.report import command
from msdata_jax.errors import MSDataError, RecipeError


@pytest.fixture
def record(tmp_path: Path) -> Path:
    job = MadeJob()
    return write_record(tmp_path / "record", job, [job.second() for _ in range(5)])


def run(*arguments: str | Path) -> str:
    """What it prints on stdout; its errors are raised."""
    done = CliRunner().invoke(
        command, list(map(str, arguments)), catch_exceptions=False, standalone_mode=False
    )
    assert done.return_value == 0, done.output
    return done.stdout


def test_it_writes_a_page(record: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run(record, "-o", page) == ""
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "50 steps" in text


def test_it_writes_the_figures_as_json_and_no_page(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(record.parent)
    told = json.loads(run(record, "--json"))
    assert (told["steps"], told["ending"], told["data_wait"]) == (50, "open", 0.0)
    assert [each["name"] for each in told["sources"]] == ["a", "b"]
    assert not Path("report.html").exists()


def test_what_cannot_be_done_is_said_before_any_work(record: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"--output writes \.html"):
        run(record, "-o", tmp_path / "page.pdf")
    with pytest.raises(MSDataError, match="holds no record"):
        run(tmp_path)


def test_without_plotly_the_page_says_what_to_install(record: Path, tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['plotly'] = None; from msdata_jax.cli.main import main; "
        f"sys.argv = ['msdata', 'report', {str(record)!r}, '-o', {str(tmp_path / 'page.html')!r}]; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "pip install 'msdata-jax[report]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "page.html").exists()
