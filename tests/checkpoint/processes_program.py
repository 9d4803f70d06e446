"""One of several JAX processes that save and restore together; the first one holds the state.

`processes_program.py INDEX COUNT ADDRESS ROOT save|restore v0|v1`
"""

import sys
from pathlib import Path

import jax

INDEX, COUNT, ADDRESS = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
ROOT, WHAT, VERSION = Path(sys.argv[4]), sys.argv[5], sys.argv[6]

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
if COUNT > 1:
    jax.distributed.initialize(
        ADDRESS, num_processes=COUNT, process_id=INDEX, cluster_detection_method="deactivate"
    )

import numpy as np  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from orbax.checkpoint.experimental import v1  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1]))

from checkpoint.states import Stand, play  # noqa: E402

from msdata_jax.checkpoint import (  # noqa: E402
    DataCheckpointable,
    DataRestore,
    DataSave,
    KeepBases,
    find_states,
)

STATES = play(num_sources=12, num_steps=12)
SHARDING = NamedSharding(jax.make_mesh((COUNT,), ("dp",)), P("dp"))
STEPS = range(1, 11)
LEFT = {5: "full", 9: "full", 10: "delta"}
"""With a full every four saves and the latest step kept: that, and the two newest bases."""


def model_of(step: int) -> dict:
    values = np.full(8, step, np.float32)
    return {"w": jax.make_array_from_callback((8,), SHARDING, lambda index: values[index])}


def save_v0() -> None:
    bases = KeepBases(ocp.checkpoint_managers.LatestN(1), full_every=4)
    options = ocp.CheckpointManagerOptions(preservation_policy=bases)
    with ocp.CheckpointManager(ROOT, options=options) as manager:
        for step in STEPS:
            loader = Stand(STATES[step], writes=INDEX == 0)
            model = ocp.args.StandardSave(model_of(step))
            manager.save(step, args=ocp.args.Composite(model=model, data=DataSave(loader, bases)))
            loader.state = STATES[0]
        manager.wait_until_finished()
        assert set(manager.all_steps()) == set(LEFT), manager.all_steps()


def save_v1() -> None:
    bases = KeepBases(v1.training.preservation_policies.LatestN(1), full_every=4)
    loader = Stand(writes=INDEX == 0)
    data = DataCheckpointable(loader, bases)
    with v1.training.Checkpointer(ROOT, preservation_policy=bases) as checkpointer:
        for step in STEPS:
            loader.state = STATES[step]
            checkpointer.save_checkpointables(step, {"model": model_of(step), "data": data}, force=True)
        assert {each.step for each in checkpointer.checkpoints} == set(LEFT)


def restore_v0(step: int) -> tuple[Stand, jax.Array]:
    loader = Stand()
    with ocp.CheckpointManager(ROOT) as manager:
        model = ocp.args.StandardRestore(model_of(0))
        restored = manager.restore(step, args=ocp.args.Composite(model=model, data=DataRestore(loader)))
    return loader, restored["model"]["w"]


def restore_v1(step: int) -> tuple[Stand, jax.Array]:
    loader = Stand()
    with v1.training.Checkpointer(ROOT) as checkpointer:
        items = {"model": model_of(0), "data": DataCheckpointable(loader)}
        restored = checkpointer.load_checkpointables(step, items)
    return loader, restored["model"]["w"]


if WHAT == "save":
    save_v0() if VERSION == "v0" else save_v1()
else:
    assert {found.step: found.head and found.head.kind for found in find_states(ROOT)} == LEFT
    for number in LEFT:
        restored_loader, w = restore_v0(number) if VERSION == "v0" else restore_v1(number)
        state = restored_loader.state
        assert state is not None
        assert state.to_leaves() == STATES[number].to_leaves()
        assert all(np.all(np.asarray(shard.data) == number) for shard in w.addressable_shards)
print("all is well")
