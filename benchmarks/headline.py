"""What a benchmark found, in a line: the rows of the one table of `msdata bench all`."""

from collections.abc import Mapping
from typing import Any


def headline(
    figure: str,
    ours: float | None,
    *,
    beside: Mapping[str, float | None] | None = None,
    at_most: float | None = None,
    at_least: float | None = None,
) -> dict[str, Any]:
    """A row.

    Args:
        figure: what was measured, with its unit.
        ours: our value; None where it could not be measured.
        beside: values of alternatives in the same run, by name.
        at_most: the goal, where less is better.
        at_least: the goal, where more is better.
    """
    goal = f"at most {at_most:g}" if at_most is not None else "-"
    if at_least is not None:
        goal = f"at least {at_least:g}"
    reached = None
    if ours is not None and (at_most is not None or at_least is not None):
        reached = (at_most is None or ours <= at_most) and (at_least is None or ours >= at_least)
    return {"figure": figure, "ours": ours, "beside": dict(beside or {}), "goal": goal, "reached": reached}
