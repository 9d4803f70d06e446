"""`SourceReader`: one source, opened; turns ranges of positions into blocks of samples."""

import operator
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from msdata_jax.errors import BadSampleError, MSDataError, SourceError
from msdata_jax.recipe import Source, without_credentials
from msdata_jax.records import MAX_SUBSTITUTES as MAX_SUBSTITUTES
from msdata_jax.records import BadSample, Block, Sample, default_measure, info_dtype
from msdata_jax.sources.files import open_files
from msdata_jax.sources.grain_pipeline import GrainSource
from msdata_jax.sources.memory import MemoryRecords
from msdata_jax.sources.order import Order
from msdata_jax.sources.protocol import BadRecord, Records, one_line
from msdata_jax.sources.retrying import RetryingRecords
from msdata_jax.sources.samples import to_sample
from msdata_jax.sources.transforms import Chain
from msdata_jax.sources.watch import Phase, Watch

NO_VERDICTS: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _Content:
    """What one position yields before the policy: samples and their user columns, or why there are none."""

    samples: Sequence[Sample] = ()
    columns: Sequence[dict[str, int]] = ()
    bad: str | None = None
    by_luck: bool = False


@dataclass(slots=True)
class _Took:
    """How long a block has waited for its records."""

    seconds: float = 0.0


class SourceReader:
    """Reads one source. What a position yields depends on the recipe, the seed and the position alone.

    Everything that can be known to be wrong is an error here, before training: the files, the format, the
    tokenizer. Several threads may read different blocks at once.

    Args:
        name: the source's name in the recipe.
        index: its place in the recipe, written into `infos["source"]`.
        source: the dataset and its transforms.
        seed: the recipe's seed.
        columns: all user columns of the recipe; those that this source does not measure are 0.
        watch: is told what the reader is at; one that two threads share is told of both.

    Raises:
        SourceError: the data cannot be opened, or hold no record.
        RecipeError: a transform or its file is wrong.
    """

    def __init__(
        self,
        name: str,
        index: int,
        source: Source,
        seed: int,
        columns: Sequence[str] = (),
        watch: Watch | None = None,
    ) -> None:
        self._name = name
        self._watch = watch or Watch()
        self._index = index
        self._source = source
        self._dtype = info_dtype((*columns, *source.columns))
        try:
            self._chain = Chain(source.transforms, seed=seed, source_name=name)
            self._chain.open()
            self._records = RetryingRecords(_open(source), source.read_retries, self._watch.sleep)
            if len(self._records) == 0:
                raise SourceError(f"{_shown(source.data)} has no records; a source needs at least one")
        except MSDataError as error:
            raise type(error)(f"source {name!r}: {error}") from error
        self._order = Order(
            len(self._records),
            seed=seed,
            source_name=name,
            shuffle=source.shuffle,
            group_sizes=self._records.group_sizes,
            window_groups=self._records.window_groups,
        )

    @property
    def num_records(self) -> int:
        """Records of one epoch."""
        return len(self._records)

    @property
    def records_per_window(self) -> int:
        """Records that share what the first of them costs to decode; 1 where each has its own cost."""
        sizes = self._records.group_sizes
        if sizes is None:
            return 1
        return max(len(self._records) * self._records.window_groups // max(len(sizes), 1), 1)

    @property
    def num_open_files(self) -> int:
        """Files that are open now."""
        return self._records.num_open_files

    @property
    def num_retries(self) -> int:
        """How often a read was tried again."""
        return self._records.num_retries

    def fingerprint(self) -> str:
        """A digest of the data, cheap to take and free of paths and times: equal where the data are."""
        return self._records.fingerprint()

    def file_digests(self) -> dict[str, str]:
        """A digest (hex, 16 digits) of each file by its name; empty without files, and beyond 64 of them.

        As cheap as `fingerprint`, and as free of folders and times.
        """
        return self._records.file_digests()

    def locate(self, position: int) -> tuple[int, int, str]:
        """The epoch and the record of a position, and where that record is to be found, for people."""
        epochs, records = self._order.locate(np.array([position]))
        return int(epochs[0]), int(records[0]), self._records.describe(int(records[0]))

    def read_block(self, start: int, stop: int, verdicts: Mapping[int, str] = NO_VERDICTS) -> Block:
        """What the positions `start <= p < stop` yield.

        Bad samples are listed in `Block.bad` whatever the policy; it is for the planner to end the data.
        Under `replace` the content of the next position that yields a sample stands in their place, under
        their own position. Samples without tokens are left out.

        Args:
            start: first position, at least 0.
            stop: one past the last.
            verdicts: positions that are bad by luck, and why: they are not tried. Others than those of the
                block and its substitutes do not matter.

        Returns:
            a block; reading it again with its `verdicts` gives an equal one.

        Raises:
            SourceError: the files can no longer be read, or the reader is closed.
            ValueError: not 0 <= start <= stop.
        """
        check_range(start, stop)
        took = _Took()
        contents = self._contents(range(start, stop), verdicts, took)
        bad: list[BadSample] = []
        yields: list[tuple[int, _Content]] = []
        for position in range(start, stop):
            content = contents[position]
            if content.bad is not None:
                by_luck = content.by_luck
                content, reason = self._substitute(position, content.bad, contents, verdicts, took)
                bad.append(BadSample(position=position, reason=reason, by_luck=by_luck))
            yields.append((position, content))
        return Block(
            start=start,
            stop=stop,
            infos=self._infos(yields),
            samples=[sample for _, content in yields for sample in content.samples],
            bad=bad,
            verdicts={p: content.bad or "" for p, content in sorted(contents.items()) if content.by_luck},
            read_seconds=took.seconds,
        )

    def close(self) -> None:
        """Close the files."""
        self._records.close()

    def _substitute(
        self,
        position: int,
        reason: str,
        contents: dict[int, _Content],
        verdicts: Mapping[int, str],
        took: _Took,
    ) -> tuple[_Content, str]:
        """What stands in the place of a bad position, and the reason to list. Adds to `contents`."""
        if self._source.on_bad_sample != "replace":
            return _Content(), reason
        for other in range(position + 1, position + 1 + MAX_SUBSTITUTES):
            if other not in contents:
                contents.update(self._contents([other], verdicts, took))
            if contents[other].samples:
                return contents[other], reason
        return _Content(), f"{reason}; none of the next {MAX_SUBSTITUTES} positions can replace it"

    def _contents(
        self, positions: Sequence[int], verdicts: Mapping[int, str], took: _Took
    ) -> dict[int, _Content]:
        contents = {p: _Content(bad=verdicts[p], by_luck=True) for p in positions if p in verdicts}
        wanted = [p for p in positions if p not in verdicts]
        step = 1 if self._watch.one_by_one else max(1, len(wanted))
        for first in range(0, len(wanted), step):
            part = wanted[first : first + step]
            contents.update(zip(part, self._read(part, took), strict=True))
        return contents

    def _read(self, positions: Sequence[int], took: _Took) -> list[_Content]:
        epochs, records = self._order.locate(np.array(positions, np.int64))
        asked = epochs * len(self._records) + records if self._records.counts_epochs else records
        self._watch.at(Phase.READ, positions[0], len(positions))
        begin = time.perf_counter()
        found = self._records.read(asked)
        took.seconds += time.perf_counter() - begin
        contents = []
        for position, record, epoch, index in zip(
            positions, found, epochs.tolist(), records.tolist(), strict=True
        ):
            self._watch.at(Phase.TRANSFORM, position)
            contents.append(self._transform(record, epoch, index))
        return contents

    def _transform(self, record: Any, epoch: int, index: int) -> _Content:
        if record is None:
            return _Content()
        if isinstance(record, BadRecord):
            return _Content(bad=record.reason, by_luck=record.transient)
        if not isinstance(record, dict):
            record = {"record": record}
        try:
            samples, columns = [], []
            for result in self._chain(record, epoch, index):
                sample = to_sample(result)
                if len(sample["tokens"]):
                    columns.append(self._measure({**result, **sample}))
                    samples.append(sample)
        except BadSampleError as error:
            return _Content(bad=f"{error} ({self._records.describe(index)})")
        return _Content(samples, columns)

    def _measure(self, result: dict[str, Any]) -> dict[str, int]:
        """The user's columns; the function sees the whole record, not only what travels."""
        measure = self._source.measure
        if measure is None:
            return {}
        try:
            measured = measure(result)
            return {column: operator.index(measured[column]) for column in self._source.columns}
        except MemoryError:
            raise
        except Exception as error:  # the user's code, as in a transform
            raise BadSampleError(
                f"measure (columns {list(self._source.columns)}): {one_line(error)}"
            ) from error

    def _infos(self, yields: Sequence[tuple[int, _Content]]) -> np.ndarray:
        names = (self._dtype.names or ())[3:]  # after the key
        rows = []
        for position, content in yields:
            for part, (sample, columns) in enumerate(zip(content.samples, content.columns, strict=True)):
                values = {**columns, **default_measure(sample)}
                rows.append((self._index, part, position, *(values.get(name, 0) for name in names)))
        return np.array(rows, self._dtype)


def check_range(start: int, stop: int) -> None:
    """Raise ValueError where these are no positions."""
    if not 0 <= start <= stop:
        raise ValueError(f"a block is of positions 0 <= start <= stop, got {start} and {stop}")


def _shown(data: Any) -> str:
    return repr(without_credentials(data)) if isinstance(data, str) else f"{data!r:.100}"


def _open(source: Source) -> Records:
    if not isinstance(source.data, str | os.PathLike):
        if source.options:
            raise SourceError(
                f"options are for files; data is {type(source.data).__qualname__}, leave them out"
            )
        return source.data.open() if isinstance(source.data, GrainSource) else MemoryRecords(source.data)
    return open_files(
        os.fspath(source.data),
        source.options,
        keep_damaged=source.on_bad_sample != "raise",
        storage_options=source.storage,
    )
