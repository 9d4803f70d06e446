"""State files: the leaves of a `DataState` on disk, whole or as what changed against a whole one.

Layout, all numbers little-endian: 8 bytes of magic; version (u32); length of the head (u32); the head
(msgpack); the leaves that are stored, one after the other; SHA-256 of everything before it, which is the
file's *digest*. A *full* file stores every leaf. A *delta* stores the leaves that differ from those of one
full file, its *base*, and the names of those that are gone; it names the base by its step's directory and
digest. A changed leaf may be packed: deflated with the base's leaf as dictionary. Nothing is pickled, and no
size is believed before it is checked.
"""

import contextlib
import hashlib
import os
import stat
import struct
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgpack

from msdata_jax.data_state import Leaves
from msdata_jax.errors import CheckpointError

MAGIC = b"msdstate"
FILE_VERSION = 1
FILE_NAME = "state.msd"
_PREFIX = struct.Struct("<8sII")
_DIGEST_BYTES = hashlib.sha256().digest_size
_PLAIN, _PACKED = 0, 1
_WINDOW = 1 << 15
"""Bytes of a dictionary that deflate can refer to."""
_LARGEST_PACKED = 1 << 20
_MOST_INFLATION = 1032
"""Deflate makes no more bytes of one."""


@dataclass(frozen=True, kw_only=True)
class BaseRef:
    """The full file that a delta builds on.

    Attributes:
        where: name of its step's directory, beside the delta's.
        digest: of the file, hex.
    """

    where: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class StoredLeaf:
    """A leaf in a file: its name, how it is stored, its bytes there and its bytes when read."""

    name: str
    how: int
    stored_bytes: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class Head:
    """What a file says of itself.

    Attributes:
        step: of the state: the one that is delivered next.
        created: when it was written, nanoseconds since 1970.
        base: of a delta; None for a full.
        stored: the leaves in the file, in order.
        removed: leaves of the base that are gone.
        file_bytes: of the whole file.
    """

    step: int
    created: int
    base: BaseRef | None
    stored: tuple[StoredLeaf, ...]
    removed: tuple[str, ...]
    file_bytes: int

    @property
    def kind(self) -> str:
        """`full` or `delta`."""
        return "delta" if self.base else "full"


@dataclass(frozen=True, kw_only=True)
class StateFile:
    """A file that was read and checked.

    Attributes:
        head: what it says of itself.
        digest: of the file, hex.
        leaves: of the state, those of the base among them.
    """

    head: Head
    digest: str
    leaves: Leaves


# --- bytes --------------------------------------------------------------------------------------------------


def encode_full(leaves: Leaves, step: int) -> bytes:
    """A full file of all leaves."""
    stored = [(name, _PLAIN, data, len(data)) for name, data in leaves.items()]
    return _encode(step, None, stored, [])


def encode_delta(leaves: Leaves, step: int, base: BaseRef, base_leaves: Leaves) -> bytes:
    """A file of what differs from the leaves of `base`."""
    stored = []
    for name, data in leaves.items():
        before = base_leaves.get(name)
        if data != before:
            packed = _pack_against(before, data) if before else data
            shorter = len(packed) < len(data)
            stored.append(
                (name, _PACKED if shorter else _PLAIN, packed if shorter else data, len(data)),
            )
    return _encode(step, base, stored, [name for name in base_leaves if name not in leaves])


def digest_of(data: bytes) -> str:
    """The digest of an encoded file, hex."""
    return data[-_DIGEST_BYTES:].hex()


def _encode(
    step: int, base: BaseRef | None, stored: list[tuple[str, int, bytes, int]], removed: list[str]
) -> bytes:
    head: Any = msgpack.packb(
        {
            "step": step,
            "created": time.time_ns(),
            "base": None if base is None else [base.where, base.digest],
            "leaves": [[name, how, len(data), num_bytes] for name, how, data, num_bytes in stored],
            "removed": removed,
        }
    )
    body = b"".join([_PREFIX.pack(MAGIC, FILE_VERSION, len(head)), head, *(data for _, _, data, _ in stored)])
    return body + hashlib.sha256(body).digest()


def _pack_against(before: bytes, data: bytes) -> bytes:
    if len(data) > _LARGEST_PACKED:
        return data
    packer = zlib.compressobj(6, zlib.DEFLATED, -15, 9, zlib.Z_DEFAULT_STRATEGY, before[-_WINDOW:])
    return packer.compress(data) + packer.flush()


def _unpack_against(before: bytes, packed: bytes, num_bytes: int) -> bytes:
    if num_bytes > min(_MOST_INFLATION * (len(packed) + 1), _LARGEST_PACKED):
        raise ValueError(f"{len(packed)} packed bytes cannot hold {num_bytes}")
    unpacker = zlib.decompressobj(-15, before[-_WINDOW:])
    data = unpacker.decompress(packed, num_bytes + 1)
    if len(data) != num_bytes or not unpacker.eof:
        raise ValueError("a packed leaf is of another length")
    return data


def decode(data: bytes, where: str, base_leaves: Leaves | None = None) -> StateFile:
    """The state in the bytes of a file.

    Args:
        data: of the whole file.
        where: the file, for messages.
        base_leaves: of its base, for a delta.

    Raises:
        CheckpointError: it is cut off, damaged, of another version, or none of ours; or a delta without base.
    """
    head, at = _checked_head(data, where)
    if head.base is not None and base_leaves is None:
        raise CheckpointError(
            f"{where} holds only what changed since {head.base.where}; read it with that one"
        )
    before = base_leaves or {}
    try:
        leaves = {name: each for name, each in before.items() if name not in head.removed}
        for leaf in head.stored:
            stored = data[at : at + leaf.stored_bytes]
            at += leaf.stored_bytes
            if leaf.how == _PACKED:
                stored = _unpack_against(before[leaf.name], stored, leaf.num_bytes)
            leaves[leaf.name] = stored
    except (KeyError, ValueError, zlib.error) as error:
        raise CheckpointError(f"{where} does not fit its base: {type(error).__name__}: {error}") from None
    return StateFile(head=head, digest=digest_of(data), leaves=leaves)


def _checked_head(data: bytes, where: str) -> tuple[Head, int]:
    """Head and place of the first leaf, once the digest is right."""
    length = _check_prefix(data[: _PREFIX.size], where)
    smallest = _PREFIX.size + length + _DIGEST_BYTES
    if len(data) < smallest or hashlib.sha256(data[:-_DIGEST_BYTES]).digest() != data[-_DIGEST_BYTES:]:
        raise CheckpointError(
            f"{where} is cut off or damaged: the checksum of its {len(data)} bytes is wrong"
        )
    at = _PREFIX.size + length
    head = _parse_head(data[_PREFIX.size : at], len(data), where)
    if sum(leaf.stored_bytes for leaf in head.stored) != len(data) - smallest:
        raise CheckpointError(f"{where} is damaged: its leaves do not fill it")
    return head, at


def _check_prefix(prefix: bytes, where: str) -> int:
    if len(prefix) < _PREFIX.size:
        raise CheckpointError(f"{where} is cut off after {len(prefix)} bytes")
    magic, version, length = _PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise CheckpointError(
            f"{where} is no state of msdata_jax, or its beginning is damaged: it starts with {magic!r}"
        )
    if version != FILE_VERSION:
        raise CheckpointError(
            f"{where} is a state file of version {version}; this msdata_jax reads version {FILE_VERSION}: go "
            "on with the one that wrote it"
        )
    return length


def _parse_head(packed: bytes, file_bytes: int, where: str) -> Head:
    try:
        values = msgpack.unpackb(packed)
        base = values["base"]
        return Head(
            step=_whole(values["step"]),
            created=_whole(values["created"]),
            base=None if base is None else BaseRef(where=_folder(base[0]), digest=_text(base[1])),
            stored=tuple(_stored_leaf(each, is_delta=base is not None) for each in values["leaves"]),
            removed=tuple(_text(name) for name in values["removed"]),
            file_bytes=file_bytes,
        )
    except (
        KeyError, IndexError, ValueError, TypeError, RecursionError, msgpack.UnpackException,
    ) as error:  # fmt: skip
        raise CheckpointError(
            f"{where} has a head that cannot be read: {type(error).__name__}: {error}"
        ) from None


def _stored_leaf(values: Any, *, is_delta: bool) -> StoredLeaf:
    name, how, stored_bytes, num_bytes = values
    if how not in (_PLAIN, _PACKED) or (how == _PACKED and not is_delta):
        raise ValueError(f"a leaf cannot be stored as {how!r}")
    leaf = StoredLeaf(
        name=_text(name), how=how, stored_bytes=_whole(stored_bytes), num_bytes=_whole(num_bytes)
    )
    if how == _PLAIN and leaf.stored_bytes != leaf.num_bytes:
        raise ValueError(f"leaf {name!r} has two lengths")
    return leaf


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"a whole number belongs where {value!r:.40} is")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a text belongs where {value!r:.40} is")
    return value


def _folder(value: Any) -> str:
    if not _text(value) or value in (".", "..") or "/" in value or "\0" in value:
        raise ValueError(f"the name of a directory belongs where {value!r:.40} is")
    return value


# --- files --------------------------------------------------------------------------------------------------


def base_path(path: Path, base: BaseRef) -> Path:
    """Where the base of the delta `path` is: in the same item of another step."""
    item = path.parent
    return item.parent.parent / base.where / item.name / path.name


def write_file(path: Path, data: bytes) -> None:
    """Write a whole file, or none: under another name first, on disk before it gets its own.

    Raises:
        CheckpointError: it cannot be written; what was written of it is removed.
    """
    draft = path.with_name(f"{path.name}.tmp")
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(handle, rest) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(draft, path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise CheckpointError(
            f"{path}: the state of the data ({len(data)} bytes) cannot be written: {error}; make room or "
            "give another folder. Steps saved before are untouched"
        ) from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_file(path: Path) -> StateFile:
    """The state in a file, with the base's where it is a delta.

    Raises:
        CheckpointError: it, or its base, is missing, cut off, damaged, of another version, or none of ours;
            or the base is another one than the delta was made against.
    """
    data = _read_bytes(path)
    ref = _checked_head(data, str(path))[0].base
    return decode(data, str(path), None if ref is None else _read_base(path, ref).leaves)


def _read_base(path: Path, ref: BaseRef) -> StateFile:
    file = base_path(path, ref)
    if not file.exists():
        raise CheckpointError(
            f"{path} holds only what changed since step {ref.where}, and that step's {file} is gone: it was "
            "deleted by hand, or by a retention policy other than KeepBases"
        )
    try:
        base = decode(_read_bytes(file), str(file))
    except CheckpointError as error:
        raise CheckpointError(f"{path} needs its base: {error}") from None
    if base.digest != ref.digest:
        raise CheckpointError(
            f"{path} was made against another {file} than the one that is there: its checksum is "
            f"{base.digest[:16]}..., not {ref.digest[:16]}...; that step was saved anew since"
        )
    return base


def read_head(path: Path) -> Head:
    """What a file says of itself; reads and checks only its beginning.

    Raises:
        CheckpointError: there is no such file, or its beginning is wrong.
    """
    try:
        with _open(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = _check_prefix(file.read(_PREFIX.size), str(path))
            if length > size:
                raise CheckpointError(f"{path} is cut off after {size} bytes")
            return _parse_head(file.read(length), size, str(path))
    except OSError as error:
        raise _unreadable(path, error) from error


def stored_digest(path: Path) -> str | None:
    """The digest at a file's end, hex; None where there is no such file."""
    try:
        with _open(path) as file:
            file.seek(-_DIGEST_BYTES, os.SEEK_END)
            return file.read().hex()
    except OSError:
        return None


def _open(path: Path) -> BinaryIO:
    """A regular file, for reading: a pipe or device might never end, or wait for ever."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("it is no regular file")
    return os.fdopen(handle, "rb")


def _read_bytes(path: Path) -> bytes:
    try:
        with _open(path) as file:
            return _read_ours(file, str(path))
    except OSError as error:
        raise _unreadable(path, error) from error


def _read_ours(file: BinaryIO, where: str) -> bytes:
    """All bytes, once the first ones are those of a state file: another file may be of any size."""
    prefix = file.read(_PREFIX.size)
    _check_prefix(prefix, where)
    return prefix + file.read()


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"{path} cannot be read: {error.strerror or error}")


def step_of(leaves: Mapping[str, bytes]) -> int:
    """The step of a state, from its leaves."""
    return int(msgpack.unpackb(leaves["step"])["step"])
