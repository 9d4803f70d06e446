"""Blocks of transformed samples on disk, through tensorstore: read again instead of made again.

A store is a folder with one OCDBT database a writer. A block lies there under what decides its bytes (seed,
source, transforms, data, positions), so a block of another recipe or of changed data is never found. What is
damaged or cut off is not found either: a store is a copy of what can be computed.
"""

import hashlib
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from msdata_jax.records import Block
from msdata_jax.sources.frames import BrokenFrame, describe_block, encode, receive_block, receive_header
from msdata_jax.sources.protocol import require

_DIGEST_BYTES = 8
_CRC_BYTES = 4


def block_key(identity: str, start: int, stop: int) -> str:
    """Where a block lies in a store; `identity` is all that decides its bytes besides its positions."""
    return f"{hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()}/{start}-{stop}"


def write_blocks(folder: Path, writer: str, blocks: Iterable[tuple[str, Block, int]]) -> tuple[int, int]:
    """Write blocks by their keys, all or none.

    Args:
        folder: of the store.
        writer: a name that no other writer of this store has.
        blocks: key, block and digest of each. A block may lack samples that nobody will ask for: they have no
            tokens then. The digest is that of the block as it was read.

    Returns:
        blocks and bytes written.

    Raises:
        SourceError: tensorstore is not installed.
        OSError, ValueError: the folder cannot be written.
    """
    tensorstore = require("tensorstore", "orbax")
    num_blocks = num_bytes = 0
    store = _open(tensorstore, folder / writer)
    with tensorstore.Transaction() as transaction:
        database = store.with_transaction(transaction)
        for key, block, digest in blocks:
            data = b"".join([digest.to_bytes(_DIGEST_BYTES, "little"), *encode(*describe_block(block))])
            database[key] = data + zlib.crc32(data).to_bytes(_CRC_BYTES, "little")
            num_blocks, num_bytes = num_blocks + 1, num_bytes + len(data)
    return num_blocks, num_bytes


class BlockStore:
    """The blocks of all writers of a store. Opened when the first block is asked for; then for good.

    Args:
        folder: of the store; one that is not there has no blocks.
        dtype: of SampleInfo records.
    """

    def __init__(self, folder: Path, dtype: np.dtype) -> None:
        self._dtype = dtype
        self._where: dict[str, Any] = {}
        tensorstore = require("tensorstore", "orbax")
        for part in sorted(folder.iterdir()) if folder.is_dir() else []:
            try:
                database = _open(tensorstore, part)
                self._where |= dict.fromkeys((key.decode() for key in database.list().result()), database)
            except (OSError, ValueError):
                continue  # a database that cannot be read holds no block

    def read(self, key: str) -> tuple[Block, int] | None:
        """The block under a key and its digest; None where it is not there, or not as it was written."""
        database = self._where.get(key)
        if database is None:
            return None
        try:
            data = memoryview(database[key])
            body, crc = data[:-_CRC_BYTES], data[-_CRC_BYTES:]
            if zlib.crc32(body) != int.from_bytes(crc, "little"):
                return None
            digest = int.from_bytes(body[:_DIGEST_BYTES], "little")
            return _decode(body[_DIGEST_BYTES:], self._dtype), digest
        except (OSError, ValueError, KeyError, BrokenFrame):
            return None


def _open(tensorstore: Any, folder: Path) -> Any:
    base = {"driver": "file", "path": f"{folder.absolute()}/"}  # a URL would change some paths
    return tensorstore.KvStore.open({"driver": "ocdbt", "base": base}).result()


def _decode(data: memoryview, dtype: np.dtype) -> Block:
    at = 0

    def receive(view: memoryview) -> None:
        nonlocal at
        if at + len(view) > len(data):
            raise BrokenFrame(f"the block ends after {len(data)} bytes")
        view[:] = data[at : at + len(view)]
        at += len(view)

    header, num_bytes = receive_header(receive)
    if num_bytes > len(data) - at:
        raise BrokenFrame(f"the block says {num_bytes} bytes follow, and {len(data) - at} do")
    return receive_block(header, num_bytes, dtype, receive)
