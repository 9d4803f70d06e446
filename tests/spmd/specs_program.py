"""With eight CPU devices: wrong meshes and specs are refused with the rule, the values and the way out."""

import re

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

import msdata_jax as msd  # noqa: E402

MESH = jax.make_mesh((2, 2, 2), ("dp", "cp", "tp"))
RECORDS = [{"tokens": np.arange(1, 6, dtype=np.int32)}]


def recipe(seq_len: int = 16, rows: int = 4, axis: str = "dp", **spread: object) -> msd.Recipe:
    graph = msd.DGraph().mix({"s": 1}).pack(seq_len=seq_len, rows=rows).distribute(axis, **spread)
    return msd.Recipe(sources={"s": msd.Source(RECORDS)}, strategy=graph)


REFUSED = [
    (recipe(axis="rows"), None, "the mesh has axes ('dp', 'cp', 'tp'); it has no axis 'rows'"),
    (recipe(rows=3), None, "pack(rows=3) does not divide by 2 groups"),
    (
        recipe(rows=6, microbatches=2),
        None,
        "pack(rows=6) does not divide by 2 groups along 'dp' x 2 microbatches = 4",
    ),
    (recipe(seq_len=15), {"tokens": P("dp", "cp")}, "dim 1 of size 15 along 'cp' into 2 equal parts"),
    (
        recipe(seq_len=14, context_axis="cp", context_layout="zigzag"),
        None,
        "does not divide by 4 context-parallel",
    ),
    (recipe(), {"tokens": P("data")}, "it has no axis 'data'"),
    (recipe(), {"tokens": P("cp")}, "distribute('dp') balances the parts along that axis"),
    (recipe(), {"tokens": P("dp"), "targets": P("cp")}, "every field cuts its rows alike"),
    (recipe(), {"labels": P("dp")}, "specs name the fields ['labels']"),
    (recipe(), {"tokens": P("dp", "dp")}, "uses an axis twice"),
    (recipe(), {"tokens": P("dp", None, "tp")}, "more entries than the array's shape"),
    (
        recipe(context_axis="cp", context_layout="zigzag"),
        {"tokens": P("dp")},
        "specs['tokens'] cuts them along None",
    ),
]


def main() -> None:
    for each, specs, message in REFUSED:
        with pytest.raises(msd.RecipeError, match=re.escape(message)):
            msd.DataLoader(each, mesh=MESH, specs=specs)
    for written in (P("dp"), P("dp", None)):
        with msd.DataLoader(recipe(), mesh=MESH, specs={"tokens": written}, num_steps=1) as loader:
            batch = next(loader)
        for name in ("tokens", "targets", "loss_mask"):
            assert batch[name].sharding == jax.NamedSharding(MESH, written), name
    merged = recipe(rows=8)
    specs = {"tokens": P(("dp", "cp"), "tp"), "loss_mask": P(("dp", "cp"))}
    with msd.DataLoader(merged, mesh=MESH, specs=specs, num_steps=2) as loader:
        for batch in loader:
            assert batch["tokens"].sharding.spec == P(("dp", "cp"), "tp")
            assert batch["loss_mask"].sharding.spec in (P(("dp", "cp")), P(("dp", "cp"), None))
            assert batch["targets"].sharding.is_equivalent_to(batch["tokens"].sharding, 2)
            held = np.asarray(batch["tokens"]).copy()
            for shard in batch["tokens"].addressable_shards:
                assert np.array_equal(np.asarray(shard.data), held[shard.index])
    print("all specs are as they should be")


main()
