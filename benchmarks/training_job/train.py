"""The training script of the launched jobs: two processes that really wait for each other.

Each process computes the gradients of its own rows on one CPU device and one thread. Gradients are summed
over the processes at the end of the step (`--sync step`) or behind every microbatch (`--sync microbatch`).
Reports, for each process: seconds of every step, and seconds computing in each of its microbatches.
"""

import argparse
import json
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from recipe import folder, recipe

import msdata_jax as msd
from benchmarks.training_job import model

LEARNING_RATE = 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--microbatches", type=int, required=True)
    parser.add_argument("--sync", choices=("step", "microbatch"), required=True)
    options = parser.parse_args()
    processes = msd.initialize(num_cpu_devices=1)
    mesh = Mesh(np.array(jax.devices()), ("dp",))
    trainer = Trainer(mesh, options.microbatches, every_microbatch=options.sync == "microbatch")
    steps = []
    with msd.DataLoader(recipe, mesh=mesh, num_steps=options.steps) as loader:
        for batch in loader:
            if not steps:
                trainer.warm_up(batch)
            steps.append(trainer.step(batch) | describe(loader.last_step))
    report = folder / f"trained-{processes.process_index}.json"
    report.write_text(json.dumps(steps))


def describe(expect: Any) -> dict[str, Any]:
    """What the planner says of a step."""
    keys = [expect.infos[name].tolist() for name in ("source", "position", "part")]
    return {
        "group_costs": expect.group_costs.tolist(),
        "tokens": int(expect.source_tokens.sum()),
        "samples": list(zip(*keys, expect.start.tolist(), strict=True)),
    }


@jax.jit
def _add(flat: jax.Array, tree: model.Params) -> jax.Array:
    return flat + ravel_pytree(tree)[0]


class Trainer:
    """Parameters, equal on all processes, and the steps that change them."""

    def __init__(self, mesh: Mesh, num_microbatches: int, *, every_microbatch: bool) -> None:
        flat, unravel = ravel_pytree(model.init(0))
        self._flat = jax.device_put(flat, jax.local_devices()[0])
        self._unravel = jax.jit(unravel)
        self._num_microbatches, self._every_microbatch = num_microbatches, every_microbatch
        self._by_process = NamedSharding(mesh, P("dp"))
        self._sum = jax.jit(partial(jnp.sum, axis=0), out_shardings=NamedSharding(mesh, P()))

    def warm_up(self, batch: dict[str, jax.Array]) -> None:
        """Make the programs, and take a step that counts for nothing."""
        flat = self._flat
        self.step(batch)
        self._flat = flat

    def step(self, batch: dict[str, jax.Array]) -> dict[str, Any]:
        """One training step: its seconds from start to end, and those computing in each microbatch."""
        local = {name: np.asarray(values.addressable_data(0)) for name, values in batch.items()}
        rows = [{name: values[i] for name, values in local.items()} for i in range(len(local["tokens"]))]
        microbatches = np.split(np.arange(len(rows)), self._num_microbatches)
        total = self._exchange(jnp.zeros_like(self._flat))  # all begin together
        computing = []
        begin = time.perf_counter()
        mine = jnp.zeros_like(self._flat)
        params = self._unravel(self._flat)
        for microbatch in microbatches:
            start = time.perf_counter()
            for i in microbatch:
                _, (gradients, _) = model.row_gradients(params, model.shown_row(rows[i]), model.NO_IMAGES)
                mine = _add(mine, gradients)
            jax.block_until_ready(mine)
            computing.append(time.perf_counter() - start)
            if self._every_microbatch:
                total += self._exchange(mine)
                mine = jnp.zeros_like(mine)
        if not self._every_microbatch:
            total = self._exchange(mine)
        self._flat = jax.block_until_ready(self._flat - LEARNING_RATE * total / batch["tokens"].size)
        return {"seconds": time.perf_counter() - begin, "computing": computing}

    def _exchange(self, mine: jax.Array) -> jax.Array:
        """The sum over all processes, which waits for all of them."""
        gathered = jax.make_array_from_process_local_data(self._by_process, np.asarray(mine)[None])
        return jax.block_until_ready(self._sum(gathered)).addressable_data(0)


if __name__ == "__main__":
    main()
