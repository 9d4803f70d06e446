"""A training script for tests: saves every shard of every step, so that a test can put the batches together.

usage: train.py MESH STEPS OUT [explicit]
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
from recipe import MESHES, recipe

import msdata_jax as msd


def main() -> None:
    mesh_name, steps, out = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    sizes = MESHES[mesh_name]
    num_devices = int(np.prod(list(sizes.values())))
    processes = msd.initialize(
        num_cpu_devices=num_devices // int(os.environ.get("MSDATA_TEST_TRAINERS", "1"))
    )
    import jax
    from jax.sharding import AxisType

    kind = AxisType.Explicit if "explicit" in sys.argv else AxisType.Auto
    mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(kind,) * len(sizes))
    total = jax.jit(lambda batch: batch["tokens"].sum() + batch["loss_mask"].sum().astype("int32"))
    digests, sums = [], []
    with msd.DataLoader(recipe, mesh=mesh, num_steps=steps or None) as loader:
        for step, batch in enumerate(loader):
            sums.append(int(total(batch)))  # every process takes part, as training would
            digests.append([loader.last_step.digest, loader.last_step.content_digest])
            shards = {
                f"{name}/{i}": np.asarray(shard.data)
                for name, array in batch.items()
                for i, shard in enumerate(array.addressable_shards)
            }
            windows = {
                f"{name}/{i}": [list(s.indices(n)[:2]) for s, n in zip(shard.index, array.shape, strict=True)]
                for name, array in batch.items()
                for i, shard in enumerate(array.addressable_shards)
            }
            shapes = {name: array.shape for name, array in batch.items()}
            place = out / f"step{step:03d}-process{processes.process_index}"
            np.savez(place.with_suffix(".npz"), **shards)
            place.with_suffix(".json").write_text(json.dumps({"windows": windows, "shapes": shapes}))
    report = {
        "digests": digests,
        "sums": sums,
        "job": dict(loader.job_figures),
        "steps": loader.figures.summary(),
    }
    (out / f"report{processes.process_index}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
