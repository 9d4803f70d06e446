"""The documentation site: it builds without a warning, loads nothing from elsewhere, and is complete."""

import ast
import os
import re
import runpy
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest

import msdata_jax
from msdata_jax import checkpoint, costs, lineage, scaling, sources
from msdata_jax.planning.graph import DGraph

ROOT = Path(__file__).parents[2]
PRIMITIVES = (
    "mix", "pack", "pad", "bucket", "loss", "regroup", "cost", "distribute", "balance", "broadcast_at",
)  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    config = ("--config-file", str(ROOT / "mkdocs.yml"))
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", *config, "--site-dir", str(folder)],
        cwd=folder, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert 'not included in the "nav"' not in done.stderr, done.stderr
    return folder


class Loaded(HTMLParser):
    """What a browser fetches for a page, other than what the reader follows."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.classes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.classes.update((values.get("class") or "").split())
        names = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
        if address := values.get(names.get(tag, "")):
            self.addresses.append(address)


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        loaded = Loaded()
        loaded.feed(page.read_text())
        assert [each for each in loaded.addresses if re.match(r"(\w+:)?//", each)] == [], page
        # The theme would fetch the program that draws these from a network of servers.
        assert "mermaid" not in loaded.classes, page
    for sheet in site.rglob("*.css"):
        assert re.findall(r"url\([\"']?(?:\w+:)?//", sheet.read_text()) == [], sheet


def inventory(site: Path) -> set[str]:
    """Names that have an entry in the reference, as Sphinx's inventories list them."""
    listed = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return {line.split()[0] for line in zlib.decompress(listed).decode().splitlines()}


def home(value: type) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def test_the_reference_has_every_public_name(site: Path) -> None:
    documented = inventory(site)
    formulas = [
        name for name, each in vars(costs).items() if getattr(each, "__module__", "") == costs.__name__
    ]
    public = {
        msdata_jax: set(msdata_jax.__all__)
        - {"__version__", "IMAGE_TOKEN", "checkpoint", "costs", "scaling"},
        checkpoint: checkpoint.__all__,
        costs: [name for name in formulas if not name.startswith("_")],
        sources: ["GrainSource"],
        scaling: [name for name, each in vars(scaling).items() if isinstance(each, type)],
    }
    for package, names in public.items():
        assert names
        for name in names:
            expected = home(getattr(package, name))
            assert expected in documented, f"{expected} is on no page of docs/reference"
    assert "msdata_jax.records.IMAGE_TOKEN" in documented
    for name in PRIMITIVES:
        assert hasattr(DGraph, name)
        assert f"msdata_jax.planning.graph.DGraph.{name}" in documented
    for name in ("PlanLog", "trace", "origins"):
        assert home(getattr(lineage, name)) in documented


@pytest.mark.parametrize("name", ["grain", "torch"])
def test_the_reference_has_the_names_of_the_bridges(name: str, site: Path) -> None:
    """Read from the text of the package: importing it would load grain, JAX or torch."""
    tree = ast.parse((ROOT / "msdata_jax" / name / "__init__.py").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    public = {f"{node.module}.{each.name}" for node in imports for each in node.names if each.asname}
    assert public
    assert sorted(public - inventory(site)) == []


def test_diagrams_are_what_their_program_draws() -> None:
    folder = ROOT / "docs" / "diagrams"
    pictures = runpy.run_path(str(folder / "draw.py"))["PICTURES"]
    assert {path.stem for path in folder.glob("*.svg")} == set(pictures)
    for name, draw in pictures.items():
        assert (folder / f"{name}.svg").read_text() == draw(), "run python docs/diagrams/draw.py"


# --- troubleshooting


def texts_in_the_code() -> str:
    """All texts of the package, one a line; what is filled in later is left out."""
    texts = []
    for path in [*(ROOT / "msdata_jax").rglob("*.py"), *(ROOT / "transport").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                texts.append("\0".join(each.value for each in node.values if isinstance(each, ast.Constant)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)


def quoted_messages() -> list[str]:
    page = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text()
    cells = [line.split(" | ")[0].lstrip("| ") for line in page.splitlines() if line.startswith("| ")]
    return [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]


def test_troubleshooting_quotes_messages_of_the_code() -> None:
    code, messages = texts_in_the_code(), quoted_messages()
    assert len(messages) > 40
    missing = []
    for message in messages:
        # Numbers, names in quotes and dots stand for what a message fills in, and so do a few words.
        parts = re.split(
            r"\.\.\.|\[\.\.\.\]|'[^']*'|\d[\d.]*|\[|\]|\(seen from [^)]*\)|pyarrow|tokens, more", message
        )
        fixed = [part.strip(" .,:()=") for part in parts]
        missing += [f"{message}: {part!r}" for part in fixed if len(part) > 7 and part not in code]
    assert missing == []
