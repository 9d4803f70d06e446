"""A training script for Slurm jobs: writes digests of every step, and goes on where it stopped.

usage: train.py STEPS [--jax] [--devices N] [--seconds S] [--port P] [--journal]

`--jax` leaves JAX's devices to `msd.initialize()`; `--devices` are CPU devices; with neither there is no JAX.
"""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import numpy as np
from recipe import recipe

import msdata_jax as msd
from msdata_jax.data_state import DataState

parser = argparse.ArgumentParser()
parser.add_argument("steps", type=int)
parser.add_argument("--jax", action="store_true")
parser.add_argument("--devices", type=int)
parser.add_argument("--seconds", type=float, default=0.0)
parser.add_argument("--port", type=int)
parser.add_argument("--journal", action="store_true")
options = parser.parse_args()
out = Path(os.environ["MSDATA_TEST_OUT"])
saved = out / "state.json"


def digests(batch: dict) -> dict[str, str]:
    pieces = {}
    for name, array in batch.items():
        shards = getattr(array, "addressable_shards", None)
        for index, data in [(s.index, s.data) for s in shards] if shards else [("all", array)]:
            digest = hashlib.blake2b(np.ascontiguousarray(data), digest_size=8)
            pieces[f"{name} {index}"] = digest.hexdigest()
    return pieces


def main() -> None:
    with_jax = options.jax or options.devices is not None
    processes = msd.initialize(
        num_cpu_devices=options.devices, use_jax=with_jax, coordinator_port=options.port
    )
    index, mesh, gpus = processes.process_index, None, None
    if with_jax:
        import jax

        mesh = jax.make_mesh((jax.device_count(),), ("dp",))
        gpus = jax.config.read("jax_cuda_visible_devices")
    journal = out / "journal" if options.journal else None
    seen = out / f"steps-{index}.jsonl"
    num_seen = seen.read_text().count("\n") if seen.exists() else 0
    (out / f"trainer-{index}.json").write_text(
        json.dumps({"host": os.uname().nodename, "gpus": gpus, "process": os.getpid()})
    )
    with (
        seen.open("a", buffering=1) as log,
        msd.DataLoader(recipe, mesh=mesh, num_steps=options.steps, journal=journal) as loader,
    ):
        if saved.exists():
            leaves = {name: bytes.fromhex(text) for name, text in json.loads(saved.read_text()).items()}
            loader.restore(DataState.from_leaves(leaves))
        elif journal is not None and num_seen:
            loader.restore_journal(journal, step=num_seen)
        for batch in loader:
            log.write(json.dumps({"step": loader.last_step.step, "shards": digests(batch)}) + "\n")
            time.sleep(options.seconds)
        if loader.stopped and index == 0:
            leaves = {name: data.hex() for name, data in loader.state().to_leaves().items()}
            saved.write_text(json.dumps(leaves))


if __name__ == "__main__":
    main()
