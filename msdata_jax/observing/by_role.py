"""Figures of ranks put together by role."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from msdata_jax.observing.metrics import Histogram, merge_plain

NAMES = {"planner": "planner", "loader": "loader", "shadow": "loader", "constructor": "trainer"}
"""What a role is called where people read it: a shadow that works is a loader."""


def group(ranks: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Figures of the ranks of each role."""
    grouped: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for figures in ranks.values():
        grouped[NAMES[figures["role"]]].append(figures)
    return dict(grouped)


def memory_mb(figures: list[Mapping[str, Any]]) -> float:
    """Memory of ranks together: PSS where it is known, so that shared pages count once."""
    processes = {(each["host"], each["pid"]): each["pss_mb"] or each["memory_mb"] for each in figures}
    return sum(processes.values())


def cpu_seconds(figures: list[Mapping[str, Any]]) -> float:
    """CPU time of ranks together."""
    return sum({(each["host"], each["pid"]): each["cpu_seconds"] for each in figures}.values())


def counters(figures: list[Mapping[str, Any]]) -> dict[str, float]:
    """Counters of ranks, added up."""
    sums: defaultdict[str, float] = defaultdict(float)
    for each in figures:
        for name, value in each["counters"].items():
            sums[name] += value
    return dict(sums)


def histograms(figures: list[Mapping[str, Any]]) -> dict[str, Histogram]:
    """Histograms of ranks, added up."""
    return merge_plain([each["histograms"] for each in figures])
