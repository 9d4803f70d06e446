"""`Source.storage`: how URLs are read. Keys of `RemoteOptions` are ours; all others go to the file system."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from msdata_jax.errors import SourceError

PAGE_BYTES = 64 << 10
_MAX_BLOCK_BYTES = 64 << 20
_MAX_READ_AHEAD = 64
_DEFAULT_CACHE_BYTES = 16 << 30


def _default_cache_dir() -> str:
    if chosen := os.environ.get("MSDATA_CACHE_DIR"):
        return chosen
    return str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "msdata_jax")


def _default_cache_bytes() -> int:
    text = os.environ.get("MSDATA_CACHE_BYTES", str(_DEFAULT_CACHE_BYTES))
    if not text.isdecimal():
        raise SourceError(f"MSDATA_CACHE_BYTES is a number of bytes, such as {16 << 30}, got {text!r}")
    return int(text)


@dataclass(frozen=True, kw_only=True)
class RemoteOptions:
    """How remote files are read.

    Attributes:
        block_bytes: what one request asks for, a multiple of 64 KiB up to 64 MiB.
        read_ahead: how many blocks are fetched before they are asked for where a file is read in order; 0 for
            none, 64 the most.
        request_seconds: how long one request may take.
        deadline_seconds: how long a block is tried for, before the read counts as failed.
        cache_dir: folder of the disk cache; by default `$MSDATA_CACHE_DIR`, else `msdata_jax` in the user's
            cache folder. The processes of a host share it.
        cache_bytes: the most that the cache holds, at least one block; by default `$MSDATA_CACHE_BYTES`, else
            16 GiB.
    """

    block_bytes: int = 1 << 20
    read_ahead: int = 8
    request_seconds: float = 30.0
    deadline_seconds: float = 60.0
    cache_dir: str = field(default_factory=_default_cache_dir)
    cache_bytes: int = field(default_factory=_default_cache_bytes)

    def __post_init__(self) -> None:
        """Refuse what cannot be honoured."""
        if self.block_bytes % PAGE_BYTES or not PAGE_BYTES <= self.block_bytes <= _MAX_BLOCK_BYTES:
            raise SourceError(
                f"block_bytes is a multiple of {PAGE_BYTES} up to {_MAX_BLOCK_BYTES}, got {self.block_bytes}"
            )
        if not 0 <= self.read_ahead <= _MAX_READ_AHEAD:
            raise SourceError(f"read_ahead is from 0 to {_MAX_READ_AHEAD} blocks, got {self.read_ahead}")
        if not (self.request_seconds > 0 and self.deadline_seconds > 0):
            raise SourceError(
                "request_seconds and deadline_seconds are above 0, got "
                f"{self.request_seconds} and {self.deadline_seconds}"
            )
        if self.cache_bytes < 2 * self.block_bytes:
            raise SourceError(
                f"the cache holds at least two blocks of {self.block_bytes} bytes, got "
                f"cache_bytes={self.cache_bytes}; raise it or MSDATA_CACHE_BYTES"
            )


def split_storage(storage: Mapping[str, Any]) -> tuple[RemoteOptions, dict[str, Any]]:
    """Our options, and those of the file system."""
    ours = {each.name for each in fields(RemoteOptions)}
    own = {key: value for key, value in storage.items() if key in ours}
    return RemoteOptions(**own), {key: value for key, value in storage.items() if key not in ours}
