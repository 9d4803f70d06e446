"""The journal: the state behind every step comes back, whatever is missing at its end."""

import resource
from pathlib import Path

import numpy as np
import pytest
from checkpoint.states import play

from msdata_jax.checkpoint.journal import JournalWriter, is_journal, list_journal, read_journal
from msdata_jax.data_state import change_leaves, changed_leaves
from msdata_jax.errors import CheckpointError

STATES = play(num_sources=12, num_steps=30)


def write(folder: Path, first: int, stop: int, steps_per_file: int = 7) -> None:
    """With leaves that change in place, as those of a DataLoader do."""
    writer, leaves = JournalWriter(folder, steps_per_file), {}
    for state in STATES[first:stop]:
        change_leaves(leaves, *changed_leaves(leaves, state.to_leaves()))
        writer.append(leaves, state.step)
    writer.close()


def test_every_step_of_the_kept_files_comes_back(tmp_path: Path) -> None:
    write(tmp_path, 0, 25)
    assert is_journal(tmp_path)
    assert read_journal(tmp_path).to_leaves() == STATES[24].to_leaves()
    steps = [step for _, step in list_journal(tmp_path)]
    assert steps == list(range(8, 26))  # twice seven states at least
    for step in steps:
        assert read_journal(tmp_path, step).to_leaves() == STATES[step - 1].to_leaves()
    with pytest.raises(CheckpointError, match="no state before step 3; it has those before steps 8 to 25"):
        read_journal(tmp_path, 3)


def test_what_changes_takes_little_room(tmp_path: Path) -> None:
    write(tmp_path, 0, 20, steps_per_file=100)
    (file,) = tmp_path.iterdir()
    full = sum(map(len, STATES[0].to_leaves().values()))
    assert file.stat().st_size < full * 5  # of 20 states


def test_a_journal_that_ends_anywhere_has_all_whole_states(tmp_path: Path) -> None:
    write(tmp_path, 0, 6, steps_per_file=100)
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    ends = []
    for step in range(1, 7):
        file.unlink()
        write(tmp_path, 0, step, steps_per_file=100)
        ends.append(file.stat().st_size)
    assert ends[-1] == len(data)
    for size in sorted({*range(0, len(data), 97), *ends, *(end - 1 for end in ends)}):
        file.write_bytes(data[:size])
        whole = sum(end <= size for end in ends)
        if whole:
            assert read_journal(tmp_path).step == whole
        else:
            with pytest.raises(CheckpointError, match=r"no frame of the journal in .* is whole"):
                read_journal(tmp_path)


def test_a_damaged_state_hides_those_behind_it_alone(tmp_path: Path) -> None:
    write(tmp_path, 0, 6, steps_per_file=100)
    (file,) = tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)
    assert read_journal(tmp_path).step == 5


def test_a_later_run_goes_on_in_a_file_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, 0, 10, steps_per_file=100)
    write(tmp_path, 10, 12, steps_per_file=100)
    assert read_journal(tmp_path).step == 12
    assert read_journal(tmp_path, 4).to_leaves() == STATES[3].to_leaves()


def test_a_run_that_begins_anew_is_the_newest_and_takes_nothing_away(tmp_path: Path) -> None:
    write(tmp_path, 0, 10, steps_per_file=100)
    write(tmp_path, 0, 6, steps_per_file=100)
    assert read_journal(tmp_path).step == 6
    assert read_journal(tmp_path, 10).to_leaves() == STATES[9].to_leaves()


def test_states_that_change_as_a_whole_are_kept_by_their_number(tmp_path: Path) -> None:
    """As under `regroup`: a file each, and still as many states."""
    writer, rng = JournalWriter(tmp_path, steps_per_file=5), np.random.default_rng(0)
    for step in range(1, 31):
        leaves = STATES[0].to_leaves()
        writer.append({**leaves, "pending/1": rng.bytes(40_000)}, step)
    writer.close()
    assert len(list(tmp_path.iterdir())) > 5
    assert [step for _, step in list_journal(tmp_path)][-10:] == list(range(21, 31))


def test_no_journal_is_said_so(tmp_path: Path) -> None:
    assert not is_journal(tmp_path)
    with pytest.raises(CheckpointError, match="holds no journal"):
        read_journal(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"file cannot be written: .*name another folder"):
        JournalWriter(tmp_path / "file")
    writer = JournalWriter(tmp_path / "journal")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer.append(STATES[0].to_leaves(), 1)
    size = sum(file.stat().st_size for file in (tmp_path / "journal").iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, limit[1]))
    try:
        with pytest.raises(CheckpointError, match="File too large"):
            writer.append(STATES[1].to_leaves(), 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    writer.append(STATES[2].to_leaves(), 3)  # and goes on behind what is whole
    writer.close()
    assert [step for _, step in list_journal(tmp_path / "journal")] == [1, 3]
