"""Measures what a role's loop does. The roles know nothing of it; the loop tells it what happened and when.

All of one `Observer` is called on its loop's thread. Times are those of `time.monotonic`, which all
processes of a host share.
"""

import os
import socket
import time
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msdata_jax.observing.files import Ring
from msdata_jax.observing.metrics import Metrics
from msdata_jax.observing.monitor import SOURCE_FIGURES
from msdata_jax.roles import messages as m
from msdata_jax.roles.effects import Deliver, Effect, Send
from msdata_jax.roles.placement import Placement
from msdata_jax.runtime.figures import pss_mb, resident_bytes

PSS_SECONDS = 10.0
PSS_SHARE = 100
"""PSS is looked up that often at most, and such a part of the time may go into it: it walks all pages."""
MOST_PEERS = 64
"""Ranks that messages to are counted for one by one; the others together, as rank -1."""
MOST_BLOCKS = 4096
"""Blocks of a source of which a loader's observer knows where they begin; of older ones spans do not tell."""
MOST_LINKS = 64
"""Blocks that a span names at most."""

Figures = Mapping[str, Any]
OnMeasured = Callable[[int, Figures], None]


@dataclass(frozen=True, slots=True)
class Work:
    """When a message that a rank hands to itself came about.

    Attributes:
        submitted: when the work was handed over; the message's own time where there was no work.
        began, ended: of the work.
        thread: that did it.
    """

    submitted: float
    began: float
    ended: float
    thread: str


@dataclass(frozen=True, slots=True)
class _Handled:
    """A message as it was handled."""

    sender: int
    message: m.RoleMessage
    begin: float
    end: float
    work: Work | None


class NoObserver:
    """Sees nothing and tells nothing: the loop of a job that nobody watches."""

    def handled(
        self,
        sender: int,
        message: m.RoleMessage,
        effects: Sequence[Effect],
        times: tuple[float, float],
        work: Work | None = None,
    ) -> None:
        """A message was given to the role, or None: its clock ticked.

        Args:
            sender: of the message.
            message: the message.
            effects: what the role returned; they are performed behind this call.
            times: when the role began and ended.
            work: of a message of this rank.
        """

    def received(self, sender: int, num_bytes: int) -> None:
        """A message came from a rank, with so many bytes of arrays."""

    def sent(self, rank: int, message: m.RoleMessage, num_bytes: int, times: tuple[float, float]) -> None:
        """A message was handed to the endpoint."""

    def took(self, effect: Effect, times: tuple[float, float]) -> None:
        """Somebody took an effect that is no message."""

    def measure(self, *, waiting: int = 0, inbox: int = 0) -> Send | None:
        """About once a second, and before a rank says its last: what to tell the planner, if anything.

        Args:
            waiting: calls that wait for a worker thread.
            inbox: messages of this rank that the role has not seen.
        """

    def measured(self, sender: int, figures: Figures) -> None:
        """A rank told its figures."""

    def close(self) -> None:
        """Write what there is; the rank is done, or is between two sessions."""


class Observer(NoObserver):
    """Counts and times what one rank does, from session to session.

    Histograms, of seconds, by role:

    | name | on | of |
    |---|---|---|
    | `handle` | all | each message that the role handles, what it sends left out |
    | `send` | all | each message that is handed to the transport (encoded, copied, queued) |
    | `plan` | planner | each decision that brought steps: composing, placing, cutting |
    | `lease` | planner | a block, from its lease to word that it is read |
    | `queue` | loader | a block, from its lease to the start of its reading |
    | `read` | loader | a block: getting its records |
    | `transform` | loader | a block: transforms, measures and digest |
    | `order` | loader | an order, from its coming to the first samples on their way |
    | `gather` | constructor | a step, from its plan to its last sample |
    | `assemble` | constructor | each message of samples: writing them into rows |
    | `emit` | constructor | a step: rows to arrays |
    | `wait` | constructor | a step that the trainer waits for, but for the first one of a session |
    | `step` | constructor | from when the trainer has a step to when it asks for the next |

    Args:
        rank: of this rank.
        placement: who plays what.
        folder: of the record, into which spans are written; None for none.
        on_measured: takes the figures of all ranks; on the planner alone.
    """

    def __init__(
        self,
        rank: int,
        placement: Placement,
        *,
        folder: Path | None = None,
        on_measured: OnMeasured | None = None,
    ) -> None:
        self._rank, self._planner, self.role = rank, placement.planner, placement.role_of(rank)
        self._on_measured = on_measured
        self._metrics = Metrics()
        path = folder / "spans" / f"rank-{rank}.jsonl" if folder else None
        self._ring = Ring(path, self._anchor) if path else None
        self._spans: list[dict[str, Any]] = []
        self._peers: defaultdict[int, list[float]] = defaultdict(lambda: [0, 0, 0.0])
        self._by_source: defaultdict[int, list[float]] = defaultdict(lambda: [0.0] * len(SOURCE_FIGURES))
        self._changed: set[int] = set()
        self._leased: dict[tuple[int, int], float] = {}
        self._starts: defaultdict[int, list[int]] = defaultdict(list)  # of this loader's blocks, by source
        self._orders: dict[int, float] = {}  # when each came, until its first samples are sent
        self._wanted: dict[tuple[int, int], set[tuple[int, int]]] = {}  # (step, rank): blocks
        self._expected: dict[int, float] = {}
        self._num_ready = 0
        self._taken: tuple[int, float] | None = None  # the trainer's step, and when it had it
        self._pss_mb, self._next_pss = 0.0, 0.0
        notes: dict[type, Callable[[_Handled], None]] = {
            "planner": {m.BlockReady: self._block_ready},
            "constructor": {
                m.Expect: self._expect, m.Samples: self._samples, m.Delivered: self._delivered,
                m.Leave: self._leave,
            },
        }.get(self.role, {
            m.Lease: self._lease, m.BlockRead: self._block_read, m.Opened: self._opened, m.Order: self._order,
            m.Release: self._release, m.Stop: self._stop,
        })  # fmt: skip
        self._notes = notes

    # --- what the loop tells ----------------------------------------------------------------------------

    def handled(
        self,
        sender: int,
        message: m.RoleMessage,
        effects: Sequence[Effect],
        times: tuple[float, float],
        work: Work | None = None,
    ) -> None:
        """As `NoObserver`."""
        begin, end = times
        self._metrics.time("handle", end - begin)
        note = self._notes.get(type(message))
        if note is not None:
            note(_Handled(sender, message, begin, end, work))
        if self.role == "planner":
            self._planned(effects, begin, end)

    def received(self, sender: int, num_bytes: int) -> None:
        """As `NoObserver`."""
        self._metrics.count("messages_in")
        self._metrics.count("bytes_in", num_bytes)

    def sent(self, rank: int, message: m.RoleMessage, num_bytes: int, times: tuple[float, float]) -> None:
        """As `NoObserver`."""
        begin, end = times
        self._metrics.count("messages_out")
        self._metrics.count("bytes_out", num_bytes)
        self._metrics.time("send", end - begin)
        peer = self._peers[rank if rank in self._peers or len(self._peers) < MOST_PEERS else -1]
        peer[0] += 1
        peer[1] += num_bytes
        peer[2] += end - begin
        if isinstance(message, m.Lease):
            self._metrics.count("leases")
            self._leased[message.source, message.start] = end
        elif isinstance(message, m.Stop):
            self._leased.clear()
        elif isinstance(message, m.Samples):
            self._send_samples(rank, message.step, num_bytes, times)

    def took(self, effect: Effect, times: tuple[float, float]) -> None:
        """As `NoObserver`."""
        if not isinstance(effect, Deliver):
            return
        begin, end = times
        step = effect.expect.step
        gathering_since = self._expected.pop(step, begin)
        self._metrics.count("steps_assembled")
        self._metrics.time("gather", begin - gathering_since)
        self._metrics.time("emit", end - begin)
        self._num_ready += 1
        self._span("gather", gathering_since, begin, step=step)
        self._span("emit", begin, end, step=step)

    def measure(self, *, waiting: int = 0, inbox: int = 0) -> Send | None:
        """As `NoObserver`."""
        self._flush()
        figures = self.figures(waiting=waiting, inbox=inbox)
        if self._rank != self._planner:
            return Send(rank=self._planner, message=m.Measured(figures=figures))
        self.measured(self._rank, figures)
        return None

    def measured(self, sender: int, figures: Figures) -> None:
        """As `NoObserver`."""
        if self._on_measured is not None:
            self._on_measured(sender, figures)

    def close(self) -> None:
        """As `NoObserver`."""
        self._flush()
        if self._ring is not None:
            self._ring.close()

    def figures(self, *, waiting: int = 0, inbox: int = 0) -> dict[str, Any]:
        """Figures since this rank began, in plain values.

        Returns:
            `role`, `host`, `pid`; `counters`, `gauges` (what there is now) and `histograms` by name;
            `peers`: messages, bytes and seconds of sending by rank (-1: all beyond `MOST_PEERS`);
            `sources`: `SOURCE_FIGURES` by the number of the source, of those that changed since;
            `memory_mb` (resident), `pss_mb` (now and then; 0 before), `cpu_seconds` of the process.
        """
        times = os.times()
        sources = {str(index): self._by_source[index] for index in self._changed}
        figures = {
            "role": self.role,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            **self._metrics.plain(),
            "gauges": self._gauges(waiting, inbox),
            "peers": {str(rank): [*each[:2], round(each[2], 6)] for rank, each in self._peers.items()},
            "sources": {
                index: [round(value, 6) if value % 1 else int(value) for value in each]
                for index, each in sources.items()
            },
            "memory_mb": round(resident_bytes() / 2**20, 1),
            "pss_mb": self._pss(),
            "cpu_seconds": round(times.user + times.system, 2),
        }
        self._changed.clear()
        return figures

    def _gauges(self, waiting: int, inbox: int) -> dict[str, int]:
        gauges = {"inbox": inbox, "waiting": waiting}
        if self.role == "planner":
            gauges["leases_out"] = len(self._leased)
        elif self.role == "constructor":
            gauges["steps_ready"] = self._num_ready
            gauges["steps_gathering"] = len(self._expected)
        else:
            gauges["leases_here"] = len(self._leased)
            gauges["orders_waiting"] = len(self._orders)
        return gauges

    def _pss(self) -> float:
        now = time.monotonic()
        if now >= self._next_pss:
            self._pss_mb = pss_mb()
            took = time.monotonic() - now
            self._next_pss = now + max(PSS_SECONDS, PSS_SHARE * took)
        return self._pss_mb

    # --- spans ------------------------------------------------------------------------------------------

    def _span(self, name: str, begin: float, end: float, **values: Any) -> None:
        if self._ring is not None:
            self._spans.append(
                {"name": name, "begin": round(begin, 6), "seconds": round(max(end - begin, 0.0), 6), **values}
            )

    def _flush(self) -> None:
        if self._ring is not None and self._spans:
            spans, self._spans = self._spans, []
            self._ring.write(spans)

    def _anchor(self) -> dict[str, Any]:
        """The first line of a file of spans: whose they are, and what its clock shows."""
        return {
            "rank": self._rank,
            "role": self.role,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            **clock_anchor(),
        }

    # --- planner ----------------------------------------------------------------------------------------

    def _planned(self, effects: Sequence[Effect], begin: float, end: float) -> None:
        steps = {
            each.message.step
            for each in effects
            if isinstance(each, Send) and isinstance(each.message, m.Expect)
        }
        if steps:
            self._metrics.time("plan", end - begin)
            self._metrics.count("steps_planned", len(steps))
            self._span("plan", begin, end, step=min(steps), steps=sorted(steps))

    def _block_ready(self, handled: _Handled) -> None:
        message: m.BlockReady = handled.message
        self._metrics.count("blocks")
        self._metrics.count("samples", len(message.infos))
        leased_at = self._leased.pop((message.source, message.start), None)
        if leased_at is not None:
            self._metrics.time("lease", handled.begin - leased_at)

    # --- loader -----------------------------------------------------------------------------------------

    def _lease(self, handled: _Handled) -> None:
        lease: m.Lease = handled.message
        self._metrics.count("leases")
        self._leased[lease.source, lease.start] = handled.begin
        starts = self._starts[lease.source]
        if not starts or lease.start > starts[-1]:
            starts.append(lease.start)
        elif lease.start not in starts:
            insort(starts, lease.start)
        if len(starts) > MOST_BLOCKS:
            del starts[: MOST_BLOCKS // 2]

    def _block_read(self, handled: _Handled) -> None:
        read: m.BlockRead = handled.message
        lease, block = read.lease, read.block
        self._leased.pop((lease.source, lease.start), None)
        seconds = read.seconds
        read_seconds = min(max(block.read_seconds, 0.0), seconds)
        num_bytes = int(block.infos["num_bytes"].sum())
        tokens = int(block.infos["tokens"].sum())
        self._metrics.count("blocks")
        self._metrics.count("samples", len(block.samples))
        self._metrics.count("tokens", tokens)
        self._metrics.count("bad", len(block.bad))
        self._metrics.time("read", read_seconds)
        self._metrics.time("transform", seconds - read_seconds)
        more = 1, len(block.samples), tokens, num_bytes, len(block.bad), read_seconds, seconds - read_seconds
        figures = self._by_source[lease.source]
        for index, value in enumerate(more):
            figures[index] += value
        self._changed.add(lease.source)
        if handled.work is None:
            return
        work = handled.work
        self._metrics.time("queue", work.began - work.submitted)
        where = {"source": lease.source, "start": lease.start, "stop": lease.stop}
        self._span("queue", work.submitted, work.began, **where)
        self._span(
            "block", work.began, work.ended, thread=work.thread, **where,
            read_seconds=round(read_seconds, 6), samples=len(block.samples), bytes=num_bytes,
        )  # fmt: skip

    def _opened(self, handled: _Handled) -> None:
        if handled.work is not None:
            work, source = handled.work, handled.message.source
            self._metrics.time("open", work.ended - work.began)
            self._span("open", work.began, work.ended, thread=work.thread, source=source)

    def _order(self, handled: _Handled) -> None:
        order: m.Order = handled.message
        self._metrics.count("orders")
        self._orders.setdefault(order.step, handled.begin)
        if self._ring is None:
            return
        wanted: defaultdict[int, set[tuple[int, int]]] = defaultdict(set)
        keys = zip(order.constructor.tolist(), order.source.tolist(), order.position.tolist(), strict=True)
        for rank, source, position in keys:
            starts = self._starts[source]
            if rank >= 0 and starts and starts[0] <= position:
                wanted[rank].add((source, starts[bisect_right(starts, position) - 1]))
        for rank, blocks in wanted.items():
            self._wanted.setdefault((order.step, rank), set()).update(blocks)

    def _send_samples(self, rank: int, step: int, num_bytes: int, times: tuple[float, float]) -> None:
        begin, end = times
        ordered_at = self._orders.pop(step, None)
        if ordered_at is not None:
            self._metrics.time("order", begin - ordered_at)
            self._span("order", ordered_at, begin, step=step)
        blocks = [list(each) for each in sorted(self._wanted.pop((step, rank), ()))[:MOST_LINKS]]
        of_blocks = {"blocks": blocks} if blocks else {}
        self._span("send", begin, end, step=step, to=rank, bytes=num_bytes, **of_blocks)

    def _release(self, handled: _Handled) -> None:
        """Orders of which nothing was to be sent are over."""
        for step in [step for step in self._orders if step <= handled.message.step]:
            del self._orders[step]
        for key in [key for key in self._wanted if key[0] <= handled.message.step]:
            del self._wanted[key]

    def _stop(self, handled: _Handled) -> None:
        self._leased.clear()
        self._orders.clear()
        self._wanted.clear()
        self._starts.clear()

    # --- constructor ------------------------------------------------------------------------------------

    def _expect(self, handled: _Handled) -> None:
        self._expected[handled.message.step] = handled.begin

    def _samples(self, handled: _Handled) -> None:
        message: m.Samples = handled.message
        self._metrics.count("samples", len(message.index))
        self._metrics.time("assemble", handled.end - handled.begin)
        self._span("assemble", handled.begin, handled.end, step=message.step, sender=handled.sender)

    def _delivered(self, handled: _Handled) -> None:
        """The trainer's thread took a step."""
        message: m.Delivered = handled.message
        at = handled.work.ended if handled.work is not None else handled.begin
        asked = at - message.wait_seconds
        self._num_ready = max(self._num_ready - 1, 0)
        self._metrics.count("steps")
        if self._taken is None:
            self._metrics.count("start_wait_seconds", message.wait_seconds)
        else:
            self._metrics.time("wait", message.wait_seconds)
            self._end_step(asked)
        self._span("wait", asked, at, step=message.step)
        self._taken = message.step, at

    def _leave(self, handled: _Handled) -> None:
        if self._taken is not None:
            self._end_step(handled.work.ended if handled.work is not None else handled.begin)
        self._taken = None
        self._expected.clear()
        self._num_ready = 0

    def _end_step(self, at: float) -> None:
        assert self._taken is not None
        step, since = self._taken
        self._metrics.time("step", at - since)
        self._span("step", since, at, step=step)


def clock_anchor() -> dict[str, Any]:
    """What ties the times of this host to those of others.

    `monotonic` and `time` are of one moment; ranks with the same `boot` share the first.
    """
    return {"monotonic": time.monotonic(), "time": time.time(), "boot": _boot()}


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not Linux
        return socket.gethostname()
