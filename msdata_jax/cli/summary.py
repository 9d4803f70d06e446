"""What a job has done, in a few lines at its end, and as JSON."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msdata_jax.cli.status_line import in_pace, percent, printable
from msdata_jax.cli.tables import format_value

MOST_SOURCES = 12
"""Sources that the lines show; the JSON has them all."""


def summarise(
    status: Mapping[str, Any] | None, outcome: Mapping[str, Any] | None, *, exit_status: int, seconds: float
) -> dict[str, Any]:
    """What the planner's last words say of a job, of values that JSON has.

    Args:
        status: the last one (`runtime.status.describe`); None where the job did not get so far.
        outcome: how it ended; None where the planner had no word.
        exit_status: of the launch.
        seconds: from the start of the first rank to the end of the last.
    """
    outcome = outcome or {}
    summary: dict[str, Any] = {
        "exit_status": exit_status,
        "stopped": outcome.get("stopped") is True,
        "seconds": round(seconds, 1),
        "steps": 0,
        "lost": outcome.get("lost", []) if status is None else status["lost"],
        "memory_mb": outcome.get("memory_mb"),
    }
    if status is None:
        return summary
    totals, columns = status["totals"], status["sources"]
    stepping = totals["stepping_seconds"]
    tokens = max(sum(columns["tokens"]), 1)
    return {
        **summary,
        **{name: totals[name] for name in ("steps", "steps_per_second")},
        **{name: totals[name] for name in ("imbalance", "imbalance_unbalanced", "fill")},
        "stepping_seconds": round(stepping, 1),
        "data_wait": round(min(totals["waited_seconds"] / stepping, 1.0), 5) if stepping else None,
        "data_wait_ms": status["wait_ms"],
        "sources": [
            {
                "name": name,
                **{key: columns[key][index] for key in ("samples", "tokens", "bad", "waited_seconds")},
                "share_of_tokens": round(columns["tokens"][index] / tokens, 5),
            }
            for index, name in enumerate(columns["name"])
        ],
    }


def in_lines(summary: Mapping[str, Any]) -> list[str]:
    """The summary for people; nothing where no step was taken."""
    if not summary["steps"]:
        return []
    steps = summary["steps"]
    lines = [f"{steps} step{'s' if steps > 1 else ''} in {_duration(summary['seconds'])}"]
    if summary["steps_per_second"]:
        besides = max(summary["seconds"] - summary["stepping_seconds"], 0.0)
        pace = in_pace(summary["steps_per_second"])
        lines[0] += f", {_duration(besides)} of it to start and to end; {pace}"
    lines[0] += ", stopped early on request" if summary["stopped"] else ""
    if summary["data_wait"] is not None:
        wait = f"data wait {percent(summary['data_wait'])} of the time"
        each = summary["data_wait_ms"]
        lines.append(wait + (f" (a step {each['p50']:.3g} ms, p95 {each['p95']:.3g} ms)" if each else ""))
    lines.append(
        f"dearest rank {summary['imbalance']:.3f} times the mean cost, "
        f"{summary['imbalance_unbalanced']:.3f} without balancing; rows {100 * summary['fill']:.0f} % full"
    )
    memory = summary["memory_mb"]
    if memory:
        lines.append("memory (PSS): " + ", ".join(_memory(role, each) for role, each in memory.items()))
    return [*lines, *_table(summary["sources"])]


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"


def _memory(role: str, megabytes: list[float]) -> str:
    text = f"{role} {sum(megabytes):,.0f} MB"
    return f"{text} (most {max(megabytes):,.0f})" if len(megabytes) > 1 else text


def _table(sources: list[Mapping[str, Any]]) -> list[str]:
    by_tokens = sorted(sources, key=lambda each: -each["tokens"])
    head = ("source", "samples", "tokens", "of tokens", "bad", "waited for")
    rows = [head] + [
        (
            printable(each["name"]),
            *(format_value(each[name]) for name in ("samples", "tokens")),
            f"{100 * each['share_of_tokens']:.1f} %",
            format_value(each["bad"]),
            f"{each['waited_seconds']:.1f} s",
        )
        for each in by_tokens[:MOST_SOURCES]
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    left = len(sources) - MOST_SOURCES
    return [*lines, f"and {left} more"] if left > 0 else lines


def write_json(summary: Mapping[str, Any], path: Path) -> None:
    """Write the summary to a file. Raises OSError."""
    path.write_text(json.dumps(dict(summary), indent=2) + "\n")
