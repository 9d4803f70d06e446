"""What a trace must be, by the trace event format: `check` raises AssertionError where it is not."""

from collections import defaultdict
from typing import Any

NEEDED = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "b": {"name", "cat", "pid", "tid", "ts", "id2"},
    "e": {"name", "cat", "pid", "tid", "ts", "id2"},
    "s": {"name", "cat", "pid", "tid", "ts", "id"},
    "t": {"name", "cat", "pid", "tid", "ts", "id", "bp"},
    "f": {"name", "cat", "pid", "tid", "ts", "id", "bp"},
    "C": {"name", "pid", "ts", "args"},
}
METADATA = {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}


def check(trace: dict[str, Any]) -> None:
    """Names and types of all fields; slices nest; async events pair; arrows begin and end in slices."""
    assert set(trace) >= {"traceEvents"}
    events = trace["traceEvents"]
    for event in events:
        assert NEEDED[event["ph"]] <= set(event), event
        assert type(event["pid"]) is int
        assert event["ts"] >= 0
        if event["ph"] == "M":
            assert event["name"] in METADATA
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] in "Xbestf"} <= named
    _check_slices(events)
    _check_async(events)
    _check_arrows(events)


def slices(trace: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """The slices of a kind."""
    return [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] == kind]


def arrows(trace: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The slices that each arrow goes through, the outermost that hold its points."""
    events = trace["traceEvents"]
    found: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            found[event["id"]].append(_holder(event, events))
    return list(found.values())


def _holder(point: dict[str, Any], events: list[dict[str, Any]]) -> dict[str, Any]:
    holding = [
        e
        for e in events
        if e["ph"] == "X"
        and (e["pid"], e["tid"]) == (point["pid"], point["tid"])
        and e["ts"] - 0.0015 <= point["ts"] <= e["ts"] + e["dur"] + 0.0015
    ]
    assert holding, point
    return min(holding, key=lambda e: abs(e["ts"] + e["dur"] / 2 - point["ts"]) - e["dur"])


def _check_slices(events: list[dict[str, Any]]) -> None:
    """Of two slices of a thread one holds the other, or they do not overlap."""
    by_thread: defaultdict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] > 0
            by_thread[event["pid"], event["tid"]].append(event)
    for mine in by_thread.values():
        open_until: list[float] = []
        for event in sorted(mine, key=lambda e: (e["ts"], -e["dur"])):
            end = event["ts"] + event["dur"]
            while open_until and open_until[-1] <= event["ts"] + 0.0015:  # ts and dur are rounded to ns
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 0.0015, event
            open_until.append(end)


def _check_async(events: list[dict[str, Any]]) -> None:
    begun = {(e["pid"], e["cat"], e["id2"]["local"]): e for e in events if e["ph"] == "b"}
    ended = {(e["pid"], e["cat"], e["id2"]["local"]): e for e in events if e["ph"] == "e"}
    assert len(begun) == sum(e["ph"] == "b" for e in events)
    assert begun.keys() == ended.keys()
    assert all(begun[key]["ts"] <= ended[key]["ts"] for key in begun)


def _check_arrows(events: list[dict[str, Any]]) -> None:
    phases: defaultdict[int, str] = defaultdict(str)
    for event in events:
        if event["ph"] in "stf":
            phases[event["id"]] += event["ph"]
            _holder(event, events)
            assert event["ph"] == "s" or event["bp"] == "e"
    for each in phases.values():
        assert each[0] == "s"
        assert each[-1] == "f"
        assert set(each[1:-1]) <= {"t"}
