"""Data-wait alarms: when trainers wait too long for steps, a sentence that names who is at fault.

`look` is a pure function of the lines of a job, one behind the other, and of what it remembered of those
before. Lines that have a status alone are enough; with the figures of all ranks a sentence says more.

An alarm begins when the wait of ten seconds is above a share of the time for some lines in a row. While it
lasts nothing is said again, unless another source or role is at fault for long enough. It ends when the wait
has been below half of that share for as many lines.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from msdata_jax.observing.causes import Cause, Reading, Window, find_cause, read_line

Event = Literal["began", "changed", "over"]


@dataclass(frozen=True, kw_only=True)
class AlarmRules:
    """When to speak.

    Attributes:
        share: of the time that the trainer which waits most may wait.
        lines: in a row that must be above it, and below half of it for the end.
        stepping_seconds: that a job must have stepped before: its buffers fill at first.
        again_seconds: between an alarm and word of another cause, at least.
    """

    share: float = 0.02
    lines: int = 3
    stepping_seconds: float = 5.0
    again_seconds: float = 30.0


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """What is to be said.

    Attributes:
        event: `began`, `changed` (it goes on, for another cause) or `over`.
        seconds: since the planner began.
        step: that every trainer comes to next.
        data_wait: share of the time that the trainer which waited most has waited.
        kind: of the cause, one of `observing.causes.KINDS`.
        source: at fault, empty where none is.
        ranks: at fault, as far as they are known.
        text: a sentence.
    """

    event: Event
    seconds: float
    step: int
    data_wait: float
    kind: str
    source: str
    ranks: tuple[int, ...]
    text: str

    def to_plain(self) -> dict[str, Any]:
        """Values that JSON has."""
        return {**asdict(self), "ranks": list(self.ranks)}


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What is remembered from line to line.

    Attributes:
        readings: of the last lines, from the one before those that an alarm begins with.
        above: lines in a row that were above the share.
        below: lines in a row that were below half of it.
        active: the alarm that was given last, while it lasts.
        other: lines in a row that had another cause than it.
    """

    readings: tuple[Reading, ...] = ()
    above: int = 0
    below: int = 0
    active: Alarm | None = None
    other: int = 0


def look(line: Mapping[str, Any], memory: Memory, rules: AlarmRules) -> tuple[Alarm | None, Memory]:
    """What to say of a line, and what to remember.

    Args:
        line: of `metrics.jsonl`, or `{"status": ...}`.
        memory: what was given for the line before; `Memory()` at first.
        rules: when to speak.
    """
    status = line["status"]
    if not status["began"] or status["ended"] or not _has_settled(status, rules):
        return None, replace(memory, readings=(), above=0, below=0)
    memory = _remember(line, memory, rules)
    return _end(status, memory, rules) if memory.active else _begin(status, memory, rules)


def _has_settled(status: Mapping[str, Any], rules: AlarmRules) -> bool:
    return bool(status["totals"]["stepping_seconds"] >= rules.stepping_seconds)


def _remember(line: Mapping[str, Any], memory: Memory, rules: AlarmRules) -> Memory:
    reading = read_line(line)
    wait = line["status"]["data_wait"] or 0.0
    kept = list(memory.readings)
    if kept and reading.seconds < kept[-1].seconds:  # another run
        kept = []
    kept.append(reading)
    del kept[: -rules.lines - 1]
    return replace(
        memory,
        readings=tuple(kept),
        above=memory.above + 1 if wait > rules.share else 0,
        below=memory.below + 1 if wait < rules.share / 2 else 0,
    )


def _begin(status: Mapping[str, Any], memory: Memory, rules: AlarmRules) -> tuple[Alarm | None, Memory]:
    if memory.above < rules.lines:
        return None, memory
    alarm = _alarm("began", status, _cause(status, memory))
    return alarm, replace(memory, active=alarm, other=0)


def _end(status: Mapping[str, Any], memory: Memory, rules: AlarmRules) -> tuple[Alarm | None, Memory]:
    active = memory.active
    assert active is not None
    if memory.below >= rules.lines:
        over = replace(
            active,
            event="over",
            seconds=status["seconds"],
            step=status["step"],
            data_wait=status["data_wait"] or 0.0,
            text=f"data wait is over: {percent(status['data_wait'] or 0.0)} of the last 10 s, "
            f"after {status['seconds'] - active.seconds:.0f} s",
        )
        return over, replace(memory, active=None, above=0, other=0)
    if memory.above == 0:
        return None, replace(memory, other=0)
    cause = _cause(status, memory)
    is_other = (cause.kind, cause.source) != (active.kind, active.source)
    memory = replace(memory, other=memory.other + 1 if is_other else 0)
    is_due = status["seconds"] - active.seconds >= rules.again_seconds
    if memory.other < rules.lines or not is_due:
        return None, memory
    alarm = _alarm("changed", status, cause)
    return alarm, replace(memory, active=alarm, other=0)


def _cause(status: Mapping[str, Any], memory: Memory) -> Cause:
    return find_cause(Window(memory.readings[0], memory.readings[-1], status))


def _alarm(event: Event, status: Mapping[str, Any], cause: Cause) -> Alarm:
    wait = status["data_wait"]
    return Alarm(
        event=event,
        seconds=status["seconds"],
        step=status["step"],
        data_wait=wait,
        kind=cause.kind,
        source=cause.source,
        ranks=cause.ranks,
        text=f"data wait {percent(wait)} of the last 10 s: {cause.text}",
    )


def percent(share: float) -> str:
    """A share as people say it."""
    return f"{100 * share:.1f} %" if share < 0.0995 else f"{100 * share:.0f} %"
