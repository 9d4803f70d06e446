"""The plan log: a file to which the planner appends each step that it decides.

Layout, all numbers little-endian: 8 bytes of magic; a record with the header (msgpack); then a record a step.
A record is its length (u64), a step (u64; 0 for the header) and so many bytes. A record of length 0 says
that the steps up to this one are delivered. The bytes of a step are the length of a head (u32), the head
(msgpack), the arrays of `_arrays`, and the plan (`StepPlan.to_bytes`). Nothing is pickled.
"""

import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgpack
import numpy as np

from msdata_jax.errors import PlanError
from msdata_jax.plan import StepPlan
from msdata_jax.planning.place_tree import MeshLayout
from msdata_jax.recipe import Recipe, Source, without_addresses
from msdata_jax.roles.recording import KEY_DTYPE, InFlight

MAGIC = b"msdplan\n"
LOG_VERSION = 1
_PREFIX = struct.Struct("<QQ")


@dataclass(frozen=True, kw_only=True)
class LoggedSource:
    """What the log says of a source: its name, data and transforms as text, and how it is read."""

    name: str
    data: str
    transforms: str
    num_records: int
    block_size: int


@dataclass(frozen=True, kw_only=True)
class Header:
    """What holds for all steps of a log.

    Attributes:
        sources: in the recipe's order.
        strategy: the `DGraph` as text.
        recipe: the recipe's fingerprint.
        axis_names, axis_sizes, process_of_device: the trainers' mesh, as in `MeshLayout`.
        loaders: ranks of the source loaders; none in the log of a dry run.
    """

    sources: list[LoggedSource]
    strategy: str
    recipe: str
    axis_names: list[str]
    axis_sizes: list[int]
    process_of_device: list[int]
    loaders: list[int]

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names in order."""
        return tuple(source.name for source in self.sources)

    @property
    def mesh(self) -> str:
        """The axes and their sizes."""
        return ",".join(f"{name}={size}" for name, size in zip(self.axis_names, self.axis_sizes, strict=True))


@dataclass(frozen=True, kw_only=True)
class LoggedStep:
    """One step of a log.

    Attributes:
        plan: the decision.
        owner: int32 `[segments]`, loader rank that sends each segment; -1 in the log of a dry run.
        in_flight: where the sources stood when the step was planned.
        delivered: the last step that every trainer had taken by then; -1 for none.
    """

    plan: StepPlan
    owner: np.ndarray
    in_flight: InFlight
    delivered: int


class PlanLogWriter:
    """Appends to a plan log; a `roles.recording.Recorder`. Each record is flushed at once.

    Started again, as it is for a second DataLoader of a job, it goes on in a file of its own: `plan.log.2`.

    Args:
        path: a file that is not there yet.
        recipe: what is planned.

    Raises:
        PlanError: the file is there already, or it cannot be written; from any method.
    """

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self._first_path, self._recipe, self._num_started = path, recipe, 0
        self._open(path)

    def _open(self, path: Path) -> None:
        check_new(path)
        self._path = path
        try:
            self._file: BinaryIO = path.open("xb")
        except OSError as error:
            raise self._failure(error) from error

    def start(self, layout: MeshLayout, num_records: Sequence[int], loaders: Sequence[int]) -> None:
        """Write the header."""
        self._num_started += 1
        if self._num_started > 1:
            self.close()
            self._open(self._first_path.with_name(f"{self._first_path.name}.{self._num_started}"))
        recipe = self._recipe
        sources = [
            _describe_source(name, source, count)
            for (name, source), count in zip(recipe.sources.items(), num_records, strict=True)
        ]
        header = Header(
            sources=sources,
            strategy=str(recipe.strategy),
            recipe=recipe.fingerprint(),
            axis_names=list(layout.axis_names),
            axis_sizes=list(layout.axis_sizes),
            process_of_device=list(layout.process_of_device),
            loaders=list(loaders),
        )
        packed = _pack({"version": LOG_VERSION, **asdict(header)})
        self._write(MAGIC, _PREFIX.pack(len(packed), 0), packed)

    def step(self, plan: StepPlan, owner: np.ndarray, in_flight: InFlight) -> None:
        """Append a step."""
        head = {
            "num_segments": len(plan.samples),
            "num_carried": len(in_flight.carried),
            "digest": plan.digest,
        }
        packed = _pack(head)
        values = {"owner": owner, **vars(in_flight)}
        arrays = [
            np.ascontiguousarray(values[name], kind).tobytes()
            for name, kind, _ in _arrays(head, len(self._recipe.sources))
        ]
        body = b"".join([len(packed).to_bytes(4, "little"), packed, *arrays, plan.to_bytes()])
        self._write(_PREFIX.pack(len(body), plan.step), body)

    def delivered(self, step: int) -> None:
        """Append that the steps up to `step` are delivered."""
        self._write(_PREFIX.pack(0, step))

    def close(self) -> None:
        """Close the file. What was written stays, whether or not this is called."""
        self._file.close()

    def _write(self, *parts: bytes) -> None:
        try:
            self._file.write(b"".join(parts))
            self._file.flush()
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> PlanError:
        return PlanError(_not_written(self._path, error.strerror or str(error)))


def check_new(path: Path) -> None:
    """Raise PlanError where a file is there already (a log is of one run), or none could be made.

    So where the log of a run's second DataLoader would go: else a run that began well failed there.
    """
    for each in (path, path.with_name(f"{path.name}.2")):
        if each.exists():
            raise PlanError(f"a plan log is a new file; {each} is there already: name another, or remove it")
    trouble = why_no_file(path)
    if trouble:
        raise PlanError(_not_written(path, trouble))


def why_no_file(path: Path) -> str:
    """Why the folder of `path` takes no new file, found by making one without a name; empty if it does."""
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _not_written(path: Path, reason: str) -> str:
    return f"the plan log {path} cannot be written: {reason}; name another file or leave the plan log out"


@dataclass(frozen=True)
class _Entry:
    """Where a step's record is in the file, and what was delivered before it."""

    offset: int
    length: int
    delivered: int


class PlanLog:
    """Reads a plan log; steps are read when they are asked for.

    Attributes:
        header: what holds for all steps.
        steps: their numbers, increasing.
        delivered: the last step that every trainer took, as far as the log goes; -1 for none.
        cut_off: a sentence on a last record that is not whole; empty when the log is.

    Raises:
        PlanError: there is no such file, it is no plan log, of another version, or damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._size = path.stat().st_size
            with path.open("rb") as file:
                self.header = self._read_header(file)
                self.delivered, self.cut_off = -1, ""
                self._entries = self._index(file)
        except OSError as error:
            raise PlanError(f"{path} cannot be read: {error.strerror}; give the path of a plan log") from None
        self.steps = list(self._entries)

    def read(self, step: int) -> LoggedStep:
        """One step.

        Raises:
            PlanError: the log has no such step, or the step is damaged.
        """
        entry = self._entries.get(step)
        if entry is None:
            raise PlanError(f"{self._path} has no step {step}; it has {self.describe_steps()}")
        with self._path.open("rb") as file:
            file.seek(entry.offset)
            data = file.read(entry.length)
        try:
            return self._parse(data, entry.delivered)
        except (ValueError, TypeError, KeyError, msgpack.UnpackException, PlanError) as error:
            raise PlanError(f"{self._path}: step {step} is damaged: {error}") from None

    def __iter__(self) -> Iterator[LoggedStep]:
        """All steps in order."""
        return map(self.read, self.steps)

    def describe_steps(self) -> str:
        """Which steps there are, in words."""
        return f"steps {self.steps[0]} to {self.steps[-1]}" if self.steps else "no steps"

    def _read_header(self, file: BinaryIO) -> Header:
        if file.read(len(MAGIC)) != MAGIC:
            raise PlanError(
                f"{self._path} is no plan log; `msdata launch --plan-log FILE` and `msdata plan --log FILE` "
                "write one"
            )
        length, _ = self._read_prefix(file) or (0, 0)
        if not 0 < length <= self._size - file.tell():
            raise PlanError(f"{self._path}: the header is cut off; nothing can be read of this plan log")
        try:
            values = msgpack.unpackb(file.read(length))
            version = values.pop("version")
            if version != LOG_VERSION:
                raise PlanError(
                    f"{self._path} is a plan log of version {version}; this msdata_jax reads "
                    f"{LOG_VERSION}: read it with the msdata_jax that wrote it"
                )
            sources = [LoggedSource(**source) for source in values.pop("sources")]
            return Header(sources=sources, **values)
        except (ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException) as error:
            raise PlanError(f"{self._path}: the header is damaged: {error!r}") from None

    def _read_prefix(self, file: BinaryIO) -> tuple[int, int] | None:
        prefix = file.read(_PREFIX.size)
        return _PREFIX.unpack(prefix) if len(prefix) == _PREFIX.size else None

    def _index(self, file: BinaryIO) -> dict[int, _Entry]:
        """Where each step is. Fills `delivered` and `cut_off`."""
        entries: dict[int, _Entry] = {}
        last = -1
        while (begin := file.tell()) < self._size:
            prefix = self._read_prefix(file)
            if prefix is None or prefix[0] > self._size - file.tell():
                self.cut_off = (
                    f"the last record, behind {f'step {last}' if entries else 'the header'}, is cut "
                    f"off at byte {self._size}: whoever wrote it was stopped, or still writes"
                )
                break
            length, step = prefix
            if length == 0:
                self.delivered = step
                continue
            if step <= last:
                raise PlanError(f"{self._path} is damaged at byte {begin}: step {step} comes out of order")
            entries[step] = _Entry(file.tell(), length, self.delivered)
            file.seek(length, os.SEEK_CUR)
            last = step
        return entries

    def _parse(self, data: bytes, delivered: int) -> LoggedStep:
        at = 4 + int.from_bytes(data[:4], "little")
        head = msgpack.unpackb(data[4:at])
        values: dict[str, np.ndarray] = {}
        for name, kind, count in _arrays(head, len(self.header.sources)):
            if not 0 <= count * kind.itemsize <= len(data) - at:
                raise PlanError(f"its {count} values of {name} are cut off")
            values[name] = np.frombuffer(data, kind, count=count, offset=at)
            at += values[name].nbytes
        plan = StepPlan.from_bytes(data[at:])
        if plan.digest != head["digest"] or len(plan.samples) != head["num_segments"]:
            raise PlanError(f"the plan's digest is {plan.digest}, not {head['digest']}")
        owner = values.pop("owner")
        return LoggedStep(plan=plan, owner=owner, in_flight=InFlight(**values), delivered=delivered)


def _pack(values: dict[str, Any]) -> bytes:
    return msgpack.packb(values) or b""


def _arrays(head: dict[str, Any], num_sources: int) -> list[tuple[str, np.dtype, int]]:
    """Name, dtype and length of the arrays of a step, in order."""
    per_source = ("leased_to", "known_to", "last_drawn", "buffered", "next_buffered", "pending")
    return [
        ("owner", np.dtype("<i4"), head["num_segments"]),
        *((name, np.dtype("<i8"), num_sources) for name in per_source),
        ("carried", KEY_DTYPE, head["num_carried"]),
    ]


def _describe_source(name: str, source: Source, num_records: int) -> LoggedSource:
    return LoggedSource(
        name=name,
        data=_text(source.data),
        transforms=", ".join(map(_text, source.transforms)),
        num_records=num_records,
        block_size=source.block_size,
    )


def _text(value: Any) -> str:
    """A path as it is, a dataclass with its fields, anything else by its name."""
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if is_dataclass(value) and not isinstance(value, type):
        return without_addresses(repr(value))
    return getattr(value, "__qualname__", type(value).__qualname__)
