"""Measures what the sources of a recipe cost: time, threads, bytes and memory, for `scaling.partition`.

Each source is measured in child processes of its own, so that memory figures are of that source alone and one
that crashes or hangs costs the others nothing. A place is some blocks in a row: a loader reads like that, and
files that are decoded a group at a time are dear at the first block alone.
"""

import contextlib
import importlib
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from msdata_transport.framing import copy_message

from msdata_jax.batching.assembly import join_samples
from msdata_jax.errors import MSDataError
from msdata_jax.recipe import Recipe, Source
from msdata_jax.records import Block, Sample, info_dtype
from msdata_jax.roles import messages as m
from msdata_jax.runtime import wire
from msdata_jax.runtime.figures import smaps_bytes
from msdata_jax.scaling.profile import MOST_TEXT, Lengths, Profile, SourceProfile, Stage
from msdata_jax.sources.child import Child, ChildDied
from msdata_jax.sources.frames import encode
from msdata_jax.sources.isolation import IsolatedReader, open_reader
from msdata_jax.sources.protocol import one_line
from msdata_jax.sources.reader import SourceReader
from msdata_jax.sources.watch import Board, Phase

SECONDS = 2.0
SAMPLES = 4000
OPEN_SECONDS = 300.0
"""How long a source may take beyond what it is measured for: to open, and for the read that is under way."""

_PLACES = 4
_ROUNDS = 6
_ROUND_SECONDS = 0.05
_MOST_AGAIN = 1000
_SWITCH_SECONDS = 0.0005
_MOST_WAITED = 0.25
"""Part of the time that threads may wait for a CPU, where what they do is to tell how they get on."""
_MOST_MODULES = 20000
_CODEC_SECONDS = 0.05

Reader = SourceReader | IsolatedReader


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is measured of a source: whichever is reached first.

    Attributes:
        seconds: about so long, opening not counted.
        samples: so many samples.
    """

    seconds: float = SECONDS
    samples: int = SAMPLES


def profile_recipe(
    recipe: Recipe,
    effort: Effort = Effort(),
    on_source: Callable[[str, int], object] = lambda name, number: None,
) -> Profile:
    """Measure every source. One that fails has an `error`, and the others are measured all the same.

    Args:
        recipe: whose sources to measure.
        effort: how much to measure of each.
        on_source: told the name and number of each source before it is measured.
    """
    process_bytes = _private_bytes()
    sources = []
    for index, name in enumerate(recipe.source_names):
        on_source(name, index)
        sources.append(profile_source(recipe, name, effort))
    return Profile(
        recipe=recipe.fingerprint(),
        sources=tuple(sources),
        num_cpus=num_cpus(),
        process_bytes=process_bytes,
    )


def num_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def profile_source(recipe: Recipe, name: str, effort: Effort) -> SourceProfile:
    """Measure one source; `error` says why that did not go well."""
    source = recipe.sources[name]
    about = SourceProfile(
        name=name,
        data=recipe.data_of(name)[:MOST_TEXT],
        content=recipe.content_of(name)[:MOST_TEXT],
        isolate=source.isolate,
        block_size=source.block_size,
    )
    try:
        found = _ask_child(partial(_measure_times, recipe, name, effort), source, effort)
        modules = found.pop("modules")
        memory = _ask_child(partial(_measure_memory, recipe, name, modules, effort), source, effort)
    except (MSDataError, ChildDied, OSError) as error:
        return replace(about, error=_describe(error)[:MOST_TEXT])
    stages = tuple(Stage(**each) for each in found.pop("stages"))
    lengths = Lengths(**found.pop("lengths"))
    return replace(about, **found, **memory, stages=stages, lengths=lengths)


def _describe(error: Exception) -> str:
    if isinstance(error, ChildDied):
        doing = {Phase.READ: f" when it read position {error.position}"}
        doing |= {Phase.TRANSFORM: f" when it transformed position {error.position}"}
        return f"its process {error.how}{doing.get(error.phase, '')}"
    return str(error)


# --- child processes --------------------------------------------------------------------------------------


def _ask_child(measure: Callable[[Board], dict[str, Any]], source: Source, effort: Effort) -> dict[str, Any]:
    """What `measure` returns in a child process. Raises MSDataError, ChildDied or OSError."""
    is_in_memory = not isinstance(source.data, str | os.PathLike)
    deadline = time.monotonic() + effort.seconds + OPEN_SECONDS
    child = Child(partial(_answer, measure), reopen_files=is_in_memory)
    began = time.monotonic()
    try:
        # A limit counts from what the board shows last, and this one is for all of it.
        reply = child.receive(info_dtype(), lambda board: deadline - max(board.since, began))
    finally:
        child.kill()
        child.release()
    if "error" in reply:
        raise MSDataError(reply["error"])
    return reply["value"]


def _answer(
    measure: Callable[[Board], dict[str, Any]], board: Board, requests: int, replies: int
) -> NoReturn:
    """In the child: measure, and send what comes of it."""
    try:
        pieces = encode({"value": measure(board)})
    except MemoryError:
        board.note_out_of_memory()
        os._exit(1)
    except MSDataError as error:
        pieces = encode({"error": str(error)})
    except Exception as error:  # noqa: BLE001 - it is told in the parent
        pieces = encode({"error": one_line(error)})
    for piece in pieces:
        while piece:
            piece = piece[os.write(replies, piece) :]
    os._exit(0)


def _open(recipe: Recipe, name: str, source: Source, board: Board) -> Reader:
    index, columns = recipe.source_names.index(name), recipe.columns
    if source.isolate:
        return open_reader(name, index, source, seed=recipe.seed, columns=columns)
    return SourceReader(name, index, source, recipe.seed, columns, board)


# --- times ------------------------------------------------------------------------------------------------


def _measure_times(recipe: Recipe, name: str, effort: Effort, board: Board) -> dict[str, Any]:
    """P, T, lengths and threads, plain values."""
    before = set(sys.modules)
    source, meter = _metered(recipe.sources[name])
    begin = time.monotonic()
    reader = _open(recipe, name, source, board)
    open_seconds = time.monotonic() - begin
    walk = _Walk(reader, source, meter, effort)
    walk.run()
    walk.refuse_nothing()
    values = walk.figures()
    values["open_seconds"] = open_seconds
    values["open_files"] = reader.num_open_files
    values["send_seconds"] = _send_seconds(walk.kept)
    values["lock_share"] = _lock_share(reader, walk, effort.seconds / 4)
    reader.close()
    return {**values, "modules": [each for each in sys.modules if each not in before][:_MOST_MODULES]}


@dataclass
class _Meter:
    """Seconds of each transform, wall and CPU, in memory that children share."""

    names: list[str]
    cells: np.ndarray

    def time(self, place: int, run: Callable[..., Any]) -> Callable[..., Any]:
        """`run`, timed."""

        def timed(*arguments: Any) -> Any:
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return run(*arguments)
            finally:
                self.cells[place] += (time.perf_counter() - wall, time.thread_time() - cpu)

        return timed


class _Timed:
    """A transform that is timed: the method of grain's that it has, or `map` for a callable."""

    def __init__(self, transform: Any, place: int, meter: _Meter) -> None:
        self.__name__ = meter.names[place]
        methods = [
            name for name in ("random_map", "map", "filter") if callable(getattr(transform, name, None))
        ]
        run = getattr(transform, methods[0]) if methods else transform
        setattr(self, methods[0] if methods else "map", meter.time(place, run))
        self.open = getattr(transform, "open", None)


def _metered(source: Source) -> tuple[Source, _Meter]:
    """The source with its transforms timed, and the times."""
    names = [getattr(each, "__name__", None) or type(each).__name__ for each in source.transforms]
    size = 2 * max(len(names), 1)
    cells = np.frombuffer(mmap.mmap(-1, 8 * size), np.float64).reshape(-1, 2)
    meter = _Meter(names, cells)
    timed = [
        each
        if isinstance(each, type)
        else _Timed(each, place, meter)  # a class is refused where it is opened
        for place, each in enumerate(source.transforms)
    ]
    return replace(source, transforms=timed), meter


@dataclass(frozen=True)
class _Piece:
    """Some positions that were read in one go, and what that took."""

    start: int
    stop: int
    wall_seconds: float
    cpu_seconds: float
    num_samples: int


class _Walk:
    """Reads blocks at several places of a source with one thread."""

    def __init__(self, reader: Reader, source: Source, meter: _Meter, effort: Effort) -> None:
        self._reader, self._source, self._meter, self._effort = reader, source, meter, effort
        self._places: list[list[_Piece]] = []
        self._infos: list[np.ndarray] = []
        self._num_bad = self._num_records = 0
        self._first_bad = ""
        self._raw_wall = 0.0
        self.kept: Sequence[Sample] = ()
        self.size = 1

    def run(self) -> None:
        """Read until time or samples are used up."""
        records, seconds = self._reader.num_records, self._effort.seconds / 2
        self._warm_up(seconds / 8)
        num_places = max(1, min(_PLACES, records // (2 * self.size)))
        begin = time.monotonic()
        for place in range(num_places):
            stop = (place + 1) * records // num_places
            until = begin + seconds * (place + 1) / num_places
            self._places.append([])
            for start in range(place * records // num_places, stop, self.size):
                self._read(start, min(start + self.size, stop))
                is_enough = self._num_samples * num_places >= self._effort.samples * (place + 1)
                if len(self._places[-1]) >= 2 and (is_enough or time.monotonic() > until):
                    break
                if time.monotonic() > until + seconds:
                    return

    @property
    def _num_samples(self) -> int:
        return sum(map(len, self._infos))

    def _warm_up(self, most_seconds: float) -> None:
        """Read a few positions, which opens files, and find out how many are read in a given time."""
        records = self._reader.num_records
        few, size = min(4, records), min(self._source.block_size, records)
        self._reader.read_block(0, few)
        begin = time.monotonic()
        self._reader.read_block(min(few, records - few), min(few, records - few) + few)
        each = (time.monotonic() - begin) / few
        self.size = max(1, min(size, int(most_seconds / max(each, 1e-9))))
        self._meter.cells[:] = 0

    def _read(self, start: int, stop: int) -> None:
        begin = _Clock.now()
        block = self._reader.read_block(start, stop)
        raw, wall, cpu = _Clock.now().since(begin)
        self._raw_wall += raw
        self._places[-1].append(_Piece(start, stop, wall, cpu, len(block.samples)))
        self._infos.append(block.infos)
        self._num_records += stop - start
        self._num_bad += len(block.bad)
        if block.bad and not self._first_bad:
            self._first_bad = block.bad[0].reason
        if block.samples:
            self.kept = list(block.samples[:256])

    def refuse_nothing(self) -> None:
        """Raise MSDataError where no sample came."""
        if not self._num_samples:
            why = f"; {self._num_bad} were bad, such as: {self._first_bad}" if self._num_bad else ""
            raise MSDataError(f"{self._num_records} records were read and no sample came of them{why}")

    @property
    def piece_seconds(self) -> float:
        """What most pieces take, or less."""
        return float(np.median([piece.wall_seconds for place in self._places for piece in place]))

    def start_of_last(self) -> int:
        """Where the last place begins."""
        return self._places[-1][0].start

    def figures(self) -> dict[str, Any]:
        """What was measured, as fields of `SourceProfile`."""
        infos = np.concatenate(self._infos)
        wall, cpu = self._per_sample("wall_seconds"), self._per_sample("cpu_seconds")
        scale = sum(p.wall_seconds for place in self._places for p in place) / max(self._raw_wall, 1e-12)
        of_stages = self._meter.cells[: len(self._meter.names)] / len(infos) * (scale, 1.0)
        of_stages = of_stages.tolist()
        rest = [max(all_ - sum(part), 0.0) for all_, *part in zip((wall, cpu), *of_stages, strict=True)]
        tokens = infos["tokens"]
        p50, p90, p99 = np.percentile(tokens, (50, 90, 99)).tolist()
        columns = infos.dtype.names or ()
        return {
            "num_records": self._reader.num_records,
            "records": self._num_records,
            "samples": len(infos),
            "bad_share": self._num_bad / self._num_records,
            "wall_seconds": wall,
            "cpu_seconds": cpu,
            "stages": [
                {"name": name, "wall_seconds": stage_wall, "cpu_seconds": stage_cpu}
                for name, (stage_wall, stage_cpu) in zip(
                    ("read", *self._meter.names), (rest, *of_stages), strict=True
                )
            ],
            "sample_bytes": float(infos["num_bytes"].mean()),
            "block_bytes": self._block_bytes(infos),
            "lengths": {
                "mean": float(tokens.mean()), "p50": p50, "p90": p90, "p99": p99,
                "longest": int(tokens.max()),
            },
            "means": {name: max(float(infos[name].mean()), 0.0) for name in columns[3:]},
        }  # fmt: skip

    def _per_sample(self, what: str) -> float:
        """Seconds a sample: those of later pieces, and its part of what the first of a place takes more.

        That is shared by all that the same groups of records hold, read here or not.
        """
        pieces = [piece for place in self._places for piece in place]
        later = [piece for place in self._places for piece in place[1:]] or pieces
        steady = sum(getattr(p, what) for p in later) / max(sum(p.num_samples for p in later), 1)
        in_all = sum(getattr(p, what) for p in pieces)
        num_samples = sum(p.num_samples for p in pieces)
        extra = max(in_all - steady * num_samples, 0.0)
        window = getattr(self._reader, "records_per_window", 1) * len(self._places)
        return steady + extra / max(num_samples, window * num_samples / self._num_records)

    def _block_bytes(self, infos: np.ndarray) -> int:
        per_record = int(infos["num_bytes"].sum()) / self._num_records
        return round(per_record * min(self._source.block_size, self._reader.num_records))


@dataclass(frozen=True)
class _Clock:
    """Times of now: of this thread by the clock, how long it had to wait for a CPU, CPU of the process."""

    wall: float
    waited: float
    cpu: float

    @classmethod
    def now(cls) -> "_Clock":
        return cls(time.perf_counter(), _waited_for_cpu(), time.process_time() + _cpu_of_children())

    def since(self, before: "_Clock") -> tuple[float, float, float]:
        """Wall seconds, the same without waiting for a CPU, and CPU seconds."""
        raw = self.wall - before.wall
        return raw, max(raw - (self.waited - before.waited), 0.0), max(self.cpu - before.cpu, 0.0)


def _waited_for_cpu() -> float:
    """Seconds for which this thread could have run and other processes did; 0 where that is not known."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def _send_seconds(samples: Sequence[Sample]) -> float:
    """CPU seconds to join, encode and frame a sample, as its loader does, and to copy it once."""
    zeros = np.zeros(len(samples), np.int64)
    length = np.array([len(each["tokens"]) for each in samples], np.int64)
    best, until = float("inf"), time.monotonic() + _CODEC_SECONDS
    while best == float("inf") or time.monotonic() < until:
        begin = time.thread_time()
        joined = join_samples(samples, zeros, length)
        message = m.Samples(
            step=0,
            index=np.arange(len(samples)),
            for_slots=False,
            tokens=joined.tokens,
            num_patches=joined.num_patches,
            patches=joined.patches,
        )
        copy_message(wire.encode(message))
        best = min(best, time.thread_time() - begin)
    return best / len(samples)


# --- threads ----------------------------------------------------------------------------------------------


def _lock_share(reader: Reader, walk: _Walk, seconds: float) -> float | None:
    """How much two threads that read at the same time hinder one another.

    One thread reads some positions, then two share them: that takes half as long, or as long again where one
    waits for the other all the time. The quietest of several rounds tells; None where other processes left
    too little of the CPUs to tell by, or where there is too little to read.
    """
    lists = _pieces_of_two(reader, walk, seconds)
    if not all(lists):
        return None
    sys.setswitchinterval(_SWITCH_SECONDS)  # turns that are short beside what is timed; this process is ours
    alone, rounds = float("inf"), []
    begin = time.monotonic()
    for number in range(_ROUNDS):
        took, waited = _read_together(reader, [[*lists[0], *lists[1]]])
        alone = min(alone, took - waited)
        rounds.append(_read_together(reader, lists)[::-1])
        if number and time.monotonic() - begin > seconds:
            break
    waited, together = min(rounds)
    if waited > _MOST_WAITED * alone:
        return None
    return min(max(2 * together / max(alone, 1e-12) - 1, 0.0), 1.0)


def _pieces_of_two(reader: Reader, walk: _Walk, seconds: float) -> tuple[list[range], list[range]]:
    """Positions for each of two threads, in turn, long enough to be timed where there are as many."""
    wanted = min(_ROUND_SECONDS, seconds / 16)
    each = max(1, min(int(wanted / max(walk.piece_seconds, 1e-9)), 64))
    first, size = walk.start_of_last(), walk.size
    room = reader.num_records - first
    if room < 2 * size:
        size = room // 2
    starts = range(first, first + room - size + 1, size)[: 2 * each] if size else range(0)
    pieces = [range(start, start + size) for start in starts]
    even = len(pieces) - len(pieces) % 2
    again = max(1, round(wanted / max(walk.piece_seconds * even / 2, 1e-9))) if even else 1
    return pieces[:even:2] * min(again, _MOST_AGAIN), pieces[1:even:2] * min(again, _MOST_AGAIN)


def _read_together(reader: Reader, lists: Sequence[Sequence[range]]) -> tuple[float, float]:
    """Seconds from when all threads could begin until the last has read its list.

    And those for which threads waited for a CPU, added up.
    """
    begin: list[float] = []
    ready = threading.Barrier(len(lists), action=lambda: begin.append(time.perf_counter()))
    ends, waits = [float("inf")] * len(lists), [0.0] * len(lists)

    def read(number: int) -> None:
        waited = _waited_for_cpu()
        ready.wait(OPEN_SECONDS)
        for piece in lists[number]:
            reader.read_block(piece.start, piece.stop)
        ends[number] = time.perf_counter()
        waits[number] = _waited_for_cpu() - waited

    threads = [threading.Thread(target=read, args=(number,)) for number in range(len(lists))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(ends) - begin[0], sum(waits)


# --- memory -----------------------------------------------------------------------------------------------


def _measure_memory(
    recipe: Recipe, name: str, modules: Sequence[str], effort: Effort, board: Board
) -> dict[str, Any]:
    """M: what a reader adds to a process that has its libraries loaded already."""
    before = _private_bytes()
    for module in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    loaded = _private_bytes()
    source = recipe.sources[name]
    reader = _open(recipe, name, source, board)
    opened = _private_bytes()
    most = opened
    until = time.monotonic() + effort.seconds / 4
    for start, stop in _few_blocks(reader.num_records, source.block_size):
        block: Block | None = reader.read_block(start, min(stop, start + effort.samples))
        del block
        most = max(most, _private_bytes())
        if time.monotonic() > until:
            break
    reader.close()
    return {
        "library_bytes": max(loaded - before, 0),
        "index_bytes": max(opened - loaded, 0),
        "reader_bytes": max(most - loaded, 0),
    }


def _few_blocks(num_records: int, block_size: int) -> Iterator[tuple[int, int]]:
    """Blocks at some places of an epoch, each once."""
    starts = sorted({place * num_records // _PLACES for place in range(_PLACES)})
    for start in starts:
        yield start, min(start + block_size, num_records)


def _private_bytes() -> int:
    """Memory that only this process and its descendants have; 0 where that is not known."""
    total = 0
    for pid in (os.getpid(), *_descendants(os.getpid())):
        with contextlib.suppress(OSError, ValueError):
            total += smaps_bytes("Private_", pid)
    return total


def _cpu_of_children() -> float:
    """CPU seconds of all descendants that run."""
    total = 0
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(OSError, ValueError, IndexError):
            after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(after_name[11]) + int(after_name[12])
    return total / os.sysconf("SC_CLK_TCK")


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        for task in os.listdir(f"/proc/{pid}/task"):
            children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
            for child in map(int, children):
                found += [child, *_descendants(child)]
    return found
