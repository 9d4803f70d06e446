"""A training loop that treats its data as MaxText's does, written from that contract; the model is a sum.

The data iterator is an object with `__next__`, `__iter__`, `reset` and `local_iterator`. Batches are put into
the model's input sharding by `jax.device_put`; whatever `next` raises ends training. Checkpoints are of
orbax v0, with the items `items` and `iter`, the latter by grain's own handler. Evaluation resets its iterator
and goes through it.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grain
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

FIELDS = [
    f"{kind}{suffix}" for kind in ("inputs", "targets") for suffix in ("", "_position", "_segmentation")
]


class StopTraining(Exception):
    """There are no more batches."""


class BatchLoader:
    """Takes batches from the iterator and puts them where the model wants them."""

    def __init__(self, config: SimpleNamespace, mesh: Mesh, data_iterator: Any) -> None:
        self._data_iterator = data_iterator
        self._sharding = NamedSharding(mesh, PartitionSpec(*config.data_sharding))
        self.num_moved = 0

    def load_next_batch(self) -> dict[str, jax.Array]:
        try:
            batch = next(self._data_iterator)
        except Exception as error:
            raise StopTraining(f"no more data: {type(error).__name__} {error}") from error
        placed = jax.device_put(batch, self._sharding)
        self.num_moved += sum(placed[name] is not batch[name] for name in batch)
        return placed


def open_manager(folder: Path) -> ocp.CheckpointManager:
    handlers = {"items": ocp.PyTreeCheckpointHandler(), "iter": grain.checkpoint.CheckpointHandler()}
    return ocp.CheckpointManager(folder, item_names=("items", "iter"), item_handlers=handlers)


def save(manager: ocp.CheckpointManager, step: int, weight: jax.Array, data_iterator: Any) -> None:
    iterator = data_iterator.local_iterator
    assert isinstance(iterator, grain.DatasetIterator)
    saved = ocp.args.Composite(
        items=ocp.args.PyTreeSave({"weight": weight}), iter=grain.checkpoint.CheckpointSave(item=iterator)
    )
    manager.save(step, args=saved)
    manager.wait_until_finished()


def restore(manager: ocp.CheckpointManager, weight: jax.Array, data_iterator: Any) -> jax.Array:
    like = ocp.checkpoint_utils.construct_restore_args({"weight": weight})
    wanted = ocp.args.Composite(
        items=ocp.args.PyTreeRestore({"weight": weight}, restore_args=like),
        iter=grain.checkpoint.CheckpointRestore(item=data_iterator.local_iterator),
    )
    return manager.restore(manager.latest_step(), args=wanted)["items"]["weight"]


@jax.jit
def update(weight: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    """Something that every field of every row changes, in order."""
    counts = batch["targets_segmentation"] != 0
    seen = (
        batch["inputs"] * 3
        + batch["targets"] * counts
        + batch["inputs_position"]
        + batch["inputs_segmentation"]
    )
    return (weight * 31 + jnp.sum(seen)) % 1_000_003


def train(config: SimpleNamespace, mesh: Mesh, iterator: Any, folder: Path) -> tuple[list[int], int]:
    """Train; goes on from the newest checkpoint. The weight after each step, and arrays that had to move."""
    weight = jax.device_put(jnp.int32(0), NamedSharding(mesh, PartitionSpec()))
    weights: list[int] = []
    loader = BatchLoader(config, mesh, iterator)
    with open_manager(folder) as manager:
        first = 0
        if manager.latest_step() is not None:
            weight = restore(manager, weight, iterator)
            first = manager.latest_step() + 1
        try:
            for step in range(first, config.steps):
                weight = update(weight, loader.load_next_batch())
                weights.append(int(weight))
                if step == config.save_at:
                    save(manager, step, weight, iterator)
        except StopTraining as stop:
            if not isinstance(stop.__cause__, StopIteration):
                raise
    return weights, loader.num_moved


def evaluate(mesh: Mesh, eval_iterator: Any) -> int:
    weight = jax.device_put(jnp.int32(0), NamedSharding(mesh, PartitionSpec()))
    eval_iterator.reset()
    for batch in eval_iterator:
        weight = update(weight, batch)
    return int(weight)
