"""Trains on nothing much for ever, without JAX collectives; raises or ends early where told."""

import os
import sys
import time
from collections.abc import Iterator

from faulty_recipe import recipe

import msdata_jax as msd

fault = os.environ.get("MSDATA_TEST_FAULT", "")
if fault == "absent":
    time.sleep(60)  # busy with something else, and never there
processes = msd.initialize(num_cpu_devices=1)
if fault == "no loader":
    time.sleep(60)

import jax  # noqa: E402

from msdata_jax.spmd.arrays import ArrayEmitter  # noqa: E402

mesh = jax.make_mesh((processes.num_processes,), ("dp",))
is_second = processes.process_index == 1


def batches() -> Iterator[dict]:
    """Whoever breaks out of it leaves the `with` block by GeneratorExit."""
    with msd.DataLoader(recipe, mesh=mesh) as loader:
        yield from loader


def train(steps: Iterator[dict]) -> None:
    for step, _batch in enumerate(steps):
        if step == 3:
            print(f"trainer {processes.process_index} is under way", flush=True)
        if fault == "trainer" and step == 5 and is_second:
            raise ValueError("the loss is not finite")
        if fault == "exit" and step == 5 and is_second:
            sys.exit("the trainer has had enough")
        if fault == "second loader" and step == 5:
            msd.DataLoader(recipe, mesh=mesh)
        if fault in ("leave", "again", "generator") and step == 5:
            break
        if fault == "good exit" and step == 5:
            print(f"trainer {processes.process_index} is done", flush=True)
            sys.exit()
        time.sleep(0.02)  # a training step


if fault == "emit" and is_second:

    def emit(self: ArrayEmitter, fields: dict) -> dict:
        raise RuntimeError("no memory left on the device")

    ArrayEmitter.emit = emit
if fault == "spec":
    msd.DataLoader(recipe, mesh=mesh, specs={"tokens": jax.sharding.PartitionSpec("tp")})
if fault == "part of the mesh":
    msd.DataLoader(recipe, mesh=jax.make_mesh((1,), ("dp",), devices=jax.devices()[:1]))
if fault == "generator":
    train(batches())
elif fault == "unclosed":
    next(msd.DataLoader(recipe, mesh=mesh))
else:
    with msd.DataLoader(recipe, mesh=mesh) as loader:
        train(loader)
if fault == "again" and is_second:
    next(msd.DataLoader(recipe, mesh=mesh))
print(f"trainer {processes.process_index} is done", flush=True)
