"""`msdata inspect` on the log of a dry run; logs of real jobs are in tests/mpi."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from jobs.recipe import make_recipe
from jobs_runner import JOBS

from msdata_jax.cli.inspect_log import command
from msdata_jax.cli.plan import parse_mesh
from msdata_jax.dry_run import DryRun
from msdata_jax.errors import MSDataError, PlanError, RecipeError
from msdata_jax.lineage import PlanLog, PlanLogWriter
from msdata_jax.sources.reader import SourceReader

RECIPE = str(JOBS / "recipe.py")


@pytest.fixture(scope="module")
def path(job_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six steps, of which the first four are delivered."""
    path, recipe, layout = (
        tmp_path_factory.mktemp("inspect") / "log",
        make_recipe(job_data),
        parse_mesh("dp=2"),
    )
    writer = PlanLogWriter(path, recipe)
    with DryRun(recipe, layout) as run:
        writer.start(layout, run.num_records, (3, 4))
        for planned in run.steps(6):
            owner = 3 + np.arange(len(planned.plan.samples), dtype=np.int32) % 2
            writer.step(planned.plan, owner, planned.in_flight)
            if planned.plan.step >= 2:
                writer.delivered(planned.plan.step - 2)
    writer.close()
    return path


@pytest.fixture
def inspect(path: Path, job_data: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs the command on the log, and gives what it prints."""
    monkeypatch.setenv("MSDATA_TEST_DATA", str(job_data))

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(command, [str(path), *arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    return run


def test_a_summary(inspect: Callable[..., str], path: Path) -> None:
    result = json.loads(inspect("--json"))
    log = PlanLog(path)
    assert result["mesh"] == "dp=2"
    assert result["delivered"] == 3
    assert [step["digest"] for step in result["steps"]] == [logged.plan.digest for logged in log]
    assert [step["fill"] for step in result["steps"]] == [logged.plan.fill for logged in log]
    assert [source["name"] for source in result["sources"]] == ["lines", "blocks", "files", "images"]
    text = inspect()
    for words in ("steps 0 to 5", "mesh dp=2", "loader ranks [3, 4]", "delivered up to step 3", "Tokenize("):
        assert words in text
    assert log.read(5).plan.digest in text


def test_a_step(inspect: Callable[..., str], path: Path) -> None:
    result = json.loads(inspect("--step", "5", "--json"))
    log = PlanLog(path)
    logged = log.read(5)
    assert result["figures"]["digest"] == logged.plan.digest
    assert result["group_costs"] == logged.plan.group_costs().tolist()
    assert result["state"] == "planned"
    count = len(logged.plan.samples)
    assert result["segments_of_loader"] == {"3": count - count // 2, "4": count // 2}
    under_way = [log.read(step).plan.samples["source"] for step in (3, 4, 5)]  # when it was planned
    for index, row in enumerate(result["in_flight"]):
        assert row["planned"] == sum(int((source == index).sum()) for source in under_way)
        assert row["buffered"] == logged.in_flight.buffered[index]
        assert row["carried"] == (logged.in_flight.carried["source"] == index).sum()
        assert row["leased_positions"] == 0
    text = inspect("--step", "5")
    for words in ("Step 5", "planned", logged.plan.content_digest, "by rank 3", "Samples in flight"):
        assert words in text


def test_a_row_with_the_records_behind_it(inspect: Callable[..., str], path: Path, job_data: Path) -> None:
    """Costs of the segments sum to the row's; each record is the one that the reader shows there."""
    recipe = make_recipe(job_data)
    plan = PlanLog(path).read(2).plan
    for row in range(plan.num_rows):
        result = json.loads(inspect("--step", "2", "--row", str(row), "--recipe", RECIPE, "--json"))
        content = plan.order[row]
        assert (result["row"], result["content_row"]) == (row, content)
        assert (result["group"], result["microbatch"]) == (row // 4, row % 4 // 2)
        assert result["state"] == "delivered"
        cost = plan.row_cost[content] + plan.row_encoder_cost[content]
        assert sum(segment["cost"] for segment in result["segments"]) == cost
        assert result["share_of_group"] == pytest.approx(cost / plan.group_costs()[row // 4])
        assert set(result["transforms"]) == {segment["source"] for segment in result["segments"]}
        for segment in result["segments"]:
            index = recipe.source_names.index(segment["source"])
            source = recipe.sources[segment["source"]]
            reader = SourceReader(segment["source"], index, source, seed=recipe.seed)
            epoch, record, where = reader.locate(segment["position"])
            reader.close()
            assert (segment["epoch"], segment["record"], segment["where"]) == (epoch, record, where)
            assert segment["loader"] in (3, 4)
    text = inspect("--step", "2", "--row", "0", "--recipe", RECIPE)
    for words in ("Step 2, row 0", "content row", "microbatch 0", "of its rank", "where", "record"):
        assert words in text


def test_a_sample(inspect: Callable[..., str], path: Path) -> None:
    plan = PlanLog(path).read(1).plan
    position = int(plan.samples["position"][plan.samples["source"] == 0][0])
    result = json.loads(inspect("--sample", f"lines:{position}", "--json"))
    assert 1 in [place["step"] for place in result["places"]]
    assert "delivered" in result["states"]
    text = inspect("--sample", f"lines:{position}", "--recipe", RECIPE)
    assert "delivered to every trainer" in text
    assert "of text.jsonl; it yields samples of [" in text
    assert "not read yet" in inspect("--sample", "lines:100000")


def test_a_bad_sample_says_why(inspect: Callable[..., str], path: Path, job_data: Path) -> None:
    recipe = make_recipe(job_data)
    reader = SourceReader("images", 3, recipe.sources["images"], seed=recipe.seed)
    bad = next(p for p in range(40) if reader.read_block(p, p + 1).bad)
    reader.close()
    text = inspect("--sample", f"images:{bad}", "--recipe", RECIPE)
    assert "it yields no sample (DecodeImage: " in text


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("--step", "6"), PlanError, "has no step 6; it has steps 0 to 5"),
        (("--step", "0", "--row", "8"), PlanError, "step 0 has the rows 0 to 7, got 8"),
        (("--sample", "web:1"), PlanError, "no source 'web'; it has lines"),
    ],
)
def test_what_is_not_there(
    inspect: Callable[..., str], arguments: tuple[str, ...], error: type[MSDataError], message: str
) -> None:
    with pytest.raises(error, match=message):
        inspect(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--row", "1"), "say --step too"),
        (("--sample", "lines"), "SOURCE:POSITION"),
        (("--sample", ":3"), "SOURCE:POSITION"),
        (("--sample", "lines:1", "--step", "1"), "not both"),
    ],
)
def test_wrong_calls(path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(command, [str(path), *arguments])
    assert done.exit_code == 2
    assert message in done.output


def test_another_recipe_than_that_of_the_log(
    path: Path, job_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MSDATA_TEST_DATA", str(job_data))
    monkeypatch.setenv("MSDATA_TEST_VARIANT", "stop")
    with pytest.raises(RecipeError, match=r"recipe\.py is not the recipe of this log"):
        CliRunner().invoke(
            command, [str(path), "--sample", "lines:1", "--recipe", RECIPE], catch_exceptions=False
        )


def test_a_log_that_is_cut_off_is_read_with_a_warning(path: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    cut.write_bytes(path.read_bytes()[:-60])
    line = [sys.executable, "-W", "error", "-m", "msdata_jax", "inspect", str(cut)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "the last record, behind step 4, is cut off" in done.stderr
    assert "steps 0 to 4" in done.stdout
    done = subprocess.run(
        [*line[:-1], str(JOBS / "recipe.py")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "is no plan log" in done.stderr
