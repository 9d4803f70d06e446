"""Every block of Python or Bash in README and docs runs, page by page, on small real data.

Each page has a folder with README's recipe and training script and the data that they name; its blocks run
there in order. What cannot run here is marked and only parsed: ```bash title="On a cluster"```, and
```python title="Before"``` (or "With ...") for code of another library. A page that needs an extra of its
own is in `NEEDS`. Lines that install packages or call `scripts/` are compared with what there is.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = ("python", "bash")
SHOWN = ("text", "console", "json", "toml", "yaml", "ini")  # what is looked at, not run
ELSEWHERE = re.compile(r"^\s*(?:pip install|scripts/)", re.MULTILINE)  # not run here, but checked below
NEEDS = {"guides/torch.md": "torch"}
DATA = {
    "books.parquet": "text.parquet",
    "code.jsonl": "text.jsonl",
    "docs.arrayrecord": "text.arrayrecord",
    "photos.tar": "images.tar",
    "tokenizer.json": "tokenizer.json",
    # Under the names of the demo's data, for the strategies of the examples.
    "code_py.jsonl": "text.jsonl",
    "dict_en.jsonl": "text.jsonl",
    "docs_rst.parquet": "text.parquet",
    "man_de.arrayrecord": "text.arrayrecord",
}
PAGE_SECONDS = 400


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of code: its language, what else stands behind the fence, its text, and its first line."""

    language: str
    info: str
    code: str
    line: int

    @property
    def on_a_cluster(self) -> bool:
        return self.language == "bash" and "cluster" in self.info

    @property
    def of_another_library(self) -> bool:
        return self.language == "python" and self.info.startswith((' title="Before', ' title="With '))

    @property
    def runs(self) -> bool:
        return self.language in RUN and not (self.on_a_cluster or self.of_another_library)


def blocks_of(path: Path) -> list[Block]:
    text = path.read_text()
    found = re.finditer(r"^```(\w*)([^\n]*)\n(.*?)^```[ ]*$", text, re.DOTALL | re.MULTILINE)
    return [
        Block(language=each[1], info=each[2], code=each[3], line=text.count("\n", 0, each.start()) + 2)
        for each in found
    ]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix().removeprefix("docs/")


def to_run(path: Path) -> list[Block]:
    """Blocks that run here, without the lines that run elsewhere."""
    kept = []
    for block in blocks_of(path):
        if block.runs:
            lines = [line for line in block.code.splitlines() if not ELSEWHERE.match(line)]
            code = "\n".join(lines) + "\n"
            if any(line.strip() and not line.lstrip().startswith("#") for line in lines):
                kept.append(Block(language=block.language, info=block.info, code=code, line=block.line))
    return kept


def params() -> list:
    marks = {name_of(page): [] for page in PAGES if to_run(page)}
    for name, needed in NEEDS.items():
        if name in marks:
            marks[name] = [getattr(pytest.mark, needed)]
    return [pytest.param(name, marks=each) for name, each in marks.items()]


@pytest.fixture
def folder(job_data: Path, tmp_path: Path) -> Path:
    """README's recipe and training script, the data that they name, and the examples."""
    (tmp_path / "data").mkdir()
    for name, made in DATA.items():
        shutil.copyfile(job_data / made, tmp_path / "data" / name)
    for block in blocks_of(ROOT / "README.md"):
        for name in ("recipe.py", "train.py"):
            if block.code.startswith(f"# {name}\n"):
                (tmp_path / name).write_text(block.code)
    for name in ("examples", "scripts"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.mark.mpi
@pytest.mark.multiprocess
@pytest.mark.parametrize("name", params())
def test_blocks_run(name: str, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    page = ROOT / name if name == "README.md" else ROOT / "docs" / name
    blocks = [[each.language, each.code, f"{name}:{each.line}"] for each in to_run(page)]
    listed = tmp_path_factory.mktemp("blocks") / "blocks.json"
    listed.write_text(json.dumps(blocks))
    inherited = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "PYTHONPATH")}
    env = {
        **inherited,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "JAX_PLATFORMS": "cpu",
        "MSDATA_CACHE_DIR": str(folder / "cache"),
        "MSDATA_DEMO_DATA": str(folder / "data"),
        "TOKENIZERS_PARALLELISM": "false",
    }
    program = Path(__file__).with_name("run_blocks.py")
    done = subprocess.run(
        [sys.executable, str(program), str(listed)],
        cwd=folder, env=env, capture_output=True, text=True, timeout=PAGE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{name}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_block_says_what_it_is(page: Path) -> None:
    assert [each.line for each in blocks_of(page) if each.language not in (*RUN, *SHOWN)] == []
    text = re.sub(r"^```.*?^```[ ]*$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert "```" not in text, "a fence stands at the beginning of its line"
    assert re.findall(r"\n\n( {4}\S.*)", text) == [], "code stands between fences"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_does_not_run_here_parses(page: Path) -> None:
    for block in blocks_of(page):
        if block.of_another_library:
            ast.parse(block.code)
        if block.on_a_cluster:
            done = subprocess.run(
                ["bash", "-n"], input=block.code, capture_output=True, text=True, timeout=30, check=False
            )
            assert done.returncode == 0, f"{name_of(page)}:{block.line}: {done.stderr}"


def test_installed_extras_and_scripts_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lines = [line.strip() for page in PAGES for each in blocks_of(page) for line in each.code.splitlines()]
    installed = {
        name.strip()
        for line in lines
        if line.startswith("pip install")
        for group in re.findall(r"\[([\w, -]+)\]", line)
        for name in group.split(",")
    }
    assert "orbax" in installed
    assert sorted(installed - set(extras)) == []
    called = {line.split()[0] for line in lines if line.startswith("scripts/")}
    assert "scripts/demo" in called
    assert [name for name in sorted(called) if not os.access(ROOT / name, os.X_OK)] == []


def test_what_runs_elsewhere_is_left_out_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```bash\npip install 'x[y]'\nmsdata doctor\n```\n\n"
        '```bash title="On a cluster"\nsbatch it\n```\n\n'
        "```bash\nscripts/demo # a few minutes\n```\n\n```text\nshown\n```\n\n```python\nx = 1\n```\n"
    )
    assert [(each.language, each.code, each.line) for each in to_run(page)] == [
        ("bash", "msdata doctor\n", 2), ("python", "x = 1\n", 19),
    ]  # fmt: skip
