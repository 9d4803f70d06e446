"""The command line as a whole, each call in a process of its own."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest


def msdata(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "msdata_jax", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


def test_help_names_the_commands() -> None:
    done = msdata("--help")
    assert done.returncode == 0
    for name in ("launch", "serve", "doctor", "bench"):
        assert f"\n  {name}" in done.stdout


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("launch", ("--loaders", "--trainers", "--threads", "--dry-run", "RECIPE")),
        ("serve", ("--role", "--roles", "--threads")),
        ("doctor", ("--loaders", "--trainers", "--deadline", "--json", "Exit status")),
        ("bench", ("--list", "--quick", "--json")),
    ],
)
def test_help_of_a_command(command: str, options: tuple[str, ...]) -> None:
    done = msdata(command, "--help")
    assert done.returncode == 0, done.stderr
    assert [option for option in options if option not in done.stdout] == []


@pytest.mark.mpi
def test_dry_run_prints_the_command_of_each_role(tmp_path: Path) -> None:
    done = msdata(
        *("launch", "--loaders", "3", "--trainers", "2", "--dry-run"),
        *("no_recipe.py", "--", "train.py", "--steps", "5", "a name"),
    )
    assert done.returncode == 0, done.stderr
    line = shlex.split(done.stdout)
    groups = [list(group) for group in _split(line[1:], ":")]
    assert Path(line[0]).name == "mpiexec"
    assert [group[:2] for group in groups] == [["-n", "1"], ["-n", "3"], ["-n", "2"]]
    assert groups[0][-2:] == ["planner", "no_recipe.py"]
    assert groups[1][-2:] == ["loader", "no_recipe.py"]
    assert groups[2][-4:] == ["train.py", "--steps", "5", "a name"]


def test_wrong_calls_exit_with_2() -> None:
    for arguments in (("nonsense",), ("doctor", "--loaders", "0"), ("bench", "nonsense"), ("launch",)):
        done = msdata(*arguments)
        assert done.returncode == 2, (arguments, done.stderr)
        assert "Error" in done.stderr


def test_a_wrong_recipe_fails_before_any_rank_starts(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.py"
    recipe.write_text("recipe = 3\n")
    done = msdata("launch", str(recipe), "--", "train.py")
    assert done.returncode == 2
    assert "recipe = msd.Recipe(...)" in done.stderr
    assert "Traceback" not in done.stderr


def _split(words: list[str], separator: str):
    group: list[str] = []
    for word in words:
        if word == separator:
            yield group
            group = []
        else:
            group.append(word)
    yield group
