import io
import random
import struct
from fractions import Fraction
from itertools import pairwise

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msdata_jax.errors import BadSampleError, RecipeError
from msdata_jax.records import IMAGE_TOKEN
from msdata_jax.sources.images import Patchify
from msdata_jax.sources.video import DecodeVideo, _rgb, needed_runs, sample_times

WIDTH, HEIGHT, RATE = 64, 48, 10
# codec, container, options of the encoder
CLIPS = {
    "h264": ("libx264", "mp4", {"g": "8", "bf": "2", "x264-params": "threads=1"}),
    "h264_open": ("libx264", "matroska", {"x264-params": "threads=1:keyint=8:bframes=2:open-gop=1"}),
    "mpeg4": ("mpeg4", "avi", {"g": "6"}),
    "mpeg2": ("mpeg2video", "vob", {"g": "6", "bf": "2"}),
    "vp8": ("libvpx", "webm", {"g": "8", "auto-alt-ref": "1", "lag-in-frames": "8", "deadline": "realtime"}),
}


def picture(number):
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    moving = ((x - 2 * number) % 32 < 16) ^ (y % 16 < 8)
    return np.stack([moving * 200, x * 3, np.full_like(x, number * 7 % 256)], axis=-1).astype(np.uint8)


def encode(name, num_frames=30, size=(WIDTH, HEIGHT)):
    codec, container, options = CLIPS[name]
    stream = io.BytesIO()
    with av.open(stream, "w", format=container, container_options={"fflags": "+bitexact"}) as output:
        video = output.add_stream(codec, rate=25 if name == "mpeg2" else RATE)
        (video.width, video.height), video.pix_fmt, video.options = size, "yuv420p", options
        video.codec_context.thread_count = 1
        for number in range(num_frames):
            frame = av.VideoFrame.from_ndarray(picture(number), format="rgb24").reformat(*size)
            frame.pts = number
            output.mux(video.encode(frame))
        output.mux(video.encode(None))
    return stream.getvalue()


@pytest.fixture(scope="module")
def clips():
    return {name: encode(name) for name in CLIPS}


def plainly_decoded(encoded):
    """Every frame by a plain loop: (seconds since the first, RGB)."""
    with av.open(io.BytesIO(encoded)) as container:
        frames = list(container.decode(video=0))
        frames.sort(key=lambda frame: frame.pts)
        first, base = frames[0].pts, frames[0].time_base
        return [(float((frame.pts - first) * base), frame) for frame in frames]


def shown_at(plain, seconds):
    return [frame for began, frame in plain if began <= seconds + 1e-9][-1]


@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize(
    "options", [{"fps": 1}, {"fps": 10}, {"fps": 3.7}, {"num_frames": 2}, {"num_frames": 90}]
)
def test_frames_are_those_of_a_plain_loop(name, options, clips):
    record = DecodeVideo(**options)({"mp4": clips[name], "txt": b"bars"})
    assert record.keys() == {"frames", "frame_seconds", "txt"}
    frames, seconds = record["frames"], record["frame_seconds"]
    assert frames.shape == (len(seconds), HEIGHT, WIDTH, 3)
    assert frames.dtype == np.uint8
    plain = plainly_decoded(clips[name])
    for frame, when in zip(frames, seconds, strict=True):
        assert np.array_equal(frame, _rgb(shown_at(plain, when), WIDTH, HEIGHT))
    assert np.all(np.diff(seconds) >= 0)
    if "num_frames" in options:
        assert len(frames) == options["num_frames"]
    else:
        assert np.allclose(
            seconds, np.arange(len(seconds)) / options["fps"], atol=0.1 if name == "mpeg4" else 0.002
        )
        assert len(frames) == pytest.approx((1.2 if name == "mpeg2" else 3) * options["fps"], abs=1)
    assert frames.tobytes() == DecodeVideo(**options)({"mp4": clips[name]})["frames"].tobytes()


def test_frames_look_like_what_was_encoded(clips):
    frames = DecodeVideo(fps=RATE)({"mp4": clips["h264"]})["frames"]
    assert len(frames) == 30
    for number, frame in enumerate(frames):
        assert np.abs(frame.astype(int) - picture(number)).mean() < 30  # colours are at half the resolution


def test_scales_down_and_never_up(clips):
    for longest_side, shape in ((32, (24, 32)), (500, (48, 64)), (None, (48, 64)), (1, (1, 1))):
        frames = DecodeVideo(num_frames=2, longest_side=longest_side)({"mp4": clips["h264"]})["frames"]
        assert frames.shape == (2, *shape, 3)


def test_more_frames_than_wanted_are_spread_evenly(clips):
    record = DecodeVideo(fps=10, max_frames=4)({"mp4": clips["h264"]})
    even = DecodeVideo(num_frames=4)({"mp4": clips["h264"]})
    assert record["frame_seconds"].tolist() == [0.375, 1.125, 1.875, 2.625]
    assert np.array_equal(record["frames"], even["frames"])


def test_frames_become_patches_in_the_order_of_time(clips):
    record = DecodeVideo(num_frames=3)({"webm": clips["vp8"]})
    sample = Patchify(16)(record)
    assert sample.keys() == {"tokens", "patches"}
    assert sample["patches"].shape == (3 * 12, 768)
    assert (sample["tokens"] == IMAGE_TOKEN).all()
    corner = sample["patches"].reshape(3, 12, 16, 16, 3)[:, 0]
    assert np.array_equal(corner, record["frames"][:, :16, :16])


def with_packets(encoded, change):
    """The clip in Matroska, each packet as `change(number, bytes)` says."""
    stream = io.BytesIO()
    options = {"fflags": "+bitexact"}
    with (
        av.open(io.BytesIO(encoded)) as source,
        av.open(stream, "w", format="matroska", container_options=options) as output,
    ):
        video = output.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(source.demux(video=0)):
            if packet.dts is None:
                continue
            changed = av.Packet(change(number, bytes(packet)))
            changed.pts, changed.dts, changed.time_base = packet.pts, packet.dts, packet.time_base
            changed.is_keyframe, changed.stream = packet.is_keyframe, video
            output.mux(changed)
    return stream.getvalue()


def test_an_empty_packet_repeats_the_picture(clips):
    encoded = with_packets(clips["mpeg4"], lambda number, packet: b"" if number in (9, 10) else packet)
    record = DecodeVideo(fps=RATE)({"mkv": encoded})
    whole = DecodeVideo(fps=RATE)({"avi": clips["mpeg4"]})
    assert len(record["frames"]) == 30
    for number in (9, 10):
        assert np.array_equal(record["frames"][number], whole["frames"][8])
    assert np.array_equal(record["frames"][:9], whole["frames"][:9])
    assert np.array_equal(record["frames"][12:], whole["frames"][12:])


def test_damaged_packets_are_counted(clips):
    encoded = with_packets(clips["h264"], lambda number, packet: b"\0" * 40 if number == 13 else packet)
    with pytest.raises(
        BadSampleError, match=r"matroska of .* h264, 64x48 pixels: 1 of 30 .* max_damaged is 0"
    ):
        DecodeVideo(fps=RATE)({"mkv": encoded})
    assert DecodeVideo(fps=RATE, max_damaged=0.5)({"mkv": encoded})["frames"].shape == (30, 48, 64, 3)
    # A run of packets that no wanted frame needs is not even decoded.
    sparse = DecodeVideo(fps=0.5)
    assert np.array_equal(sparse({"mkv": encoded})["frames"], sparse({"mp4": clips["h264"]})["frames"])
    with pytest.raises(BadSampleError, match="0 frames came out"):
        DecodeVideo(fps=1)({"mkv": with_packets(clips["h264"], lambda number, packet: b"\0" * 40)})


@pytest.mark.parametrize("name", CLIPS)
def test_a_cut_file_is_a_bad_sample(name, clips):
    encoded = clips[name]
    if name == "mpeg2":  # states no length: what is left of it is a shorter video
        assert len(DecodeVideo(fps=5, max_damaged=0.5)({"mpg": encoded[: len(encoded) // 2]})["frames"]) < 6
        encoded = encoded[:40]
    for stop in (0, 3, 11, 40, *(len(encoded) * part // 12 for part in range(10))):
        with pytest.raises(BadSampleError):
            DecodeVideo(fps=5)({"mp4": encoded[:stop]})


def outcome_of(decode, encoded):
    """The bytes of the frames, or why there are none."""
    try:
        frames = decode({"mp4": encoded})["frames"]
    except BadSampleError as error:
        return str(error).replace("\\x", "")
    return frames.tobytes() if len(frames) <= decode.max_frames else "too many"


@pytest.mark.parametrize("name", CLIPS)
def test_damage_is_a_bad_sample_or_a_video(name, clips):
    """Never another exception or a warning; and the reason is the same each time."""
    rng = random.Random(name)
    outcomes = []
    decode = DecodeVideo(fps=2, max_frames=20, longest_side=16)
    for _ in range(40):
        mutant, place = bytearray(clips[name]), rng.randrange(len(clips[name]))
        if rng.random() < 0.5:
            mutant[rng.randrange(600)] = rng.randrange(256)  # in the headers
        else:
            mutant[place : place + 8] = rng.randbytes(8)
        outcomes += [outcome_of(decode, bytes(mutant)) for _ in range(2)]
    assert outcomes[::2] == outcomes[1::2]
    assert any(isinstance(outcome, str) for outcome in outcomes)
    assert not any("0x" in outcome or "\n" in outcome for outcome in outcomes if isinstance(outcome, str))


def test_headers_that_promise_too_much_are_not_decoded(clips):
    with pytest.raises(
        BadSampleError, match=r"mov of .* h264, 64x48 pixels: 3072 pixels, max_pixels is 3000"
    ):
        DecodeVideo(fps=1, max_pixels=3000)({"mp4": clips["h264"]})
    with pytest.raises(BadSampleError, match=r"64x48 pixels: 3.0 s, max_seconds is 2"):
        DecodeVideo(fps=1, max_seconds=2)({"mp4": clips["h264"]})
    large = encode("h264_open", 1, (800, 800))
    with pytest.raises(BadSampleError, match=r"matroska of .* 800x800 pixels: 640000 pixels, max_pixels is"):
        DecodeVideo(fps=1, max_pixels=600_000)({"mkv": large})
    days = with_packets(clips["h264"], lambda number, packet: packet)
    place = days.index(b"\x44\x89\x88") + 3  # the duration, float64 milliseconds
    days = days[:place] + struct.pack(">d", 3e9) + days[place + 8 :]
    with pytest.raises(BadSampleError, match=r"matroska of .*: 3000000.0 s, max_seconds is 3600"):
        DecodeVideo(fps=1)({"mkv": days})
    place = days.index(b"\x44\x89\x88") + 3
    longer = days[:place] + struct.pack(">d", 60_000.0) + days[place + 8 :]
    with pytest.raises(BadSampleError, match=r"cut short or damaged: it ends after 3.\d of 60.0 s"):
        DecodeVideo(fps=1)({"mkv": longer})


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        (b"", "0 bytes that begin with b'' are none of MP4"),
        (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "none of MP4"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "none of MP4"),
        (b"\0\0\0\x18ftypmp42" + bytes(12), "mov of 24 bytes"),
        (b"\x1aE\xdf\xa3" + bytes(40), "matroska of 44 bytes, cut short or damaged"),
        (None, "'mp4' is NoneType; a video is the bytes"),
    ],
)
def test_what_is_no_video_is_a_bad_sample(encoded, reason):
    with pytest.raises(BadSampleError, match=reason):
        DecodeVideo(fps=1)({"mp4": encoded})


def test_sound_alone_is_no_video():
    stream = io.BytesIO()
    with av.open(stream, "w", format="matroska") as output:
        sound = output.add_stream("pcm_s16le", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        output.mux(sound.encode(frame))
    with pytest.raises(BadSampleError, match="there is no video in it"):
        DecodeVideo(fps=1)({"mkv": stream.getvalue()})


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(1, 90), st.floats(0.1, 200), st.integers(1, 40))
def test_sample_times_are_even_and_inside(length, ticks_per_second, fps, max_frames):
    base = Fraction(1, ticks_per_second)
    times = sample_times(length, base, fps, None, max_frames)
    assert 1 <= len(times) <= max_frames
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] < length
    if len(times) < max_frames:
        expected = [k / fps for k in range(len(times))]
        assert all(
            0 <= at - tick / ticks_per_second < base + 1e-9 for at, tick in zip(expected, times, strict=True)
        )
        assert len(times) / fps * ticks_per_second >= length - 1e-6
    assert sample_times(length, base, None, max_frames, 1) == [
        int(length * (2 * k + 1) / (2 * max_frames)) for k in range(max_frames)
    ]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_runs_hold_what_wanted_frames_need(kinds, rng):
    """Groups of a key frame and those behind it, some shown before the key frame."""
    is_key = [number == 0 or kind == 0 for number, kind in enumerate(kinds)]
    times = [2 * number if key or kinds[number] < 3 else 2 * number - 5 for number, key in enumerate(is_key)]
    wanted = {time for time in times if rng.random() < 0.3}
    runs = needed_runs(times, is_key, wanted)
    assert all(start < stop for start, stop in runs)
    assert all(before[1] < after[0] for before, after in pairwise(runs))
    decoded = {number for start, stop in runs for number in range(start, stop)}
    for number, time in enumerate(times):
        if time in wanted:
            keys = [key for key in range(number + 1) if is_key[key]]
            first = keys[-1] if time >= times[keys[-1]] else keys[max(-2, -len(keys))]
            assert decoded.issuperset(range(first, number + 1))
    assert all(is_key[start] for start, _ in runs)


def test_refuses_what_makes_no_sense():
    for wrong in (
        DecodeVideo,
        lambda: DecodeVideo(fps=1, num_frames=2),
        lambda: DecodeVideo(fps=0),
        lambda: DecodeVideo(num_frames=0),
        lambda: DecodeVideo(fps=1, max_frames=0),
        lambda: DecodeVideo(fps=1, longest_side=0),
        lambda: DecodeVideo(fps=1, max_pixels=0),
        lambda: DecodeVideo(fps=1, max_seconds=0),
        lambda: DecodeVideo(fps=1, max_damaged=1),
    ):
        with pytest.raises(RecipeError):
            wrong()
