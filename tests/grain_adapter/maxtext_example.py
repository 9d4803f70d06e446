"""Runs the example for MaxText in the loop that treats its data as MaxText's does.

usage: maxtext_example.py EXAMPLE OUT, with the environment variables of the example's recipe.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

EXAMPLE, OUT = Path(sys.argv[1]), Path(sys.argv[2])
sys.path[:0] = [str(EXAMPLE)]

import msdata_jax as msd  # noqa: E402

NUM_STEPS, SAVE_AT = 6, 2
processes = msd.initialize(num_cpu_devices=4 // int(os.environ["MSDATA_TEST_TRAINERS"]))

import jax  # noqa: E402
from data_iterator import PLACE_AXES, ROW_AXES, create_data_iterator  # noqa: E402
from maxtext_loop import train  # noqa: E402

SIZES = {"data": 2, "context": 2}
axes = [*ROW_AXES, *PLACE_AXES, "tensor"]
mesh = jax.make_mesh([SIZES.get(axis, 1) for axis in axes], axes)
config = SimpleNamespace(
    steps=NUM_STEPS,
    save_at=SAVE_AT,
    data_sharding=(ROW_AXES, PLACE_AXES),
    checkpoint_dir=str(OUT / "checkpoints"),
    max_target_length=int(os.environ["MSDATA_SEQ_LEN"]),
    global_batch_size_to_load=int(os.environ["MSDATA_ROWS"]),
)


def run(**changes: object) -> tuple[list[int], int]:
    mine = SimpleNamespace(**{**vars(config), **changes})
    iterator, eval_iterator = create_data_iterator(mine, mesh)
    assert eval_iterator is None
    return train(mine, mesh, iterator, Path(mine.checkpoint_dir))


whole, moved = run(checkpoint_dir=str(OUT / "whole"))
head, _ = run(steps=SAVE_AT + 1)
tail, _ = run()
try:
    run(max_target_length=7)
except ValueError as error:
    refused = str(error)
report = {"whole": whole, "resumed": [*head, *tail], "moved": moved, "refused": refused}
(OUT / f"report{processes.process_index}.json").write_text(json.dumps(report))
