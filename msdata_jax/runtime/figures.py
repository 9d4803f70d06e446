"""What a process costs: memory, time, and which heavy libraries it loaded."""

import os
import sys
from pathlib import Path
from typing import Any

HEAVY_MODULES = ("jax", "jaxlib", "torch", "orbax", "tensorflow")


def pss_mb() -> float:
    """Proportional set size of this process in MB (its own pages plus its share of shared ones)."""
    try:
        return round(smaps_bytes("Pss:") / (1 << 20), 1)
    except OSError:  # not Linux
        return 0.0


def smaps_bytes(prefix: str, pid: int | str = "self") -> int:
    """Memory of a process: the sum of the lines of its smaps_rollup that begin so. Raises OSError."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(prefix))


def resident_bytes() -> int:
    """Resident memory of this process in bytes, cheap to ask; 0 where it is not Linux."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def heavy_modules() -> list[str]:
    """Heavy libraries that this process has loaded."""
    return [name for name in HEAVY_MODULES if sys.modules.get(name) is not None]


def process_figures() -> dict[str, Any]:
    """Figures of this process, plain values."""
    times = os.times()
    return {
        "pid": os.getpid(),
        "pss_mb": pss_mb(),
        "cpu_seconds": round(times.user + times.system, 2),
        "heavy_modules": heavy_modules(),
    }
