"""`msdata inspect` on the record of a run: what was decided, and whether it is decided again."""

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from msdata_jax.cli.inspect_log import command
from msdata_jax.errors import PlanError
from msdata_jax.observing.record import ABOUT, DECISIONS, FORMAT, VERSION

TRACE = Path(__file__).parents[1] / "scaling" / "data" / "swing.jsonl.gz"
RECIPE = """
import msdata_jax as msd
from msdata_jax.scaling import Hysteresis, Steady

recipe = msd.Recipe(
    sources={"a": msd.Source([1])}, strategy=msd.DGraph().mix({"a": 1}).pad(seq_len=1, rows=1), scaling=POLICY
)
"""


@pytest.fixture
def record(tmp_path: Path) -> Path:
    (tmp_path / ABOUT).write_text(json.dumps({"format": FORMAT, "version": VERSION}))
    with gzip.open(TRACE, "rt") as lines:
        decided = [line for line in lines if json.loads(line)["decisions"]]
    (tmp_path / DECISIONS).write_text("".join(decided) + '{"seconds": 60, "deci')  # killed while it wrote
    return tmp_path


def inspect(*arguments: str | Path) -> str:
    done = CliRunner().invoke(command, [str(each) for each in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def recipe_with(folder: Path, policy: str) -> Path:
    path = folder / "recipe.py"
    path.write_text(RECIPE.replace("POLICY", policy))
    return path


def test_what_was_decided_when_and_why(record: Path) -> None:
    found = json.loads(inspect(record, "--json"))["decisions"]
    assert [(each["step"], each["decision"]) for each in found] == [
        *[(126, f"dear also on rank {rank}") for rank in (4, 3, 2)],
        *[(396, f"dear no longer on rank {rank}") for rank in (4, 3, 2)],
    ]
    shown = inspect(record)
    assert "6 decisions of scaling" in shown
    assert "threads busy soon" in shown


def test_a_policy_is_asked_again(record: Path) -> None:
    same = recipe_with(record, "Hysteresis(lookahead_seconds=4.0)")
    assert "decides the same again" in inspect(record, "--recipe", same)
    other = recipe_with(record, "Steady()")
    assert "decides otherwise at steps [126, 396]" in inspect(record, "--recipe", other)
    fails = "'decide': lambda self, seen, memory: 1 / 0, 'interval_seconds': 1, 'lookahead_seconds': 0"
    broken = recipe_with(record, f"type('Bad', (), {{{fails}}})()")
    with pytest.raises(PlanError, match=r"the policy of .* fails: ZeroDivisionError"):
        inspect(record, "--recipe", broken)


def test_what_cannot_be_asked_of_a_record(record: Path) -> None:
    done = CliRunner().invoke(command, [str(record), "--step", "3"])
    assert done.exit_code == 2
    assert "this is a record" in done.output
    (record / DECISIONS).write_text('{"decisions": 7}\n')
    with pytest.raises(PlanError, match="no decisions of a scaling policy"):
        inspect(record)
