"""`msdata profile`, `msdata plan --resources`, and what `msdata launch` makes of a profile."""

import json
import subprocess
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from jobs.recipe import make_recipe
from jobs_runner import JOBS, environment, global_batch, launch_line, run_job

from msdata_jax.cli import launch, plan, profile_sources, serve
from msdata_jax.cli.json_files import MOST_BYTES, read_json, write_json
from msdata_jax.cli.recipes import load_recipe
from msdata_jax.cli.resources import choose, read_partition, read_profile
from msdata_jax.errors import RecipeError
from msdata_jax.profiling import Effort, profile_recipe
from msdata_jax.roles.placement import Placement
from msdata_jax.runtime.scaling import ScaleOptions
from msdata_jax.scaling.needs import SourceNeed
from msdata_jax.scaling.partition import Budget, Partition, partition
from msdata_jax.scaling.profile import SourceProfile
from msdata_jax.serve import _fitting

RECIPE = """
import numpy as np
import msdata_jax as msd

def slow(record):
    total = 0
    for number in range(20_000):
        total += number
    return dict(record)

data = [{"tokens": np.arange(10)}] * 200
sources = {"fast": msd.Source(data), "slow": msd.Source(data, [slow])}
mixture = [(0, {"fast": 1, "slow": 1}), (100, {"fast": 3, "slow": 1})]
strategy = msd.DGraph().mix(mixture).pack(seq_len=10, rows=40)
recipe = msd.Recipe(sources=sources, strategy=strategy)
"""
MISSING = RECIPE.replace('"slow": msd.Source(data, [slow])', '"slow": msd.Source("nowhere.jsonl")')


def run(command: click.Command, *arguments: str, status: int = 0) -> tuple[str, str]:
    """stdout and stderr."""
    done = CliRunner().invoke(command, arguments, standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    assert done.return_value == status, done.output
    return done.stdout, done.stderr


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "recipe.py").write_text(RECIPE)
    (tmp_path / "train.py").write_text("raise SystemExit('nobody runs it')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def profiled(folder: Path) -> Path:
    """The same with a profile: a sample of `slow` takes 10 ms of a CPU, and 100 times one of `fast`."""
    recipe = load_recipe(folder / "recipe.py")
    sources = [
        SourceProfile(
            name=name,
            data=recipe.data_of(name),
            content=recipe.content_of(name),
            records=1,
            samples=1,
            wall_seconds=seconds,
            cpu_seconds=seconds,
            lock_share=0.0,
            means={"tokens": 10.0},
        )
        for name, seconds in (("fast", 1e-4), ("slow", 1e-2))
    ]
    value = {"version": 1, "recipe": recipe.fingerprint(), "num_cpus": 4, "process_bytes": 50_000_000}
    write_json(folder / "recipe.profile.json", {**value, "sources": [vars_of(each) for each in sources]})
    return folder


def vars_of(source: SourceProfile) -> dict[str, Any]:
    return {**vars(source), "lengths": vars(source.lengths)}


# --- msdata profile


def test_a_profile_is_shown_and_lies_beside_the_recipe(folder: Path) -> None:
    shown, said = run(profile_sources.command, "recipe.py", "--seconds", "0.3")
    assert "recipe.py: 2 sources, measured on" in shown
    assert [line.split()[0] for line in shown.splitlines() if line.startswith(("fast", "slow"))] == [
        "fast", "slow", "fast", "slow", "fast", "slow",
    ]  # fmt: skip
    assert "msdata: wrote recipe.profile.json" in said
    measured = read_profile(folder / "recipe.profile.json")
    fast, slow = measured.sources
    assert slow.cpu_seconds > 10 * fast.cpu_seconds
    assert measured.differences(load_recipe(folder / "recipe.py")) == {}
    assert sorted(path.name for path in folder.iterdir()) == ["recipe.profile.json", "recipe.py", "train.py"]


def test_a_source_that_fails_is_told_and_the_status_says_so(folder: Path) -> None:
    (folder / "recipe.py").write_text(MISSING)
    shown, _ = run(
        *(profile_sources.command, "recipe.py", "--seconds", "0.1", "--json", "-o", "other.json"), status=1
    )
    fast, slow = json.loads(shown)["sources"]
    assert fast["samples"] > 0
    assert "nowhere.jsonl" in slow["error"]
    assert read_profile(folder / "other.json").of("slow") is None
    shown, _ = run(profile_sources.command, "recipe.py", "--seconds", "0.1", status=1)
    assert "source 'slow' was not measured: " in shown


def test_a_file_that_cannot_be_written_is_told_before_any_work(folder: Path) -> None:
    with pytest.raises(RecipeError, match=r"-o nowhere/x\.json cannot be written"):
        run(profile_sources.command, "recipe.py", "-o", "nowhere/x.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "cannot be used: "),
        (b"[" * 100_000, "nested too deep"),
        (b"[]", "the profile is a table"),
        (b'{"version": 3}', "version 1 is needed, got '3'"),
        (b"\xff", "cannot be used"),
        (b" " * (MOST_BYTES + 1), "over 32 MiB"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "p.json").write_bytes(content)
    with pytest.raises(RecipeError, match=message) as refused:
        read_profile(tmp_path / "p.json")
    assert str(tmp_path / "p.json") in str(refused.value)
    with pytest.raises(RecipeError, match="cannot be read"):
        read_json(tmp_path / "nowhere.json", "profile", lambda value: value)


# --- msdata plan --resources


@pytest.mark.usefixtures("profiled")
def test_resources_are_those_of_mixture_rate_and_budget() -> None:
    """A step has 40 samples, 20 and then 10 of them slow: 0.2 seconds a step at most."""
    options = ("--resources", "--step-seconds", "0.1", "--cpus", "8", "--headroom", "1")
    shown, _ = run(plan.command, "recipe.py", *options, "--run-steps", "200", "--json")
    made = json.loads(shown)
    assert made["worst_needs"][1] == pytest.approx(2.0)
    assert made["needs"][1] == pytest.approx(1.5, rel=0.05)
    assert made["worst_needs"][0] == pytest.approx(0.03)
    assert made["tiers"] == ["shared", "threads"]
    assert made["threads"] == [3]
    assert made["seconds_per_sample"] == [1e-4, 1e-2]
    assert made["limits"] == made["warnings"] == []
    shown, _ = run(plan.command, "recipe.py", *options)
    assert shown.startswith("1 loader, 3 threads, for 10 steps/s\n")
    assert "Nothing: the rate wanted is reached." in shown
    shown, _ = run(plan.command, "recipe.py", *options, "--cpus", "1")
    assert "the CPU budget is 1: at most 4.95 steps/s; source 'slow' takes 99 % of them" in " ".join(
        shown.split()
    )


def test_a_schedule_is_looked_at_as_far_as_it_has_weights(profiled: Path) -> None:
    """A table of 200 steps, and a run of 1000: nobody said how many there are."""
    short = RECIPE.replace(
        "msd.DGraph().mix(mixture)",
        'msd.DGraph().mix([{"fast": 1, "slow": 1 + i} for i in range(200)].__getitem__)',
    )
    (profiled / "recipe.py").write_text(short)
    shown, _ = run(plan.command, "recipe.py", "--resources", "--step-seconds", "1", "--json")
    least, most = 20 * 1e-2, 40 * 1e-2
    assert least < json.loads(shown)["worst_needs"][1] < most


def test_resources_are_written_for_a_job(profiled: Path) -> None:
    _, said = run(plan.command, "recipe.py", "--resources", "--loaders", "3", "--write", "made.json")
    assert "msdata: wrote made.json" in said
    assert read_partition(profiled / "made.json").loaders == 3


def test_what_changed_since_the_profile_is_told(profiled: Path) -> None:
    (profiled / "recipe.py").write_text(MISSING)
    shown, said = run(plan.command, "recipe.py", "--resources")
    assert "msdata: source 'slow' is not the one that was profiled: its data were 'list'" in said
    assert "not measured, taken for the mean of the others: slow" in shown
    shown, _ = run(plan.command, "recipe.py", "--resources", "--json")
    assert json.loads(shown)["seconds_per_sample"] == [1e-4, None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--cpus", "3"), "--cpus: say --resources"),
        (("--resources", "--mesh", "dp=2"), "--mesh: leave --resources out"),
    ],
)
@pytest.mark.usefixtures("profiled")
def test_options_that_do_not_go_together(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(click.UsageError, match=message):
        run(plan.command, "recipe.py", *options)


@pytest.mark.usefixtures("folder")
def test_without_a_profile_it_says_how_to_make_one() -> None:
    with pytest.raises(
        RecipeError, match=r"no profile recipe\.profile\.json: run `msdata profile recipe\.py`"
    ):
        run(plan.command, "recipe.py", "--resources")


# --- msdata launch


@pytest.fixture
def four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "num_cpus", lambda: 4)


def dry_run(*options: str) -> tuple[str, str]:
    return run(launch.command, "--dry-run", *options, "recipe.py", "--", "train.py")


def count(shown: str, role: str) -> int:
    """Ranks of a role in the command that a dry run prints."""
    words = shown.split()
    place = words.index(role)
    return int([words[i + 1] for i in range(place) if words[i] == "-n"][-1])


@pytest.mark.usefixtures("profiled", "four_cpus")
def test_a_job_takes_what_the_profile_suggests() -> None:
    shown, said = dry_run("--step-seconds", "0.2", "--max-threads", "1")
    assert "msdata: by recipe.profile.json: 2 loaders, 1 thread each, for 5 steps/s" in said
    assert "slow" in said
    assert "several loaders" in said
    assert count(shown, "loader") == 2
    assert shown.count("--partition run") == 2


@pytest.mark.usefixtures("profiled", "four_cpus")
def test_what_is_set_by_hand_wins() -> None:
    shown, said = dry_run("--loaders", "3", "--threads", "2", "--shadows", "1")
    assert "3 loaders and 1 spare, 2 threads each" in said
    assert (count(shown, "loader"), count(shown, "shadow")) == (3, 1)
    shown, said = dry_run("--partition", "off")
    assert "by recipe.profile.json" not in said
    assert count(shown, "loader") == 2
    assert "--partition" not in shown


def test_a_partition_of_a_file(profiled: Path) -> None:
    run(plan.command, "recipe.py", "--resources", "--loaders", "3", "--write", "made.json")
    shown, said = dry_run("--partition", "made.json")
    assert "msdata: by made.json: 3 loaders" in said
    assert count(shown, "loader") == 3
    shown, said = dry_run("--partition", "made.json", "--loaders", "2")
    assert "the partition made.json is ignored: it is for 3 loaders, and the job has 2" in said
    assert "--partition" not in shown
    with pytest.raises(RecipeError, match=r"nowhere\.json cannot be read"):
        dry_run("--partition", "nowhere.json")


def test_a_damaged_profile_stops_no_job(profiled: Path) -> None:
    (profiled / "recipe.profile.json").write_text("{")
    shown, said = dry_run()
    assert "the profile recipe.profile.json cannot be used" in said
    assert "loaders and threads are the usual ones" in said
    assert count(shown, "loader") == 2


@pytest.mark.usefixtures("profiled")
def test_in_a_slurm_job_the_tasks_are_the_loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("JOB_ID", "7"), ("NNODES", "1"), ("NTASKS_PER_NODE", "5"), ("CPUS_PER_TASK", "4")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setattr(launch, "list_plugins", lambda: "pmi2")
    shown, said = dry_run("--mpi", "pmi2", "--step-seconds", "0.1")
    assert "trainers=1,loaders=3,planner=1" in shown
    assert "by recipe.profile.json: 3 loaders" in said
    assert "--partition run" in shown


@pytest.mark.usefixtures("profiled")
def test_under_mpiexec_on_several_hosts_a_partition_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("JOB_ID", "7"), ("NNODES", "2"), ("NTASKS_PER_NODE", "3")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    run(plan.command, "recipe.py", "--resources", "--loaders", "3", "--write", "made.json")
    shown, said = dry_run("--launcher", "mpiexec", "--partition", "made.json")
    assert "the partition made.json is ignored: use --launcher srun" in said
    assert "--partition" not in shown


# --- a job


def make(sources: tuple[str, ...], loaders: int) -> Partition:
    needs = [SourceNeed(name=name, threads=(1.0,), cpus=(1.0,), sends=(0.0,)) for name in sources]
    return partition(needs, Budget(loaders=loaders))


def test_a_partition_for_another_job_is_left_out(capsys: pytest.CaptureFixture) -> None:
    class Recipe:
        source_names = ("a", "b")

    placement = Placement(planner=0, loaders=(1, 2), constructors=(3,))
    good = ScaleOptions(partition=make(("a", "b"), 2))
    assert _fitting(good, Recipe(), placement) is good  # type: ignore[arg-type]
    for wrong in (make(("a", "b"), 3), make(("a", "c"), 2)):
        assert _fitting(ScaleOptions(partition=wrong), Recipe(), placement).partition is None  # type: ignore[arg-type]
        assert "msdata: the partition is ignored: it is for" in capsys.readouterr().err


def test_a_rank_without_a_usable_partition_goes_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    made = make(("a",), 1)
    write_json(tmp_path / "partition.json", made.to_json())
    monkeypatch.setenv("MSDATA_RUN_FOLDER", str(tmp_path))
    monkeypatch.delenv("MSDATA_RUN_FOLDER_SHARED", raising=False)
    assert serve._find_partition("run") == made
    assert serve._find_partition(str(tmp_path / "nowhere.json")) is None
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.mpi
@pytest.mark.multiprocess
def test_a_job_by_a_partition_delivers_the_same_bytes(job_data: Path, tmp_path: Path) -> None:
    env = environment(job_data, MSDATA_TEST_VARIANT="plain", MSDATA_TEST_TRAINERS="1")
    recipe = make_recipe(job_data)
    made = choose(
        recipe, profile_recipe(recipe, Effort(seconds=0.1)), Budget(cpus=8, loaders=2, max_threads=3)
    ).partition
    write_json(tmp_path / "made.json", made.to_json())
    (tmp_path / "alone").mkdir()
    (tmp_path / "job").mkdir()
    alone = run_job(
        *(job_data, tmp_path / "alone"), mesh="dp4", steps=4, variant="plain", loaders=0, trainers=1
    )
    train = [str(JOBS / "train.py"), "dp4", "4", str(tmp_path / "job")]
    options = ("--partition", str(tmp_path / "made.json"))
    done = subprocess.run(
        launch_line(2, 1, *train, options=options),
        env=env, timeout=150, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "msdata: by made.json" in done.stderr
    assert "is ignored" not in done.stderr
    for step, expected in enumerate(alone.batches):
        batch = global_batch(tmp_path / "job", step)
        assert batch.keys() == expected.keys()
        for name in expected:
            assert np.array_equal(batch[name], expected[name])
