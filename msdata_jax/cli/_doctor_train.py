"""The training script of the job that `msdata doctor` starts: takes all steps, writes what the ranks report.

One training process needs no JAX. Several share a mesh, so each is a CPU device of JAX.
"""

import json
import sys
from pathlib import Path

import msdata_jax as msd
from msdata_jax.cli._doctor_recipe import NUM_STEPS, recipe
from msdata_jax.runtime.job import current_job


def main(num_trainers: int, report: Path) -> None:
    """Take the steps; process 0 writes `report` (JSON)."""
    use_jax = num_trainers > 1
    processes = msd.initialize(use_jax=use_jax, num_cpu_devices=1 if use_jax else None)
    with msd.DataLoader(recipe, mesh=_mesh() if use_jax else None, num_steps=NUM_STEPS) as loader:
        num_steps = sum(1 for _ in loader)
    job = current_job()
    if processes.process_index == 0:
        hosts = [] if job is None else list(job.mpi.hosts)
        report.write_text(
            json.dumps({"steps": num_steps, "hosts": hosts, "figures": dict(loader.job_figures)})
        )


def _mesh():
    import jax
    from jax.sharding import Mesh

    return Mesh(jax.devices(), ("dp",))


main(int(sys.argv[1]), Path(sys.argv[2]))
