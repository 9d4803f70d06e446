"""A source loader: reads and transforms leased blocks, keeps the samples, sends those it is told to."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np

from msdata_jax.batching.assembly import Payload, join_samples
from msdata_jax.errors import JobFailed, MSDataError
from msdata_jax.records import Block, Sample
from msdata_jax.roles import messages as m
from msdata_jax.roles.effects import Effect, Finish, Forget, Resize, Run, Send
from msdata_jax.roles.placement import Placement


class Reader(Protocol):
    """An open source; `sources.reader.SourceReader` is one."""

    @property
    def num_records(self) -> int:
        """Records in one epoch."""
        ...

    def fingerprint(self) -> str:
        """Changes when the data change."""
        ...

    @property
    def num_open_files(self) -> int:
        """Files held open."""
        ...

    def file_digests(self) -> Mapping[str, str]:
        """A digest of each file by its name."""
        ...

    def read_block(self, start: int, stop: int, verdicts: Mapping[int, str]) -> Block:
        """What the positions yield, those of `verdicts` being bad; may run on several threads at once."""
        ...

    def close(self) -> None:
        """Close the files."""
        ...


SampleKey: TypeAlias = tuple[int, int, int]
"""Source, position and part."""


class SavedBlocks(Protocol):
    """Blocks on disk; `runtime.saved_blocks.BlockFolders` is one. Called on worker threads."""

    def keeps(self, source: int) -> bool:
        """Whether the blocks of a source are kept with checkpoints."""
        ...

    def load(self, reader: Reader, lease: m.Lease) -> tuple[Block, int] | None:
        """A block that lies ready, and its digest; None where it does not, or was damaged."""
        ...

    def save(self, message: m.SaveBlocks, blocks: Sequence[tuple[int, Reader, Block, int]]) -> m.BlocksSaved:
        """Write blocks, with their digests, to a folder."""
        ...


class Readers(Protocol):
    """The sources of the recipe, by number; `runtime.data_rank` has them. Called on any thread."""

    def open(self, source: int, isolate: bool, /) -> Reader:
        """The open reader of a source; True: another one, that reads in a child process.

        Raises MSDataError where the source does not open.
        """
        ...

    def close(self, source: int, /) -> None:
        """Close a source that nobody is reading, where it is open; it may be opened again."""
        ...


@dataclass(frozen=True, kw_only=True)
class Process:
    """What a loader asks of its process: figures for the end, seconds, and resident memory in bytes."""

    figures: Callable[[], Mapping[str, Any]] = dict
    clock: Callable[[], float] = lambda: 0.0
    memory_bytes: Callable[[], int] = lambda: 0


@dataclass
class _Reading:
    """A lease under way: when its reading began; None while it waits for a worker."""

    lease: m.Lease
    began: float | None = None


class SourceLoader:
    """State machine of a source loader; knows no mesh and no step beyond its orders.

    A shadow is a source loader whose sources are open and that gets no leases until another is lost. An order
    may ask for samples whose block is being read still: it waits for that block.
    """

    def __init__(
        self,
        placement: Placement,
        readers: Readers,
        process: Process = Process(),
        source_names: Sequence[str] = (),
        saved_blocks: SavedBlocks | None = None,
    ) -> None:
        self._all_readers, self._process, self._saved_blocks = readers, process, saved_blocks
        self._opening: set[int] = set()
        self._to_close: set[int] = set()  # when nothing of them is being read any more
        self._closed: set[int] = set()  # of which samples may be left
        self._widened: set[int] = set()  # opened in this session beside what it began with
        self._saves = 0  # under way, which look at readers
        self._read_blocks: dict[tuple[int, int], m.BlockRead] = {}  # without samples, for checkpoints
        self._num_at_hand = 0
        self._pinned: tuple[int, list[tuple[int, Block, int]]] = -1, []
        self._planner, self._others = placement.planner, placement.readers
        self._clock = process.clock
        self._source_names = source_names
        self._readers: dict[int, Reader] = {}
        self._samples: dict[SampleKey, Sample] = {}
        self._ordered: dict[int, list[SampleKey]] = {}
        self._reading: dict[tuple[int, int], _Reading] = {}
        self._early: list[m.Order] = []  # orders for samples that are being read
        self._released = -1
        self._read_seconds = 0.0
        self._num_samples = 0
        self._num_restored = 0

    def start(self) -> Sequence[Effect]:
        """Nothing: the planner speaks first."""
        return []

    def tick(self, elapsed_seconds: float, *, caught_up: bool = True) -> Sequence[Effect]:
        """Tell the planner that this rank is alive, and what it has been reading for longest."""
        now, memory = self._clock(), self._process.memory_bytes()
        under_way = [
            (now - each.began, each.lease) for each in self._reading.values() if each.began is not None
        ]
        if not under_way:
            return self._tell(m.Heartbeat(source=-1, start=-1, seconds=0.0, memory_bytes=memory))
        seconds, lease = max(under_way, key=lambda each: each[0])
        return self._tell(
            m.Heartbeat(source=lease.source, start=lease.start, seconds=seconds, memory_bytes=memory)
        )

    def handle(self, sender: int, message: m.RoleMessage) -> Sequence[Effect]:
        """React to one message; see the table in `roles.messages`."""
        match message:
            case m.OpenSource() | m.Lease() | m.CloseSource() | m.SetThreads():
                return self._read_or_rest(message)
            case m.Order():
                return self._obey(message)
            case m.Release():
                return self._forget(message.step)
            case m.PinBlocks() | m.SaveBlocks():
                return self._pin_or_save(message)
            case m.Stop():
                return self._close(message)
            case m.Abort():
                return [Finish(error=JobFailed(message.rank, message.message))]
            case _:
                return self._handle_own(sender, message)

    def _read_or_rest(
        self, message: m.OpenSource | m.Lease | m.CloseSource | m.SetThreads
    ) -> Sequence[Effect]:
        """What this rank reads, and how fast."""
        match message:
            case m.SetThreads():
                return [Resize(num_threads=message.num_threads)]
            case m.CloseSource():
                self._to_close.add(message.source)
                self._close_unread()
                return []
            case m.OpenSource():
                self._want(message.source)
                self._opening.add(message.source)
                if message.may_fail:
                    self._widened.add(message.source)
                return [Run(call=partial(self._open, message))]
            case m.Lease():
                self._want(message.source)
                reading = self._reading[message.source, message.start] = _Reading(message)
                return [Run(call=partial(self._read, reading), due=message.due)]

    def _want(self, source: int) -> None:
        self._to_close.discard(source)
        self._closed.discard(source)

    def _close_unread(self) -> None:
        """Close the sources that are to be closed and that no thread is at."""
        if self._saves or not self._to_close:
            return
        at_work = self._opening | {source for source, _ in self._reading}
        for source in sorted(self._to_close - at_work):
            self._to_close.discard(source)
            self._closed.add(source)
            self._readers.pop(source, None)
            self._all_readers.close(source)

    def _handle_own(self, sender: int, message: m.RoleMessage) -> Sequence[Effect]:
        """React to what this rank's own work found."""
        match message:
            case m.Opened():
                self._opening.discard(message.source)
                self._close_unread()
                return self._tell(m.SourceOpened(**asdict(message)))
            case m.BlockRead():
                return self._keep(message)
            case m.Failed():
                return self._tell(message)
            case m.BlocksSaved():
                self._saves -= 1
                self._to_close |= self._closed & set(self._readers)  # it looked at them
                self._close_unread()
                return self._tell(message)
            case m.Lost() if message.rank in self._others:
                return [Forget(rank=message.rank, why=message.why)]
            case m.Lost():
                raise JobFailed(message.rank, f"lost contact: {message.why}")
            case _:
                raise MSDataError(f"loader got {type(message).__name__} from rank {sender}")

    def _tell(self, message: m.RoleMessage) -> Sequence[Effect]:
        return [Send(rank=self._planner, message=message)]

    # --- on worker threads ------------------------------------------------------------------------------

    def _open(self, message: m.OpenSource) -> m.Opened:
        source = message.source
        try:
            reader = self._reader(source)
        except MSDataError as error:
            if not message.may_fail:
                raise
            return m.Opened(source=source, num_records=0, fingerprint="", files={}, error=str(error))
        return m.Opened(
            source=source,
            num_records=reader.num_records,
            fingerprint=reader.fingerprint(),
            files=dict(reader.file_digests()),
        )

    def _reader(self, source: int) -> Reader:
        """The open source; a lease may come before it was told to be opened, or while it is."""
        reader = self._readers[source] = self._all_readers.open(source, False)
        return reader

    def _read(self, reading: _Reading) -> m.BlockRead:
        lease, begin = reading.lease, self._clock()
        reading.began = begin
        reader = self._all_readers.open(lease.source, True) if lease.isolate else self._reader(lease.source)
        try:
            saved = self._saved_blocks.load(reader, lease) if lease.blocks and self._saved_blocks else None
            if saved is not None:
                self._num_restored += 1
                block, digest = saved
            else:
                block = reader.read_block(lease.start, lease.stop, dict(lease.verdicts))
                digest = digest_of(block)
        finally:
            if lease.isolate:
                reader.close()
        return m.BlockRead(lease=lease, block=block, digest=digest, seconds=self._clock() - begin)

    def _save(self, message: m.SaveBlocks, blocks: Sequence[tuple[int, Block, int]]) -> m.BlocksSaved:
        assert self._saved_blocks is not None
        with_readers = [(source, self._reader(source), block, digest) for source, block, digest in blocks]
        return self._saved_blocks.save(message, with_readers)

    # --- samples ----------------------------------------------------------------------------------------

    def _keep(self, read: m.BlockRead) -> Sequence[Effect]:
        block, source = read.block, read.lease.source
        self._read_seconds += read.seconds
        self._num_samples += len(block.samples)
        self._reading.pop((source, block.start), None)
        self._close_unread()
        if read.lease.keep:
            keys = zip(block.infos["position"].tolist(), block.infos["part"].tolist(), strict=True)
            for (position, part), sample in zip(keys, block.samples, strict=True):
                if len(sample["tokens"]):  # else a checkpoint kept the block without it: nobody needs it
                    self._samples[source, position, part] = sample
            if self._saved_blocks is not None and self._saved_blocks.keeps(source):
                self._read_blocks[source, block.start] = replace(read, block=replace(block, samples=()))
                if len(self._read_blocks) > 2 * self._num_at_hand + 64:
                    self._num_at_hand = len(self._blocks_at_hand())  # which forgets the others
        ready = m.BlockReady(
            source=source,
            start=block.start,
            stop=block.stop,
            infos=block.infos,
            bad=[(bad.position, bad.reason, bad.by_luck) for bad in block.bad],
            verdicts=list(block.verdicts.items()),
            digest=read.digest,
            seconds=read.seconds,
        )
        waiting, self._early = self._early, []
        return [*self._tell(ready), *(effect for order in waiting for effect in self._obey(order))]

    def _pin_or_save(self, message: m.PinBlocks | m.SaveBlocks) -> Sequence[Effect]:
        """For a checkpoint: hold what is here, then write it, whatever was forgotten meanwhile."""
        if isinstance(message, m.PinBlocks):
            self._pinned = message.step, self._blocks_at_hand()
            return []
        step, blocks = self._pinned
        if step != message.step:
            error = f"nothing is held for step {message.step}"
            return self._tell(m.BlocksSaved(folder=message.folder, num_blocks=0, num_bytes=0, error=error))
        self._pinned = -1, []
        self._saves += 1
        return [Run(call=partial(self._save, message, blocks))]

    def _blocks_at_hand(self) -> list[tuple[int, Block, int]]:
        """Blocks of which a sample is left, with their digests; those that are forgotten are empty there."""
        gone = {"tokens": np.empty(0, np.int32)}
        blocks: list[tuple[int, Block, int]] = []
        for (source, start), read in list(self._read_blocks.items()):
            infos = read.block.infos
            places = zip(infos["position"].tolist(), infos["part"].tolist(), strict=True)
            samples = [self._samples.get((source, position, part), gone) for position, part in places]
            if all(sample is gone for sample in samples):
                del self._read_blocks[source, start]
            else:
                blocks.append((source, replace(read.block, samples=samples), read.digest))
        return blocks

    def _obey(self, order: m.Order) -> Sequence[Effect]:
        """Send what an order asks for, now or as soon as all of it is read.

        Of a step that is released, since a lost loader had sent them in time, samples are only forgotten.
        Those that nobody asks for may be forgotten already.
        """
        keys = list(zip(order.source.tolist(), order.position.tolist(), order.part.tolist(), strict=True))
        is_late = order.step <= self._released
        sent = [key for key, rank in zip(keys, order.constructor.tolist(), strict=True) if rank >= 0]
        if not is_late and any(key not in self._samples for key in sent):
            if not self._reading:
                raise MSDataError(
                    f"an order of step {order.step} asks for samples that nobody leased to this rank"
                )
            self._early.append(order)
            return []
        last = [key for key, is_last in zip(keys, order.is_last.tolist(), strict=True) if is_last]
        self._ordered.setdefault(order.step, []).extend(last)
        return self._forget(self._released) if is_late else self._send_samples(order, keys)

    def _send_samples(self, order: m.Order, keys: Sequence[SampleKey]) -> Sequence[Effect]:
        effects: list[Effect] = []
        wanted = np.stack([order.constructor, order.is_image], axis=1)[order.constructor >= 0]
        for constructor, for_slots in np.unique(wanted, axis=0).tolist():
            mine = np.flatnonzero((order.constructor == constructor) & (order.is_image == for_slots))
            samples = [self._samples[keys[i]] for i in mine.tolist()]
            what: Payload = "patches" if for_slots else "tokens" if order.without_patches else "all"
            try:
                joined = join_samples(samples, order.start[mine], order.length[mine], what)
            except ValueError as error:
                sources = np.unique(order.source[mine]).tolist()
                names = [self._source_names[int(source)] for source in sources]
                raise MSDataError(f"step {order.step}, sources {', '.join(names)}: {error}") from None
            message = m.Samples(
                step=order.step,
                index=order.index[mine],
                for_slots=bool(for_slots),
                tokens=joined.tokens,
                num_patches=joined.num_patches,
                patches=joined.patches,
            )
            effects.append(Send(rank=constructor, message=message))
        return effects

    def _forget(self, step: int) -> Sequence[Effect]:
        self._released = max(self._released, step)
        for done in [each for each in self._ordered if each <= step]:
            for key in self._ordered.pop(done):
                self._samples.pop(key, None)
        waiting, self._early = self._early, []
        return [effect for order in waiting for effect in self._obey(order)]

    def _close(self, stop: m.Stop) -> Sequence[Effect]:
        """Another session may follow: the sources with which this one began stay open."""
        self._to_close |= self._widened
        self._close_unread()
        figures = {
            "sources": len(self._readers),
            "open_files": {str(source): r.num_open_files for source, r in list(self._readers.items())},
            "read_seconds": round(self._read_seconds, 3),
            "samples": self._num_samples,
            "restored_blocks": self._num_restored,
            **self._process.figures(),
        }
        return [
            *self._tell(m.Farewell(figures=figures)),
            Finish(figures={"lost": [{"rank": r} for r in stop.lost]}, again=stop.again),
        ]


def digest_of(block: Block) -> int:
    """CRC-32 of a block's metadata and samples; whoever reads the block again must find the same."""
    digest = zlib.crc32(np.ascontiguousarray(block.infos).view(np.uint8).data)
    for sample in block.samples:
        for name in sorted(sample):
            digest = zlib.crc32(np.ascontiguousarray(sample[name]).reshape(-1).view(np.uint8).data, digest)
    return digest
