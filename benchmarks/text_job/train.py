"""The training script of the jobs that benchmarks start: takes steps as fast as they come, and reports.

Several training processes share a JAX mesh of one CPU device each; one process uses no JAX. The report of
process 0 counts from the end of the warm-up: seconds, samples, tokens, and the CPU seconds of all ranks.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from recipe import recipe

import msdata_jax as msd
from msdata_jax.runtime.job import is_launched

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("--steps", type=int, required=True, help="after the warm-up")
    parser.add_argument("--warm-up", type=int, default=0, help="steps that are not counted")
    parser.add_argument("--trainers", type=int, default=1)
    parser.add_argument("--loaders", type=int, default=2, help="on threads, when there is no job")
    options = parser.parse_args()
    use_jax = options.trainers > 1
    processes = msd.initialize(use_jax=use_jax, num_cpu_devices=1 if use_jax else None)
    mesh = make_mesh() if use_jax else None
    with msd.DataLoader(recipe, mesh=mesh, num_loaders=options.loaders) as loader:
        for _ in range(options.warm_up):
            next(loader)
        report = measure(loader, options.steps)
    report["figures"] = dict(loader.job_figures)
    if processes.process_index == 0:
        options.report.write_text(json.dumps(report))


def make_mesh() -> Any:
    import jax
    from jax.sharding import Mesh

    return Mesh(jax.devices(), ("dp",))


def measure(loader: msd.DataLoader, num_steps: int) -> dict[str, Any]:
    """Take steps out of endless data: the loaders read as far ahead at the end as at the beginning."""
    samples = [0] * len(recipe.source_names)
    num_tokens = 0
    cpu_begin, begin = cpu_seconds(), time.perf_counter()
    for _ in range(num_steps):
        next(loader)
        step = loader.last_step
        num_tokens += int(step.source_tokens.sum())
        samples = [a + b for a, b in zip(samples, step.source_samples.tolist(), strict=True)]
    return {
        "steps": num_steps,
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": cpu_seconds() - cpu_begin,
        "samples": dict(zip(recipe.source_names, samples, strict=True)),
        "tokens": num_tokens,
    }


def cpu_seconds() -> float:
    """CPU time so far of all ranks of this host: the processes with this one's parent, mpiexec's proxy."""
    mine = Path("/proc/self/stat")
    if not is_launched():
        return stat_of(mine)[1]
    parent = stat_of(mine)[0]
    stats = [stat_of(path) for path in Path("/proc").glob("[0-9]*/stat")]
    return sum(seconds for its_parent, seconds in stats if its_parent == parent)


def stat_of(path: Path) -> tuple[int, float]:
    """Parent process and CPU seconds of a process; zeros where it is gone."""
    try:
        fields = path.read_text().rpartition(")")[2].split()
    except OSError:
        return 0, 0.0
    return int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


main()
