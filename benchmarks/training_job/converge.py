"""Trains the demo's model on real text with balanced ranks or without, on forced CPU devices of one process.

Writes the loss of every step, the samples of every step, and the order of its rows.
"""

import argparse
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

import msdata_jax as msd
from benchmarks.training_job.measure import sample_keys
from benchmarks.training_job.recipes import WEIGHTS, to_bytes
from examples.model import BATCH_SPECS, Config, init, init_state, make_mesh, make_optimizer, make_train_step

CONFIG = Config(vocabulary_size=256, d_model=32, num_layers=2, num_heads=2, mlp_hidden=64, patch_values=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    asked = json.loads((folder / "converge.json").read_text())
    msd.initialize(num_cpu_devices=asked["ranks"])
    jax.config.update("jax_default_prng_impl", "rbg")  # compiles in a tenth of the time
    runs = [train(folder, asked, **each) for each in asked["runs"]]
    (folder / "converged.json").write_text(json.dumps(runs))


def train(folder: Path, asked: dict[str, Any], *, seed: int, cp: int, balanced: bool) -> dict[str, Any]:
    """Train one model from its seed, which is that of the data too."""
    training = make_training(asked["ranks"] // cp, cp)
    mesh = training.mesh
    specs = {name: spec for name, spec in BATCH_SPECS.items() if not name.startswith("patch")}
    state = init_state(init(CONFIG, seed, mesh), mesh, training.optimizer)
    no_patches = NoPatches(mesh, asked["rows"], asked["seq_len"])
    run: dict[str, Any] = {"seed": seed, "cp": cp, "balanced": balanced, "samples": [], "orders": []}
    losses, tokens = [], 0
    recipe = make_recipe(folder, asked, seed, cp, balanced=balanced)
    with msd.DataLoader(recipe, mesh=mesh, specs=specs, num_steps=asked["steps"]) as loader:
        for batch in loader:
            state, loss = training.step(state, no_patches.beside(batch))
            losses.append(float(loss))  # collectives of two steps at once can wait for ever on few cores
            expect = loader.last_step
            tokens += int(expect.length.sum())
            run["samples"].append(sample_keys(expect))
            run["orders"].append(expect.global_row.tolist())
    return run | {"losses": losses, "tokens": tokens}


@dataclass(frozen=True)
class Training:
    """What is the same for all seeds, and compiled once."""

    mesh: jax.sharding.Mesh
    optimizer: Any
    step: Any


@cache
def make_training(dp: int, cp: int) -> Training:
    """The demo's training step on a mesh."""
    mesh, optimizer = make_mesh(dp, cp, 1), make_optimizer()
    return Training(mesh, optimizer, make_train_step(CONFIG, mesh, optimizer))


class NoPatches:
    """The fields that the demo's model reads of pictures, for text: no place shows a patch."""

    def __init__(self, mesh: jax.sharding.Mesh, rows: int, seq_len: int) -> None:
        values = {
            "patch_index": np.full((rows, seq_len), -1, np.int32),
            "patches": np.zeros((rows, 1, CONFIG.patch_values), np.uint8),
        }
        self._fields = {
            name: jax.device_put(value, jax.sharding.NamedSharding(mesh, BATCH_SPECS[name]))
            for name, value in values.items()
        }

    def beside(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return batch | self._fields


def make_recipe(folder: Path, asked: dict[str, Any], seed: int, cp: int, *, balanced: bool) -> msd.Recipe:
    """Packed text; two recipes that differ in `balanced` alone differ in the places of rows alone."""
    seq_len = asked["seq_len"]
    graph = (
        msd.DGraph()
        .mix(WEIGHTS, unit="tokens")
        .pack(seq_len=seq_len, rows=asked["rows"])
        .cost(
            backbone=msd.costs.transformer(
                num_layers=CONFIG.num_layers, d_model=CONFIG.d_model, d_ff=CONFIG.mlp_hidden
            )
        )
        .distribute("dp", context_axis="cp", context_layout="zigzag" if cp > 1 else "contiguous")
    )
    sources = {
        name: msd.Source(str(folder / f"{name}.jsonl"), [to_bytes, msd.Split(seq_len)], block_size=64)
        for name in WEIGHTS
    }
    return msd.Recipe(sources=sources, strategy=graph.balance("lpt") if balanced else graph, seed=seed)


if __name__ == "__main__":
    main()
