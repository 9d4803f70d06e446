"""The part of `msdata doctor` that starts processes: MPI described, JAX's devices, and a real job."""

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msdata_jax.cli._doctor_recipe import NUM_STEPS, TRAINERS_VARIABLE
from msdata_jax.cli.checks import Check
from msdata_jax.cli.mpiexec import command_line
from msdata_jax.cli.subprocesses import Finished, run_with_deadline
from msdata_jax.errors import LaunchError

_HERE = Path(__file__).parent
_DESCRIBE_MPI = (
    "import dataclasses, json; from msdata_transport.mpi import describe_mpi; "
    "print(json.dumps(dataclasses.asdict(describe_mpi())))"
)
_DESCRIBE_JAX = (
    "import json, jax; devices = jax.devices(); first = devices[0]; "
    "print(json.dumps({'platform': first.platform, 'kind': first.device_kind, 'count': len(devices)}))"
)


def describe_mpi(seconds: float) -> tuple[dict[str, str] | None, str]:
    """MPI as another process finds it, since loading it starts it; or None, and why it does not load."""
    described, finished = _ask_python(_DESCRIBE_MPI, seconds)
    return described, "" if described else _reason(finished)


def check_jax(versions: Mapping[str, str], seconds: float, *, has_nvidia: bool | None = None) -> Check:
    """JAX's devices as another process finds them; data ranks never do this."""
    if "jax" not in versions:
        return Check(name="JAX devices", status="OK", detail="jax is not installed; batches are numpy arrays")
    described, finished = _ask_python(_DESCRIBE_JAX, seconds)
    if described is None:
        return Check(
            name="JAX devices",
            status="TROUBLE",
            detail=f"jax {versions['jax']} finds no devices: {_reason(finished)}",
            way_out="see what `python -c 'import jax; jax.devices()'` says; another process may hold the "
            "devices, and JAX_PLATFORMS=cpu takes the CPU",
        )
    detail = f"{described['count']} x {described['platform']} ({described['kind']})"
    has_nvidia = Path("/dev/nvidiactl").exists() if has_nvidia is None else has_nvidia
    if has_nvidia and described["platform"] == "cpu" and os.environ.get("JAX_PLATFORMS") != "cpu":
        return Check(
            name="JAX devices",
            status="WARNING",
            detail=f"{detail}, though the machine has an NVIDIA GPU",
            way_out="pip install -U 'jax[cuda13]' (or cuda12, for an older driver)",
        )
    return Check(name="JAX devices", status="OK", detail=detail)


def _ask_python(program: str, seconds: float) -> tuple[dict[str, Any] | None, Finished]:
    """Run a program whose last line of output is JSON."""
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    finished = run_with_deadline([sys.executable, "-c", program], seconds, environment)
    if finished.status == 0:
        with contextlib.suppress(ValueError, IndexError):
            return json.loads(finished.output.strip().splitlines()[-1]), finished
    return None, finished


def _reason(finished: Finished) -> str:
    lines = finished.output.strip().splitlines()
    return f"python {finished.how}: {lines[-1] if lines else 'no output'}"


@dataclass(frozen=True, kw_only=True)
class TinyJob:
    """The job that was started and what came of it.

    Attributes:
        num_loaders: source loader ranks.
        num_trainers: training processes.
        seconds: how long it took, ranks started and ended.
        report: what process 0 wrote; None when the job failed.
        problem: why there is no report.
    """

    num_loaders: int
    num_trainers: int
    seconds: float
    report: Mapping[str, Any] | None
    problem: str = ""

    @property
    def shape(self) -> str:
        """Its ranks, in words."""
        return describe_ranks(self.num_loaders, self.num_trainers)

    @property
    def data_ranks(self) -> Sequence[Mapping[str, Any]]:
        """Figures of the planner and of each loader."""
        if self.report is None:
            return []
        return [self.report["figures"]["planner"], *self.report["figures"]["loaders"]]

    def plain(self) -> dict[str, Any]:
        """Ranks by role, with memory and heavy modules; hosts in rank order."""
        if self.report is None:
            return {}
        figures = self.report["figures"]
        roles = {
            "planner": [figures["planner"]],
            "loaders": figures["loaders"],
            "trainers": figures["constructors"],
        }
        ranks = {
            role: {
                "count": len(each),
                "pss_mb": [rank["pss_mb"] for rank in each],
                "heavy_modules": sorted({module for rank in each for module in rank["heavy_modules"]}),
            }
            for role, each in roles.items()
        }
        return {**ranks, "hosts": self.report["hosts"]}


def run_tiny_job(num_loaders: int, num_trainers: int, seconds: float) -> TinyJob:
    """Start one planner, loaders and trainers under mpiexec, as `msdata launch` does, and take some steps."""
    report: Mapping[str, Any] | None = None
    problem = ""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="msdata_doctor_") as folder:
        path = Path(folder) / "report.json"
        train = (str(_HERE / "_doctor_train.py"), str(num_trainers), str(path))
        try:
            line = command_line(
                loaders=num_loaders,
                trainers=num_trainers,
                recipe=_HERE / "_doctor_recipe.py",
                train=train,
            )
            finished = run_with_deadline(line, seconds, {**os.environ, TRAINERS_VARIABLE: str(num_trainers)})
        except (LaunchError, OSError) as error:
            problem = str(error)
        else:
            # mpiexec's status alone says little: success is the report, and all of its steps.
            with contextlib.suppress(OSError, ValueError):
                report = json.loads(path.read_text())
            if finished.status != 0 or report is None or report["steps"] != NUM_STEPS:
                report, problem = None, f"mpiexec {finished.how}\n{finished.last_lines}".strip()
    return TinyJob(
        num_loaders=num_loaders,
        num_trainers=num_trainers,
        seconds=time.monotonic() - begin,
        report=report,
        problem=problem,
    )


def describe_ranks(num_loaders: int, num_trainers: int) -> str:
    """Ranks of a job, in words."""
    loaders, trainers = "s" * (num_loaders > 1), "s" * (num_trainers > 1)
    return f"1 planner, {num_loaders} loader{loaders}, {num_trainers} trainer{trainers}"


def check_job(job: TinyJob) -> Check:
    """Whether the ranks started, met and delivered."""
    if job.report is None:
        return Check(
            name="a real job",
            status="TROUBLE",
            detail=f"{job.shape}: {job.problem}",
            way_out="does `mpiexec -n 2 hostname` work? mpiexec and mpi4py must be of one MPI (see the lines "
            "above); on a slow machine give more time with --deadline",
        )
    hosts = sorted(set(job.report["hosts"]))
    detail = f"{job.shape}: {NUM_STEPS} steps on {', '.join(hosts)}; {job.seconds:.1f} s with start and end"
    return Check(name="a real job", status="OK", detail=detail)


def check_data_ranks(job: TinyJob) -> Check:
    """Whether planner and loaders stay free of heavy libraries."""
    name = "data ranks"
    if job.report is None:
        return Check(
            name=name,
            status="WARNING",
            detail="not seen: the job did not run",
            way_out="first solve the trouble of the job",
        )
    memory = ", ".join(f"{rank['pss_mb']:.0f}" for rank in job.data_ranks)
    heavy = sorted({module for rank in job.data_ranks for module in rank["heavy_modules"]})
    if heavy:
        return Check(
            name=name,
            status="TROUBLE",
            detail=f"planner or loaders have loaded {', '.join(heavy)}; PSS {memory} MB",
            way_out="something imports them before the recipe: look into sitecustomize.py, .pth files and "
            "PYTHONSTARTUP of this environment",
        )
    return Check(
        name=name,
        status="OK",
        detail=f"no jax, torch, orbax or tensorflow; PSS (planner, loaders) {memory} MB",
    )
