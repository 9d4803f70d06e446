"""Whether a media file is whole, by the lengths and checksums that its container states.

Decoders play what is left of a cut file and say nothing. These checks read headers only, never more than the
bytes at hand, and know nothing of codecs.
"""

import struct
import zlib
from collections.abc import Callable

_UNKNOWN_SIZES = (0, 0xFFFFFFFF)  # written by programs that write to a pipe
_MP3_RATES = (44100, 48000, 32000)
_MP3_KILOBITS_1 = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_MP3_KILOBITS_2 = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def find_damage(encoded: bytes) -> str | None:
    """What contradicts the container's own statements, in words; None where nothing does.

    WAV, AIFF, AU and AVI state the size of their payload, MP4 and QuickTime that of every box, MP3 often
    that of the stream (Xing and Info headers); each Ogg page has a number and a checksum, and the last one
    is marked.
    Other containers pass.
    """
    return next((check(encoded) for matches, check in _CHECKS if matches(encoded)), None)


def is_mp3(encoded: bytes) -> bool:
    """Whether the bytes begin as an MPEG audio stream does, with a tag or without."""
    return encoded[:3] == b"ID3" or (encoded[:1] == b"\xff" and encoded[1:2] >= b"\xe0")


def count_mp3_samples(encoded: bytes) -> int:
    """Samples per channel in the frames of an MP3, told from their headers; up to the first that is none.

    Decoders guess where the file does not state its length, and guess wrong when the bit rate varies.
    """
    position, count = _xing(encoded)[0], 0
    while position + 4 <= len(encoded):
        (header,) = struct.unpack_from(">I", encoded, position)
        version, kilobits, rate = header >> 19 & 3, header >> 12 & 15, header >> 10 & 3
        if header >> 21 != 0x7FF or version == 1 or header >> 17 & 3 != 1 or rate == 3 or kilobits in (0, 15):
            break
        is_first = (
            version == 3
        )  # MPEG-1; the others have half the samples and a half or a quarter of the rate
        samples = 1152 if is_first else 576
        bits = (_MP3_KILOBITS_1 if is_first else _MP3_KILOBITS_2)[kilobits - 1] * 1000
        hertz = _MP3_RATES[rate] >> {3: 0, 2: 1, 0: 2}[version]
        position += samples // 8 * bits // hertz + (header >> 9 & 1)
        count += samples
    return count


def _chunks(encoded: bytes) -> str | None:
    """RIFF and RF64 (little-endian) and FORM (big-endian): sizes up to the payload."""
    order = ">" if encoded[:4] == b"FORM" else "<"
    position = 12
    while position + 8 <= len(encoded):
        name = encoded[position : position + 4]
        (size,) = struct.unpack_from(f"{order}I", encoded, position + 4)
        if name in (b"data", b"SSND") or encoded[position + 8 : position + 12] == b"movi":
            if encoded[:4] == b"RF64" and encoded[12:16] == b"ds64" and position >= 36:
                (size,) = struct.unpack_from("<Q", encoded, 28)  # the long size of the data
            return _payload(position + 8, size, len(encoded))
        position += 8 + size + size % 2
    return "cut short: there are headers and no payload"


def _au_payload(encoded: bytes) -> str | None:
    start, size = struct.unpack_from(">II", encoded.ljust(12, b"\0"), 4)
    return _payload(start, size, len(encoded))


def _payload(start: int, size: int, num_bytes: int) -> str | None:
    missing = start + size - num_bytes
    known = size not in _UNKNOWN_SIZES
    return f"cut short: {missing} of {size} bytes are missing" if known and missing > 0 else None


def _boxes(encoded: bytes) -> str | None:
    """MP4 and QuickTime: the boxes of the outermost level."""
    position, name = 0, b""
    while position < len(encoded):
        size, name = struct.unpack_from(">I4s", encoded.ljust(position + 8, b"\0"), position)
        if size == 1 and position + 16 <= len(encoded):
            (size,) = struct.unpack_from(">Q", encoded, position + 8)
        if size == 0:  # up to the end
            return None
        if size < 8:
            return f"damaged: a box of {size} bytes at {position}"
        position += size
    missing = position - len(encoded)
    return f"cut short: {missing} bytes of box {name!r} are missing" if missing else None


def _pages(encoded: bytes) -> str | None:
    """Ogg: checksums and numbers of the pages, and the mark of the last page of each stream."""
    position, numbers, ended = 0, {}, set()
    while position < len(encoded):
        header = encoded[position : position + 27]
        num_segments = header[26] if len(header) == 27 else 0
        segments = encoded[position + 27 : position + 27 + num_segments]
        stop = position + 27 + num_segments + sum(segments)
        if len(header) < 27 or len(segments) < num_segments or stop > len(encoded):
            return f"cut short: the page at {position} is not whole"
        kind, serial, number, checksum = struct.unpack_from("<B8xIII", header, 5)
        if header[:4] != b"OggS" or _ogg_crc(encoded[position:stop]) != checksum:
            return f"damaged: the page at {position} has a wrong checksum"
        if number != numbers.get(serial, number - 1) + 1:
            return f"damaged: pages are missing before the page at {position}"
        numbers[serial] = number
        if kind & 4:
            ended.add(serial)
        position = stop
    return None if ended.issuperset(numbers) else "cut short: the last page is missing"


def _ogg_crc(page: bytes) -> int:
    """The checksum of a page: CRC-32 with the bits of bytes and result the other way than zlib's."""
    blank = b"".join((page[:22], bytes(4), page[26:])).translate(_REVERSED)
    value = zlib.crc32(blank, 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int.from_bytes(value.to_bytes(4, "little").translate(_REVERSED), "big")


def _mp3_size(encoded: bytes) -> str | None:
    start, flags, numbers = _xing(encoded)
    if not flags & 2:
        return None
    size = numbers[flags & 1]
    missing = size - (len(encoded) - start)
    return f"cut short: {missing} of {size} bytes are missing" if missing > 0 else None


def _xing(encoded: bytes) -> tuple[int, int, tuple[int, int]]:
    """Where the first frame begins, which numbers its Xing or Info header states, and the first two."""
    start = 0
    if encoded[:3] == b"ID3" and len(encoded) >= 10:
        a, b, c, d = (byte & 127 for byte in encoded[6:10])
        start = 10 + (a << 21 | b << 14 | c << 7 | d)
    frame = encoded[start : start + 200]
    found = max(frame.find(b"Xing", 0, 44), frame.find(b"Info", 0, 44))
    if found < 0 or found + 16 > len(frame):
        return start, 0, (0, 0)
    flags, first, second = struct.unpack_from(">III", frame, found + 4)
    return start, flags, (first, second)


_CHECKS: tuple[tuple[Callable[[bytes], bool], Callable[[bytes], str | None]], ...] = (
    (lambda encoded: encoded[:4] in (b"RIFF", b"RF64", b"FORM"), _chunks),
    (lambda encoded: encoded[:4] == b".snd", _au_payload),
    (lambda encoded: encoded[:4] == b"OggS", _pages),
    (lambda encoded: encoded[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free"), _boxes),
    (is_mp3, _mp3_size),
)
