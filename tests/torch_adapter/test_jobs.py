"""Training processes of torch under mpiexec: the bytes that JAX processes get, and exact resumes."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from jobs_runner import JOBS, JobResult, environment, global_batch, launch_line, run_job

pytestmark = [pytest.mark.mpi, pytest.mark.multiprocess, pytest.mark.torch]

TRAIN = Path(__file__).with_name("train.py")
STEPS = 6
FIELDS = {"tokens", "targets", "segment_ids", "positions", "loss_mask", "patch_index", "patches"}


@dataclass(frozen=True, kw_only=True)
class Options:
    mesh: dict[str, int]
    variant: str = "plain"
    dtensor: bool = True
    placements: bool = False
    state: dict | None = None
    more: dict | None = None
    loaders: int = 2
    steps: int = STEPS

    @property
    def trainers(self) -> int:
        return int(np.prod(list(self.mesh.values())))


def torch_environment(data: Path, **extra: str) -> dict[str, str]:
    """With the recipe of `tests/jobs` to be found, and one thread for each process."""
    path = os.pathsep.join([str(JOBS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return environment(data, PYTHONPATH=path, OMP_NUM_THREADS="1", **extra)


def run_torch(data: Path, out: Path, options: Options) -> list[dict]:
    """The reports of the training processes; alone, without a launcher, where there are no loaders."""
    out.mkdir()
    shown = {name: getattr(options, name) for name in ("mesh", "steps", "dtensor", "placements", "state")}
    (out / "options.json").write_text(json.dumps({**shown, "out": str(out), **(options.more or {})}))
    train = [str(TRAIN), str(out / "options.json")]
    line = (
        launch_line(options.loaders, options.trainers, *train)
        if options.loaders
        else [sys.executable, *train]
    )
    env = torch_environment(data, MSDATA_TEST_VARIANT=options.variant)
    done = subprocess.run(line, env=env, timeout=150, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return [json.loads((out / f"report{rank}.json").read_text()) for rank in range(options.trainers)]


def parts(out: Path, step: int, process: int) -> dict[str, np.ndarray]:
    """What a process got of each field."""
    with np.load(out / f"step{step:03d}-process{process}.npz") as shards:
        assert all(key.endswith("/0") for key in shards)
        return {key.removesuffix("/0"): shards[key] for key in shards}


CASES = [
    # mesh of JAX, the same of torch, variant of JAX, of torch, DTensors, specs as placements
    ("dp2tp2", {"dp": 2, "tp": 2}, "plain", "plain", True, True),
    ("dp2tp2", {"dp": 2, "tp": 2}, "plain", "broadcast", False, False),
    ("dp2cp2", {"dp": 2, "cp": 2}, "cp", "cp", True, False),
]


@pytest.fixture(scope="module")
def jax_jobs(job_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, JobResult]]:
    """For each mesh of four JAX processes of one device each: what they left, and where."""
    jobs = {}
    for name, variant in {(case[0], case[2]) for case in CASES}:
        out = tmp_path_factory.mktemp(f"jax_{name}")
        wanted = run_job(job_data, out, mesh=name, steps=STEPS, variant=variant, loaders=1, trainers=4)
        jobs[name] = out, wanted
    return jobs


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[3]}-{case[4]}")
def test_every_process_gets_the_bytes_that_a_jax_process_gets(
    job_data: Path, tmp_path: Path, jax_jobs: dict, case: tuple
) -> None:
    name, mesh, _, variant, dtensor, placements = case
    jax, wanted = jax_jobs[name]
    torch = tmp_path / "torch"
    options = Options(mesh=mesh, variant=variant, dtensor=dtensor, placements=placements)
    reports = run_torch(job_data, torch, options)
    assert len(wanted.batches) == STEPS
    for step, batch in enumerate(wanted.batches):
        assert set(batch) == FIELDS
        for process in range(4):
            mine, theirs = parts(torch, step, process), parts(jax, step, process)
            assert set(mine) == FIELDS
            for field, data in theirs.items():
                assert mine[field].dtype == data.dtype
                assert np.array_equal(mine[field], data), (step, process, field)
        whole = global_batch(torch, step)
        if dtensor:
            with np.load(torch / f"whole{step:03d}.npz") as full:
                assert set(full) == FIELDS
                assert all(np.array_equal(full[field], batch[field]) for field in FIELDS)
        assert all(np.array_equal(whole[field], batch[field]) for field in FIELDS)
    assert [state["content_digest"] for state in reports[0]["states"]] == [
        content for _, content in wanted.reports[0]["digests"]
    ]
    for report in reports:
        assert report["states"] == reports[0]["states"]
    job = reports[0]["job"]
    assert len(job["loaders"]) == 2
    assert [each["heavy_modules"] for each in (job["planner"], *job["loaders"])] == [[]] * 3
    assert [each["heavy_modules"] for each in job["constructors"]] == [["torch"]] * 4


def rows_of(batch: dict[str, np.ndarray]) -> list[bytes]:
    """The rows of a batch, whatever their order on the mesh."""
    return sorted(
        b"".join(np.ascontiguousarray(batch[field][row]).tobytes() for field in sorted(batch))
        for row in range(len(batch["tokens"]))
    )


def test_goes_on_from_a_state_on_fewer_processes(job_data: Path, tmp_path: Path) -> None:
    """Four, then two from a journal, then one by counting steps."""
    four, two, one = tmp_path / "four", tmp_path / "two", tmp_path / "one"
    more = {"journal": str(tmp_path / "journal")}
    whole = run_torch(job_data, four, Options(mesh={"dp": 2, "tp": 2}, more=more, loaders=1))
    states = whole[0]["states"]
    assert [state["step"] for state in states] == list(range(1, STEPS + 1))
    assert all(report["states"] == states for report in whole)
    on_two = Options(mesh={"dp": 2}, state=states[1], steps=4, more=more, dtensor=False)
    reports = run_torch(job_data, two, on_two)
    assert [report["states"] for report in reports] == [states[2:4]] * 2
    on_one = Options(mesh={"dp": 1}, state=reports[1]["states"][-1], loaders=0)
    assert run_torch(job_data, one, on_one)[0]["states"] == states[4:]
    for step in range(2, STEPS):
        got = two if step < 4 else one
        assert rows_of(global_batch(got, step)) == rows_of(global_batch(four, step))


def test_goes_back_to_a_state_in_the_same_job(job_data: Path, tmp_path: Path) -> None:
    """Each call of `load_state_dict` behind the first step builds another DataLoader in the job."""
    options = Options(mesh={"dp": 2}, more={"again": [2, 4, 1]}, loaders=1)
    run_torch(job_data, tmp_path / "out", options)


FAULTS = [
    (
        "no mesh",
        "without a mesh a batch is for 1 processes; the job has 2 training processes: give TorchMesh(",
    ),
    ("own world", "torch.distributed calls this process 0 of 1"),
]


@pytest.mark.parametrize(("fault", "message"), FAULTS)
def test_wrong_meshes_end_the_job_with_the_way_out(
    job_data: Path, tmp_path: Path, fault: str, message: str
) -> None:
    program = Path(__file__).with_name("faulty_train.py")
    env = torch_environment(job_data, MSDATA_TEST_FAULT=fault)
    line = launch_line(1, 2, str(program))
    done = subprocess.run(line, env=env, timeout=90, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert message in done.stderr, done.stdout + done.stderr
