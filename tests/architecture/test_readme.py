"""What README shows is run as it stands: its recipe, its training script, and its ways to start them."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text()
DATA = {"books.parquet": "text.parquet", "code.jsonl": "text.jsonl", "photos.tar": "images.tar"}
BATCH = "(8, 2048) NamedSharding("
NUM_STEPS = 3

pytestmark = [pytest.mark.mpi, pytest.mark.multiprocess]


def code_block(first_line: str) -> str:
    (block,) = re.findall(
        rf"^```python\n({re.escape(first_line)}\n.*?)^```", README, re.DOTALL | re.MULTILINE
    )
    return block


def shell_line(start: str) -> list[str]:
    """The one line that begins with `start`, in a code block or in backticks."""
    found = re.findall(rf"^({re.escape(start)}.*)$|`({re.escape(start)}[^`]*)`", README, re.MULTILINE)
    (line,) = {block or span for block, span in found}
    return shlex.split(line, comments=True)


@pytest.fixture
def project(job_data: Path, tmp_path: Path) -> Path:
    """A folder with README's two files and small data under README's names."""
    for name in ("recipe.py", "train.py"):
        (tmp_path / name).write_text(code_block(f"# {name}"))
    (tmp_path / "data").mkdir()
    for name, made in {**DATA, "tokenizer.json": "tokenizer.json"}.items():
        shutil.copyfile(job_data / made, tmp_path / "data" / name)
    return tmp_path


def run(project: Path, line: list[str]) -> str:
    """What the line prints; `python`, `msdata` and `mpiexec` are those beside this Python."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "PYTHONPATH")}
    env = {
        **inherited,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "JAX_PLATFORMS": "cpu",
        "TOKENIZERS_PARALLELISM": "false",
    }
    done = subprocess.run(
        line, cwd=project, env=env, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, f"{shlex.join(line)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_in_one_process(project: Path) -> None:
    line = shell_line("python train.py")
    assert line == ["python", "train.py"]
    lines = run(project, line).splitlines()
    assert len(lines) == NUM_STEPS
    assert all(each.startswith(BATCH) for each in lines), lines


def test_with_planner_and_loaders_as_ranks_of_their_own(project: Path) -> None:
    printed = run(project, shell_line("msdata launch --loaders 3"))
    assert printed.count(BATCH) == NUM_STEPS


def test_every_rank_started_alike(project: Path) -> None:
    printed = run(project, shell_line("mpiexec -n 6 msdata serve"))
    # Two trainers print the same lines, and mpiexec may mix them; so each character comes six times as often.
    num_lines = 2 * NUM_STEPS
    assert printed.count("\n") == num_lines
    assert {char: count for char, count in Counter(printed).items() if count % num_lines} == {}
    assert set(BATCH) <= set(printed)


def test_the_table_of_fields_is_that_of_a_batch(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from msdata_jax.batching.assembly import RowFormat, field_shapes

    sizes = {"rows": 8, "seq_len": 2048, "patches_per_row": 512, "patch_values": 768}
    form = RowFormat(**{name: value for name, value in sizes.items() if name != "rows"})
    rows = re.findall(r"^\| `(\w+)` \| (\w+) `\[(.*?)\]` \|", README, re.MULTILINE)
    shown = {name: (tuple(sizes[dim] for dim in dims.split(", ")), dtype) for name, dtype, dims in rows}
    assert shown == {name: (shape, str(dtype)) for name, (shape, dtype) in field_shapes(form, 8).items()}
    (comment,) = re.findall(r"for batch in loader:  # (.*)", README)
    assert set(comment.split(", ")) == set(shown)


def test_tables_of_figures_are_of_the_benchmarks_results(import_benchmark) -> None:
    readme = import_benchmark("readme")
    results = readme.read_results()
    for name, result in results.items():
        found = import_benchmark(name).headlines(result)
        assert result["headlines"] == [{"benchmark": name, **each} for each in found]
    written = readme.with_tables(README, results)
    assert written == README, "python -m benchmarks.readme writes them anew"


def test_picture_of_the_benchmarks_results(import_benchmark, tmp_path: Path) -> None:
    readme = import_benchmark("readme")
    readme.draw(readme.read_results(), tmp_path / readme.PICTURE)
    assert (tmp_path / readme.PICTURE).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert f"benchmarks/results/{readme.PICTURE}" in README
