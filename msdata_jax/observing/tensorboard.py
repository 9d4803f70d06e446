"""Scalars for TensorBoard, written by the planner. The horizontal axis is the step."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msdata_jax.errors import LaunchError
from msdata_jax.observing import by_role
from msdata_jax.observing.monitor import Line
from msdata_jax.sources.protocol import require

MOST_SOURCES = 64
"""Sources with curves of their own, the first ones of the recipe."""
_FRAMEWORKS = ("torch", "jax", "tensorflow", "caffe2", "chainer", "mxnet")


def load_writer() -> Any:
    """tensorboardX, without the frameworks that it imports where they are installed.

    Raises:
        SourceError: it is not installed.
    """
    hidden = [name for name in _FRAMEWORKS if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment] - importing it fails now
    try:
        return require("tensorboardX", "tensorboard")
    finally:
        for name in hidden:
            del sys.modules[name]


class TensorBoard:
    """Writes what lines say of the job; nothing while no step was taken.

    Raises:
        LaunchError: the folder cannot be written.
        SourceError: tensorboardX is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._writer = load_writer().SummaryWriter(str(folder))
        except OSError as error:
            raise LaunchError(f"--tensorboard {folder} cannot be written: {error}") from error
        self._last: Mapping[str, Any] | None = None

    def write(self, line: Line) -> None:
        """Write the scalars of a line, where it has steps that the last one had not."""
        step = line["status"]["totals"]["steps"]
        if not step or (self._last is not None and step <= self._last["status"]["totals"]["steps"]):
            return
        for name, value in scalars(line, self._last):
            self._writer.add_scalar(name, value, step, walltime=line["time"])
        self._last = line

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


def scalars(line: Line, before: Line | None) -> Iterator[tuple[str, float]]:
    """Names and values; shares of sources and waits are of the time since the line before."""
    status = line["status"]
    for name in ("steps_per_second", "data_wait", "buffers"):
        if status[name] is not None:
            yield f"job/{name}", status[name]
    for name, value in (status["recent"] or {}).items():
        if value is not None:
            yield f"job/{name}", value
    for role, figures in by_role.group(line["ranks"]).items():
        yield f"memory_mb/{role}", by_role.memory_mb(figures)
    yield from _of_sources(status["sources"], before["status"]["sources"] if before else None)


def _of_sources(now: Mapping[str, Any], before: Mapping[str, Any] | None) -> Iterator[tuple[str, float]]:
    def since(name: str) -> list[float]:
        return [value - (before[name][index] if before else 0) for index, value in enumerate(now[name])]

    tokens, waited = since("tokens"), since("waited_seconds")
    total = sum(tokens)
    for name, count, seconds in list(zip(now["name"], tokens, waited, strict=True))[:MOST_SOURCES]:
        if total:
            yield f"source_share_of_tokens/{name}", count / total
        yield f"source_waited_seconds/{name}", seconds
