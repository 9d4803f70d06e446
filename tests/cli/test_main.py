"""The command line as a whole, each call in a process of its own."""

import os
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
    for status in ("85", "130", "143", "129"):
        assert status in done.stdout


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("launch", ("--loaders", "--trainers", "--threads", "--dry-run", "RECIPE", "Exit status", "85")),
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
    recipe, train = tmp_path / "some_recipe.py", tmp_path / "train.py"
    recipe.write_text(
        "import msdata_jax as msd\n"
        "strategy = msd.DGraph().mix({'s': 1}).pack(seq_len=8, rows=2)\n"
        "recipe = msd.Recipe(sources={'s': msd.Source([])}, strategy=strategy)\n"
    )
    train.touch()
    done = msdata(
        *("launch", "--loaders", "3", "--trainers", "2", "--dry-run"),
        *(str(recipe), "--", str(train), "--steps", "5", "a name"),
    )
    assert done.returncode == 0, done.stderr
    assert "some_recipe.py: 1 source: s\n" in done.stderr
    line = shlex.split(done.stdout)
    groups = [list(group) for group in _split(line[line.index("-n") :], ":")]
    assert Path(line[0]).name == "mpiexec"
    assert [group[:2] for group in groups] == [["-n", "1"], ["-n", "3"], ["-n", "2"]]
    assert groups[0][-2:] == ["planner", str(recipe)]
    assert groups[1][-2:] == ["loader", str(recipe)]
    assert groups[2][-4:] == [str(train), "--steps", "5", "a name"]


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


def complete(line: str) -> list[str]:
    """What bash is offered behind `line`."""
    words = [*line.split(), *([""] if line.endswith(" ") else [])]
    env = {
        **os.environ,
        "_MSDATA_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    program = "import sys; from msdata_jax.cli.main import main; sys.argv[0] = 'msdata'; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return [offer.partition(",")[2] for offer in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("msdata la", ["launch"]),
        ("msdata launch --st", ["--start-seconds", "--step-seconds", "--status", "--status-seconds"]),
        ("msdata launch --launcher s", ["srun"]),
        ("msdata serve --role p", ["planner"]),
        ("msdata completion ", ["bash", "zsh", "fish"]),
    ],
)
def test_a_shell_completes(line: str, offers: list[str]) -> None:
    assert complete(line) == offers


def test_completion_prints_what_a_shell_reads() -> None:
    for shell in ("bash", "zsh", "fish"):
        done = msdata("completion", shell)
        assert done.returncode == 0, done.stderr
        assert f"_MSDATA_COMPLETE={shell}_complete" in done.stdout
    bash = msdata("completion", "bash").stdout
    assert subprocess.run(["bash", "-n"], input=bash, text=True, timeout=20, check=False).returncode == 0
    assert msdata("completion", "csh").returncode == 2


def test_a_reader_that_goes_away_is_no_error() -> None:
    line = [sys.executable, "-m", "msdata_jax", "completion", "bash"]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(line, stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def _split(words: list[str], separator: str):
    group: list[str] = []
    for word in words:
        if word == separator:
            yield group
            group = []
        else:
            group.append(word)
    yield group


# --- recipes that raise


def recipe_that_fails(folder: Path, text: str) -> str:
    """What `msdata plan` says of a recipe."""
    (folder / "beside.py").write_text("def load():\n    return open('/nowhere/at/all')\n")
    (folder / "recipe.py").write_text(text)
    done = msdata("plan", str(folder / "recipe.py"))
    assert done.returncode == 2
    assert done.stdout == ""
    for ours in ("click", "runpy", "msdata_jax/", "importlib"):
        assert ours not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("text", "line", "last"),
    [
        ("x = 1\nif x\n", 2, "SyntaxError: expected ':'"),
        ("x = 1\n\nundefined\n", 3, "NameError: name 'undefined' is not defined"),
        ("import no_such_module\n", 1, "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise ValueError('no folder given')\n", 1, "ValueError: no folder given"),
        ("\nimport sys\nsys.exit('no data here')\n", 3, "SystemExit: no data here"),
        ("import msdata_jax as msd\nmsd.Source([], block_size=0)\n", 2, "RecipeError: block_size"),
        ("import json\n\njson.loads('{')\n", 3, "JSONDecodeError: Expecting property name"),
        ("import jax\n", 1, "import JAX in train.py"),
    ],
)
def test_a_recipe_that_raises_is_told_in_one_block(tmp_path: Path, text: str, line: int, last: str) -> None:
    shown = recipe_that_fails(tmp_path, text)
    assert shown.startswith(f"msdata: RecipeError: the recipe file {tmp_path}/recipe.py does not load: ")
    assert f"{tmp_path}/recipe.py, line {line}\n" in shown
    assert last in shown.splitlines()[-1]


def test_a_module_beside_the_recipe_that_raises_is_named(tmp_path: Path) -> None:
    text = (
        "import beside\ntry:\n    beside.load()\nexcept OSError as error:\n    raise KeyError(1) from error\n"
    )
    shown = recipe_that_fails(tmp_path, text)
    assert f'File "{tmp_path}/beside.py", line 2, in load' in shown
    assert "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/at/all'" in shown
    assert shown.rstrip().endswith("KeyError: 1")


def test_only_the_program_keeps_jax_out(tmp_path: Path) -> None:
    """Commands called as functions leave the process as it was."""
    from click.testing import CliRunner

    from msdata_jax.cli.plan import command

    (tmp_path / "recipe.py").write_text("recipe = 3\n")
    before = sys.modules.get("jax", "not imported")
    CliRunner().invoke(command, [str(tmp_path / "recipe.py")])
    assert sys.modules.get("jax", "not imported") is before
