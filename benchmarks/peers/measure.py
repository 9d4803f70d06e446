"""Memory and CPU time of process trees, out of /proc, and the spread of several runs."""

import os
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from msdata_jax.runtime.figures import smaps_bytes

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def tree(roots: Iterable[int]) -> set[int]:
    """The processes and all that descend from them, those that are alive."""
    children: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _stat(int(name))):
            children[int(fields[1])].append(int(name))
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found and Path(f"/proc/{pid}").exists():
            found.add(pid)
            waiting += children[pid]
    return found


def pss_mb(pids: Iterable[int]) -> float:
    """Proportional set size of the processes together, in MB (2**20 bytes)."""
    return sum(map(_pss_bytes, pids)) / (1 << 20)


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time of the processes so far, and of their children that have ended."""
    return sum(sum(map(int, fields[11:15])) for pid in pids if (fields := _stat(pid))) / TICKS_PER_SECOND


def median(values: Sequence[float], digits: int) -> float:
    """The median, rounded."""
    return round(statistics.median(values), digits)


def spread(values: Sequence[float], digits: int) -> list[float]:
    """The lowest and the highest value, rounded."""
    return [round(min(values), digits), round(max(values), digits)]


def _pss_bytes(pid: int) -> int:
    try:
        return smaps_bytes("Pss:", pid)
    except OSError:  # it is gone
        return 0


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat behind the name, from the state on; none where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
