"""A training script for tests: saves model and data behind every step, and goes on from one of them.

usage: train_and_save.py STEPS OUT CHECKPOINTS v0|v1 [BEHIND_STEP]

OUT gets a line a step and process: the plan's digests, and a digest of the bytes of every local shard.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import numpy as np
from recipe import MESHES, recipe

import msdata_jax as msd
from msdata_jax.checkpoint import DataCheckpointable, DataRestore, DataSave, KeepBases

STEPS, OUT, CHECKPOINTS, VERSION = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
BEHIND = int(sys.argv[5]) if len(sys.argv) > 5 else None
FULL_EVERY = 7


def main() -> None:
    sizes = MESHES["dp4"]
    processes = msd.initialize(num_cpu_devices=4 // int(os.environ.get("MSDATA_TEST_TRAINERS", "1")))
    import jax

    mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes))
    total = jax.jit(lambda weight, batch: weight + batch["tokens"].sum())
    weight = jax.device_put(np.int32(0), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))
    lines = []
    with msd.DataLoader(recipe, mesh=mesh, num_steps=STEPS) as loader:
        saves = (SavesV0 if VERSION == "v0" else SavesV1)(loader)
        if BEHIND is not None:
            weight = saves.restore(BEHIND, weight)
        for step, batch in enumerate(loader, start=loader.next_step):
            weight = total(weight, batch)
            expect = loader.last_step
            assert expect.step == step
            digest = hashlib.blake2b(digest_size=16)
            for name in sorted(batch):
                for shard in batch[name].addressable_shards:
                    digest.update(np.ascontiguousarray(shard.data))
            line = {"step": step, "digests": [expect.digest, expect.content_digest]}
            lines.append({**line, "bytes": digest.hexdigest(), "weight": int(weight)})
            if BEHIND is None:
                saves.save(step, weight)
        saves.close()
    (OUT / f"process{processes.process_index}.json").write_text(json.dumps(lines))


class SavesV0:
    """`orbax.checkpoint.CheckpointManager`."""

    def __init__(self, loader: msd.DataLoader) -> None:
        import orbax.checkpoint as ocp

        self._args, self._loader = ocp.args, loader
        self._bases = KeepBases(full_every=FULL_EVERY)
        options = ocp.CheckpointManagerOptions(preservation_policy=self._bases)
        self._manager = ocp.CheckpointManager(CHECKPOINTS, options=options)

    def save(self, step: int, weight: object) -> None:
        data = DataSave(self._loader, self._bases)
        model = self._args.StandardSave({"weight": weight})
        self._manager.save(step, args=self._args.Composite(model=model, data=data))

    def restore(self, step: int, weight: object) -> object:
        model = self._args.StandardRestore({"weight": weight})
        items = self._args.Composite(model=model, data=DataRestore(self._loader))
        return self._manager.restore(step, args=items)["model"]["weight"]

    def close(self) -> None:
        self._manager.close()


class SavesV1:
    """`orbax.checkpoint.v1.training.Checkpointer`."""

    def __init__(self, loader: msd.DataLoader) -> None:
        from orbax.checkpoint.experimental import v1

        bases = KeepBases(full_every=FULL_EVERY)
        self._checkpointer = v1.training.Checkpointer(CHECKPOINTS, preservation_policy=bases)
        self._data = DataCheckpointable(loader, bases)

    def save(self, step: int, weight: object) -> None:
        self._checkpointer.save_checkpointables(step, {"model": {"weight": weight}, "data": self._data})

    def restore(self, step: int, weight: object) -> object:
        items = {"model": {"weight": weight}, "data": self._data}
        return self._checkpointer.load_checkpointables(step, items)["model"]["weight"]

    def close(self) -> None:
        self._checkpointer.close()


if __name__ == "__main__":
    main()
