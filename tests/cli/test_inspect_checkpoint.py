"""`msdata inspect` on checkpoints of real streams; the directories are those that orbax leaves."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint.states import play
from click.testing import CliRunner

from msdata_jax.checkpoint.files import FILE_NAME
from msdata_jax.checkpoint.journal import JournalWriter
from msdata_jax.checkpoint.writer import Writer
from msdata_jax.cli.inspect_log import command
from msdata_jax.data_state import BadRecords
from msdata_jax.errors import CheckpointError, PlanError
from msdata_jax.planning.mixing import WEIGHT_SCALE
from msdata_jax.records import BadSample

BAD = BadRecords(
    num_bad=3,
    listed=(BadSample(position=7, reason="cannot be decoded"),),
    verdicts=((64, 70, "took longer than 5 s"),),
)
STATES = [replace(state, bad=(BAD, *state.bad[1:])) for state in play(num_steps=8)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    writer = Writer()
    for step in (2, 4, 6):
        item = tmp_path / str(step) / "data"
        item.mkdir(parents=True)
        (tmp_path / str(step) / "commit_success.txt").touch()
        writer.write(item, STATES[step].to_leaves(), full_every=9)
    return tmp_path


def inspect(path: Path, *arguments: str) -> str:
    done = CliRunner().invoke(command, [str(path), *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_steps_and_the_newest_state(root: Path) -> None:
    result = json.loads(inspect(root, "--json"))
    steps = [(row["step"], row["kind"], row["base"], row["next_step"]) for row in result["steps"]]
    assert steps == [(2, "full", None, 3), (4, "delta", "2", 5), (6, "delta", "2", 7)]
    assert [row["bytes"] for row in result["steps"]] == [
        (root / str(step) / "data" / FILE_NAME).stat().st_size for step in (2, 4, 6)
    ]
    (shown,) = result["states"]
    state = STATES[6]
    for name in ("recipe", "seed", "plan_digest", "mesh", "packing"):
        assert shown[name] == getattr(state, name)
    assert shown["next_step"] == 7
    assert shown["carried"] == len(state.stream.carry) == sum(row["carried"] for row in shown["sources"]) > 0
    for index, row in enumerate(shown["sources"]):
        source = state.sources[index]
        assert row["source"] == source.name
        assert row["position"] == state.stream.last_position[index] >= 0
        assert row["epoch"] == row["position"] // source.num_records
        assert row["owed"] * WEIGHT_SCALE == state.stream.credit[index]
        assert row["fingerprint"] == source.fingerprint
        assert row["bad"] == (3 if index == 0 else 0)
    assert shown["sources"][0]["verdicts"] == [[64, 70, "took longer than 5 s"]]


def test_tables(root: Path) -> None:
    text = inspect(root)
    for words in (
        "kind",
        "delta",
        "full",
        "Step 6, data",
        "step 7 is delivered next",
        "mesh dp=8",
        "seed 17",
    ):
        assert words in text
    for words in ("s5", "owed tokens", "by time-out or crash", "cannot be decoded", STATES[6].plan_digest):
        assert words in text


@pytest.mark.parametrize("below", [".", "4", "4/data", f"4/data/{FILE_NAME}"])
def test_from_every_level(root: Path, below: str) -> None:
    result = json.loads(inspect(root / below, "--step", "4", "--json"))
    assert [state["plan_digest"] for state in result["states"]] == [STATES[4].plan_digest]


def test_what_is_wrong_is_said(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(CheckpointError, match="no state of step 3; there are 2, 4, 6"):
        inspect(root, "--step", "3")
    with pytest.raises(CheckpointError, match="is empty or not there"):
        inspect(tmp_path_factory.mktemp("empty"))
    done = CliRunner().invoke(command, [str(root), "--sample", "s1:3"])
    assert done.exit_code == 2
    assert "ask a plan log; this is a checkpoint" in done.output
    (root / "4" / "data" / FILE_NAME).write_bytes(b"noise")
    assert "unreadable" in inspect(root)
    assert "step 4: " in inspect(root)
    with pytest.raises(CheckpointError, match="can be read: 2, 6"):
        inspect(root, "--step", "4")


@pytest.mark.parametrize("step", [2, 6])
def test_a_damaged_step_is_marked_and_told_behind_the_table(root: Path, step: int) -> None:
    """The newest, or its base."""
    file = root / str(step) / "data" / FILE_NAME
    data = file.read_bytes()
    file.write_bytes(data[:-40] + bytes([data[-40] ^ 1]) + data[-39:])
    done = CliRunner().invoke(command, [str(root)])
    assert isinstance(done.exception, CheckpointError)
    assert "cut off or damaged" in str(done.exception)
    assert "cut off or damaged" not in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if " data " in line]
    assert [(row[0], row[2]) for row in rows] == [("2", "full"), ("4", "delta"), ("6", "unreadable")]
    result = json.loads(CliRunner().invoke(command, [str(root), "--json"]).stdout)
    assert result["states"] == []
    assert "cut off or damaged" in result["steps"][2]["problem"]


def test_a_step_that_is_not_finished_is_told(tmp_path: Path) -> None:
    (tmp_path / "7.orbax-checkpoint-tmp" / "data").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"7\.orbax-checkpoint-tmp: its save was never finished"):
        inspect(tmp_path)


def test_a_path_that_is_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no such file; give the path of a plan log or of checkpoints"):
        inspect(tmp_path / "nowhere")
    os.mkfifo(tmp_path / FILE_NAME)
    with pytest.raises(PlanError, match="no regular file"):
        inspect(tmp_path / FILE_NAME)
    with pytest.raises(CheckpointError, match="no regular file"):
        CliRunner().invoke(command, [str(tmp_path)], catch_exceptions=False)


def test_a_journal_counts_the_steps_taken(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)
    for state in STATES[2:6]:
        writer.append(state.to_leaves(), state.step)
    writer.close()
    taken = [state.step - 1 for state in STATES[2:6]]
    result = json.loads(inspect(tmp_path, "--step", str(taken[1]), "--json"))
    assert (result["steps"][0]["first_step"], result["steps"][0]["last_step"]) == (taken[0], taken[-1])
    assert [(each["step"], each["next_step"]) for each in result["states"]] == [(taken[1], taken[1] + 1)]
    with pytest.raises(CheckpointError, match=rf"no state of step 70; .* steps {taken[0]} to {taken[-1]}$"):
        inspect(tmp_path, "--step", "70")
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(CheckpointError, match="no frame"):
        inspect(tmp_path)


def test_it_loads_neither_orbax_nor_jax(root: Path) -> None:
    code = (
        "import sys; from msdata_jax.cli.main import cli;"
        f"cli(['inspect', {str(root)!r}, '--json'], standalone_mode=False);"
        "print([name for name in ('jax', 'orbax', 'etils') if sys.modules.get(name)], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], timeout=60, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "[]\n")
