"""Video files -> frames at chosen times; `Patchify` cuts them into patches.

A first pass reads the packets of the file without decoding any: their times say which frames are wanted, and
which runs of packets, each from a key frame on, must be decoded for them. FFmpeg's readers are called by the
file's first bytes: its guessing would also open play lists that name other files.
"""

import io
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from msdata_jax.errors import BadSampleError, RecipeError
from msdata_jax.sources.containers import find_damage
from msdata_jax.sources.media import take_bytes
from msdata_jax.sources.protocol import one_line, require

VIDEO_KEYS = ("video", "mp4", "m4v", "mov", "webm", "mkv", "avi", "mpeg", "mpg", "ogv", "ogg", "record")
_MOST_PIXELS = 2**28
_MOST_STREAMS = 64
_END_TOLERANCE_SECONDS = 0.5  # between the end that a header states and that of the last packet
_STATES_ITS_END = ("matroska", "mov", "avi")

# where -> bytes there -> format of FFmpeg
_FIRST_BYTES = (
    (4, b"ftyp", "mov"), (4, b"moov", "mov"), (4, b"mdat", "mov"), (4, b"wide", "mov"), (4, b"free", "mov"),
    (0, b"\x1aE\xdf\xa3", "matroska"), (8, b"AVI ", "avi"), (0, b"OggS", "ogg"),
    (0, b"\x00\x00\x01\xba", "mpeg"), (0, b"\x00\x00\x01\xb3", "mpegvideo"),
)  # fmt: skip
# Containers whose streams show while they are read, too late to bound FFmpeg's first look at them. These
# codecs state the size of a picture without a look. (The same is why MPEG-TS and FLV are not read.)
_CODECS = {"mpeg": "mpeg1video,mpeg2video", "mpegvideo": "mpeg1video,mpeg2video"}


@dataclass(frozen=True)
class DecodeVideo:
    """Decodes MP4, QuickTime, WebM, Matroska, AVI, MPEG-1, MPEG-2 or Ogg into `frames` and `frame_seconds`.

    `frames` is RGB uint8 `[frames, height, width, 3]` in the order of time; `frame_seconds`, float64
    `[frames]`, counts from the beginning. At each time it is the frame that a player would show: the last one
    that began by then. The encoded bytes leave the record. Sound, rotation and the shape of pixels are not
    looked at.

    Nothing is decoded before the header has been compared with the bounds; runs of packets between key frames
    that no wanted frame needs are not decoded at all.

    Attributes:
        fps: frames a second, from the first frame on. Give either this or `num_frames`.
        num_frames: so many frames, each in the middle of an equal part of the video.
        key: the name of the bytes in the record; None takes the first present of video, mp4, m4v, mov, webm,
            mkv, avi, mpeg, mpg, ogv, ogg, record. A mapping with `bytes` will do.
        longest_side: scale down to this many pixels on the longer side, keeping the shape; None: do not.
        max_frames: where `fps` would give more frames, so many are taken as `num_frames` takes them.
        max_seconds: a video that lasts longer is a bad sample.
        max_pixels: so is one with larger pictures.
        max_damaged: share of the decoded packets that may be damaged: refused by the decoder, or shown with
            repaired parts. 0 makes any damage a bad sample. Empty packets, which repeat a picture, are none.

    Raises:
        RecipeError: both or none of fps and num_frames; a bound that no video can keep.
        BadSampleError: no such bytes, another format, no video in it, too large, too long, or damage; says
            format and size.
    """

    fps: float | None = None
    num_frames: int | None = None
    key: str | None = None
    longest_side: int | None = 224
    max_frames: int = 256
    max_seconds: float = 3600.0
    max_pixels: int = 9_000_000
    max_damaged: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no video can keep."""
        if (self.fps is None) == (self.num_frames is None):
            raise RecipeError(
                f"DecodeVideo takes fps or num_frames, one of both; got {self.fps}, {self.num_frames}"
            )
        counts = [
            count for count in (self.max_frames, self.num_frames, self.longest_side) if count is not None
        ]
        if not (min(counts) >= 1 and 1 <= self.max_pixels <= _MOST_PIXELS and 0 <= self.max_damaged < 1):
            raise RecipeError(
                f"{self}: counts and sides are at least 1, max_pixels up to {_MOST_PIXELS}, max_damaged "
                "from 0 to below 1"
            )
        if not (self.max_seconds > 0 and (self.fps is None or 1e-4 <= self.fps <= 1e4)):
            raise RecipeError(f"{self}: max_seconds is above 0, fps between 0.0001 and 10000")

    def open(self) -> None:
        """Import PyAV."""
        require("av", "video")

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record with its frames."""
        encoded, rest = take_bytes(record, VIDEO_KEYS if self.key is None else (self.key,), "a video")
        file_format = _file_format(encoded)
        av = require("av", "video")
        try:
            frames, seconds = self._decode(encoded, file_format)
        except BadSampleError as error:
            raise BadSampleError(f"{file_format} of {len(encoded)} bytes, {error}") from error
        except (av.FFmpegError, ValueError, OverflowError) as error:
            raise BadSampleError(f"{file_format} of {len(encoded)} bytes, {_reason(error)}") from error
        return {**rest, "frames": frames, "frame_seconds": seconds}

    def _decode(self, encoded: bytes, file_format: str) -> tuple[np.ndarray, np.ndarray]:
        if (damage := find_damage(encoded)) is not None:
            raise BadSampleError(damage)
        with _opened(encoded, file_format, self.max_pixels) as container:
            stream = _video_stream(container, self.max_pixels)
            context = stream.codec_context
            what = f"{context.name}, {context.width}x{context.height} pixels"
            try:
                self._check_header(container, stream)
                packets = _read_packets(container, stream, ends=file_format in _STATES_ITS_END)
                times = packets.shown_times(self.max_seconds)
                ticks = self._wanted_ticks(times, packets)
                frames = self._frames(packets, context, ticks, times)
            except BadSampleError as error:
                raise BadSampleError(f"{what}: {error}") from error
        seconds = np.array([float((tick - times[0]) * packets.time_base) for tick in ticks])
        return frames, seconds

    def _check_header(self, container: Any, stream: Any) -> None:
        width, height = stream.codec_context.width, stream.codec_context.height
        if width < 1 or height < 1:
            raise BadSampleError("has no pixels")
        if width * height > self.max_pixels:
            raise BadSampleError(f"{width * height} pixels, max_pixels is {self.max_pixels}")
        stated = [(container.duration or 0) / 1_000_000]
        if stream.duration is not None and stream.time_base is not None:
            stated.append(float(stream.duration * stream.time_base))
        if max(stated) > self.max_seconds:
            raise BadSampleError(f"{max(stated):.1f} s, max_seconds is {self.max_seconds}")

    def _wanted_ticks(self, times: Sequence[int], packets: "_Packets") -> list[int]:
        """The times of the wanted frames."""
        length = times[-1] - times[0] + packets.last_duration
        wanted = sample_times(length, packets.time_base, self.fps, self.num_frames, self.max_frames)
        return [times[0] + tick for tick in wanted]

    def _frames(
        self, packets: "_Packets", context: Any, ticks: Sequence[int], times: Sequence[int]
    ) -> np.ndarray:
        """Uint8 `[frames, height, width, 3]`: for each tick what is shown then."""
        width, height = self._size(context.width, context.height)
        frames = np.empty((len(ticks), height, width, 3), np.uint8)
        runs = needed_runs(packets.times, packets.is_key, {_shown(times, tick) for tick in ticks})
        decoder = _Decoder(context, packets)
        count, repaired, last = 0, 0, None
        for frame in _at_ticks(decoder.frames(runs), ticks):
            if frame is last:
                frames[count] = frames[count - 1]
            else:
                frames[count] = _rgb(frame, width, height)
                repaired += frame.is_corrupt
            count, last = count + 1, frame
        damaged = decoder.num_refused + repaired
        if count == 0 or damaged > self.max_damaged * max(1, decoder.num_packets):
            raise BadSampleError(
                f"{damaged} of {decoder.num_packets} decoded packets are damaged, {decoder.num_frames} "
                f"frames came out; max_damaged is {self.max_damaged}"
            )
        return frames

    def _size(self, width: int, height: int) -> tuple[int, int]:
        scale = 1.0 if self.longest_side is None else min(1.0, self.longest_side / max(width, height))
        return max(1, round(width * scale)), max(1, round(height * scale))


def sample_times(
    length: int, time_base: Fraction, fps: float | None, num_frames: int | None, max_frames: int
) -> list[int]:
    """When to take frames, in ticks from the beginning, rising.

    Args:
        length: of the video, in ticks.
        time_base: seconds in a tick.
        fps: frames a second, the first one at 0.
        num_frames: or so many, each in the middle of an equal part.
        max_frames: the most that `fps` gives; where it would give more, this is `num_frames`.
    """
    if fps is not None:
        ticks_per_frame = 1 / (Fraction(fps) * time_base)
        count = max(1, -(-length // ticks_per_frame))
        if count <= max_frames:
            return [int(number * ticks_per_frame) for number in range(int(count))]
        num_frames = max_frames
    count = num_frames or 1
    return [(2 * number + 1) * length // (2 * count) for number in range(count)]


def needed_runs(times: Sequence[int], is_key: Sequence[bool], wanted: set[int]) -> list[tuple[int, int]]:
    """Runs [start, stop) of packets that must be decoded for the frames of the wanted times.

    A run begins at a key frame. A frame that is shown before the key frame in front of it may rest on the
    packets before that key frame, too.

    Args:
        times: of each packet, in the order in which they are decoded.
        is_key: whether a packet can be decoded without those before it.
        wanted: times of frames.
    """
    runs: list[tuple[int, int]] = []
    start = leading = 0  # the last two key frames
    for number, time in enumerate(times):
        if is_key[number]:
            start, leading = number, start
        if time in wanted:
            first = start if time >= times[start] else leading
            while runs and first <= runs[-1][1]:
                first = min(first, runs.pop()[0])
            runs.append((first, number + 1))
    return runs


@dataclass(frozen=True, kw_only=True)
class _Packets:
    """The packets of a video stream that are not empty, in the order in which they are decoded."""

    packets: list[Any]
    times: list[int]
    is_key: list[bool]
    is_shown: list[bool]
    time_base: Fraction
    last_duration: int
    can_skip: bool

    def shown_times(self, max_seconds: float) -> list[int]:
        """Times of the frames that are shown, rising."""
        times = sorted({time for time, shown in zip(self.times, self.is_shown, strict=True) if shown})
        if not times:
            raise BadSampleError("cut short or damaged: there is no frame in it")
        seconds = float((times[-1] - times[0]) * self.time_base)
        if seconds > max_seconds:
            raise BadSampleError(f"{seconds:.1f} s, max_seconds is {max_seconds}")
        return times


class _Decoder:
    """Decodes runs of packets, and counts."""

    def __init__(self, context: Any, packets: _Packets) -> None:
        self._context, self._packets = context, packets
        self.num_packets = self.num_refused = self.num_frames = 0

    def frames(self, runs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, Any]]:
        """(time, frame) in the order of time."""
        numbers = iter(self._packets.times)  # times of frames whose packets have none: as they come
        for start, stop in runs if self._packets.can_skip else [(0, runs[-1][1])]:
            for packet in (*self._packets.packets[start:stop], None):
                for frame in self._decoded(packet):
                    self.num_frames += 1
                    yield (
                        frame.pts if self._packets.can_skip else next(numbers, self._packets.times[-1]),
                        frame,
                    )
            self._context.flush_buffers()

    def _decoded(self, packet: Any) -> list[Any]:
        self.num_packets += packet is not None
        try:
            return self._context.decode(packet)
        except require("av", "video").FFmpegError:
            self.num_refused += 1
            return []


def _at_ticks(frames: Iterator[tuple[int, Any]], ticks: Sequence[int]) -> Iterator[Any]:
    """For each tick the last frame that began by then, or the first of all."""
    left, shown = list(reversed(ticks)), None
    for time, frame in frames:
        while left and shown is not None and time > left[-1]:
            left.pop()
            yield shown
        if not left:
            return
        shown = frame
    if shown is not None:
        for _ in left:
            yield shown


def _shown(times: Sequence[int], tick: int) -> int:
    """The last of rising times that is not behind the tick."""
    return times[max(0, bisect_right(times, tick) - 1)]


def _file_format(encoded: bytes) -> str:
    for place, first_bytes, file_format in _FIRST_BYTES:
        if encoded.startswith(first_bytes, place):
            return file_format
    raise BadSampleError(
        f"{len(encoded)} bytes that begin with {encoded[:8]!r} are none of MP4, QuickTime, WebM, Matroska, "
        "AVI, MPEG-1, MPEG-2, Ogg"
    )


def _opened(encoded: bytes, file_format: str, max_pixels: int) -> Any:
    """A container that opens no other file, whose decoders refuse larger pictures, in one thread each."""
    av = require("av", "video")
    limits = {"max_pixels": str(max_pixels), "threads": "1", "flags": "+bitexact"}  # while it looks around
    codecs = {"codec_whitelist": _CODECS[file_format]} if file_format in _CODECS else {}
    return av.open(
        io.BytesIO(encoded),
        format=file_format,
        options=limits,
        container_options={"max_streams": str(_MOST_STREAMS), "protocol_whitelist": "none", **codecs},
        metadata_errors="replace",
    )


def _video_stream(container: Any, max_pixels: int) -> Any:
    """The first stream of moving pictures; its decoder is not opened yet."""
    av = require("av", "video")
    for stream in container.streams.video:
        if not stream.disposition & av.stream.Disposition.attached_pic and stream.codec_context is not None:
            stream.codec_context.thread_count = 1
            stream.codec_context.options = {"max_pixels": str(max_pixels), "flags": "+bitexact"}
            return stream
    raise BadSampleError("there is no video in it")


def _read_packets(container: Any, stream: Any, *, ends: bool) -> _Packets:
    """The packets of the video. With `ends`, some packet must reach the end that the header states."""
    packets, end = [], 0.0
    for packet in container.demux():
        if packet.pts is not None and packet.time_base is not None:
            end = max(end, float((packet.pts + (packet.duration or 0)) * packet.time_base))
        if packet.stream is stream and packet.size:
            packets.append(packet)
    stated = ((container.duration or 0) + (container.start_time or 0)) / 1_000_000
    if ends and stated - end > _END_TOLERANCE_SECONDS:
        raise BadSampleError(f"cut short or damaged: it ends after {end:.1f} of {stated:.1f} s")
    return _with_times(packets, stream)


def _with_times(packets: list[Any], stream: Any) -> _Packets:
    """Packets have times; where some have none, frames come at the stream's average rate."""
    rate: Fraction = stream.average_rate or stream.guessed_rate or Fraction(25)
    clock: Fraction | None = stream.time_base
    can_skip = clock is not None and all(packet.pts is not None for packet in packets)
    last = max(packets, key=lambda packet: packet.pts) if can_skip and packets else None
    time_base = clock if can_skip and clock is not None else 1 / rate
    return _Packets(
        packets=packets,
        times=[packet.pts for packet in packets] if can_skip else list(range(len(packets))),
        is_key=[packet.is_keyframe for packet in packets],
        is_shown=[not packet.is_discard for packet in packets],
        time_base=time_base,
        last_duration=max(1, (last and last.duration) or round(1 / (rate * time_base))),
        can_skip=can_skip,
    )


def _rgb(frame: Any, width: int, height: int) -> np.ndarray:
    """Uint8 `[height, width, 3]`; the same on every machine."""
    ways = require("av.video.reformatter", "video").Interpolation
    flags = ways.BICUBIC | ways.ACCURATE_RND | ways.FULL_CHR_H_INT | ways.BITEXACT
    return frame.to_ndarray(width=width, height=height, format="rgb24", interpolation=flags, threads=1)


def _reason(error: BaseException) -> str:
    """FFmpeg's words without what differs between processes."""
    text = getattr(error, "strerror", None)
    return f"cut short or damaged: {text or one_line(error)}"
