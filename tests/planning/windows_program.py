"""Compares ClientPlaceTree.windows with jax's own NamedSharding on 8 CPU devices; prints how often."""

import itertools
import json

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from msdata_jax.planning.place_tree import ClientPlaceTree
from msdata_jax.spmd.mesh import layout_of, plain_spec

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

SHAPE = (16, 8, 24)
MESHES = [
    (("dp",), (8,)),
    (("dp", "tp"), (4, 2)),
    (("tp", "dp"), (2, 4)),
    (("dp", "cp", "tp"), (2, 2, 2)),
    (("pp", "dp"), (1, 8)),
]


def entries(axes):
    """Everything that may cut one dim."""
    yield None
    for count in range(1, len(axes) + 1):
        for chosen in itertools.permutations(axes, count):
            yield chosen[0] if count == 1 else chosen


def names(spec):
    return [name for entry in spec for name in ((entry,) if isinstance(entry, str) else entry or ())]


compared = 0
rng = np.random.default_rng(0)
for axes, sizes in MESHES:
    for kind, order in itertools.product((AxisType.Auto, AxisType.Explicit), range(2)):
        devices = np.array(jax.devices())
        if order:
            devices = rng.permutation(devices)
        mesh = Mesh(devices.reshape(sizes), axes, axis_types=(kind,) * len(axes))
        tree = ClientPlaceTree(layout_of(mesh))
        for dims in range(3):
            for spec in itertools.product(entries(axes), repeat=dims):
                if len(set(names(spec))) != len(names(spec)):
                    continue
                partition = PartitionSpec(*spec)
                theirs = NamedSharding(mesh, partition).devices_indices_map(SHAPE)
                ours = tree.windows(plain_spec(partition), SHAPE)
                for device, window in zip(mesh.devices.flat, ours, strict=True):
                    expected = tuple(
                        slice(*each.indices(size)[:2])
                        for each, size in zip(theirs[device], SHAPE, strict=True)
                    )
                    assert window == expected, (mesh, spec, device, window, expected)
                    compared += 1
print(json.dumps({"compared": compared}))
