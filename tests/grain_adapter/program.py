"""The training script of these tests' jobs, and of the same in one process.

usage: program.py CASE OUT; each process writes `OUT/<case><process>.json`.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msdata_jax as msd

CASE, OUT = sys.argv[1], Path(sys.argv[2])
NUM_DEVICES, SAVE_AT = 4, 2

processes = msd.initialize(num_cpu_devices=NUM_DEVICES // int(os.environ.get("MSDATA_TEST_TRAINERS", "1")))

import grain  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from maxtext_loop import FIELDS, evaluate, train  # noqa: E402
from orbax.checkpoint.experimental import v1  # noqa: E402
from pipelines import OF_ROWS, PIPELINES  # noqa: E402
from recipe import NUM_STEPS, recipe  # noqa: E402

from msdata_jax.checkpoint import DataRestore, DataSave  # noqa: E402
from msdata_jax.grain import GlobalBatchIterator, MSDataset, MSDatasetIterator  # noqa: E402

mesh = jax.make_mesh((NUM_DEVICES,), ("dp",))
copies = jax.make_mesh((processes.num_processes, NUM_DEVICES // processes.num_processes), ("tp", "dp"))
"""On this one every process has all rows."""


def local(batch: dict[str, jax.Array]) -> dict[str, np.ndarray]:
    """The shards of this process, one after the other."""
    return {
        name: np.concatenate([np.asarray(shard.data) for shard in array.addressable_shards])
        for name, array in batch.items()
    }


def pipelines() -> list[str]:
    """grain's check of every pipeline: over the rows of this process, and over global arrays.

    Stages that repack rows give as many elements as there are tokens, so processes must have the same rows.
    """
    check = grain.experimental.assert_equal_output_after_checkpoint
    for name, make in PIPELINES.items():
        steps, where = (2, copies) if name in OF_ROWS else (3, mesh)
        check(make(MSDataset(recipe, mesh=where, as_numpy=True, num_steps=steps)))
    check(MSDataset(recipe, mesh=mesh, num_steps=3).map(local))
    return list(PIPELINES)


def views() -> dict[str, Any]:
    """The rows of this process, and the same of the global arrays."""
    arrays = list(MSDataset(recipe, mesh=mesh, num_steps=3).map(local))
    rows = list(MSDataset(recipe, mesh=mesh, num_steps=3, as_numpy=True))
    for one, other in zip(arrays, rows, strict=True):
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) for name in one)
    data = {as_numpy: MSDataset(recipe, mesh=mesh, as_numpy=as_numpy) for as_numpy in (False, True)}
    spec = {as_numpy: grain.experimental.get_element_spec(each) for as_numpy, each in data.items()}
    batch = next(iter(MSDataset(recipe, mesh=mesh)))
    for name, array in batch.items():
        of_all = spec[False][name]
        assert (of_all.shape, of_all.dtype, of_all.sharding) == (array.shape, array.dtype, array.sharding)
        assert (spec[True][name].shape, spec[True][name].dtype) == (rows[0][name].shape, rows[0][name].dtype)
    return {"tokens": [each["tokens"].tolist() for each in rows]}


def digests(iterator: MSDatasetIterator) -> list[str]:
    """Of what is still to come."""
    return [iterator.loader.last_step.content_digest for _ in iterator]


def data() -> MSDataset:
    return MSDataset(recipe, mesh=mesh, num_steps=NUM_STEPS)


def save() -> list[str]:
    """Save behind the third step by grain's handler and ours, in both versions of orbax; then go on."""
    iterator = iter(data())
    for _ in range(SAVE_AT + 1):
        next(iterator)
    for name, args in (
        ("grain", grain.checkpoint.CheckpointSave(item=iterator)),
        ("ours", DataSave(iterator)),
    ):
        with ocp.CheckpointManager(OUT / name) as manager:
            manager.save(SAVE_AT, args=ocp.args.Composite(data=args))
    with v1.training.Checkpointer(OUT / "v1") as checkpointer:
        checkpointer.save_checkpointables(SAVE_AT, {"data": iterator})
    return digests(iterator)


def restore() -> dict[str, list[str]]:
    """What comes behind each of them; grain's handler wants the number of processes that saved."""
    same = len(list((OUT / "grain" / str(SAVE_AT) / "data").glob("process_*"))) == processes.num_processes
    found = {}
    handlers = {"grain": grain.checkpoint.CheckpointRestore} if same else {}
    for name, kind in {**handlers, "ours": DataRestore}.items():
        iterator = iter(data())
        with ocp.CheckpointManager(OUT / name) as manager:
            manager.restore(SAVE_AT, args=ocp.args.Composite(data=kind(iterator)))
        found[name] = digests(iterator)
    iterator = iter(data())
    with v1.training.Checkpointer(OUT / "v1") as checkpointer:
        checkpointer.load_checkpointables(SAVE_AT, {"data": iterator})
    assert iterator.get_state()["step"] == SAVE_AT + 1
    assert iterator.get_state()["plan_digest"] != "0" * 32
    found["v1"] = digests(iterator)
    assert iterator.loader.figures.summary()["steps"] == NUM_STEPS - SAVE_AT - 1  # nothing twice
    return found


def maxtext() -> dict[str, Any]:
    """A loop without a break; one that is cut off behind its checkpoint, and one that goes on from there."""
    config = SimpleNamespace(steps=NUM_STEPS, save_at=SAVE_AT, data_sharding=("dp",))
    cut_off = SimpleNamespace(**{**vars(config), "steps": SAVE_AT + 1})

    def fresh(num_steps: int = NUM_STEPS) -> GlobalBatchIterator:
        return GlobalBatchIterator(recipe, mesh=mesh, spec=P(*config.data_sharding), num_steps=num_steps)

    spec = grain.experimental.get_element_spec(fresh().dataset)["targets"]
    assert spec.sharding == jax.sharding.NamedSharding(mesh, P(*config.data_sharding))
    whole, moved = train(config, mesh, fresh(), OUT / "whole")
    head, _ = train(cut_off, mesh, fresh(), OUT / "resumed")
    tail, _ = train(config, mesh, fresh(), OUT / "resumed")
    short, _ = train(SimpleNamespace(**{**vars(config), "steps": 99}), mesh, fresh(4), OUT / "short")
    eval_iterator = fresh(2)
    evaluations = [evaluate(mesh, eval_iterator) for _ in range(2)]
    eval_iterator.reset()
    batch = next(eval_iterator)
    assert list(batch) == FIELDS
    assert {(str(array.dtype), array.shape) for array in batch.values()} == {("int32", (4, 16))}
    eval_iterator.close()
    return {
        "whole": whole,
        "resumed": [*head, *tail],
        "short": short,
        "evaluations": evaluations,
        "moved": moved,
    }


def fields() -> list[str]:
    """What MaxText's fields are made of, with images and a source that does not count; what is refused."""
    count, sizes = 20, {"patches_per_row": 4, "patch_values": 3}
    image = np.where(np.arange(10) % 5 == 1, msd.IMAGE_TOKEN, 7).astype(np.int32)
    shown = [{"tokens": image, "patches": np.full((2, 3), i, np.uint8)} for i in range(count)]
    plain = [{"tokens": np.full(6, 50 + i, np.int32)} for i in range(count)]
    sources = {"images": msd.Source(shown), "silent": msd.Source(plain)}
    strategy = msd.DGraph().mix(dict.fromkeys(sources, 1)).pack(seq_len=16, rows=4, **sizes).distribute("dp")

    def made(strategy: msd.DGraph) -> msd.Recipe:
        return msd.Recipe(sources=sources, strategy=strategy)

    counted = made(strategy.loss(sources={"silent": 0}))
    ours = next(iter(MSDataset(counted, mesh=mesh)))
    theirs = next(GlobalBatchIterator(counted, mesh=mesh))
    assert set(theirs) == {*FIELDS, "patches", "patch_index"}
    for suffix, name in {"": "tokens", "_position": "positions", "_segmentation": "segment_ids"}.items():
        assert np.array_equal(theirs[f"inputs{suffix}"], ours[name])
    assert np.array_equal(theirs["targets"], ours["targets"])
    assert np.array_equal(theirs["patches"], ours["patches"])
    counts = np.asarray(ours["loss_mask"]) > 0
    assert 0 < counts.sum() < (np.asarray(ours["segment_ids"]) > 0).sum()
    assert np.array_equal(theirs["targets_segmentation"], np.where(counts, ours["segment_ids"], 0))
    refused = []
    for attempt in (
        lambda: GlobalBatchIterator(made(strategy.loss(per="segments")), mesh=mesh),
        lambda: GlobalBatchIterator(made(strategy.loss(sources={"silent": 0.5})), mesh=mesh),
        lambda: GlobalBatchIterator(counted, mesh=mesh, spec=P("tp")),
        lambda: MSDataset(made(strategy.broadcast_at("tp", via="device")), mesh=copies, as_numpy=True),
    ):
        try:
            attempt()
        except msd.RecipeError as error:
            refused.append(str(error))
    return refused


def positions() -> dict[str, Any]:
    """orbax v1 where no step was delivered yet, and where nothing of ours was saved."""
    iterator = iter(data())
    grain.experimental.set_next_index(iterator, 4)
    with v1.training.Checkpointer(OUT / "early") as checkpointer:
        checkpointer.save_checkpointables(0, {"data": iterator})
    again = iter(data())
    with v1.training.Checkpointer(OUT / "early") as checkpointer:
        checkpointer.load_checkpointables(0, {"data": again})
    same = [np.array_equal(a["tokens"], b["tokens"]) for a, b in zip(iterator, again, strict=True)]
    (OUT / "nothing").mkdir()
    try:
        asyncio.run(again.load(OUT / "nothing"))
    except msd.CheckpointError as error:
        return {"same": same, "refused": str(error)}
    return {}


CASES = {each.__name__: each for each in (pipelines, views, save, restore, maxtext, fields, positions)}
(OUT / f"{CASE}{processes.process_index}.json").write_text(json.dumps(CASES[CASE]()))
