"""What a training process is told: plain values that pass as a JSON file."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

SUFFIXES = {
    "parquet": ".parquet",
    "parquet_parts": "",
    "arrayrecord": ".arrayrecord",
    "mds": "",
    "tar": "",
    "chunks": "",
}
"""Formats, and what the name of a source's file or folder ends with."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A source of the mixture.

    Attributes:
        name: of its file or folder, without suffix.
        number: first token of its samples.
        num_records: records in it.
        weight: its share of the samples.
    """

    name: str
    number: int
    num_records: int
    weight: float


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What all loaders of a comparison are given alike.

    Attributes:
        folder: of the data; a folder for each format.
        sources: the mixture.
        trainers: training processes.
        workers: worker processes of each; 0 reads on threads of the training process.
        batch_size: samples that a training process takes a step.
        mean_tokens: of a sample of the mixture.
        warm_up: steps before anything is measured.
        fast: steps taken as fast as they come.
        paced: steps with a pause behind each.
        pause_seconds: the pause.
        seed: of whatever is random.
    """

    folder: Path
    sources: tuple[Source, ...]
    trainers: int
    workers: int
    batch_size: int
    mean_tokens: float
    warm_up: int
    fast: int = 0
    paced: int = 0
    pause_seconds: float = 0.1
    seed: int = 17

    @property
    def weights(self) -> np.ndarray:
        """Shares of the sources; their sum is 1."""
        weights = np.array([source.weight for source in self.sources])
        return weights / weights.sum()

    @property
    def steps(self) -> int:
        """All steps, the first one included."""
        return 1 + self.warm_up + self.fast + self.paced


@dataclass(frozen=True, kw_only=True)
class Job(Cell):
    """A run of a loader.

    Attributes:
        adapter: module of `benchmarks.peers`.
        format: which of the data's formats is read.
        scratch: a folder for whatever the loader wants to write.
        socket: where training processes report.
    """

    adapter: str
    format: str
    scratch: Path
    socket: Path

    def path(self, source: Source) -> str:
        """Where a source lies."""
        return str(path_of(self.folder, self.format, source))

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self), default=str))


def path_of(folder: Path, name: str, source: Source) -> Path:
    """Where a source lies in the format `name`, a key of `SUFFIXES`."""
    return folder / name / f"{source.name}{SUFFIXES[name]}"


def read_job(path: Path) -> Job:
    """What `Job.write` wrote."""
    values: Mapping[str, Any] = json.loads(path.read_text())
    paths = {name: Path(values[name]) for name in ("folder", "scratch", "socket")}
    return Job(**{**values, **paths, "sources": tuple(Source(**source) for source in values["sources"])})
