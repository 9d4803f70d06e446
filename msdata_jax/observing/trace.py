"""A trace of some steps, in the JSON that ui.perfetto.dev and chrome://tracing open.

Each rank is a process with a track for its loop, one for each worker thread, and one for the trainer. What
waits beside others (a block for a thread, an order for a block, a step for samples) has tracks of its own.
Arrows lead from each block through the messages with its samples to the step that delivered them.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msdata_jax.errors import MSDataError
from msdata_jax.observing.record import RankSpans, RunRecord

DEFAULT_STEPS = 20
"""The last steps that a trace is of, where nothing else is said."""

Span = Mapping[str, Any]
Event = dict[str, Any]

_LOOP, _TRAINER, _FIRST_WORKER = 0, 1, 2
_PER_RANK = 1000  # process and thread numbers; all differ, for Perfetto merges threads of one number
_ASYNC = ("queue", "order", "gather")
_ON_TRAINER = ("wait", "step")
_NOT_ARGS = ("name", "begin", "seconds", "thread")
_LEAST = 1e-9  # seconds, so that arrows have something to hold on to
_TITLES = {"constructor": "trainer"}


@dataclass(frozen=True)
class Window:
    """The steps of a trace, and their time in seconds since the job began.

    Attributes:
        first, stop: steps, `stop` not included.
        begin, end: from when the first trainer waits for the first step to the end of the last one.
    """

    first: int
    stop: int
    begin: float
    end: float


def find_window(record: RunRecord, first: int | None = None, stop: int | None = None) -> Window:
    """The window of some steps; of the last `DEFAULT_STEPS` that the record knows by default.

    Raises:
        MSDataError: it knows none of them.
    """
    taken = [
        span for rank in record.spans for span in rank.spans if span["name"] in (*_ON_TRAINER, "emit", "send")
    ]
    known: set[int] = {span["step"] for span in taken}
    if not known:
        raise MSDataError(
            f"{record.folder} has no spans of any step: the job took none, or they are not here"
        )
    oldest, newest = min(known), max(known)
    stop = newest + 1 if stop is None else stop
    first = max(stop - DEFAULT_STEPS, oldest) if first is None else first
    wanted = [span for span in taken if first <= span["step"] < stop]
    if not wanted:
        raise MSDataError(
            f"{record.folder} has no spans of the steps {first}:{stop}; those that are left are of steps "
            f"{oldest} to {newest}: say --steps {oldest}:{newest + 1}"
        )
    of_trainers = [span for span in wanted if span["name"] in _ON_TRAINER] or wanted
    begin = min(span["begin"] for span in of_trainers)
    return Window(first, stop, begin, max(span["begin"] + span["seconds"] for span in of_trainers))


def build(record: RunRecord, window: Window) -> dict[str, Any]:
    """The trace: what was done for the steps of the window, and whatever else was done in its time."""
    names = [source["name"] for source in record.about["sources"]]
    tracks = [_Track(each, window, names) for each in record.spans]
    linked = {link for track in tracks for link in track.links()}
    for track in tracks:
        track.choose(linked)
    start = min((span["begin"] for track in tracks for span in track.chosen), default=window.begin)
    events: list[Event] = []
    for track in tracks:
        events += track.events(start)
    events += _flows(tracks, start)
    events += _counters(record, window, start)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "recipe": record.about["recipe"],
            "steps": f"{window.first}:{window.stop}",
            "began": record.about["time"] + start,
        },
    }


class _Track:
    """The spans of a rank that a trace shows.

    Attributes:
        chosen: they, those of a thread without overlap.
    """

    def __init__(self, spans: RankSpans, window: Window, names: Sequence[str]) -> None:
        self.rank, self.role, self.host = spans.rank, spans.role, spans.host
        self._spans, self._window, self._names = spans.spans, window, names
        workers = sorted({span["thread"] for span in spans.spans if "thread" in span}, key=_in_order)
        self._workers = {name: _FIRST_WORKER + index for index, name in enumerate(workers)}
        self.chosen: list[Event] = []

    def links(self) -> Iterator[tuple[int, int, int]]:
        """Rank, source and start of the blocks whose samples are sent for a step of the window."""
        for span in self._spans:
            if span["name"] == "send" and self._is_of_step(span):
                for source, start in span.get("blocks", ()):
                    yield self.rank, source, start

    def choose(self, linked: set[tuple[int, int, int]]) -> None:
        """Set `chosen`."""
        chosen = [dict(span) for span in self._spans if self._is_wanted(span, linked)]
        self.chosen = sorted(chosen, key=lambda span: span["begin"])
        latest: dict[int, Event] = {}
        for span in self.chosen:
            span["seconds"] = max(span["seconds"], _LEAST)
            if span["name"] in _ASYNC:
                continue
            before = latest.get(self._lane(span))
            if before is not None:  # times are rounded to microseconds
                before["seconds"] = max(min(before["seconds"], span["begin"] - before["begin"]), _LEAST)
            latest[self._lane(span)] = span

    def _is_wanted(self, span: Span, linked: set[tuple[int, int, int]]) -> bool:
        if "step" in span:
            return self._is_of_step(span)
        if span["name"] != "open" and (self.rank, span["source"], span["start"]) in linked:
            return True
        return span["begin"] < self._window.end and span["begin"] + span["seconds"] > self._window.begin

    def _is_of_step(self, span: Span) -> bool:
        return any(
            self._window.first <= step < self._window.stop for step in span.get("steps", [span["step"]])
        )

    def _lane(self, span: Span) -> int:
        if span["name"] in _ON_TRAINER:
            return _TRAINER
        return self._workers[span["thread"]] if "thread" in span else _LOOP

    def place(self, span: Span) -> Event:
        """Where an event of a span goes."""
        return {"pid": process_of(self.rank), "tid": self._thread(self._lane(span))}

    def events(self, start: float) -> Iterator[Event]:
        """The events of this rank."""
        title = _TITLES.get(self.role, self.role)
        yield self._name("process_name", 0, name=f"rank {self.rank} {title} ({self.host})")
        yield self._name("process_sort_index", 0, sort_index=self.rank)
        lanes = {"loop": _LOOP, **({"trainer": _TRAINER} if title == "trainer" else {}), **self._workers}
        for name, lane in lanes.items():
            yield self._name("thread_name", lane, name=name.removeprefix("msdata-"))
            yield self._name("thread_sort_index", lane, sort_index=lane)
        for number, span in enumerate(self.chosen):
            yield from self._events_of(span, f"{self.rank}.{number}", start)

    def _name(self, kind: str, lane: int, **args: Any) -> Event:
        return {
            "ph": "M",
            "name": kind,
            "pid": process_of(self.rank),
            "tid": self._thread(lane),
            "ts": 0,
            "args": args,
        }

    def _thread(self, lane: int) -> int:
        return process_of(self.rank) + lane

    def _events_of(self, span: Span, identity: str, start: float) -> Iterator[Event]:
        name, begin = span["name"], span["begin"] - start
        args = {key: value for key, value in span.items() if key not in (*_NOT_ARGS, "blocks")}
        if "source" in span:
            args["source"] = self._source(span)
        if "blocks" in span:
            args["from"] = [f"{self._names[source]} {at}" for source, at in span["blocks"]]
        common = {"cat": name, **self.place(span), "args": args}
        title = self._title(span)
        if name in _ASYNC:
            ends = (("b", begin), ("e", begin + span["seconds"]))
            yield from (
                {"ph": ph, "name": title, "id2": {"local": identity}, "ts": _us(at), **common}
                for ph, at in ends
            )
            return
        yield _slice(title, begin, span["seconds"], common)
        if name == "block":
            reading = min(span["read_seconds"], span["seconds"])
            yield _slice("read", begin, reading, {**common, "cat": "read"})
            rest = span["seconds"] - reading
            if rest > 0:
                yield _slice("transform", begin + reading, rest, {**common, "cat": "transform"})

    def _source(self, span: Span) -> str:
        number: int = span["source"]
        return str(self._names[number]) if 0 <= number < len(self._names) else str(number)

    def _title(self, span: Span) -> str:
        name = span["name"]
        if name == "block":
            return f"{self._source(span)} {span['start']}:{span['stop']}"
        if name == "plan":
            return f"plan {', '.join(map(str, span['steps']))}"
        if name in ("queue", "open"):
            return f"{name} {self._source(span)}"
        return name if name in _ASYNC else f"{name} {span['step']}"  # those of one name share a track


def process_of(rank: int) -> int:
    """The number of a rank's process in the trace."""
    return _PER_RANK * (rank + 1)


def _flows(tracks: Sequence[_Track], start: float) -> Iterator[Event]:
    """Arrows, from each block, or from the leader that passed samples on, to the trainer's step."""
    blocks: dict[tuple[int, int, int], Span] = {}
    of_step: defaultdict[tuple[int, str, int], list[Span]] = defaultdict(list)
    by_rank = {track.rank: track for track in tracks}
    for track in tracks:
        for span in track.chosen:
            if span["name"] == "block":
                blocks[track.rank, span["source"], span["start"]] = span
            elif "step" in span:
                of_step[track.rank, span["name"], span["step"]].append(span)
    number = 0
    for (sender, name, step), sends in list(of_step.items()):
        for send in sends if name == "send" else ():
            received = [
                each for each in of_step.get((send["to"], "assemble", step), ()) if each["sender"] == sender
            ]
            last = [
                *of_step.get((send["to"], "emit", step), ()),
                *of_step.get((send["to"], "step", step), ()),
            ]
            behind = [(send["to"], span) for span in (*received[:1], *last)]
            origins = [blocks.get((sender, *link)) for link in send.get("blocks", ())]
            heads: list[list[tuple[int, Span]]] = [[(sender, each)] for each in origins if each is not None]
            for head in heads or [[]]:
                number += 1
                yield from _arrow([*head, (sender, send), *behind], by_rank, number, start)


def _arrow(
    chain: Sequence[tuple[int, Span]], tracks: Mapping[int, _Track], number: int, start: float
) -> Iterator[Event]:
    if len(chain) < 2:
        return
    for index, (rank, span) in enumerate(chain):
        phase = "s" if index == 0 else "f" if index == len(chain) - 1 else "t"
        # A block sends its arrow off when it is done, all others take it in the middle.
        share = 1.0 if span["name"] == "block" else 0.5
        at = span["begin"] + span["seconds"] * share - start
        event = {"ph": phase, "cat": "data", "name": "data", "id": number, **tracks[rank].place(span)}
        yield {**event, "ts": _us(at), **({"bp": "e"} if phase != "s" else {})}


def _counters(record: RunRecord, window: Window, start: float) -> Iterator[Event]:
    """Memory of ranks and fullness of buffers, once a second."""
    for line in record.lines():
        at = line["time"] - record.about["time"]
        if not window.begin - 1 <= at <= window.end + 1 or at < start:
            continue
        for rank, figures in line["ranks"].items():
            yield _counter("memory MB", int(rank), at - start, figures["memory_mb"])
            if figures["role"] == "planner" and line["status"]["buffers"] is not None:
                yield _counter("fullest buffer %", int(rank), at - start, 100 * line["status"]["buffers"])


def _counter(name: str, rank: int, at: float, value: float) -> Event:
    process = process_of(rank)
    args = {"value": round(value, 3)}
    return {"ph": "C", "name": name, "pid": process, "tid": process, "ts": _us(at), "args": args}


def _slice(title: str, begin: float, seconds: float, common: Event) -> Event:
    return {"ph": "X", "name": title, "ts": _us(begin), "dur": max(_us(seconds), 0.001), **common}


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 3)


def _in_order(name: str) -> tuple[int, str]:
    digits = name.rpartition("-")[2]
    return (int(digits) if digits.isdecimal() else 0), name
