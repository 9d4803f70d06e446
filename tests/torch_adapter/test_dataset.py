"""The dataset in one process: alone, in torch's and torchdata's loaders, in torch's checkpoints."""

import copy
import itertools
import pickle  # noqa: TID251 - what torchtitan does with a state
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

import msdata_jax as msd  # noqa: E402
from msdata_jax.torch import MSIterableDataset, TorchMesh, titan_batch  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata 0.11 calls it
]

STEPS = 7


def records(count: int, first: int) -> list[dict]:
    lengths = 3 + np.arange(count) * 5 % 11
    return [{"tokens": np.full(length, first + i, np.int32)} for i, length in enumerate(lengths.tolist())]


def make_recipe(*, stop: bool = False, seed: int = 5) -> msd.Recipe:
    strategy = (
        msd.DGraph()
        .mix({"a": 0.7, "b": 0.3}, on_exhausted="stop" if stop else "repeat")
        .pack(seq_len=16, rows=4)
        .distribute("dp")
        .balance("lpt")
    )
    sources = {"a": msd.Source(records(40, 1000)), "b": msd.Source(records(23, 2000))}
    return msd.Recipe(sources=sources, strategy=strategy, seed=seed)


RECIPE = make_recipe()


@pytest.fixture(scope="module")
def wanted() -> list[dict[str, np.ndarray]]:
    """The numpy rows of each step."""
    with msd.DataLoader(RECIPE, num_steps=STEPS) as loader:
        return list(loader)


def assert_steps(batches: Iterator[Any], wanted: list[dict[str, np.ndarray]]) -> None:
    for batch, other in itertools.zip_longest(batches, wanted):
        assert batch is not None
        assert other is not None
        assert set(batch) == set(other)
        for name, field in other.items():
            assert isinstance(batch[name], torch.Tensor)
            assert torch.equal(batch[name], torch.from_numpy(field)), name
            assert batch[name].dtype == torch.from_numpy(field).dtype


def test_yields_the_steps_as_tensors(wanted: list) -> None:
    with MSIterableDataset(RECIPE, num_steps=STEPS) as dataset:
        assert_steps(iter(dataset), wanted)
        assert dataset.loader.job_figures["loaders"]


def test_in_a_loader_of_torch(wanted: list) -> None:
    with MSIterableDataset(RECIPE, num_steps=STEPS) as dataset:
        assert_steps(iter(DataLoader(dataset, batch_size=None)), wanted)


def test_a_loader_gets_its_tensors_alone(wanted: list) -> None:
    """Writing into a batch changes no other batch, and a batch that is kept is not changed by later ones."""
    with MSIterableDataset(RECIPE, num_steps=STEPS) as dataset:
        kept = []
        for batch in dataset:
            kept.append({name: tensor.clone() for name, tensor in batch.items()})
            for tensor in batch.values():
                tensor.fill_(77)
            kept[-1]["overwritten"] = batch
        assert all((each.pop("overwritten")["tokens"] == 77).all() for each in kept)
        assert_steps(iter(kept), wanted)


def test_states_are_small_and_say_where_it_stands(wanted: list) -> None:
    with MSIterableDataset(RECIPE, num_steps=STEPS) as dataset:
        first = dataset.state_dict()
        assert first == {
            "version": 1, "step": 0, "content_digest": "", "ended": False, "recipe": RECIPE.fingerprint(),
        }  # fmt: skip
        states = [dataset.state_dict() for _ in dataset]
        assert [state["step"] for state in states] == list(range(1, STEPS + 1))
        assert len({state["content_digest"] for state in states}) == STEPS
        assert max(len(pickle.dumps(state)) for state in states) < 300


@pytest.mark.parametrize("with_journal", [False, True])
def test_goes_on_from_every_state(wanted: list, tmp_path: Path, with_journal: bool) -> None:
    journal = tmp_path / "journal" if with_journal else None
    with MSIterableDataset(RECIPE, num_steps=STEPS, journal=journal) as dataset:
        states = [dataset.state_dict(), *(dataset.state_dict() for _ in dataset)]
    for step, state in enumerate(states):
        with MSIterableDataset(RECIPE, num_steps=STEPS, journal=journal) as dataset:
            dataset.load_state_dict(state)
            assert dataset.state_dict() == state
            assert_steps(iter(dataset), wanted[step:])


def test_goes_to_and_fro(wanted: list) -> None:
    """Behind the first step, loading builds another DataLoader, in the same process."""
    with MSIterableDataset(RECIPE, num_steps=STEPS) as dataset:
        states = [dataset.state_dict(), *(dataset.state_dict() for _ in dataset)]
        for step in (3, 1, 5, 5, 0, STEPS):
            dataset.load_state_dict(states[step])
            assert dataset.state_dict() == states[step]
            assert_steps(itertools.islice(dataset, 2), wanted[step : step + 2])


def test_an_empty_state_changes_nothing(wanted: list) -> None:
    with MSIterableDataset(RECIPE, num_steps=STEPS) as dataset:
        assert_steps(itertools.islice(dataset, 2), wanted[:2])
        dataset.load_state_dict({})
        assert_steps(iter(dataset), wanted[2:])


def test_a_pass_behind_the_last_sample_begins_again() -> None:
    recipe = make_recipe(stop=True)
    with MSIterableDataset(recipe) as dataset:
        first = [batch["tokens"] for batch in dataset]
        assert dataset.state_dict()["ended"]
        second = [batch["tokens"] for batch in dataset]
        state = dataset.state_dict()
        assert len(first) == len(second) == state["step"] > 3
        assert all(map(torch.equal, first, second))
    with MSIterableDataset(recipe) as dataset:
        dataset.load_state_dict(state)
        assert dataset.state_dict() == state
        assert len(list(dataset)) == len(first)


def test_behind_num_steps_nothing_comes_and_more_steps_go_on(wanted: list) -> None:
    with MSIterableDataset(RECIPE, num_steps=3) as dataset:
        assert_steps(iter(dataset), wanted[:3])
        assert list(dataset) == []
        state = dataset.state_dict()
    with MSIterableDataset(RECIPE, num_steps=STEPS) as dataset:
        dataset.load_state_dict(state)
        assert_steps(iter(dataset), wanted[3:])


def test_a_state_behind_num_steps_has_nothing_to_come(wanted: list) -> None:
    with MSIterableDataset(RECIPE, num_steps=5) as dataset:
        list(dataset)
        state = dataset.state_dict()
    with MSIterableDataset(RECIPE, num_steps=3) as dataset:
        dataset.load_state_dict(state)
        assert list(dataset) == []
        assert dataset.state_dict() == state
        assert list(dataset) == []  # not the first three steps again


def test_behind_a_stop_the_rest_comes_from_the_state(wanted: list) -> None:
    with MSIterableDataset(RECIPE, num_steps=1000) as dataset:
        begun = [next(dataset)]
        dataset.loader.request_stop()
        begun += dataset
        state = dataset.state_dict()
        assert dataset.loader.stopped
        assert list(dataset) == []
    assert 1 <= len(begun) == state["step"] < 1000
    assert not state["ended"]
    assert_steps(iter(begun[:STEPS]), wanted[: len(begun)])
    with MSIterableDataset(RECIPE, num_steps=state["step"] + 1) as dataset:
        dataset.load_state_dict(state)
        assert len(list(dataset)) == 1


# --- torchdata


def test_in_a_stateful_loader_at_every_step(wanted: list) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    with MSIterableDataset(RECIPE, num_steps=STEPS) as dataset:
        loader = stateful(dataset, batch_size=None)
        states = [copy.deepcopy(loader.state_dict())]
        batches = []
        for batch in loader:
            batches.append(batch)
            states.append(pickle.loads(pickle.dumps(loader.state_dict())))
    assert_steps(iter(batches), wanted)
    for step, state in enumerate(states):
        with MSIterableDataset(RECIPE, num_steps=STEPS) as dataset:
            loader = stateful(dataset, batch_size=None)
            loader.load_state_dict(state)
            assert_steps(iter(loader), wanted[step:])


def test_passes_of_a_stateful_loader() -> None:
    """What torchdata asks of a dataset: a state at the end of a pass goes on with the next pass."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    recipe = make_recipe(stop=True)
    with MSIterableDataset(recipe) as dataset:
        loader = stateful(dataset, batch_size=None)
        first = [batch["tokens"] for batch in loader]
        state = loader.state_dict()
        assert len(list(loader)) == len(first)
    with MSIterableDataset(recipe) as dataset:
        loader = stateful(dataset, batch_size=None)
        loader.load_state_dict(state)
        again = [batch["tokens"] for batch in loader]
        assert len(again) == len(first)
        assert all(map(torch.equal, first, again))


def loader_classes() -> list:
    found = [DataLoader]
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError:
        return found
    return [*found, StatefulDataLoader]


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # in a process with threads
@pytest.mark.parametrize("kind", loader_classes())
@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_worker_processes_are_refused(kind: type, how: str) -> None:
    with MSIterableDataset(RECIPE, num_steps=STEPS) as dataset:
        loader = kind(dataset, batch_size=None, num_workers=1, multiprocessing_context=how, timeout=60)
        with pytest.raises(msd.LaunchError, match="num_workers=0"):
            list(loader)


# --- torchtitan and torch's checkpoints


def test_batches_for_torchtitan(wanted: list) -> None:
    with MSIterableDataset(RECIPE, num_steps=STEPS, transform=titan_batch) as dataset:
        for (inputs, labels), batch in zip(iter(dataset), wanted, strict=True):
            assert set(inputs) == {"input", "positions"}
            assert {inputs["input"].dtype, inputs["positions"].dtype, labels.dtype} == {torch.int64}
            assert np.array_equal(inputs["input"], batch["tokens"])
            assert np.array_equal(inputs["positions"], batch["positions"])
            labels_wanted = np.where(batch["loss_mask"] > 0, batch["targets"], -100)
            assert np.array_equal(labels, labels_wanted)
            assert (labels == -100).any()
            logits = torch.zeros(*labels.shape, 2100)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            assert loss.item() == pytest.approx(np.log(2100), rel=1e-5)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_in_a_distributed_checkpoint_with_the_model(wanted: list, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    model = torch.nn.Linear(2, 2)
    with MSIterableDataset(RECIPE, num_steps=STEPS) as dataset:
        assert_steps(itertools.islice(dataset, 3), wanted[:3])
        dcp.save({"model": model.state_dict(), "data": dataset}, checkpoint_id=tmp_path, no_dist=True)
    other = torch.nn.Linear(2, 2)
    with MSIterableDataset(RECIPE, num_steps=STEPS) as dataset:
        state = {"model": other.state_dict(), "data": dataset}
        dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
        assert torch.equal(other.weight, model.weight)
        assert_steps(iter(dataset), wanted[3:])


# --- bad states


def bad_states() -> list[tuple[dict, str]]:
    good = {"version": 1, "step": 3, "content_digest": "d", "ended": False, "recipe": RECIPE.fingerprint()}
    none = "a state of MSIterableDataset has version (int), step (int)"
    return [
        ({**good, "version": 2}, none),
        ({"step": 3}, none),
        ({**good, "step": "3"}, none),
        ({**good, "step": -1}, none),
        ({**good, "dp_rank_0": b""}, none),
        ({**good, "recipe": "0" * 32}, "the state at step 3 is of another recipe"),
    ]


@pytest.mark.parametrize(("state", "message"), bad_states())
def test_bad_states_are_refused_and_change_nothing(state: dict, message: str, wanted: list) -> None:
    with MSIterableDataset(RECIPE, num_steps=STEPS) as dataset:
        assert_steps(itertools.islice(dataset, 1), wanted[:1])
        with pytest.raises(msd.CheckpointError, match=re.escape(message)):
            dataset.load_state_dict(state)
        assert_steps(iter(dataset), wanted[1:])


def test_a_journal_that_lacks_the_step_says_so(tmp_path: Path) -> None:
    with MSIterableDataset(RECIPE, num_steps=STEPS) as dataset:
        next(dataset)
        state = dataset.state_dict()
    with MSIterableDataset(RECIPE, num_steps=STEPS, journal=tmp_path / "empty") as dataset:
        dataset.load_state_dict(state)
        for _ in range(2):  # and never gives another step instead
            with pytest.raises(msd.CheckpointError, match="holds no journal"):
                next(dataset)


def test_data_that_changed_are_noticed_by_the_step_before() -> None:
    with MSIterableDataset(RECIPE, num_steps=STEPS) as dataset:
        next(dataset)
        state = dataset.state_dict()
        next(dataset)
        state["content_digest"] = dataset.state_dict()["content_digest"]
        dataset.load_state_dict(state)
        with pytest.raises(msd.CheckpointError, match=r"step 0 delivered \w+ when .* the data changed"):
            next(dataset)


def test_closing_it_makes_room_for_another_and_reading_goes_on(wanted: list) -> None:
    training, evaluation = (MSIterableDataset(RECIPE, num_steps=STEPS) for _ in range(2))
    assert_steps(itertools.islice(training, 2), wanted[:2])
    training.close()
    assert_steps(iter(evaluation), wanted)
    assert_steps(iter(training), wanted[2:])


# --- what is loaded

PROGRAM = """
import json, sys
import numpy as np
import msdata_jax as msd
{imports}
recipe = msd.Recipe(
    sources={{"s": msd.Source([{{"tokens": np.arange(1, 9, dtype=np.int32)}}])}},
    strategy=msd.DGraph().mix({{"s": 1}}).pack(seq_len=16, rows=2),
)
with msd.DataLoader(recipe, mesh={mesh}, num_steps=2) as loader:
    assert len(list(loader)) == 2
print(json.dumps([name for name in ("torch", "jax") if name in sys.modules]))
"""


@pytest.mark.parametrize(
    ("imports", "mesh", "loaded"),
    [
        ("", "None", "[]"),
        ("import jax", "jax.make_mesh((1,), ('dp',))", '["jax"]'),
        ("from msdata_jax.torch import TorchMesh", "TorchMesh()", '["torch"]'),
    ],
)
def test_only_the_framework_of_the_mesh_is_loaded(imports: str, mesh: str, loaded: str) -> None:
    line = [sys.executable, "-W", "error", "-c", PROGRAM.format(imports=imports, mesh=mesh)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == loaded


def test_meshes_that_are_given_as_they_are_and_wrapped_deliver_the_same(as_rank, wanted: list) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    as_rank(0, 1)
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    for each in (mesh, TorchMesh(mesh), TorchMesh(mesh, device="cpu")):
        with msd.DataLoader(RECIPE, mesh=each, num_steps=STEPS) as loader:
            assert_steps(iter(loader), wanted)
    with msd.DataLoader(RECIPE, mesh=TorchMesh(mesh, dtensor=True), num_steps=STEPS) as loader:
        local = [{name: tensor.to_local() for name, tensor in batch.items()} for batch in loader]
        assert_steps(iter(local), wanted)
