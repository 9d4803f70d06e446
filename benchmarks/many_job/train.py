"""The training script of `benchmarks.many_sources`: takes steps, and looks at the loaders while it does.

Memory and open data files are read from /proc, by this process, of all loaders of the job.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from recipe import folder, recipe, settings

import msdata_jax as msd
from msdata_jax.runtime.figures import smaps_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--looks", type=int, default=20, help="a pass over the data")
    options = parser.parse_args()
    processes = msd.initialize(use_jax=False)
    begin = time.perf_counter()
    with msd.DataLoader(recipe) as loader:
        next(loader)
        first_seconds = time.perf_counter() - begin
        looks = watch(loader, options.epochs, options.looks)
        seconds = time.perf_counter() - begin
    report = {"first_seconds": first_seconds, "seconds": seconds, "looks": looks}
    if processes.process_index == 0:
        options.report.write_text(json.dumps({**report, "figures": dict(loader.job_figures)}))


def watch(loader: msd.DataLoader, epochs: int, looks_per_epoch: int) -> list[dict[str, Any]]:
    """Take steps until all sources gave `epochs` times what they have; look about `looks_per_epoch` times."""
    pids = loader_pids()
    per_epoch = settings["samples_per_epoch"]
    taken = int(loader.last_step.source_samples.sum())
    looks = [look(pids, taken / per_epoch)]
    while taken < epochs * per_epoch:
        next(loader)
        taken += int(loader.last_step.source_samples.sum())
        if taken >= len(looks) * per_epoch / looks_per_epoch:
            looks.append(look(pids, taken / per_epoch))
    return looks


def look(pids: list[int], epoch: float) -> dict[str, Any]:
    """Memory in MB and open data files of each loader now."""
    return {
        "epoch": epoch,
        "pss_mb": [smaps_bytes("Pss:", pid) / (1 << 20) for pid in pids],
        "open_files": [open_data_files(pid) for pid in pids],
    }


def loader_pids() -> list[int]:
    """The loaders of this job: they have the parent of this process, mpiexec's proxy."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_loader(pid)]


def is_loader(pid: int) -> bool:
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:  # it is gone
        return False
    return parent == os.getppid() and b"loader" in words


def open_data_files(pid: int) -> int:
    """Descriptors of files in the data folder."""
    count = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            count += os.readlink(descriptor).startswith(f"{folder}/")
        except OSError:  # closed meanwhile
            continue
    return count


main()
