"""A whole grain pipeline as one source: read, transformed and filtered by grain on the data ranks."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from msdata_jax.errors import SourceError
from msdata_jax.sources.memory import MemoryRecords
from msdata_jax.sources.protocol import BadRecord, one_line

_NUM_SHOWN = 4
"""Elements that the fingerprint reads, spread over the epoch."""


@dataclass(frozen=True)
class GrainSource:
    """What makes a `grain.MapDataset`, for `Source(GrainSource(make), ...)`.

    `make` is called where the source is opened, on the loaders. So the pipeline costs the other ranks
    nothing, nor does grain where `make` imports it. On data ranks grain comes without JAX.

    Elements are dicts, as records of any source. Those that grain's `filter` took out yield no sample. The
    pipeline counts epochs itself: its own shuffle and its random transforms differ from epoch to epoch.
    `Source.shuffle` comes on top; say `shuffle=False` for grain's order alone.

    Attributes:
        make: returns the pipeline; called once in each process, or child with `Source.isolate`.
        version: of what it makes. A saved run whose data change without their elements showing it should be
            told apart by this.
    """

    make: Callable[[], Any]
    version: str = ""

    def open(self) -> "GrainRecords":
        """Make the pipeline.

        Raises:
            SourceError: it cannot be made, is no `grain.MapDataset`, repeats for ever, or has no element.
        """
        name = getattr(self.make, "__qualname__", type(self.make).__qualname__)
        try:
            pipeline = self.make()
        except MemoryError:
            raise
        except Exception as error:  # the user's code
            raise SourceError(f"{name}(), which makes a grain pipeline, raised {one_line(error)}") from error
        kinds = {each.__name__ for each in type(pipeline).__mro__ if _is_of_grain(each)}
        if "MapDataset" not in kinds:
            raise SourceError(
                f"{name}() returned a {type(pipeline).__qualname__}; a source needs random access: return "
                "the grain.MapDataset that it begins with, before to_iter_dataset() and what can only come "
                "behind it. Mixing, packing and batching are done here; what must run in order belongs "
                "behind an msdata_jax.grain.MSDataset"
            )
        return GrainRecords(pipeline, self.version)


class GrainRecords(MemoryRecords):
    """The elements of a `grain.MapDataset`."""

    def __init__(self, pipeline: Any, version: str) -> None:
        super().__init__(pipeline)
        self._pipeline, self._version = pipeline, version

    def fingerprint(self) -> str:
        """Digest of the version, the stages' kinds, the length, and some elements of the first epoch."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(f"{self._version}\n{list(_stages(self._pipeline))}\n{len(self)}\n".encode())
        shown = np.unique(np.linspace(0, max(len(self) - 1, 0), _NUM_SHOWN).astype(np.int64))
        for element in self.read(shown) if len(self) else []:
            for part in _parts(element):
                digest.update(part)
        return digest.hexdigest()


def _is_of_grain(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "grain"


def _stages(dataset: Any) -> Iterator[str]:
    """The kinds of a pipeline's stages, from its end to its sources."""
    yield type(dataset).__name__
    for parent in getattr(dataset, "parents", ()):
        yield from _stages(parent)


def _parts(value: Any) -> Iterator[bytes]:
    """Bytes that are equal for equal elements, in every process; of objects their type alone."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield f"{key}:".encode()
            yield from _parts(value[key])
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for each in value:
            yield from _parts(each)
    else:
        yield _bytes_of(value)
    yield b"\n"


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, np.ndarray | np.generic):
        content = np.ascontiguousarray(value).tobytes() if value.dtype != object else b""
        return f"{value.dtype}{np.shape(value)}".encode() + content
    if isinstance(value, bytes):
        return value
    if isinstance(value, BadRecord):
        return value.reason.encode()
    plain = value is None or isinstance(value, str | int | float | bool)
    return repr(value).encode() if plain else type(value).__qualname__.encode()
