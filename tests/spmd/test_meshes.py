"""Every mesh, number of processes and number of loaders delivers what the plain loop delivers."""

from pathlib import Path

import numpy as np
import pytest
from jobs.recipe import MESHES, VARIANTS, make_recipe
from jobs_runner import JobResult, global_batch, run_job
from oracle import oracle_steps

STEPS = 8

CASES = [
    # mesh, variant, loader ranks (0: everything in one process), training processes, explicit axes
    ("dp4", "plain", 0, 1, False),
    ("dp2cp2", "cp", 0, 1, True),
    ("dp2cp2tp2", "cp", 0, 1, False),
    ("dp4", "plain", 1, 1, False),
    ("dp2cp2", "cp", 2, 1, False),
    ("dp2cp2tp2", "cp", 3, 1, True),
    ("dp4", "plain", 3, 2, True),
    ("dp2cp2", "cp", 1, 2, False),
    ("dp2cp2tp2", "cp", 2, 2, False),
    ("tp2dp2", "broadcast", 2, 2, False),
    ("tp2dp2", "device", 2, 2, True),
    ("dp2cp2", "document", 1, 2, False),
    ("dp4", "buckets", 2, 2, False),
    ("dp2cp2tp2", "spread", 2, 2, False),
]


def rows_of(batch: dict[str, np.ndarray], context_parts: int) -> set[bytes]:
    """The rows of a batch as a set, whatever their order on the mesh; places back in natural order."""
    length = batch["tokens"].shape[1]
    order = np.arange(length)
    if context_parts > 1:
        chunks = order.reshape(2 * context_parts, -1)
        order = np.concatenate(
            [chunks[[i, 2 * context_parts - 1 - i]].reshape(-1) for i in range(context_parts)]
        )
    back = np.argsort(order)
    fields = [batch[name] if name == "patches" else batch[name][:, back] for name in sorted(batch)]
    return {
        b"".join(np.ascontiguousarray(field[row]).tobytes() for field in fields)
        for row in range(len(fields[0]))
    }


@pytest.fixture(scope="session")
def results() -> dict[tuple, JobResult]:
    return {}


@pytest.mark.mpi
@pytest.mark.multiprocess
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_delivers_what_the_plain_loop_delivers(
    case: tuple, job_data: Path, tmp_path: Path, results: dict[tuple, JobResult]
) -> None:
    mesh, variant, loaders, trainers, explicit = case
    result = run_job(
        job_data,
        tmp_path,
        mesh=mesh,
        steps=STEPS,
        variant=variant,
        loaders=loaders,
        trainers=trainers,
        explicit=explicit,
    )
    results[case] = result
    sizes = MESHES[mesh]
    recipe = make_recipe(job_data, **VARIANTS[variant])
    slots = int(np.prod(list(sizes.values()))) if variant == "spread" else 0
    expected = oracle_steps(recipe, sizes["dp"], sizes.get("cp", 1), STEPS, slots)
    assert len(result.batches) == STEPS
    for step, (batch, wanted) in enumerate(zip(result.batches, expected, strict=True)):
        assert set(batch) == set(wanted)
        for name, field in wanted.items():
            assert batch[name].dtype == field.dtype
            assert np.array_equal(batch[name], field), f"step {step}, {name}"
    sums = [int(b["tokens"].sum() + b["loss_mask"].sum()) for b in expected]
    assert all(report["sums"] == sums for report in result.reports)  # each process saw the whole arrays


@pytest.mark.mpi
@pytest.mark.multiprocess
def test_the_rows_of_a_step_are_the_same_on_every_mesh(results: dict[tuple, JobResult]) -> None:
    assert len(results) >= 2, "run the whole file: this test compares what the others delivered"
    for step in range(STEPS):
        rows = {
            case: rows_of(result.batches[step], MESHES[case[0]].get("cp", 1) if case[1] == "cp" else 1)
            for case, result in results.items()
            if case[1] not in ("document", "buckets", "spread")  # other orders, rows, places of patches
        }
        assert len(set(map(frozenset, rows.values()))) == 1, f"step {step}"
    contents = {
        tuple(content for _, content in result.reports[0]["digests"])
        for case, result in results.items()
        if case[1] != "buckets"
    }
    assert len(contents) == 1


@pytest.mark.mpi
@pytest.mark.multiprocess
def test_middle_stages_get_shapes_only(job_data: Path, tmp_path: Path) -> None:
    result = run_job(
        job_data, tmp_path, mesh="pp3dp2", steps=2, variant="stages", loaders=1, trainers=3, process="0"
    )
    for step, first in enumerate(result.batches):
        last, middle = global_batch(tmp_path, step, "2"), global_batch(tmp_path, step, "1")
        for name, field in first.items():
            assert field.any()
            assert np.array_equal(last[name], field)
            assert middle[name].shape == field.shape
            assert not (middle[name].any() if name != "patch_index" else (middle[name] != -1).any())


@pytest.mark.mpi
@pytest.mark.multiprocess
def test_data_ranks_stay_free_of_jax(results: dict[tuple, JobResult]) -> None:
    launched = [result for case, result in results.items() if case[2] > 0]
    assert launched, "run the whole file: this test looks at the jobs that the others started"
    for result in launched:
        job = result.reports[0]["job"]
        for figures in (job["planner"], *job["loaders"]):
            assert figures["heavy_modules"] == []
            assert 5 < figures["pss_mb"] < 120
        assert all("jax" in figures["heavy_modules"] for figures in job["constructors"])


@pytest.mark.mpi
@pytest.mark.multiprocess
def test_bad_samples_are_counted_and_listed(results: dict[tuple, JobResult]) -> None:
    for result in results.values():
        sources = result.reports[0]["job"]["sources"]
        assert [sources[name]["bad_samples"] for name in ("lines", "blocks", "files")] == [0, 0, 0]
        assert sources["images"]["bad_samples"] >= 1
        _epoch, position, reason = sources["images"]["bad"][0]
        assert position >= 0
        assert "record 39 of images.tar" in reason
