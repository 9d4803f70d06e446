"""A source loader: reads and transforms leased blocks, keeps the samples, sends those it is told to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol

import numpy as np

from msdata_jax.batching.assembly import Payload, join_samples
from msdata_jax.errors import JobFailed, MSDataError
from msdata_jax.records import Block, Sample
from msdata_jax.roles import messages as m
from msdata_jax.roles.effects import Effect, Finish, Run, Send
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

    def read_block(self, start: int, stop: int) -> Block:
        """What the positions yield; may run on several threads at once."""
        ...

    def close(self) -> None:
        """Close the files."""
        ...


OpenReader = Callable[[int], Reader]
"""Opens source number `i` of the recipe; raises MSDataError where it cannot."""


class SourceLoader:
    """State machine of a source loader; knows no mesh and no step beyond its orders."""

    def __init__(
        self,
        placement: Placement,
        open_reader: OpenReader,
        process_figures: Callable[[], Mapping[str, Any]] = dict,
        clock: Callable[[], float] = lambda: 0.0,
        source_names: Sequence[str] = (),
    ) -> None:
        self._planner = placement.planner
        self._open_reader, self._process_figures, self._clock = open_reader, process_figures, clock
        self._source_names = source_names
        self._readers: dict[int, Reader] = {}
        self._samples: dict[tuple[int, int, int], Sample] = {}
        self._ordered: dict[int, list[tuple[int, int, int]]] = {}
        self._read_seconds = 0.0
        self._num_samples = 0

    def start(self) -> Sequence[Effect]:
        """Nothing: the planner speaks first."""
        return []

    def tick(self, elapsed_seconds: float) -> Sequence[Effect]:
        """Nothing is timed here."""
        return []

    def handle(self, sender: int, message: m.RoleMessage) -> Sequence[Effect]:
        """React to one message; see the table in `roles.messages`."""
        match message:
            case m.OpenSource():
                return [Run(call=partial(self._open, message.source))]
            case m.Lease():
                return [Run(call=partial(self._read, message))]
            case m.Order():
                return self._send_samples(message)
            case m.Release():
                return self._forget(message.step)
            case m.Stop():
                return self._close()
            case m.Abort():
                return [Finish(error=JobFailed(message.rank, message.message))]
            case _:
                return self._handle_own(sender, message)

    def _handle_own(self, sender: int, message: m.RoleMessage) -> Sequence[Effect]:
        """React to what this rank's own work found."""
        match message:
            case m.Opened():
                return self._tell(m.SourceOpened(**asdict(message)))
            case m.BlockRead():
                return self._keep(message)
            case m.Failed():
                return self._tell(message)
            case _:
                raise MSDataError(f"loader got {type(message).__name__} from rank {sender}")

    def _tell(self, message: m.RoleMessage) -> Sequence[Effect]:
        return [Send(rank=self._planner, message=message)]

    def _open(self, source: int) -> m.Opened:
        """On a worker thread."""
        reader = self._open_reader(source)
        self._readers[source] = reader
        return m.Opened(source=source, num_records=reader.num_records, fingerprint=reader.fingerprint())

    def _read(self, lease: m.Lease) -> m.BlockRead:
        """On a worker thread."""
        begin = self._clock()
        block = self._readers[lease.source].read_block(lease.start, lease.stop)
        return m.BlockRead(source=lease.source, block=block, seconds=self._clock() - begin)

    def _keep(self, read: m.BlockRead) -> Sequence[Effect]:
        block = read.block
        self._read_seconds += read.seconds
        self._num_samples += len(block.samples)
        keys = zip(block.infos["position"].tolist(), block.infos["part"].tolist(), strict=True)
        for (position, part), sample in zip(keys, block.samples, strict=True):
            self._samples[read.source, position, part] = sample
        return self._tell(
            m.BlockReady(
                source=read.source,
                start=block.start,
                stop=block.stop,
                infos=block.infos,
                bad_positions=[bad.position for bad in block.bad],
                bad_reasons=[bad.reason for bad in block.bad],
                seconds=read.seconds,
            )
        )

    def _send_samples(self, order: m.Order) -> Sequence[Effect]:
        keys = list(zip(order.source.tolist(), order.position.tolist(), order.part.tolist(), strict=True))
        self._ordered[order.step] = [
            key for key, last in zip(keys, order.is_last.tolist(), strict=True) if last
        ]
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
        for done in [each for each in self._ordered if each <= step]:
            for key in self._ordered.pop(done):
                self._samples.pop(key, None)
        return []

    def _close(self) -> Sequence[Effect]:
        figures = {
            "sources": len(self._readers),
            "open_files": {str(source): r.num_open_files for source, r in list(self._readers.items())},
            "read_seconds": round(self._read_seconds, 3),
            "samples": self._num_samples,
            **self._process_figures(),
        }
        for reader in list(self._readers.values()):
            reader.close()
        return [*self._tell(m.Farewell(figures=figures)), Finish()]
