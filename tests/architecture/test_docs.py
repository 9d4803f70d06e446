"""What the documents name is there: links, paths, names in the code, commands; docstring examples run."""

import dataclasses
import doctest
import importlib
import inspect
import pkgutil
import re
import shlex
import types
from collections.abc import Iterator
from pathlib import Path

import click
import msdata_transport
import pytest

import msdata_jax
from msdata_jax.cli.main import cli

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "examples", "benchmarks", "tests", "scripts", "msdata_jax", "transport")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(path for name in FOLDERS for path in (ROOT / name).rglob("*.md"))])
DOCS = [path for path in DOCUMENTS if path.parent.name == "docs"]
PACKAGES = (msdata_jax, msdata_transport)
TOP_LEVEL = {each.name for package in PACKAGES for each in pkgutil.iter_modules(package.__path__)}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def without_fences(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def in_backticks(path: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", without_fences(path.read_text()))


# --- links and paths


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_relative_links_resolve(path: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", without_fences(path.read_text()))
    relative = [link.partition("#")[0] for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in relative if link and not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", DOCS, ids=name_of)
def test_paths_exist(path: Path) -> None:
    named = [text for text in in_backticks(path) if re.fullmatch(r"\.?[\w.-]+(/[\w.-]+)+/?|[\w-]+\.py", text)]
    folders = (ROOT, ROOT / "msdata_jax", ROOT / "transport" / "msdata_transport")
    assert [text for text in named if not any((folder / text).exists() for folder in folders)] == []


# --- names in the code


def resolve(dotted: str) -> object:
    """The module, class, function, field or constant of a dotted name, which may leave `msdata_jax.` out.

    Raises:
        LookupError: there is no such thing.
    """
    first = dotted.partition(".")[0]
    words = (
        dotted.split(".") if first in {p.__name__ for p in PACKAGES} else ["msdata_jax", *dotted.split(".")]
    )
    found: object = importlib.import_module(words[0])
    for place, word in enumerate(words[1:], start=2):
        found = member(found, word, ".".join(words[:place]))
    return found


def member(of: object, name: str, dotted: str) -> object:
    if isinstance(of, types.ModuleType) and hasattr(of, "__path__"):
        try:
            return importlib.import_module(dotted)
        except ModuleNotFoundError:
            pass
    if hasattr(of, name):
        return getattr(of, name)
    if dataclasses.is_dataclass(of) and name in {each.name for each in dataclasses.fields(of)}:
        return name
    raise LookupError(f"{dotted} is not there")


def missing(names: list[str]) -> Iterator[str]:
    for name in names:
        try:
            resolve(name)
        except LookupError as error:
            yield str(error)


def dotted_names(path: Path) -> list[str]:
    """Those of ours: they begin with a package, or with a module at the top of one."""
    dotted = [text for text in in_backticks(path) if re.fullmatch(r"\w+(\.\w+)+", text)]
    known = TOP_LEVEL | {package.__name__ for package in PACKAGES}
    return [
        text for text in dotted if text.partition(".")[0] in known and not text.endswith((".py", ".json"))
    ]


@pytest.mark.parametrize("path", DOCS, ids=name_of)
def test_dotted_names_exist(path: Path) -> None:
    names = dotted_names(path)
    assert names
    assert list(missing(names)) == []


def test_the_glossary_says_where_each_word_lives() -> None:
    lines = [line for line in (ROOT / "docs/glossary.md").read_text().splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    words = [row for row in rows if row[0] not in ("word", "---")]
    assert len(words) > 60
    assert [row for row in words if len(row) != 3 or not all(row)] == []
    assert list(missing([row[2].strip("`") for row in words])) == []
    assert sorted({row[0] for row in words}) == sorted(row[0] for row in words), "a word is explained twice"


def test_resolve_finds_only_what_there_is() -> None:
    assert resolve("plan.StepPlan.step") == "step"
    assert resolve("msdata_transport.credits").__name__ == "msdata_transport.credits"
    for name in ("plan.StepPlan.steps", "planning.nothing", "msdata_transport.Endpoints"):
        with pytest.raises(LookupError):
            resolve(name)


# --- commands and options


def command_lines(path: Path) -> list[list[str]]:
    """Calls of `msdata` in code blocks and backticks, up to the `--` before the training script."""
    text = path.read_text()
    fences = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    # A name in backticks may run over a line's end.
    spans = re.findall(r"`([^`]+)`", without_fences(text))
    lines = [
        line for language, block in fences if language in ("", "bash") for line in block.splitlines()
    ] + [" ".join(each.split()) for each in spans]
    calls = [shlex.split(line, comments=True) for line in lines if re.search(r"(^|\s)msdata\s", line)]
    calls = [words[words.index("msdata") + 1 :] for words in calls]
    return [words[: words.index("--")] if "--" in words else words for words in calls if words]


def test_readme_shows_every_command() -> None:
    shown = {words[0] for words in command_lines(ROOT / "README.md")}
    assert shown == set(cli.list_commands(click.Context(cli)))


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_commands_and_options_exist(path: Path) -> None:
    for name, *words in command_lines(path):
        command = cli.get_command(click.Context(cli), name.rstrip(","))
        assert command is not None, f"{path.name} names the command msdata {name}"
        known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {
            "--help"
        }
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert used <= known, f"{path.name}: msdata {name} has no {sorted(used - known)}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_scripts_exist(path: Path) -> None:
    named = set(re.findall(r"\bscripts/\w+", path.read_text()))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


# --- docstrings


def modules() -> Iterator[types.ModuleType]:
    for package in PACKAGES:
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            path = Path(found.module_finder.path) / f"{found.name.rpartition('.')[2]}.py"
            if path.exists() and ">>> " in path.read_text():
                yield importlib.import_module(found.name)


def test_examples_in_docstrings_run() -> None:
    results = {module.__name__: doctest.testmod(module) for module in modules()}
    assert "msdata_jax.planning.graph" in results
    assert {name: result for name, result in results.items() if result.failed} == {}
    assert sum(result.attempted for result in results.values()) >= 2


def test_the_table_of_messages_names_every_message() -> None:
    from msdata_jax.roles import messages

    lines = [line.strip() for line in inspect.getdoc(messages).splitlines()]
    named = [line.split()[2] for line in lines if re.match(r"(planner|loader|constructor|any) ", line)]
    assert sorted(named) == sorted(each.__name__ for each in messages.WIRE_MESSAGES)
