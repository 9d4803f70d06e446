"""Arrays whose samples reach one process of each peer group, completed by a collective on the devices.

The arrays get an extra first dim, an entry for each coordinate along the broadcast axes. Of the devices that
differ along these axes only, one brings its window (`ClientPlaceTree.sending_devices`) and the others bring
zeros. A sum over the first dim gives every device its window, exactly: all summands but one are zero.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from msdata_jax.planning.place_tree import Axes, ClientPlaceTree, Spec, axes_tuple
from msdata_jax.spmd.arrays import ArrayEmitter


class BroadcastEmitter:
    """Makes the global arrays of a step in two parts: one for any thread, one for the training thread.

    The processes of a job must complete their steps in the same order, for `complete` runs a collective.
    Where no process has peers, nothing is to be completed and no collective runs.

    Args:
        mesh: the trainer's mesh, of Auto or Explicit axes.
        specs: for each field, the mesh axes that cut its dims; no broadcast axis cuts rows.
        tree: the same mesh, with the broadcast axes.
    """

    def __init__(self, mesh: Mesh, specs: Mapping[str, Spec], tree: ClientPlaceTree) -> None:
        self._plain = ArrayEmitter(mesh, specs)
        self._has_peers = any(len(tree.peers_of_process(p)) > 1 for p in tree.processes)
        self._axes = tree.axes(tree.broadcast_axes)
        self._num_copies = tree.axis_size(self._axes)
        self._senders = set(mesh.devices.reshape(-1)[tree.sending_devices()].tolist())
        self._zeros: dict[tuple[Any, tuple[tuple[int, ...], np.dtype]], jax.Array] = {}
        # With axes of type Auto, XLA alone chooses the collectives, whatever the types of the trainer's axes.
        self._mesh = Mesh(mesh.devices, mesh.axis_names)
        self._partial = {
            name: NamedSharding(self._mesh, PartitionSpec(self._axes, *self._uncut(spec)))
            for name, spec in specs.items()
        }
        whole = {name: NamedSharding(self._mesh, PartitionSpec(*spec)) for name, spec in specs.items()}
        self._sum = jax.jit(_sum_copies, out_shardings=whole)

    def emit_local(self, fields: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """What this process brings to the arrays of a step; any thread may call it.

        Args:
            fields: for each field, the rows of the global batch that this process holds, increasing. Where a
                process gets no samples, only their shapes and dtypes matter.

        Raises:
            ValueError: the rows are not equally many for each part that the process holds.
        """
        if not self._has_peers:
            return self._plain.emit(fields)
        return {name: self._emit(name, field) for name, field in fields.items()}

    def complete(self, arrays: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """The arrays of a step in the trainer's sharding: on the training thread, in order of the steps.

        Args:
            arrays: of all fields, from `emit_local`.
        """
        if not self._has_peers:
            return dict(arrays)
        with jax.set_mesh(self._mesh):
            summed = self._sum(dict(arrays))
        return {
            name: jax.make_array_from_single_device_arrays(
                summed[name].shape,
                self._plain.shardings[name],
                [shard.data for shard in summed[name].addressable_shards],
            )
            for name in arrays
        }

    def _emit(self, name: str, field: np.ndarray) -> jax.Array:
        rows = self._plain.rows[name]
        sharding, shape = self._partial[name], rows.global_shape(field.shape)
        with_copies = (self._num_copies, *shape)
        zeros = (sharding.shard_shape(with_copies), field.dtype)
        parts = []
        for device, index in sharding.addressable_devices_indices_map(with_copies).items():
            if device in self._senders:
                assert index is not None  # JAX gives one for every array that has dims
                window = rows.window(field, shape[0], index[1:])
                parts.append(jax.device_put(window[None], device))
            else:  # zeros stay on the device from step to step
                if (device, zeros) not in self._zeros:
                    self._zeros[device, zeros] = jax.device_put(np.zeros(*zeros), device)
                parts.append(self._zeros[device, zeros])
        return jax.make_array_from_single_device_arrays(with_copies, sharding, parts)

    def _uncut(self, spec: Spec) -> Spec:
        """The spec as far as it cuts outside of the broadcast axes: its windows hold those of all copies."""
        return tuple(map(self._axes_before_broadcast, spec))

    def _axes_before_broadcast(self, axes: Axes) -> Axes:
        named = axes_tuple(axes)
        return named[: next((i for i, axis in enumerate(named) if axis in self._axes), len(named))] or None


def _sum_copies(arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {name: array.sum(0, dtype=array.dtype) for name, array in arrays.items()}
