"""Rows of one process to its window of every field, as tensors or DTensors, without any collective."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement

from msdata_jax.planning.place_tree import ClientPlaceTree, Spec

Window = tuple[slice, ...]


class TensorEmitter:
    """Makes the tensors of a step in two parts: one for any thread, one for the training thread.

    A tensor on the CPU shares memory with the rows that it was made from, which are fresh in every step and
    belong to it alone; where a field is cut along more than its rows, it is a copy. So a trainer may write
    into its tensors, and a field is always contiguous.

    Args:
        device_of_process: the process, which has one device in the mesh.
        specs: for each field, the axes that cut its dims.
        tree: the mesh.
        device: where tensors go in the end; None leaves them on the CPU.
        pin_memory: hold them in page-locked memory.
    """

    def __init__(
        self,
        *,
        device_of_process: int,
        specs: Mapping[str, Spec],
        tree: ClientPlaceTree,
        device: torch.device | None = None,
        pin_memory: bool = False,
    ) -> None:
        self._place = tree.layout.process_of_device.index(device_of_process)
        self._specs, self._tree = specs, tree
        self._device, self._pin_memory = device, pin_memory
        self._windows: dict[tuple[str, tuple[int, ...]], Window] = {}

    def emit(self, fields: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        """The windows of this process on the CPU; any thread may call it.

        Args:
            fields: for each field, the rows of the global batch that this process holds, increasing.
        """
        tensors = {name: self._emit(name, field) for name, field in fields.items()}
        return {name: each.pin_memory() for name, each in tensors.items()} if self._pin_memory else tensors

    def complete(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The windows where the trainer wants them: moved on its thread, so on its stream."""
        if self._device is None:
            return dict(tensors)
        return {name: each.to(self._device, non_blocking=True) for name, each in tensors.items()}

    def complete_on(
        self,
        tensors: Mapping[str, torch.Tensor],
        device_mesh: DeviceMesh,
        placements: Mapping[str, Sequence[Placement]],
    ) -> dict[str, torch.Tensor]:
        """The windows as parts of DTensors; all windows of a field have one shape, so nothing is asked."""
        return {
            name: DTensor.from_local(each, device_mesh, placements[name], run_check=False)
            for name, each in self.complete(tensors).items()
        }

    def _emit(self, name: str, field: np.ndarray) -> torch.Tensor:
        """Contiguous, aligned and writable, which fresh whole rows are without a copy."""
        return torch.from_numpy(
            np.require(field[self._window(name, field.shape)], requirements=["C", "A", "W"])
        )

    def _window(self, name: str, shape: tuple[int, ...]) -> Window:
        """What of `[rows of this process, ...]` lies in this process's window: all rows, some of the rest."""
        if (name, shape) not in self._windows:
            by_rows = (None, *self._specs[name][1:])
            self._windows[name, shape] = self._tree.windows(by_rows, shape)[self._place]
        return self._windows[name, shape]
