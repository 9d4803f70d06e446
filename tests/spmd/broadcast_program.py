"""One of several JAX processes: each field, completed on the devices, equals the batch on every shard.

usage: broadcast_program.py PROCESS_INDEX NUM_PROCESSES ADDRESS
"""

import contextlib
import itertools
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from msdata_jax.planning.place_tree import ClientPlaceTree
from msdata_jax.spmd.arrays import ArrayEmitter
from msdata_jax.spmd.broadcast import BroadcastEmitter
from msdata_jax.spmd.distributed import initialize_jax, set_cpu_devices, shutdown
from msdata_jax.spmd.mesh import layout_of

DEVICES = 4
process, num_processes, address = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
set_cpu_devices(DEVICES)
initialize_jax(address, process_index=process, num_processes=num_processes)

SPECS = {
    "rows": {"tokens": P("dp"), "loss_mask": P("dp"), "patches": P("dp")},
    # Peers hold other places of the same rows; patches are cut by a broadcast axis merged with another one.
    "places": {"tokens": P("dp", "tp"), "loss_mask": P("dp", ("cp", "tp")), "patches": P("dp", ("tp", "cp"))},
    "replicated": {"tokens": P(None, None), "loss_mask": P(None, "tp"), "patches": P(None, None, "cp")},
}
# (axes, sizes, devices in order of processes or turned over, broadcast axes)
MESHES = [
    (("dp", "cp", "tp"), (1, 2, 4), False, ("tp",)),  # tp inside of each process: nobody has peers
    (("dp", "tp", "cp"), (2, 2, 2), False, ("tp", "cp")),  # the same
    (("dp", "cp", "tp"), (2, 2, 2), True, ("tp",)),  # tp across processes
    (("tp", "dp", "cp"), (2, 2, 2), False, ("tp",)),
    (("cp", "tp", "dp"), (2, 2, 2), True, ("cp", "tp")),
    (("cp", "dp", "tp"), (2, 2, 2), False, ("cp", "tp")),  # cp across processes, tp inside
]


def global_batch(step: int, num_rows: int, seq_len: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    return {
        "tokens": rng.integers(-(2**31), 2**31, (num_rows, seq_len)).astype(np.int32),
        "loss_mask": rng.random((num_rows, seq_len), dtype=np.float32),
        "patches": rng.integers(0, 256, (num_rows, 8, 6)).astype(np.uint8),
    }


def local_rows(
    batch: dict[str, np.ndarray], tree: ClientPlaceTree, row_axes: object
) -> dict[str, np.ndarray]:
    """The rows of this process; without samples, they are noise."""
    has_samples = tree.needs_data(process) and tree.leader_of_process(process) == process
    rows = tree.rows_of_process(process, row_axes, len(batch["tokens"]))
    return {
        name: field[rows] if has_samples else np.full_like(field[rows], 77) for name, field in batch.items()
    }


def check(arrays: dict, batch: dict, mesh: Mesh, specs: dict) -> None:
    assert set(arrays) == set(batch)
    for name, array in arrays.items():
        assert array.dtype == batch[name].dtype
        assert array.shape == batch[name].shape
        assert array.sharding.is_equivalent_to(NamedSharding(mesh, specs[name]), array.ndim)
        assert array.sharding.mesh.axis_types == mesh.axis_types
        for shard in array.addressable_shards:
            assert np.array_equal(np.asarray(shard.data), batch[name][shard.index]), (mesh, specs, name)


def devices_of(sizes: tuple[int, ...], turned: bool) -> np.ndarray:
    devices = np.array(sorted(jax.devices(), key=lambda device: (device.process_index, device.id)))
    return devices.reshape(num_processes, -1).T.reshape(sizes) if turned else devices.reshape(sizes)


another_thread = ThreadPoolExecutor(1)
completed = 0
for (axes, sizes, turned, broadcast), kind, in_context in itertools.product(
    MESHES, (AxisType.Auto, AxisType.Explicit), (False, True)
):
    mesh = Mesh(devices_of(sizes, turned), axes, axis_types=(kind,) * 3)
    tree = ClientPlaceTree(layout_of(mesh), broadcast)
    for specs in SPECS.values():
        plain = {name: (*spec, *(None,) * 3)[: 3 if name == "patches" else 2] for name, spec in specs.items()}
        emitter = BroadcastEmitter(mesh, plain, tree)
        with jax.set_mesh(mesh) if in_context else contextlib.nullcontext():
            for step, (num_rows, seq_len) in enumerate([(4, 8), (8, 16), (4, 8)]):  # buckets
                batch = global_batch(step, num_rows, seq_len)
                rows = local_rows(batch, tree, specs["tokens"][0])
                arrays = another_thread.submit(emitter.emit_local, rows).result(timeout=60)
                check(emitter.complete(arrays), batch, mesh, specs)
                completed += 1

# Rows that do not fill the parts of this process.
four_parts = Mesh(devices_of((8,), False), ("dp",))
with pytest.raises(ValueError, match="5 rows for 4 parts of the global batch"):
    ArrayEmitter(four_parts, {"tokens": ("dp", None)}).emit({"tokens": np.zeros((5, 2), np.int32)})
another_thread.shutdown()
shutdown()
print(f"completed {completed} steps")
