"""Reads a source in child processes, so that a decoder that crashes or hangs costs a sample and not the rank.

A read that kills its child is tried once more on the culprit alone, in a fresh child: a lone death may be bad
luck. If that dies too, the position is bad by luck (`Block.verdicts`), and the block is read without it.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msdata_jax.errors import SourceError
from msdata_jax.recipe import Source
from msdata_jax.records import Block, info_dtype
from msdata_jax.sources.child import Child, ChildDied, blame
from msdata_jax.sources.pool import ChildPool
from msdata_jax.sources.reader import MAX_SUBSTITUTES, NO_VERDICTS, SourceReader, check_range
from msdata_jax.sources.remote.options import split_storage
from msdata_jax.sources.serving import serve
from msdata_jax.sources.storage import is_remote
from msdata_jax.sources.watch import Board, Phase

_MAX_UNCLEAR_DEATHS = 3
_MAX_READ_POSITIONS = 8  # a read of many positions may take as long as so many


def open_reader(
    name: str, index: int, source: Source, *, seed: int, columns: Sequence[str] = ()
) -> "SourceReader | IsolatedReader":
    """Open a source the way that it asks for (`Source.isolate`).

    Args:
        name: the source's name in the recipe.
        index: its place in the recipe.
        source: the dataset and its transforms.
        seed: the recipe's seed.
        columns: all user columns of the recipe.

    Raises:
        SourceError: the data cannot be opened, or hold no record.
        RecipeError: a transform or its file is wrong.
    """
    kind = IsolatedReader if source.isolate else SourceReader
    return kind(name, index, source, seed, columns)


class IsolatedReader:
    """As `SourceReader`, with the same arguments and the same blocks; opens and reads in child processes.

    Each read that runs at the same time as others has a child of its own, which opens the source for itself.
    Children are kept until `close`, and die with this process.

    Attributes:
        num_deaths: how many times a child died or was stopped while it read a block.
    """

    def __init__(self, name: str, index: int, source: Source, seed: int, columns: Sequence[str] = ()) -> None:
        self._dtype = info_dtype((*columns, *source.columns))
        patience = _patience(source)
        self._limit = (
            None if source.sample_seconds is None else partial(_limit, source.sample_seconds, patience)
        )
        main = partial(serve, partial(SourceReader, name, index, source, seed, columns))
        is_in_memory = not isinstance(source.data, str) and not hasattr(source.data, "__fspath__")
        self._pool = ChildPool(name, partial(Child, main, reopen_files=is_in_memory))
        self._name = name
        self._lock = threading.Lock()
        self.num_deaths = 0
        try:
            self._num_records = self._pool.open_first()
        except BaseException:
            self._pool.close()
            raise

    @property
    def num_records(self) -> int:
        """Records of one epoch."""
        return self._num_records

    @property
    def num_open_files(self) -> int:
        """Files that are open now, in all children."""
        return self._pool.num_open_files

    @property
    def num_retries(self) -> int:
        """How often a read was tried again."""
        return self._pool.num_retries

    def fingerprint(self) -> str:
        """A digest of the data."""
        return self._ask("fingerprint")

    def file_digests(self) -> dict[str, str]:
        """A digest of each file by its name."""
        return self._ask("file_digests")

    def locate(self, position: int) -> tuple[int, int, str]:
        """The epoch and the record of a position, and where that record is to be found."""
        epoch, record, where = self._ask("locate", position)
        return epoch, record, where

    def read_block(self, start: int, stop: int, verdicts: Mapping[int, str] = NO_VERDICTS) -> Block:
        """As `SourceReader.read_block`. Crashes and time-outs are bad samples by luck.

        Raises:
            SourceError: also where children die for no reason that has to do with a position.
        """
        check_range(start, stop)
        case = _Case({p: why for p, why in verdicts.items() if start <= p < stop + MAX_SUBSTITUTES})
        while True:
            try:
                return self._read(start, stop, case.verdicts, case.one_by_one)
            except ChildDied as death:
                self._judge(case, death)

    def close(self) -> None:
        """End the children, those that read too."""
        self._pool.close()

    def _judge(self, case: "_Case", death: ChildDied) -> None:
        """Learn from a death what to leave out, or how to find out."""
        with self._lock:
            self.num_deaths += 1
        position = blame(death)
        if position is not None:
            self._judge_position(case, death, position)
        elif death.phase is Phase.READ:
            case.one_by_one = True
        else:
            case.num_unclear += 1
            if case.num_unclear >= _MAX_UNCLEAR_DEATHS:
                raise SourceError(
                    f"source {self._name!r}: its child processes die while they read nothing, the last one "
                    f"{death.how}; look for what ends them, such as a lack of memory"
                ) from death

    def _judge_position(self, case: "_Case", death: ChildDied, position: int) -> None:
        if position not in case.suspects:
            case.suspects.add(position)
            again = self._try_alone(position, case.verdicts)
            if again is None:
                return
            death = again
        what = "reading" if death.phase is Phase.READ else "decoder"
        case.verdicts[position] = f"{what} {death.how} ({self.locate(position)[2]})"

    def _try_alone(self, position: int, verdicts: Mapping[int, str]) -> ChildDied | None:
        """How a child dies of this position; None where it does not."""
        try:
            self._read(position, position + 1, verdicts, True)
        except ChildDied as death:
            return death if blame(death) == position else None
        return None

    def _read(self, start: int, stop: int, verdicts: Mapping[int, str], one_by_one: bool) -> Block:
        request = ["read_block", start, stop, dict(verdicts), one_by_one]
        return self._pool.ask(request, self._dtype, self._limit)["block"]

    def _ask(self, *request: Any) -> Any:
        try:
            return self._pool.ask(list(request), self._dtype, None)["value"]
        except ChildDied as death:
            raise SourceError(
                f"source {self._name!r}: its child process {death.how} when asked for {request[0]}"
            ) from death


@dataclass
class _Case:
    """What is known while a block is read."""

    verdicts: dict[int, str]
    suspects: set[int] = field(default_factory=set)
    one_by_one: bool = False
    num_unclear: int = 0


def _patience(source: Source) -> float:
    """How long a read may take beside its samples' time: requests that fail are tried again for so long."""
    if not isinstance(source.data, str) or not is_remote(source.data):
        return 0.0
    return split_storage(source.storage)[0].deadline_seconds


def _limit(sample_seconds: float, patience: float, board: Board) -> float:
    """How long what the board shows may take."""
    match board.phase:
        case Phase.TRANSFORM:
            return sample_seconds
        case Phase.READ:
            return patience + sample_seconds * min(board.num_positions, _MAX_READ_POSITIONS)
        case _:
            return float("inf")
