"""A dry run plans what a job delivers, for as long as the job does, and fails where the job fails."""

from pathlib import Path

import numpy as np
import pytest
from jobs.recipe import make_recipe

import msdata_jax as msd
from msdata_jax.dry_run import DryRun
from msdata_jax.errors import BadSampleError, SourceError
from msdata_jax.planning.place_tree import single_process_layout

LAYOUT = single_process_layout(["dp"])


def documents(lengths: list[int]) -> list[dict[str, np.ndarray]]:
    return [{"tokens": np.full(length, 7, dtype=np.int32)} for length in lengths]


def planned_digests(recipe: msd.Recipe, num_steps: int) -> list[str]:
    digests = []
    with DryRun(recipe, LAYOUT) as run:
        for planned in run.steps(num_steps):
            planned.plan.check()
            digests.append(planned.plan.digest)
    return digests


def delivered_digests(recipe: msd.Recipe, num_steps: int | None = None) -> list[str]:
    with msd.DataLoader(recipe, num_steps=num_steps) as loader:
        return [loader.last_step.digest for _ in loader]


def test_a_dry_run_plans_what_a_job_delivers(job_data: Path) -> None:
    recipe = make_recipe(job_data)
    assert planned_digests(recipe, 6) == delivered_digests(recipe, 6)


def test_a_dry_run_ends_with_the_data(job_data: Path) -> None:
    recipe = make_recipe(job_data, stop=True)
    planned = planned_digests(recipe, 1000)
    assert planned == delivered_digests(recipe)
    assert 0 < len(planned) < 1000


@pytest.mark.parametrize(
    "strategy",
    [
        msd.DGraph().pack(seq_len=32, rows=4).regroup(steps=3).balance("lpt"),
        msd.DGraph().bucket({8: 8, 32: 2}),
        msd.DGraph().pad(seq_len=32, rows=4),
        msd.DGraph().pack(seq_len=10, rows=4, oversize="split", method="balanced"),
    ],
)
def test_every_kind_of_rows(strategy: msd.DGraph) -> None:
    lengths = [1 + (13 * i) % 30 for i in range(60)]
    sources = {"a": msd.Source(documents(lengths), block_size=4), "b": msd.Source(documents(lengths[::-1]))}
    recipe = msd.Recipe(sources=sources, strategy=strategy.mix({"a": 2, "b": 1}, unit="tokens"))
    assert planned_digests(recipe, 7) == delivered_digests(recipe, 7)


def test_a_bad_sample_ends_both_at_the_same_step() -> None:
    def refuse(record: dict) -> dict:
        if record["tokens"][0] == 1:
            raise ValueError("the decoder broke")
        return record

    records = [*documents([8] * 41), {"tokens": np.ones(8, dtype=np.int32)}, *documents([8] * 20)]
    source = msd.Source(records, [refuse], shuffle=False, block_size=16)
    recipe = msd.Recipe(sources={"s": source}, strategy=msd.DGraph().mix({"s": 1}).pack(seq_len=8, rows=4))
    planned, delivered = [], []
    with pytest.raises(BadSampleError) as of_plan, DryRun(recipe, LAYOUT) as run:
        planned.extend(each.plan.digest for each in run.steps(100))
    with pytest.raises(BadSampleError) as of_job, msd.DataLoader(recipe) as loader:
        delivered.extend(loader.last_step.digest for _ in loader)
    assert str(of_plan.value) == str(of_job.value)
    assert "position 41" in str(of_plan.value)
    assert planned == delivered
    assert len(planned) == 10


def test_a_source_that_does_not_open_leaves_no_file_open(tmp_path: Path, job_data: Path) -> None:
    """Warnings are errors, among them those about files that nobody closed."""
    sources = {
        "good": msd.Source(str(job_data / "text.jsonl")),
        "missing": msd.Source(str(tmp_path / "nothing.jsonl")),
    }
    recipe = msd.Recipe(
        sources=sources, strategy=msd.DGraph().mix({"good": 1, "missing": 1}).pack(seq_len=8, rows=2)
    )
    with pytest.raises(SourceError, match=r"source 'missing': .*there is no such file"):
        DryRun(recipe, LAYOUT)
