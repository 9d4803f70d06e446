"""The loaders that are compared, and which environment each runs in."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.peers import data
from benchmarks.peers.job import Cell

OURS, OUR_NAME = "ours", "msdata_jax"
FEW_LOADERS = 2  # what `msdata launch` takes when nothing else is said
FEW_NAME = f"{OUR_NAME} with {FEW_LOADERS} loaders"
SHOWN_CHARS = 2000
SETUP = Path(__file__).parent / "setup"


class PeerProblem(RuntimeError):
    """A loader failed: `what` is it in short, the message has the end of what its processes said, too."""

    def __init__(self, what: str, output: str) -> None:
        super().__init__(f"{what}\n{output[-SHOWN_CHARS:]}")
        self.what = what


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A loader and how it reads.

    Attributes:
        name: of the loader, as its users call it.
        adapter: module of `benchmarks.peers`.
        format: what it reads; a key of `job.SUFFIXES`.
        package: what is installed.
        on_threads: whether it reads on threads of the training process, without worker processes.
        alone: whether it is in an environment of its own, that of `setup`.
        trainers: training processes that it has, whatever the others have; None for as many.
        loaders: of ours: source loaders, however many there are; None for as many data processes, planner
            included, as the others have worker processes in all.
    """

    name: str
    adapter: str
    format: str
    package: str
    on_threads: bool = False
    alone: bool = False
    trainers: int | None = None
    loaders: int | None = None

    @property
    def label(self) -> str:
        """Name, format, and whether it reads on threads."""
        return f"{self.name} {self.format}{' on threads' if self.on_threads else ''}"

    def workers(self, cell: Cell) -> int:
        """Worker processes of each training process."""
        return 0 if self.on_threads else cell.workers


BLOCK_FORMATS = ("parquet", "parquet_parts", "chunks")
"""Formats of which a reader holds blocks of records; of the others it reads records one by one."""

PEERS = (
    Peer(name=OUR_NAME, adapter=OURS, package="msdata-jax", format="parquet"),
    Peer(name=FEW_NAME, adapter=OURS, package="msdata-jax", format="parquet", loaders=FEW_LOADERS),
    Peer(name="torch", adapter="torch_loader", package="torch", format="parquet"),
    Peer(name=OUR_NAME, adapter=OURS, package="msdata-jax", format="arrayrecord"),
    Peer(name=FEW_NAME, adapter=OURS, package="msdata-jax", format="arrayrecord", loaders=FEW_LOADERS),
    Peer(name="torch", adapter="torch_loader", package="torch", format="arrayrecord"),
    Peer(name="grain", adapter="grain_loader", package="grain", format="arrayrecord", on_threads=True),
    Peer(name="grain", adapter="grain_loader", package="grain", format="arrayrecord"),
    Peer(
        name="streaming", adapter="streaming_loader", package="mosaicml-streaming", format="mds", alone=True
    ),
    Peer(name="energon", adapter="energon_loader", package="megatron-energon", format="tar", alone=True),
    Peer(name="litdata", adapter="litdata_loader", package="litdata", format="chunks", alone=True),
    Peer(
        name="datasets", adapter="huggingface_loader", package="datasets", format="parquet_parts", alone=True
    ),
    Peer(
        name="spdl",
        adapter="spdl_loader",
        package="spdl",
        format="arrayrecord",
        on_threads=True,
        alone=True,
    ),
)

QUICK_PEERS = tuple(peer for peer in PEERS if not peer.loaders and (peer.on_threads or peer.name != "grain"))
"""One way of each loader and format."""

BOUNDS = (
    Peer(name="floor", adapter="floor", package="pyarrow", format="parquet", on_threads=True, trainers=1),
    Peer(name="ceiling", adapter="ceiling", package="pyarrow", format="parquet", on_threads=True, trainers=1),
)
"""What no loader can be faster than: reading and transforming alone, and batches that are ready."""
BOUND_NAMES = tuple(peer.name for peer in BOUNDS)


def name_in(row: Mapping[str, Any]) -> str:
    """The loader of a row of results, and whether it reads on threads."""
    return row["peer"] if row["workers"] else f"{row['peer']} on threads"


def is_block(row: Mapping[str, Any]) -> bool:
    """Whether a row of results is of a block format."""
    return row["format"] in BLOCK_FORMATS


def take_ours(values: dict[str, float]) -> list[float]:
    """The values of our ways out of those by name, which keep the others'."""
    return [values.pop(name) for name in [*values] if name.startswith(OUR_NAME)]


def venv() -> Path:
    """The other loaders' environment."""
    return Path(os.environ.get("MSDATA_PEERS_VENV", data.cache_folder() / "venv"))


def python_of(peer: Peer) -> str:
    """The interpreter that runs a loader."""
    return str(venv() / "bin" / "python") if peer.alone else sys.executable


def split(peers: Sequence[Peer]) -> tuple[list[Peer], list[dict[str, str]]]:
    """Loaders that can run, and rows that say why the others cannot."""
    runnable = [peer for peer in peers if version_of(peer.package, python_of(peer))]
    rows = [
        {"peer": peer.name, "format": peer.format, "not_measured": _reason(peer)}
        for peer in peers
        if peer not in runnable
    ]
    return runnable, rows


def left_out(peers: Sequence[Peer]) -> str:
    """Which of the loaders are not among these, for people."""
    return ", ".join(peer.label for peer in PEERS if peer not in peers) or "none"


def versions(peers: Iterable[Peer]) -> str:
    """The versions of loaders, for people."""
    found = {peer.package: version_of(peer.package, python_of(peer)) for peer in peers}
    return ", ".join(f"{package} {version}" for package, version in found.items())


@cache
def version_of(package: str, python: str) -> str:
    """The version of a package in an interpreter's environment; empty where there is none."""
    if not Path(python).exists():
        return ""
    look = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([python, "-c", look], capture_output=True, text=True, check=False).stdout.strip()


def _reason(peer: Peer) -> str:
    if peer.alone:
        return f"{peer.package} is not in the environment of other loaders, {venv()}: {SETUP} makes it"
    return f"{peer.package} is not installed beside msdata_jax: pip install {peer.package}"
