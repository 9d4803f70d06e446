"""Why trainers wait for steps: the source or the role at fault, from what a job's lines say of some seconds.

The order of the questions is that of the way of the data backwards: what steps lacked when they were planned,
then whether a trainer, the planner or another rank cannot keep up with its messages.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

KINDS = (
    *("threads", "behind", "reads", "buffers", "late"),
    *("trainer", "planner", "constructor", "loader", "unknown"),
)
"""Kinds of causes. The first row is of a source; the kinds of the second one name a role."""

MOSTLY = 0.5
"""A part from which on something counts as the reason."""
BUSY = 0.8
"""A thread or a loop that is busy for such a part of the time cannot do much more."""
FULL = 0.9
"""Of a loader's budget of bytes: what comes next does not fit in any more."""
LATE = 1.25
"""A trainer whose steps take so many times those of the others is late."""
_MOST_RANKS = 4

Line = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Who is at fault.

    Attributes:
        kind: one of `KINDS`.
        text: for people, without a full stop.
        source: the name of the one at fault, of a cause that is a source's; else empty.
        ranks: those that it is about.
    """

    kind: str
    text: str
    source: str = ""
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankReading:
    """Sums since the start of a rank: its role, seconds and counts by histogram, counters, gauges now."""

    role: str
    seconds: Mapping[str, float]
    counts: Mapping[str, int]
    bytes_out: float
    gauges: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a line says, as far as causes need it.

    Attributes:
        seconds: since the planner began.
        step: that every trainer comes to next.
        names: of the sources.
        threads: of each loader by rank.
        busy_seconds: that these have read and transformed.
        samples, read_seconds, transform_seconds: that loaders have read of each; empty without a record.
        ranks: figures by rank; none without a record.
    """

    seconds: float
    step: int
    names: Sequence[str]
    threads: Mapping[int, int] = field(default_factory=dict)
    busy_seconds: Mapping[int, float] = field(default_factory=dict)
    samples: Sequence[float] = ()
    read_seconds: Sequence[float] = ()
    transform_seconds: Sequence[float] = ()
    ranks: Mapping[int, RankReading] = field(default_factory=dict)


def read_line(line: Line) -> Reading:
    """What a line of `metrics.jsonl`, or `{"status": ...}`, says."""
    status, sources = line["status"], line.get("sources", {})
    return Reading(
        seconds=status["seconds"],
        step=status["step"],
        names=status["sources"]["name"],
        threads={int(rank): each["threads"] for rank, each in status["loaders"].items()},
        busy_seconds={int(rank): each["busy_seconds"] for rank, each in status["loaders"].items()},
        samples=sources.get("samples", ()),
        read_seconds=sources.get("read_seconds", ()),
        transform_seconds=sources.get("transform_seconds", ()),
        ranks={int(rank): _read_rank(figures) for rank, figures in line.get("ranks", {}).items()},
    )


def _read_rank(figures: Mapping[str, Any]) -> RankReading:
    histograms = figures["histograms"]
    return RankReading(
        role=figures["role"],
        seconds={name: each["sum"] for name, each in histograms.items()},
        counts={name: each["count"] for name, each in histograms.items()},
        bytes_out=figures["counters"].get("bytes_out", 0),
        gauges=figures["gauges"],
    )


@dataclass(frozen=True)
class Window:
    """Some seconds of a job.

    Attributes:
        first, last: where it stood.
        status: the last one.
    """

    first: Reading
    last: Reading
    status: Mapping[str, Any]

    @property
    def seconds(self) -> float:
        """How long it is; never 0."""
        return max(self.last.seconds - self.first.seconds, 1e-9)

    def ranks(self, role: str) -> list[int]:
        """Ranks of a role of which figures are known at both ends."""
        return [
            rank for rank, each in self.last.ranks.items() if each.role == role and rank in self.first.ranks
        ]

    def spent(self, rank: int, *names: str) -> float:
        """Seconds that a rank has spent on what these histograms are of."""
        now, before = self.last.ranks[rank].seconds, self.first.ranks[rank].seconds
        return sum(max(now.get(name, 0.0) - before.get(name, 0.0), 0.0) for name in names)

    def share(self, rank: int, *names: str) -> float:
        """The same, as a part of the time."""
        return self.spent(rank, *names) / self.seconds

    def mean(self, rank: int, name: str) -> float:
        """Seconds that each of them took, 0 where there was none."""
        counts = self.last.ranks[rank].counts.get(name, 0) - self.first.ranks[rank].counts.get(name, 0)
        return self.spent(rank, name) / counts if counts > 0 else 0.0

    def busy(self, rank: int) -> float:
        """Share of their time that a loader's worker threads were busy."""
        seconds = self.last.busy_seconds.get(rank, 0.0) - self.first.busy_seconds.get(rank, 0.0)
        return min(max(seconds, 0.0) / (self.seconds * max(self.last.threads.get(rank, 1), 1)), 1.0)

    def has_queue(self, rank: int) -> bool:
        """Whether blocks waited for a worker thread at both ends; False where that is not known."""
        ends = (self.first.ranks.get(rank), self.last.ranks.get(rank))
        return all(end is not None and end.gauges.get("waiting", 0) > 0 for end in ends)

    def index_of(self, name: str) -> int | None:
        """The column of a source; None where it is not listed."""
        return list(self.last.names).index(name) if name in self.last.names else None

    def of_sources(self, name: str) -> list[float]:
        """How much a column of sources grew; empty without a record."""
        now, before = getattr(self.last, name), getattr(self.first, name)
        before = before or [0.0] * len(now)
        return [max(b - a, 0.0) for a, b in zip(before, now, strict=False)]


def find_cause(window: Window) -> Cause:
    """The cause of a wait."""
    questions: tuple[Callable[[Window], Cause | None], ...] = (
        _source, _late_trainer, _planner, _constructor, _loader, _some_source,
    )  # fmt: skip
    for ask in questions:
        cause = ask(window)
        if cause is not None:
            return cause
    return Cause(
        kind="unknown",
        text="no source was lacking and no rank stands out; the machine may lack CPU, and `msdata trace` "
        "of a record shows what overlaps the waits",
    )


# --- sources ----------------------------------------------------------------------------------------------


def _source(window: Window) -> Cause | None:
    lacking = window.status["lacking"]
    return _of_source(window, lacking) if lacking and lacking["all"] >= MOSTLY else None


def _some_source(window: Window) -> Cause | None:
    """The source that was lacking at times, where nothing else is wrong."""
    lacking = window.status["lacking"]
    return _of_source(window, lacking) if lacking else None


def _of_source(window: Window, lacking: Mapping[str, Any]) -> Cause:
    name, ranks = lacking["source"], tuple(lacking["loaders"])
    busy = [window.busy(rank) for rank in ranks]
    whose = f"its {_loaders(ranks)}"

    def cause(kind: str, why: str, at_fault: str = name) -> Cause:
        text = f"steps lack samples of {_quoted(name)}: {why}"
        return Cause(kind=kind, text=text, source=at_fault, ranks=ranks)

    if busy and (min(busy) >= BUSY or all(window.has_queue(rank) for rank in ranks)):
        return _busy_loaders(window, name, whose, cause)
    held, budget = window.status["held_bytes"], window.status["budget_bytes"]
    fullest = max((held.get(str(rank), 0) for rank in ranks), default=0)
    if budget and fullest >= FULL * budget:
        return cause(
            "buffers",
            f"{whose} hold{_s(ranks)} {_bytes(fullest)} of {_bytes(budget)} ahead, so that it reads no more; "
            "allow more (buffer_bytes_per_loader)",
        )
    share = sum(busy) / len(busy) if busy else 0.0
    why = _costs_of(window, name)
    return cause(
        "late",
        f"{whose} {_are(ranks)} busy for {_percent(share)} of the time, so its blocks begin too late"
        + (f" for what they take ({why})" if why else "")
        + "; look further ahead (steps_ahead) or read smaller blocks (block_size)",
    )


def _busy_loaders(window: Window, name: str, whose: str, cause: Callable[..., Cause]) -> Cause:
    """A source whose loaders have no thread to spare."""
    read, transform = window.of_sources("read_seconds"), window.of_sources("transform_seconds")
    more = "give it more threads (--threads) or loaders (--loaders)"
    index = window.index_of(name)
    if index is None or len(read) <= index:
        return cause("threads", f"all threads of {whose} are busy; {more}")
    ranks = window.status["lacking"]["loaders"]
    known = [rank for rank in ranks if rank in window.last.ranks and rank in window.first.ranks]
    spent = sum(window.spent(rank, "read", "transform") for rank in known)
    own = read[index] + transform[index]
    others = [a + b for a, b in zip(read, transform, strict=True)]
    # Other loaders may have read more of another source; that one is not in the way.
    others = [
        seconds if at != index and seconds <= spent + 1e-3 else 0.0 for at, seconds in enumerate(others)
    ]
    if spent > 0 and own < MOSTLY * spent and max(others) > 0:
        other = window.last.names[others.index(max(others))]
        return cause(
            "behind",
            f"all threads of {whose} are busy, {_percent(1 - own / spent)} of that with other sources, "
            f"most with {_quoted(other)}; give them more threads (--threads) or loaders (--loaders)",
            other,
        )
    costs = _costs_of(window, name)
    if own > 0 and read[index] >= MOSTLY * own:
        return cause(
            "reads",
            f"all threads of {whose} are busy, {_percent(read[index] / own)} of that with getting records "
            f"({costs}): its storage is slow; {more}, or move it nearer",
        )
    return cause(
        "threads",
        f"all threads of {whose} are busy, most with its transforms"
        + (f" ({costs})" if costs else "")
        + f"; {more}, or make them cheaper",
    )


def _costs_of(window: Window, name: str) -> str:
    index, samples = window.index_of(name), window.of_sources("samples")
    if index is None or len(samples) <= index or not samples[index]:
        return ""
    read = window.of_sources("read_seconds")[index] / samples[index]
    transform = window.of_sources("transform_seconds")[index] / samples[index]
    return f"a sample takes {_time(read)} to read and {_time(transform)} to transform"


# --- roles ------------------------------------------------------------------------------------------------


def _late_trainer(window: Window) -> Cause | None:
    """A trainer whose steps take longer than those of the others, which wait until it is there."""
    ranks = window.ranks("constructor")
    steps = {rank: window.mean(rank, "step") for rank in ranks}
    if len(ranks) < 2 or not all(steps.values()):
        return None
    slowest = max(steps, key=steps.__getitem__)
    others = sorted(seconds for rank, seconds in steps.items() if rank != slowest)
    usual = others[len(others) // 2]
    waits_less = window.share(slowest, "wait") < MOSTLY * max(window.share(rank, "wait") for rank in ranks)
    if not waits_less or steps[slowest] < LATE * usual:
        return None
    return Cause(
        kind="trainer",
        ranks=(slowest,),
        text=f"trainer rank {slowest} takes {_time(steps[slowest])} a step and the others {_time(usual)}: "
        "they wait for it, not for data",
    )


def _planner(window: Window) -> Cause | None:
    for rank in window.ranks("planner"):
        share = window.share(rank, "handle", "send")
        if share < BUSY:
            continue
        plan = window.mean(rank, "plan")
        steps = max(window.last.step - window.first.step, 1)
        return Cause(
            kind="planner",
            ranks=(rank,),
            text=f"the planner (rank {rank}) is busy for {_percent(share)} of the time: planning takes "
            f"{_time(plan)} a step, and steps come every {_time(window.seconds / steps)}; fewer samples a "
            "step, a cheaper balancing method, or a core of its own would help",
        )
    return None


def _constructor(window: Window) -> Cause | None:
    ranks = window.ranks("constructor")
    shares = {rank: window.share(rank, "handle", "send", "emit") for rank in ranks}
    rank = max(shares, key=shares.__getitem__, default=None)
    if rank is None or shares[rank] < BUSY:
        return None
    parts = {name: window.mean(rank, name) for name in ("assemble", "emit")}
    return Cause(
        kind="constructor",
        ranks=(rank,),
        text=f"the data thread of trainer rank {rank} is busy for {_percent(shares[rank])} of the time: "
        f"{_time(parts['assemble'])} to put each message of samples into rows, {_time(parts['emit'])} to "
        "make a step's arrays; it may lack CPU beside the training script",
    )


def _loader(window: Window) -> Cause | None:
    ranks = [*window.ranks("loader"), *window.ranks("shadow")]
    shares = {rank: window.share(rank, "handle", "send") for rank in ranks}
    rank = max(shares, key=shares.__getitem__, default=None)
    if rank is None or shares[rank] < BUSY:
        return None
    sent = window.last.ranks[rank].bytes_out - window.first.ranks[rank].bytes_out
    return Cause(
        kind="loader",
        ranks=(rank,),
        text=f"loader rank {rank} hands over samples for {_percent(shares[rank])} of the time "
        f"({_bytes(max(sent, 0) / window.seconds)}/s): more loaders (--loaders) would share that",
    )


# --- words ------------------------------------------------------------------------------------------------


def _loaders(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_MOST_RANKS])) + (" and others" if len(ranks) > _MOST_RANKS else "")
    return f"loader{'s' if len(ranks) != 1 else ''} (rank{'s' if len(ranks) != 1 else ''} {shown})"


def _are(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _s(ranks: Sequence[int]) -> str:
    return "s" if len(ranks) == 1 else ""


def _quoted(name: str) -> str:
    return "'" + "".join(each if each.isprintable() else "?" for each in name) + "'"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{1e6 * seconds:.3g} µs"


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"
