"""Which states there are in a folder of checkpoints, and reading one. Loads no orbax.

A step is a directory, an *item* a directory in it, and an item of data holds `state.msd`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from msdata_jax.checkpoint.files import FILE_NAME, Head, read_file, read_head
from msdata_jax.data_state import DataState
from msdata_jax.errors import CheckpointError

TEMPORARY = ".orbax-checkpoint-tmp"
"""What orbax puts behind the names of a step's directories until the step is whole."""
COMMITTED = "commit_success.txt"
"""What orbax puts in a step's directory where it cannot rename one."""
_MOST_OFFERED = 8


@dataclass(frozen=True, kw_only=True)
class Found:
    """A state file.

    Attributes:
        file: where it is.
        step: number at the end of its step's directory; -1 where there is none.
        where: name of that directory.
        item: name of its item.
        head: what it says of itself; None where that cannot be read.
        problem: why not; else empty.
    """

    file: Path
    step: int
    where: str
    item: str
    head: Head | None
    problem: str = ""


def final_name(directory: str) -> str:
    """The name that a directory of a step or item has, or will have when its save is done."""
    return directory.partition(TEMPORARY)[0]


def step_number(directory: str) -> int:
    """The number at the end of a step's directory, as orbax names them; -1 where there is none."""
    digits = re.search(r"[0-9]+$", directory)
    return int(digits.group()) if digits else -1


def find_states(path: Path) -> list[Found]:
    """All states in a folder of steps, a step, an item, or the one of a file; in order of steps and items.

    Raises:
        CheckpointError: there is no such path, or no state in it.
    """
    if not path.exists():
        raise CheckpointError(f"{path} is not there; name a folder of checkpoints, a step or a {FILE_NAME}")
    files = [path] if path.is_file() else _state_files(path)
    found = sorted((_found(file.absolute()) for file in files), key=lambda each: (each.step, each.item))
    if not found:
        raise CheckpointError(_nothing_in(path))
    return found


def states_of_step(step: Path) -> list[Found]:
    """The states in a step's directory; none where it is not there."""
    return [_found(file) for file in sorted(step.glob(f"*/{FILE_NAME}"))]


def load_leaves(path: Path) -> dict[str, bytes]:
    """The leaves of the state in an item's directory, or of a state file.

    Raises:
        CheckpointError: it cannot be read; says which other steps can.
    """
    file = path if path.exists() and not path.is_dir() else path / FILE_NAME
    if not file.exists():
        raise CheckpointError(f"{_nothing_in(path)}{_way_out(file)}")
    try:
        return dict(read_file(file).leaves)
    except CheckpointError as error:
        raise CheckpointError(f"{error}{_way_out(file)}") from None


def load_state(path: Path) -> DataState:
    """The state in an item's directory, or of a state file; errors as in `load_leaves`."""
    leaves = load_leaves(path)
    try:
        return DataState.from_leaves(leaves)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _state_files(path: Path) -> list[Path]:
    """Of the path as an item, as a step, or as a folder of steps: the first that there are any of."""
    for pattern in (FILE_NAME, f"*/{FILE_NAME}", f"*/*/{FILE_NAME}"):
        found = [file for file in path.glob(pattern) if TEMPORARY not in str(file.relative_to(path))]
        if found:
            return found
    return []


def _found(file: Path) -> Found:
    where, item = file.parent.parent.name, file.parent.name
    try:
        head, problem = read_head(file), ""
    except CheckpointError as error:
        head, problem = None, str(error)
    return Found(file=file, step=step_number(where), where=where, item=item, head=head, problem=problem)


def _nothing_in(path: Path) -> str:
    inside = sorted(each.name for each in path.iterdir()) if path.is_dir() else []
    if not inside:
        return f"{path} is empty or not there: it holds no {FILE_NAME}, no state of a data stream"
    if any(re.fullmatch(r"process_[0-9]+-of-[0-9]+\.json", name) for name in inside):
        return f"{path} holds the state of a grain iterator ({inside[0]}), not one of msdata_jax"
    if {"_METADATA", "manifest.ocdbt", "array_metadatas"} & set(inside):
        return f"{path} holds arrays of a model that orbax wrote, not the state of a data stream"
    nothing = f"{path} holds no {FILE_NAME}, no state of a data stream"
    unfinished = [name for name in inside if TEMPORARY in name]
    if unfinished:
        return f"{nothing}; in it is {unfinished[-1]}: its save was never finished"
    return f"{nothing}; in it are {', '.join(inside[:8])}"


def _way_out(file: Path) -> str:
    steps = [each.where for each in _readable(file)]
    return f"; restore a step that can be read: {', '.join(steps)}" if steps else ""


def _readable(file: Path) -> Iterator[Found]:
    """The newest of the other steps whose state of the same item can be read, in order."""
    root, item = file.parent.parent.parent, file.parent.name
    others = [_found(each) for each in root.glob(f"*/{item}/{file.name}") if each != file]
    whole = []
    for each in sorted(others, key=lambda each: each.step, reverse=True):
        if TEMPORARY in each.where or len(whole) == _MOST_OFFERED:
            continue
        try:
            read_file(each.file)
        except CheckpointError:
            continue
        whole.append(each)
    return reversed(whole)
