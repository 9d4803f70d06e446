"""A torch training script for tests: saves each process's part of every step, as `jobs/train.py` for JAX.

usage: train.py OPTIONS.json: mesh (sizes by axis), steps, out, dtensor, placements, state (or null), more

Behind every step it writes the dataset's state, and with DTensors the whole batch as torch puts it together.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from recipe import recipe
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from msdata_jax.torch import MSIterableDataset, TorchMesh, initialize

OPTIONS = json.loads(Path(sys.argv[1]).read_text())
SIZES, OUT = OPTIONS["mesh"], Path(OPTIONS["out"])
DIM_OF = {"dp": 0, "cp": 1}


def placements_of(name: str) -> list:
    """Rows along dp, places along cp, the same along tp."""
    dims = [DIM_OF.get(axis) for axis in SIZES]
    return [Replicate() if dim is None or (dim == 1 and name == "patches") else Shard(dim) for dim in dims]


def window(name: str, local: torch.Tensor, mesh: object) -> tuple[list, list]:
    """The shape of the whole field, and where this process's part lies in it, as torch computes it."""
    shape = list(local.shape)
    for size, placement in zip(SIZES.values(), placements_of(name), strict=True):
        if isinstance(placement, Shard):
            shape[placement.dim] *= size
    local_shape, offset = compute_local_shape_and_global_offset(torch.Size(shape), mesh, placements_of(name))
    assert tuple(local_shape) == tuple(local.shape)
    return shape, [[begin, begin + size] for begin, size in zip(offset, local_shape, strict=True)]


def save(step: int, rank: int, batch: dict, mesh: object) -> None:
    place = OUT / f"step{step:03d}-process{rank}"
    locals_, windows, shapes = {}, {}, {}
    for name, tensor in batch.items():
        if OPTIONS["dtensor"]:
            assert isinstance(tensor, DTensor)
            assert list(tensor.placements) == placements_of(name)
        local = tensor.to_local() if OPTIONS["dtensor"] else tensor
        assert local.is_contiguous()
        shapes[name], windows[f"{name}/0"] = window(name, local, mesh)
        assert not OPTIONS["dtensor"] or list(tensor.shape) == shapes[name]
        locals_[f"{name}/0"] = local.numpy()
    np.savez(place.with_suffix(".npz"), **locals_)
    place.with_suffix(".json").write_text(json.dumps({"windows": windows, "shapes": shapes}))
    if OPTIONS["dtensor"]:
        whole = {name: tensor.full_tensor().numpy() for name, tensor in batch.items()}
        if rank == 0:
            np.savez(OUT / f"whole{step:03d}.npz", **whole)


def main() -> None:
    torch.set_num_threads(1)
    processes = initialize()
    rank = processes.process_index
    assert (rank, processes.num_processes) == (dist.get_rank(), dist.get_world_size())
    mesh = init_device_mesh("cpu", tuple(SIZES.values()), mesh_dim_names=tuple(SIZES))
    specs = {"tokens": placements_of("tokens")} if OPTIONS["placements"] else None
    states = []
    with MSIterableDataset(
        recipe,
        mesh=TorchMesh(mesh, dtensor=OPTIONS["dtensor"]),
        specs=specs,
        num_steps=OPTIONS["steps"],
        journal=OPTIONS.get("journal"),
    ) as dataset:
        if OPTIONS["state"]:
            dataset.load_state_dict(OPTIONS["state"])
        for batch in dataset:
            state = dataset.state_dict()
            save(state["step"] - 1, rank, batch, mesh)
            states.append(state)
        for step in OPTIONS.get("again", []):  # another DataLoader in the same job
            dataset.load_state_dict(states[step - 1])
            batch = next(dataset)
            for name, tensor in batch.items():
                with np.load(OUT / f"step{step:03d}-process{rank}.npz") as saved:
                    local = tensor.to_local() if OPTIONS["dtensor"] else tensor
                    assert np.array_equal(saved[f"{name}/0"], local.numpy())
    report = {"states": states, "job": dict(dataset.loader.job_figures)}
    (OUT / f"report{rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
