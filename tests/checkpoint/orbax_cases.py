"""Cases with real managers of orbax, on disk. `test_orbax.py` runs them in a process of their own.

A process that has JAX must not fork, and other tests fork.
"""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from checkpoint.states import Stand, play
from orbax.checkpoint.experimental import v1

import msdata_jax as msd
from msdata_jax.checkpoint import (
    DataCheckpointable,
    DataRestore,
    DataSave,
    KeepBases,
    find_states,
    load_state,
)
from msdata_jax.errors import CheckpointError

jax.config.update("jax_platforms", "cpu")

LatestN = ocp.checkpoint_managers.LatestN
STATES = play(num_sources=30, num_steps=16)


@pytest.fixture(autouse=True)
def no_jax_backend() -> None:
    """This is no process of other tests: it may compute."""


def model_of(step: int) -> dict:
    return {"w": jnp.full((4, 2), step, jnp.float32), "count": jnp.int32(step)}


def open_v0(root: Path, policy=None, **options) -> ocp.CheckpointManager:
    return ocp.CheckpointManager(
        root, options=ocp.CheckpointManagerOptions(preservation_policy=policy, **options)
    )


def save_v0(manager: ocp.CheckpointManager, step: int, bases: KeepBases | None = None) -> None:
    """Save, and let the state change at once."""
    loader = Stand(STATES[step])
    args = ocp.args.Composite(model=ocp.args.StandardSave(model_of(step)), data=DataSave(loader, bases))
    manager.save(step, args=args)
    loader.state = STATES[0]


def restore_v0(root: Path, step: int | None = None) -> Stand:
    """Restore in a new manager; the model comes with the data."""
    loader = Stand()
    with open_v0(root) as manager:
        step = manager.latest_step() if step is None else step
        model = ocp.args.StandardRestore(model_of(0))
        restored = manager.restore(step, args=ocp.args.Composite(model=model, data=DataRestore(loader)))
    assert np.all(restored["model"]["w"] == step)
    assert restored["data"] == []
    return loader


def assert_exact(root: Path) -> list[int]:
    """Every step that is there restores exactly; gives the steps."""
    steps = sorted({found.step for found in find_states(root)})
    for step in steps:
        state = restore_v0(root, step).state
        assert state is not None
        assert state.to_leaves() == STATES[step].to_leaves()
    return steps


def kinds(root: Path) -> dict[int, str]:
    return {found.step: found.head.kind[0] if found.head else "?" for found in find_states(root)}


def test_v0_full_and_deltas_under_retention(tmp_path: Path) -> None:
    bases = KeepBases(LatestN(2), full_every=4)
    with open_v0(tmp_path, bases) as manager:
        for step in range(1, 13):
            save_v0(manager, step, bases)
    assert kinds(tmp_path) == {5: "f", 9: "f", 11: "d", 12: "d"}
    assert assert_exact(tmp_path) == [5, 9, 11, 12]
    bases = KeepBases(LatestN(2), full_every=4)
    with open_v0(tmp_path, bases) as manager:  # a new process: first a full
        save_v0(manager, 13, bases)
        save_v0(manager, 14, bases)
    assert kinds(tmp_path) == {9: "f", 13: "f", 14: "d"}
    assert_exact(tmp_path)


def test_v0_without_bases_any_retention_is_right(tmp_path: Path) -> None:
    with open_v0(tmp_path, max_to_keep=2) as manager:
        for step in range(1, 7):
            save_v0(manager, step)
    assert kinds(tmp_path) == {5: "f", 6: "f"}
    assert_exact(tmp_path)


def test_v0_max_to_keep_in_place_of_the_policy_is_an_error(tmp_path: Path) -> None:
    bases = KeepBases(LatestN(2), full_every=4)
    with open_v0(tmp_path, max_to_keep=2) as manager:
        save_v0(manager, 1, bases)
        with pytest.raises(CheckpointError, match=r"step 1 was saved with KeepBases.*preservation_policy"):
            save_v0(manager, 2, bases)
    assert assert_exact(tmp_path) == [1]


def test_v0_the_manager_is_checked_before_a_save_begins(tmp_path: Path) -> None:
    """Where the earlier save is done: within a save, the error leaves threads of orbax behind."""
    bases = KeepBases(LatestN(2), full_every=4)
    with open_v0(tmp_path, max_to_keep=2) as manager:
        save_v0(manager, 1, bases)
        manager.wait_until_finished()
        with pytest.raises(CheckpointError, match=r"step 1 was saved with KeepBases.*preservation_policy"):
            DataSave(Stand(STATES[2]), bases)


def test_an_error_within_a_save_does_not_keep_the_process(tmp_path: Path) -> None:
    """orbax's threads of the other item wait for a directory, which is made though the process ends."""
    program = (
        "import sys; from pathlib import Path; from checkpoint.orbax_cases import *\n"
        "with open_v0(Path(sys.argv[1])) as manager: save_v0(manager, 1, Failing())"
    )
    line = [sys.executable, "-c", program, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(2):
        done = subprocess.run(line, env=env, timeout=100, capture_output=True, text=True, check=False)
        assert "CheckpointError: fails" in done.stderr


class Failing(KeepBases):
    def begin(self, step: Path) -> None:
        raise CheckpointError("fails")


def test_v0_a_policy_that_no_save_is_given_is_an_error(tmp_path: Path) -> None:
    with (
        open_v0(tmp_path, KeepBases(LatestN(2))) as manager,
        pytest.raises(CheckpointError, match="DataSave"),
    ):
        save_v0(manager, 1)


def test_v0_keep_bases_inside_another_policy(tmp_path: Path) -> None:
    bases = KeepBases(LatestN(1), full_every=5)
    policies = ocp.checkpoint_managers
    policy = policies.AnyPreservationPolicy([bases, policies.EveryNSteps(3)])
    with open_v0(tmp_path, policy) as manager:
        for step in range(1, 15):
            save_v0(manager, step, bases)
    assert {3, 6, 9, 12, 14} <= set(assert_exact(tmp_path))


def test_v0_two_streams_in_one_manager(tmp_path: Path) -> None:
    bases = KeepBases(LatestN(2), full_every=3)
    with open_v0(tmp_path, bases) as manager:
        for step in range(1, 8):
            train, evaluation = Stand(STATES[step]), Stand(STATES[step // 2])
            args = ocp.args.Composite(train=DataSave(train, bases), evaluation=DataSave(evaluation, bases))
            manager.save(step, args=args)
    for step in {found.step for found in find_states(tmp_path)}:
        assert load_state(tmp_path / str(step) / "train").step == step + 1
        assert load_state(tmp_path / str(step) / "evaluation").step == step // 2 + 1


def test_v0_a_base_deleted_by_hand(tmp_path: Path) -> None:
    bases = KeepBases(LatestN(5), full_every=9)
    with open_v0(tmp_path, bases) as manager:
        for step in (1, 2):
            save_v0(manager, step, bases)
        manager.wait_until_finished()
        manager.delete(1)
        for step in (3, 4):
            save_v0(manager, step, bases)
    assert kinds(tmp_path) == {2: "d", 3: "f", 4: "d"}
    with pytest.raises(CheckpointError, match=r"changed since step 1, .* is gone.*can be read: 3, 4$"):
        restore_v0(tmp_path, 2)
    assert restore_v0(tmp_path).state is not None


def test_v0_restore_then_go_on_in_the_same_manager(tmp_path: Path) -> None:
    bases = KeepBases(full_every=9)
    with open_v0(tmp_path, bases) as manager:
        for step in (1, 2):
            save_v0(manager, step, bases)
        manager.wait_until_finished()
        loader = Stand()
        restored = manager.restore(1, args=ocp.args.Composite(data=DataRestore(loader, accept_changes=True)))
        assert restored["data"] == ["accepted"]
        assert loader.state is not None
        assert loader.state.step == 2
        for step in (3, 4):
            save_v0(manager, step, bases)
    assert kinds(tmp_path) == {1: "f", 2: "d", 3: "f", 4: "d"}
    assert_exact(tmp_path)


def test_v0_other_names_of_steps_and_no_threads(tmp_path: Path) -> None:
    bases = KeepBases(LatestN(1), full_every=3)
    options = {"step_prefix": "run", "step_format_fixed_length": 6, "enable_async_checkpointing": False}
    with open_v0(tmp_path, bases, **options) as manager:
        for step in range(1, 9):
            save_v0(manager, step, bases)
        metadata = manager.item_metadata(8)["data"]
    assert {found.where for found in find_states(tmp_path)} == {"run_000004", "run_000007", "run_000008"}
    assert metadata["base"] == "run_000007"
    assert (metadata["kind"], metadata["step"]) == ("delta", 9)
    assert load_state(tmp_path / "run_000008" / "data").step == 9


def test_v0_the_item_alone(tmp_path: Path) -> None:
    """Without a Composite, and without a manager."""
    with open_v0(tmp_path / "a") as manager:
        manager.save(1, args=DataSave(Stand(STATES[1])))
        manager.wait_until_finished()
        loader = Stand()
        manager.restore(1, args=DataRestore(loader))
    from msdata_jax.checkpoint import DataHandler

    with ocp.AsyncCheckpointer(DataHandler()) as checkpointer:
        checkpointer.save(tmp_path / "b", args=DataSave(Stand(STATES[1])))
    assert load_state(tmp_path / "b").to_leaves() == STATES[1].to_leaves()
    assert loader.state is not None
    assert loader.state.to_leaves() == STATES[1].to_leaves()


def test_v0_a_full_disk(tmp_path: Path) -> None:
    """The save fails where orbax waits for it; what was saved stays; the next one is a full."""
    bases = KeepBases(LatestN(3), full_every=4)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_v0(tmp_path, bases) as manager:
        for step in (1, 2, 3, 4):
            save_v0(manager, step, bases)
        manager.wait_until_finished()
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
        try:
            manager.save(5, args=ocp.args.Composite(data=DataSave(Stand(STATES[5]), bases)))
            with pytest.raises(CheckpointError, match=r"cannot be written: .*File too large"):
                manager.wait_until_finished()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert 5 not in kinds(tmp_path)
        for step in (6, 7):
            save_v0(manager, step, bases)
    assert {6: "f", 7: "d"}.items() <= kinds(tmp_path).items()
    assert {1, 4, 6, 7} <= set(assert_exact(tmp_path))


def make_recipe() -> msd.Recipe:
    rng = np.random.default_rng(3)
    sources = {
        name: msd.Source([{"tokens": rng.integers(1, 99, size=length, dtype=np.int32)} for length in lengths])
        for name, lengths in (("a", range(3, 40)), ("b", range(5, 90, 3)), ("c", range(2, 30)))
    }
    graph = msd.DGraph().mix({"a": 3, "b": 2, "c": 1}, unit="tokens").pack(seq_len=128, rows=4)
    return msd.Recipe(sources=sources, strategy=graph, seed=5)


@pytest.mark.parametrize("version", ["v0", "v1"])
def test_a_real_loader_goes_on_where_any_step_was_saved(tmp_path: Path, version: str) -> None:
    """Saved while later steps are made ready: the state is that of the step delivered last."""
    with msd.DataLoader(make_recipe(), num_steps=12) as loader:
        expected = [{name: field.copy() for name, field in batch.items()} for batch in loader]
    bases = KeepBases(full_every=4)
    with msd.DataLoader(make_recipe(), num_steps=9) as loader:
        if version == "v0":
            with open_v0(tmp_path, bases) as manager:
                with pytest.raises(CheckpointError, match="nothing to save before the first step"):
                    manager.save(0, args=ocp.args.Composite(data=DataSave(loader, bases)))
                for step, _ in enumerate(loader):
                    manager.save(step, args=ocp.args.Composite(data=DataSave(loader, bases)))
        else:
            data = DataCheckpointable(loader, bases)
            with v1.training.Checkpointer(tmp_path, preservation_policy=bases) as checkpointer:
                for step, _ in enumerate(loader):
                    checkpointer.save_checkpointables(step, {"data": data}, force=True)
    assert "".join(kinds(tmp_path).values()) == "fdddfdddf"
    for step in (0, 2, 4, 7):
        with msd.DataLoader(make_recipe(), num_steps=12) as loader:
            if version == "v0":
                with open_v0(tmp_path) as manager:
                    manager.restore(step, args=ocp.args.Composite(data=DataRestore(loader)))
            else:
                with v1.training.Checkpointer(tmp_path) as checkpointer:
                    checkpointer.load_checkpointables(step, {"data": DataCheckpointable(loader)})
            rest = [{name: field.copy() for name, field in batch.items()} for batch in loader]
        assert len(rest) == len(expected) - step - 1
        for batch, wanted in zip(rest, expected[step + 1 :], strict=True):
            assert all(np.array_equal(batch[name], wanted[name]) for name in wanted)


def save_v1(
    checkpointer: v1.training.Checkpointer, step: int, data: DataCheckpointable, loader: Stand
) -> None:
    loader.state = STATES[step]
    items = {"model": model_of(step), "data": data}
    response = checkpointer.save_checkpointables_async(step, items, force=True)
    loader.state = STATES[0]
    assert response is not None
    assert response.result()


def test_v1_full_and_deltas_under_retention(tmp_path: Path) -> None:
    bases = KeepBases(v1.training.preservation_policies.LatestN(2), full_every=4)
    loader = Stand()
    data = DataCheckpointable(loader, bases)
    with v1.training.Checkpointer(tmp_path, preservation_policy=bases) as checkpointer:
        for step in range(1, 13):
            save_v1(checkpointer, step, data, loader)
    assert kinds(tmp_path) == {5: "f", 9: "f", 11: "d", 12: "d"}
    with v1.training.Checkpointer(tmp_path) as checkpointer:
        for each in checkpointer.checkpoints:
            loader = Stand()
            data = DataCheckpointable(loader, accept_changes=True)
            restored = checkpointer.load_checkpointables(each.step, {"model": model_of(0), "data": data})
            assert restored["data"] is data
            assert np.all(restored["model"]["w"] == each.step)
            assert loader.state is not None
            assert loader.state.to_leaves() == STATES[each.step].to_leaves()
            assert data.changes == ["accepted"]


def test_v1_a_checkpointer_that_does_not_ask_is_an_error(tmp_path: Path) -> None:
    policies = v1.training.preservation_policies
    loader = Stand()
    data = DataCheckpointable(loader, KeepBases(policies.LatestN(2)))
    with v1.training.Checkpointer(tmp_path, preservation_policy=policies.LatestN(2)) as checkpointer:
        save_v1(checkpointer, 1, data, loader)
        with pytest.raises(CheckpointError, match="does not ask it"):
            save_v1(checkpointer, 2, data, loader)


def test_v1_without_a_checkpointer_and_what_v0_wrote(tmp_path: Path) -> None:
    loader = Stand(STATES[3])
    v1.save_checkpointables(tmp_path / "once", {"data": DataCheckpointable(loader)})
    again = Stand()
    v1.load_checkpointables(tmp_path / "once", {"data": DataCheckpointable(again)})
    assert again.state is not None
    assert again.state.to_leaves() == STATES[3].to_leaves()
    bases = KeepBases(full_every=4)
    with open_v0(tmp_path / "v0", bases) as manager:
        for step in (1, 2):
            save_v0(manager, step, bases)
    data = DataCheckpointable(again)
    with v1.training.Checkpointer(tmp_path / "v0") as checkpointer:
        checkpointer.load_checkpointables(2, {"data": data})
    assert again.state.to_leaves() == STATES[2].to_leaves()


def test_v1_a_full_disk(tmp_path: Path) -> None:
    loader = Stand()
    data = DataCheckpointable(loader)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with v1.training.Checkpointer(tmp_path) as checkpointer:
        loader.state = STATES[1]
        checkpointer.save_checkpointables(1, {"data": data}, force=True)
        loader.state = STATES[2]
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
        try:
            response = checkpointer.save_checkpointables_async(2, {"data": data}, force=True)
            assert response is not None
            with pytest.raises(CheckpointError, match=r"cannot be written: .*File too large"):
                response.result()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        with pytest.raises(CheckpointError, match="cannot be written"):  # once more, on this thread
            save_v1(checkpointer, 3, data, loader)
        save_v1(checkpointer, 3, data, loader)
    assert kinds(tmp_path) == {1: "f", 3: "f"}


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice, as a run and one that goes on: the second run restores what the first one saved."""
    page = Path(__file__).parents[2] / "docs" / "checkpoints.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    monkeypatch.setitem(sys.modules, "recipe", SimpleNamespace(recipe=make_recipe()))
    monkeypatch.chdir(tmp_path)
    for num_steps in (23, 40):
        code = "\n".join(blocks).replace("num_steps=40", f"num_steps={num_steps}")
        exec(compile(code, str(page), "exec"), {})
    assert kinds(tmp_path / "checkpoints") == {0: "f", 25: "f", 30: "d", 35: "d"}
    assert kinds(tmp_path / "checkpoints_v1") == {0: "f", 25: "f", 30: "d", 35: "d"}
