"""Compressed bytes -> pieces of what was compressed, with a mark where each unit of the file ends.

A unit is what can be decompressed on its own and has its own checksum: a gzip member or a zstd frame. No more
is allocated than two pieces, and for zstd the window that the frame's header asks for (128 MiB at most).
"""

import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from msdata_jax.sources.protocol import require
from msdata_jax.sources.storage import ByteFile

PIECE_BYTES = 1 << 20
MAX_WINDOW_BYTES = 128 << 20
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_INPUT_BYTES = 1 << 17
_ZSTD_HEADER_BYTES = 18  # the longest one
_ZSTD_BLOCK_BYTES = 128 << 10  # the most that a block stands for, packed or not
_IS_SINGLE_SEGMENT = 0x20
_RLE_BLOCK = 1
_BAD_BLOCK = 3


class Piece(NamedTuple):
    """The next bytes of the content; `end` is the file's offset behind the unit that they are the end of."""

    content: bytes
    end: int | None


class DamagedError(Exception):
    """A unit is cut short or does not decompress; the message begins with its place."""


def gzip_pieces(stream: ByteFile, start: int) -> Iterator[Piece]:
    """Members of gzip (RFC 1952); zeros between and behind them are padding.

    Raises:
        DamagedError: a member is cut short, does not decompress, or has another checksum.
    """
    source = _Input(stream, start)
    pending = b""
    while pending := pending or source.take(_INPUT_BYTES):
        pending = pending.lstrip(b"\0")
        unit = source.position - len(pending)
        if not pending:
            continue
        decoder = zlib.decompressobj(wbits=31)
        while not decoder.eof:
            pending = pending or source.take(_INPUT_BYTES)
            if not pending:
                raise DamagedError(f"the gzip member at byte {unit} is cut short")
            try:
                content = decoder.decompress(pending, PIECE_BYTES)
            except zlib.error as error:
                raise DamagedError(f"the gzip member at byte {unit} is damaged ({error})") from error
            pending = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
            yield Piece(content, source.position - len(pending) if decoder.eof else None)


def zstd_pieces(stream: ByteFile, start: int) -> Iterator[Piece]:
    """Frames of zstd (RFC 8878); skippable frames are skipped, such as the table of the seekable format.

    Raises:
        DamagedError: a frame is cut short, does not decompress, or has another checksum.
    """
    source = _Input(stream, start)
    while magic := source.peek(8):
        if is_skippable(magic):
            source.seek(source.position + 8 + int.from_bytes(magic[4:8], "little"))
            if source.position > stream.size or len(magic) < 8:
                raise DamagedError("the last skippable zstd frame is cut short")
            continue
        yield from _zstd_frame(source)


def _zstd_frame(source: "_Input") -> Iterator[Piece]:
    """One frame, block by block, for only then is it known how much comes out of what goes in."""
    zstandard = require("zstandard", "zstd")
    where = f"the zstd frame at byte {source.position}"
    try:
        has_checksum = _check_zstd_header(zstandard, source, where)
        decoder = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj()
        decoder.decompress(source.take(zstandard.frame_header_size(source.peek(_ZSTD_HEADER_BYTES))))
        is_last = False
        while not is_last:
            blocks, is_last = _take_zstd_blocks(source, where)
            if is_last and has_checksum:
                blocks += source.take(4)
            content = decoder.decompress(blocks)
            if is_last and not decoder.eof:
                raise DamagedError(f"{where} is cut short")
            yield Piece(content, source.position if is_last else None)
    except zstandard.ZstdError as error:
        raise DamagedError(f"{where} is damaged ({error})") from error


def _check_zstd_header(zstandard: Any, source: "_Input", where: str) -> bool:
    """Whether a checksum follows the frame."""
    header = source.peek(_ZSTD_HEADER_BYTES)
    _check_window(_window_bytes(header), where)  # beyond 2 GiB the library reads no header
    parameters = zstandard.get_frame_parameters(header)
    _check_window(parameters.window_size, where)
    return bool(parameters.has_checksum)


def _window_bytes(header: bytes) -> int:
    """The window by its descriptor; 0 where there is none, as for a frame that is its own window."""
    has_descriptor = header[:4] == ZSTD_MAGIC and len(header) > 5 and not header[4] & _IS_SINGLE_SEGMENT
    return (1 << 10 + (header[5] >> 3)) // 8 * (8 + (header[5] & 7)) if has_descriptor else 0


def _check_window(num_bytes: int, where: str) -> None:
    if num_bytes > MAX_WINDOW_BYTES:
        raise DamagedError(
            f"{where} needs a window of {num_bytes} bytes, {MAX_WINDOW_BYTES} are allowed; compress without "
            "--long, or with --long=27 at most"
        )


def _take_zstd_blocks(source: "_Input", where: str) -> tuple[bytes, bool]:
    """As many blocks as come to no more than a piece, and whether the last one of the frame is among them."""
    blocks, is_last = [], False
    while not is_last and len(blocks) < 2 * max(PIECE_BYTES // _ZSTD_BLOCK_BYTES, 1):
        header = source.take(3)
        word = int.from_bytes(header, "little")
        is_last, kind, size = bool(word & 1), word >> 1 & 3, word >> 3
        if len(header) == 3 and (kind == _BAD_BLOCK or size > _ZSTD_BLOCK_BYTES):
            raise DamagedError(f"{where} is damaged (a block of kind {kind} and {size} bytes)")
        content = source.take(1 if kind == _RLE_BLOCK else size)
        if len(header) < 3 or len(content) < (1 if kind == _RLE_BLOCK else size):
            raise DamagedError(f"{where} is cut short")
        blocks += [header, content]
    return b"".join(blocks), is_last


def is_skippable(beginning: bytes) -> bool:
    """Whether a skippable zstd frame begins with these bytes, four or more of them."""
    return beginning[1:4] == b"\x2a\x4d\x18" and beginning[0] >> 4 == 5


class _Input:
    """A file that is read on from a position, `_INPUT_BYTES` at a time."""

    def __init__(self, stream: ByteFile, position: int) -> None:
        self._stream = stream
        self._buffer, self._start = b"", 0  # the buffer's offset in the file
        self.position = position

    def peek(self, size: int) -> bytes:
        """The next `size` bytes, fewer at the end of the file."""
        place = self.position - self._start
        if not 0 <= place <= len(self._buffer) - size:
            self._buffer = self._stream.pread(self.position, max(size, _INPUT_BYTES))
            self._start, place = self.position, 0
        return self._buffer[place : place + size]

    def take(self, size: int) -> bytes:
        """The next bytes, which are behind the position then."""
        taken = self.peek(size)
        self.position += len(taken)
        return taken

    def seek(self, position: int) -> None:
        """Go on at another offset."""
        self.position = position
