"""DeviceMeshes and placements as the planner sees them, and the tensors of each rank."""

import itertools
import re
from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor  # noqa: E402

import msdata_jax as msd  # noqa: E402
from msdata_jax.planning.place_tree import ClientPlaceTree, MeshLayout  # noqa: E402
from msdata_jax.torch import TorchMesh, layout_of  # noqa: E402
from msdata_jax.torch.mesh import placements_of, plain_spec  # noqa: E402
from msdata_jax.torch.tensors import TensorEmitter  # noqa: E402

pytestmark = pytest.mark.torch

AsRank = Callable[[int, int], None]
NAMES = ("dp", "cp", "tp")
RECORDS = [{"tokens": np.arange(1, 6, dtype=np.int32)}]


def recipe(rows: int = 4, **broadcast: str) -> msd.Recipe:
    graph = msd.DGraph().mix({"s": 1}).pack(seq_len=16, rows=rows).distribute("dp")
    graph = graph.broadcast_at("tp", **broadcast) if broadcast else graph
    return msd.Recipe(sources={"s": msd.Source(RECORDS)}, strategy=graph)


# --- layouts


def test_a_mesh_in_plain_values(as_rank: AsRank) -> None:
    as_rank(3, 8)
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=NAMES)
    assert layout_of(mesh) == MeshLayout(
        axis_names=NAMES, axis_sizes=(2, 2, 2), process_of_device=tuple(range(8))
    )


def test_ranks_may_lie_in_any_order(as_rank: AsRank) -> None:
    as_rank(0, 4)
    mesh = DeviceMesh("cpu", [[3, 1], [2, 0]], mesh_dim_names=("dp", "tp"))
    assert layout_of(mesh).process_of_device == (3, 1, 2, 0)


def test_a_mesh_without_names_is_refused(as_rank: AsRank) -> None:
    as_rank(0, 4)
    way_out = re.escape('of shape (2, 2) has none: init_device_mesh(..., mesh_dim_names=("dp", "tp"))')
    with pytest.raises(msd.RecipeError, match=way_out):
        msd.DataLoader(recipe(), mesh=init_device_mesh("cpu", (2, 2)))


def test_a_part_of_a_mesh_is_refused(as_rank: AsRank) -> None:
    as_rank(0, 4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    message = re.escape("each rank from 0 to 3 once") + ".*" + re.escape("holds [0, 2]: give the whole mesh")
    with pytest.raises(msd.LaunchError, match=message):
        msd.DataLoader(recipe(), mesh=mesh["dp"])


def test_a_world_without_a_job_is_refused(as_rank: AsRank) -> None:
    as_rank(0, 2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    message = (
        "the mesh has devices of 2 processes; the job has 1 training processes: start them with `msdata "
        "launch` or `msdata serve`, and call msdata_jax.torch.initialize() first"
    )
    with pytest.raises(msd.LaunchError, match=re.escape(message)):
        msd.DataLoader(recipe(), mesh=mesh)


@pytest.mark.parametrize("mesh", ["dp", 3, {"dp": 2}, torch.zeros(2)])
def test_what_is_no_mesh_is_refused(mesh: object) -> None:
    with pytest.raises(msd.RecipeError, match="DeviceMesh"):
        msd.DataLoader(recipe(), mesh=mesh)


def test_device_broadcast_is_refused(as_rank: AsRank) -> None:
    as_rank(0, 1)
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    with pytest.raises(msd.RecipeError, match=re.escape("broadcast_at(..., via='host')")):
        msd.DataLoader(recipe(via="device"), mesh=mesh)
    with msd.DataLoader(recipe(via="host"), mesh=mesh, num_steps=1) as loader:
        assert next(loader)["tokens"].shape == (4, 16)


def test_dtensors_need_a_mesh() -> None:
    with pytest.raises(msd.RecipeError, match="DTensors lie on a mesh"):
        TorchMesh(dtensor=True)
    with pytest.raises(msd.RecipeError, match=r"specs \['tokens'\] need a mesh"):
        msd.DataLoader(recipe(), mesh=TorchMesh(), specs={"tokens": ("dp",)})


# --- specs


@pytest.mark.parametrize(
    ("placements", "spec"),
    [
        ([Shard(0), Replicate(), Replicate()], ("dp",)),
        ([Shard(0), Shard(1), Replicate()], ("dp", "cp")),
        ([Shard(0), Shard(1), Shard(1)], ("dp", ("cp", "tp"))),
        ([Shard(0), Shard(0), Shard(2)], (("dp", "cp"), None, "tp")),
        ([Replicate()] * 3, ()),
    ],
)
def test_placements_and_names_say_the_same(placements: list, spec: tuple) -> None:
    assert plain_spec("tokens", placements, NAMES) == spec
    assert plain_spec("tokens", spec, NAMES) == spec
    assert plain_spec("tokens", list(spec), NAMES) == spec
    assert placements_of("tokens", spec, NAMES) == placements


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dp", "specs['tokens'] = 'dp' is no spec"),
        (Shard(0), "is no spec"),
        (("dp", 3), "is no spec"),
        ([Shard(0)], "specs['tokens'] has 1 placements on a mesh of ('dp', 'cp', 'tp'): one for each"),
        ([Shard(-1), Replicate(), Replicate()], "has the placement Shard(dim=-1) along 'dp'"),
        ([Shard(0), Partial(), Replicate()], "along 'cp': a batch is cut by Shard(dim)"),
        ([Shard(0), "cp", Replicate()], "has the placement 'cp' along 'cp'"),
    ],
)
def test_what_is_no_spec_is_refused(spec: object, message: str) -> None:
    with pytest.raises(msd.RecipeError, match=re.escape(message)):
        plain_spec("tokens", spec, NAMES)


def test_dtensors_are_cut_in_the_order_of_the_mesh(as_rank: AsRank) -> None:
    as_rank(0, 1)
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("tp", "dp"))
    specs = {"tokens": (("dp", "tp"),)}
    with msd.DataLoader(recipe(), mesh=mesh, specs=specs, num_steps=1) as loader:
        assert len(list(loader)) == 1
    with pytest.raises(msd.RecipeError, match=re.escape("in the order of the mesh, ('tp', 'dp')")):
        msd.DataLoader(recipe(), mesh=TorchMesh(mesh, dtensor=True), specs=specs)


def test_contradicting_placements_are_refused(as_rank: AsRank) -> None:
    as_rank(0, 1)
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    with pytest.raises(msd.RecipeError, match=re.escape("distribute('dp') balances the parts along")):
        msd.DataLoader(recipe(), mesh=mesh, specs={"tokens": [Replicate(), Shard(0)]})


# --- tensors


MESHES = [((2, 2, 2), None), ((1, 4, 2), None), ((2, 2, 2), (5, 0, 3, 7, 1, 6, 2, 4))]
SPECS = [
    {"tokens": ("dp", "cp"), "patches": ("dp", None, None)},
    {"tokens": (("dp", "cp"), "tp"), "patches": (("dp", "cp"), "tp", None)},
    {"tokens": (None, ("cp", "tp")), "patches": (None, None, ("dp", "tp"))},
]


@pytest.mark.parametrize(("case", "specs"), list(itertools.product(MESHES, SPECS)))
def test_each_rank_gets_its_window(as_rank: AsRank, case: tuple, specs: dict) -> None:
    """Torch itself cuts the whole batch for comparison. Writing into tensors reaches no other ones."""
    sizes, order = case
    rng = np.random.default_rng(0)
    batch = {
        "tokens": rng.integers(0, 2**31, (8, 16)).astype(np.int32),
        "patches": rng.integers(0, 256, (8, 4, 8)).astype(np.uint8),
    }
    for rank in range(8):
        as_rank(rank, 8)
        ranks = torch.tensor(order or range(8)).reshape(sizes)
        mesh = DeviceMesh("cpu", ranks, mesh_dim_names=NAMES)
        tree = ClientPlaceTree(layout_of(mesh))
        emitter = TensorEmitter(device_of_process=rank, specs=specs, tree=tree)
        rows = {name: field[tree.rows_of_process(rank, specs[name][0], 8)] for name, field in batch.items()}
        before = {name: field.copy() for name, field in rows.items()}
        tensors = emitter.emit(rows)
        placements = {name: placements_of(name, spec, NAMES) for name, spec in specs.items()}
        for name, tensor in emitter.complete_on(tensors, mesh, placements).items():
            wanted = distribute_tensor(
                torch.from_numpy(batch[name]), mesh, placements[name], src_data_rank=None
            )
            assert tensor.shape == wanted.shape
            assert tensor.dtype == wanted.dtype
            assert torch.equal(tensor.to_local(), wanted.to_local())
        for name, tensor in emitter.complete(tensors).items():
            is_whole = tensor.shape == rows[name].shape
            assert tensor.is_contiguous()
            assert (tensor.data_ptr() == rows[name].ctypes.data) == is_whole  # else it is a copy
            tensor.zero_()
            assert is_whole or np.array_equal(rows[name], before[name])


def test_tensors_go_to_the_device_that_is_asked_for(as_rank: AsRank) -> None:
    """The meta device stands for others than the CPU. Without an accelerator there is nothing to pin for."""
    as_rank(0, 1)
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
    pin = not torch.accelerator.is_available()
    for each in (TorchMesh(device="meta", pin_memory=pin), TorchMesh(mesh, device=torch.device("meta"))):
        with msd.DataLoader(recipe(), mesh=each, num_steps=1) as loader:
            (batch,) = loader
        assert {(tensor.device.type, tensor.shape) for tensor in batch.values()} == {("meta", (4, 16))}


@pytest.mark.parametrize("how", ["read-only", "turned", "unaligned"])
def test_rows_that_torch_cannot_share_are_copied(how: str) -> None:
    rows = np.arange(32, dtype=np.int32).reshape(4, 8)
    wanted = rows.copy()
    if how == "read-only":
        rows.flags.writeable = False
    elif how == "turned":
        rows = rows[::-1][::-1].T.copy().T
    else:
        buffer = np.zeros(4 * 32 + 1, np.uint8)
        buffer[1:] = rows.reshape(-1).view(np.uint8)
        rows = buffer[1:].view(np.int32).reshape(4, 8)
        assert not rows.flags.aligned
    tree = ClientPlaceTree(MeshLayout(axis_names=("dp",), axis_sizes=(1,), process_of_device=(0,)))
    emitter = TensorEmitter(device_of_process=0, specs={"tokens": ("dp", None)}, tree=tree)
    tensor = emitter.emit({"tokens": rows})["tokens"]
    assert torch.equal(tensor, torch.from_numpy(wanted))
    tensor.zero_()
    assert np.array_equal(rows, wanted)
