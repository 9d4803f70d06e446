"""Trains on nothing much for ever, without JAX collectives; raises or ends early where told."""

import os
import sys
import time

from faulty_recipe import recipe

import msdata_jax as msd

processes = msd.initialize(num_cpu_devices=1)

import jax  # noqa: E402

mesh = jax.make_mesh((processes.num_processes,), ("dp",))
fault = os.environ.get("MSDATA_TEST_FAULT", "")
with msd.DataLoader(recipe, mesh=mesh) as loader:
    for step, _batch in enumerate(loader):
        if step == 3:
            print(f"trainer {processes.process_index} is under way", flush=True)
        if fault == "trainer" and step == 5 and processes.process_index == 1:
            raise ValueError("the loss is not finite")
        if fault == "exit" and step == 5 and processes.process_index == 1:
            sys.exit("the trainer has had enough")
        if fault == "leave" and step == 5:
            break
        time.sleep(0.02)  # a training step
print(f"trainer {processes.process_index} is done", flush=True)
