"""When a save is a full and when a delta, and which steps stay. Steps are committed as orbax does it."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from checkpoint.states import Stand, play

from msdata_jax.checkpoint.files import FILE_NAME
from msdata_jax.checkpoint.finding import find_states, load_leaves
from msdata_jax.checkpoint.retention import KeepBases
from msdata_jax.checkpoint.writer import Saver, Writer
from msdata_jax.errors import CheckpointError

STATES = play(num_sources=30, num_steps=30)
LEAVES = [state.to_leaves() for state in STATES]


class Manager:
    """Directories of steps as a manager of orbax makes, commits and deletes them."""

    def __init__(self, root: Path, full_every: int = 4, names: str = "{}") -> None:
        self.root, self.full_every, self.names = root, full_every, names
        self.writer = Writer()

    def save(self, step: int, *, commit: bool = True, leaves: dict[str, bytes] | None = None) -> str:
        name = self.names.format(step)
        tmp = self.root / f"{name}.orbax-checkpoint-tmp"
        item = tmp / "data.orbax-checkpoint-tmp"
        item.mkdir(parents=True)
        kind = self.writer.write(item, leaves or LEAVES[step], full_every=self.full_every)
        if commit:
            item.rename(tmp / "data")
            tmp.rename(self.root / name)
        return kind

    def kinds(self, steps: range) -> list[str]:
        return [self.save(step)[0] for step in steps]

    def delete(self, step: int) -> None:
        folder = self.root / self.names.format(step)
        (folder / "data" / FILE_NAME).unlink()
        (folder / "data").rmdir()
        folder.rmdir()

    def assert_all_readable(self) -> None:
        for found in find_states(self.root):
            assert load_leaves(found.file) == LEAVES[found.step]


@pytest.fixture
def manager(tmp_path: Path) -> Manager:
    return Manager(tmp_path)


@contextmanager
def small_files(num_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond it: writing fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("names", ["{}", "step_{:08d}"])
def test_a_full_every_few_saves_and_deltas_between(tmp_path: Path, names: str) -> None:
    manager = Manager(tmp_path, full_every=4, names=names)
    assert manager.kinds(range(10)) == list("fdddfdddfd")
    heads = {each.step: each.head for each in find_states(tmp_path)}
    assert [heads[step].base.where for step in (1, 2, 3)] == [names.format(0)] * 3, "never a chain"
    assert heads[9].base.where == names.format(8)
    manager.assert_all_readable()


def test_one_or_no_bases_are_fulls_alone(tmp_path: Path) -> None:
    assert Manager(tmp_path / "a", full_every=1).kinds(range(4)) == list("ffff")
    assert Manager(tmp_path / "b", full_every=2).kinds(range(4)) == list("fdfd")


def test_a_delta_of_more_than_half_is_a_full(manager: Manager) -> None:
    rng = np.random.default_rng(0)
    noise = [rng.integers(0, 256, 10_000, dtype=np.uint8).tobytes() for _ in range(8)]
    first = LEAVES[0] | {f"x{i}": each for i, each in enumerate(noise)}
    few = first | {"x0": noise[1]}
    many = first | {f"x{i}": each[::-1] for i, each in enumerate(noise)}
    assert manager.save(0, leaves=first) == "full"
    assert manager.save(1, leaves=few) == "delta"
    assert manager.save(2, leaves=many) == "full"
    assert manager.save(3, leaves=many) == "delta"
    assert [load_leaves(manager.root / str(step) / "data") for step in range(4)] == [first, few, many, many]


def test_a_base_that_is_gone_is_made_anew(manager: Manager) -> None:
    assert manager.kinds(range(2)) == list("fd")
    manager.delete(0)
    assert manager.kinds(range(2, 4)) == list("fd")
    with pytest.raises(CheckpointError, match="is gone"):
        load_leaves(manager.root / "1" / "data")
    assert load_leaves(manager.root / "3" / "data") == LEAVES[3]


def test_a_base_whose_save_did_not_come_through_is_made_anew(manager: Manager) -> None:
    manager.save(0, commit=False)
    assert manager.kinds(range(1, 3)) == list("fd")
    manager.save(3, commit=False)  # a delta: the base is still there
    assert manager.kinds(range(4, 5)) == ["d"]
    manager.assert_all_readable()


def test_a_base_that_was_saved_anew_is_not_trusted(manager: Manager) -> None:
    manager.save(0)
    manager.delete(0)
    Manager(manager.root).save(0, leaves=LEAVES[1])
    assert manager.save(2) == "full"


def test_a_step_is_never_its_own_base(manager: Manager) -> None:
    manager.save(0)
    (manager.root / "0").rename(manager.root / "kept")
    assert manager.save(0) == "full"


def test_where_steps_are_not_renamed_the_marker_counts(tmp_path: Path) -> None:
    writer = Writer()
    for step, commit, kind in ((0, False, "full"), (1, True, "full"), (2, True, "delta")):
        item = tmp_path / str(step) / "data"
        item.mkdir(parents=True)
        assert writer.write(item, LEAVES[step], full_every=9) == kind
        if commit:
            (item.parent / "commit_success.txt").touch()


def test_after_a_restore_comes_a_full(manager: Manager) -> None:
    saver, loader = Saver(), Stand(STATES[0])
    manager.writer = saver._writer
    assert manager.kinds(range(2)) == list("fd")
    assert saver.restore(str(manager.root / "1" / "data"), loader, accept_changes=True) == ["accepted"]
    assert loader.restored[0].to_leaves() == LEAVES[1]
    assert manager.kinds(range(2, 4)) == list("fd")


def test_a_disk_that_is_full_costs_the_save_alone(manager: Manager) -> None:
    """In a full and in a delta; what was there stays readable, and the next save is a full."""
    for step in (2, 6):
        assert manager.kinds(range(step - 2, step)) == ["f", "d"]
        if step == 2:
            manager.writer.forget()
        with (
            small_files(100),
            pytest.raises(CheckpointError, match=r"state.msd: .* cannot be written: .*large"),
        ):
            manager.save(step, commit=False)
        left = [each.name for each in manager.root.glob("*tmp/*/*")]
        assert left == []
        manager.assert_all_readable()
        (manager.root / f"{step}.orbax-checkpoint-tmp" / "data.orbax-checkpoint-tmp").rmdir()
        (manager.root / f"{step}.orbax-checkpoint-tmp").rmdir()
        assert manager.kinds(range(step, step + 2)) == list("fd")
        manager.writer.forget()


def test_the_state_is_frozen_and_written_by_the_first_process_alone(tmp_path: Path) -> None:
    loader, other = Stand(STATES[3]), Stand(STATES[3], writes=False)
    item = tmp_path / "3.orbax-checkpoint-tmp" / "data.orbax-checkpoint-tmp"
    write = Saver().freeze(str(item), loader, None)
    assert Saver().freeze(str(item), other, None) is None
    loader.state = STATES[4]
    item.mkdir(parents=True)
    assert write is not None
    write()
    assert load_leaves(item) == LEAVES[3]


def test_an_object_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="object store; mount the bucket"):
        Saver().freeze("gs://bucket/run/3/data", Stand(STATES[0]), None)


# --- KeepBases --------------------------------------------------------------------------------------------


class Latest:
    """A policy that keeps the newest few."""

    def __init__(self, count: int) -> None:
        self.count = count

    def should_preserve(self, checkpoints, *, context):
        return [place >= len(checkpoints) - self.count for place in range(len(checkpoints))]


class Retained(Manager):
    """Steps of which a policy says which stay, asked before the new one is committed, as orbax does."""

    def __init__(self, root: Path, bases: KeepBases, policy=None) -> None:
        super().__init__(root, bases.full_every)
        self.bases, self.policy, self.steps = bases, policy or bases, []

    def save(self, step: int, *, commit: bool = True, leaves: dict[str, bytes] | None = None) -> str:
        self.bases.begin(self.root / f"{step}.orbax-checkpoint-tmp")
        infos = [SimpleNamespace(step=each) for each in (*self.steps, step)]
        stays = self.policy.should_preserve(infos, context=None)
        kind = super().save(step, commit=commit, leaves=leaves)
        for info, keep in zip(infos, stays, strict=True):
            if not keep:
                self.delete(info.step)
        self.steps = [info.step for info, keep in zip(infos, stays, strict=True) if keep]
        return kind


def test_bases_stay_as_long_as_a_step_needs_them(tmp_path: Path) -> None:
    manager = Retained(tmp_path, KeepBases(Latest(2), full_every=4))
    for step in range(1, 30):
        manager.save(step)
        manager.assert_all_readable()
        assert len(manager.steps) <= 2 + 2
        assert manager.steps[-2:] == [step - 1, step][-len(manager.steps) :] or step == 1
    assert manager.steps == [21, 25, 28, 29]


def test_steps_that_another_policy_keeps_stay_readable(tmp_path: Path) -> None:
    """KeepBases inside another policy: a base stays while any step that is there needs it."""
    bases = KeepBases(Latest(1), full_every=5)

    class Either:
        def should_preserve(self, checkpoints, *, context):
            ours = bases.should_preserve(checkpoints, context=context)
            return [keep or info.step % 7 == 0 for keep, info in zip(ours, checkpoints, strict=True)]

    manager = Retained(tmp_path, bases, Either())
    for step in range(1, 30):
        manager.save(step)
        manager.assert_all_readable()
    assert {7, 14, 21, 28, 29} <= set(manager.steps)


def test_a_new_process_knows_the_bases_from_disk(tmp_path: Path) -> None:
    manager = Retained(tmp_path, KeepBases(Latest(2), full_every=4))
    manager.kinds(range(1, 4))
    again = Retained(tmp_path, KeepBases(Latest(2), full_every=4))
    again.steps = list(manager.steps)
    assert again.save(4) == "full"
    assert again.steps == [1, 3, 4]
    again.assert_all_readable()


def test_without_a_policy_everything_stays(tmp_path: Path) -> None:
    manager = Retained(tmp_path, KeepBases(full_every=3))
    assert manager.kinds(range(7)) == list("fddfddf")
    assert manager.steps == list(range(7))


def test_a_damaged_step_is_no_reason_to_stop(tmp_path: Path) -> None:
    manager = Retained(tmp_path, KeepBases(Latest(2), full_every=4))
    manager.kinds(range(1, 3))
    (tmp_path / "2" / "data" / FILE_NAME).write_bytes(b"noise")
    manager.bases._known.clear()
    assert manager.kinds(range(3, 6)) == list("ddf")


def test_a_manager_that_does_not_ask_is_an_error(tmp_path: Path) -> None:
    bases = KeepBases(Latest(2))
    bases.begin(tmp_path / "1.orbax-checkpoint-tmp")
    bases.begin(tmp_path / "1.orbax-checkpoint-tmp")  # a second item of the same step
    bases.begin(tmp_path / "2.orbax-checkpoint-tmp")  # the first one failed
    (tmp_path / "2").mkdir()
    with pytest.raises(CheckpointError, match=r"step 2 was saved with .* its manager does not ask it"):
        bases.begin(tmp_path / "3.orbax-checkpoint-tmp")


def test_a_policy_that_no_save_is_given_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="give the same object to DataSave or DataCheckpointable"):
        KeepBases(Latest(2)).should_preserve([SimpleNamespace(step=1)], context=None)


def test_one_policy_for_one_manager(tmp_path: Path) -> None:
    bases = KeepBases()
    bases.begin(tmp_path / "a" / "1.orbax-checkpoint-tmp")
    with pytest.raises(CheckpointError, match="one KeepBases serves one manager"):
        bases.begin(tmp_path / "b" / "1.orbax-checkpoint-tmp")
    with pytest.raises(CheckpointError, match="ends in its number; 'last' does not"):
        KeepBases().begin(tmp_path / "last")
    with pytest.raises(CheckpointError, match="full_every counts saves and is at least 1, got 0"):
        KeepBases(full_every=0)
