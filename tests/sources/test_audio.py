import io
import random
import struct
import sysconfig
import wave
from pathlib import Path

import numpy as np
import pytest
import soundfile

from msdata_jax.errors import BadSampleError, RecipeError
from msdata_jax.records import IMAGE_TOKEN
from msdata_jax.sources.audio import DecodeAudio, PatchifyAudio
from msdata_jax.sources.containers import count_mp3_samples
from msdata_jax.sources.images import Patchify

MEDIA = Path(__file__).parent / "media"
# Real recordings that come with Python; distributions may leave them out.
PLUCKED = sorted((Path(sysconfig.get_path("stdlib")) / "test" / "audiodata").glob("pluck-*"))
WRITTEN = [
    ("WAV", "PCM_16"), ("WAV", "FLOAT"), ("WAV", "ULAW"), ("WAV", "GSM610"), ("RF64", "PCM_24"),
    ("AIFF", "PCM_16"),
    ("AU", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III"),
]  # fmt: skip
GSM = ("GSM610", 8000, 1)


def tone(num_samples=6000, hz=440.0, rate=8000):
    return (0.5 * np.sin(2 * np.pi * hz * np.arange(num_samples) / rate)).astype(np.float32)


def encode(file_format, subtype, signal=None, rate=8000):
    stream = io.BytesIO()
    soundfile.write(stream, tone() if signal is None else signal, rate, format=file_format, subtype=subtype)
    return stream.getvalue()


def plainly_read(encoded):
    with soundfile.SoundFile(io.BytesIO(encoded)) as file:
        return file.read(file.frames, dtype="float32", always_2d=True), file.samplerate


@pytest.mark.parametrize(("file_format", "subtype"), WRITTEN)
def test_decodes_as_soundfile_does(file_format, subtype):
    signal = tone() if subtype == "GSM610" else np.stack([tone(), tone(hz=900)], axis=1)
    encoded = encode(file_format, subtype, signal)
    samples, rate = plainly_read(encoded)
    record = DecodeAudio(mono=False)({"wav": encoded, "txt": "beep"})
    assert record.keys() == {"audio", "sample_rate", "txt"}
    assert record["sample_rate"] == rate
    assert record["audio"].dtype == np.float32
    assert np.array_equal(record["audio"], samples)
    mixed = DecodeAudio()({"wav": encoded})["audio"]
    assert mixed.shape == (len(samples),)
    assert np.allclose(mixed, samples.mean(axis=1), atol=1e-6)
    assert mixed.tobytes() == DecodeAudio()({"wav": encoded})["audio"].tobytes()


@pytest.mark.parametrize("path", PLUCKED, ids=lambda path: path.name)
def test_decodes_real_recordings(path):
    encoded = path.read_bytes()
    record = DecodeAudio(mono=False)({"audio": {"bytes": encoded, "path": None}})
    assert np.array_equal(record["audio"], plainly_read(encoded)[0])
    assert record["audio"].shape == (3307, 2)


def test_agrees_with_the_wave_module():
    encoded = encode("WAV", "PCM_16")
    with wave.open(io.BytesIO(encoded)) as file:
        plain = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
    assert np.array_equal(DecodeAudio()({"wav": encoded})["audio"], plain.astype(np.float32))


@pytest.mark.parametrize(("name", "seconds"), [("activated.gsm", 0.7), ("number.gsm", 0.5)])
def test_reads_real_speech_without_a_header(name, seconds):
    encoded = (MEDIA / name).read_bytes()
    record = DecodeAudio(raw=GSM)({"gsm": encoded})
    assert record["sample_rate"] == 8000
    assert len(record["audio"]) == len(encoded) // 33 * 160
    assert len(record["audio"]) / 8000 > seconds
    assert 0.05 < np.abs(record["audio"]).max() <= 1
    with pytest.raises(BadSampleError, match=r"raw GSM610 of .* 32 bytes behind the last whole block of 33"):
        DecodeAudio(raw=GSM)({"gsm": encoded[:-1]})


def test_raw_pcm():
    signal = np.array([[0, 16384], [-32768, 32767]], "<i2")
    record = DecodeAudio(raw=("PCM_16", 16000, 2), mono=False)({"raw": signal.tobytes()})
    assert np.array_equal(record["audio"], signal.astype(np.float32) / 32768)


@pytest.mark.parametrize("rate", [4000, 16000, 44100])
def test_resamples(rate):
    record = DecodeAudio(sample_rate=rate)({"wav": encode("WAV", "FLOAT", tone(8000))})
    assert record["sample_rate"] == rate
    assert len(record["audio"]) == rate
    inner = slice(rate // 10, -rate // 10)
    assert np.allclose(record["audio"][inner], tone(rate, rate=rate)[inner], atol=1e-3)


@pytest.mark.parametrize(("file_format", "subtype"), WRITTEN)
def test_a_cut_file_is_a_bad_sample(file_format, subtype):
    encoded = encode(file_format, subtype)
    for stop in {0, 3, 11, 40, 100, *(len(encoded) * part // 25 for part in range(25)), len(encoded) - 3}:
        with pytest.raises(BadSampleError):
            DecodeAudio()({"wav": encoded[:stop]})


def test_expected_samples_tell_what_no_header_tells():
    encoded = (MEDIA / "activated.gsm").read_bytes()
    decode = DecodeAudio(raw=GSM, expected_samples="length", sample_rate=16000)
    length = len(encoded) // 33 * 160
    assert len(decode({"gsm": encoded, "length": length})["audio"]) == 2 * length
    with pytest.raises(BadSampleError, match=f"{length - 160} samples, and the record expects {length}"):
        decode({"gsm": encoded[:-33], "length": length})
    for wrong in ({}, {"length": "5"}):
        with pytest.raises(BadSampleError, match="expected_samples names an int"):
            decode({"gsm": encoded, **wrong})


def outcome_of(decode, encoded):
    """The bytes of the signal, or why there is none."""
    try:
        audio = decode({"wav": encoded})["audio"]
    except BadSampleError as error:
        return str(error).replace("\\x", "")
    return audio.tobytes() if 0 < len(audio) <= decode.max_samples else "too many"


@pytest.mark.parametrize(("file_format", "subtype"), WRITTEN)
def test_damage_is_a_bad_sample_or_a_sound(file_format, subtype):
    """Never another exception or a warning; and the reason is the same each time."""
    encoded = encode(file_format, subtype, tone(2000))
    rng = random.Random(subtype)
    outcomes = []
    decode = DecodeAudio(sample_rate=16000, max_samples=100_000)
    for _ in range(60):
        mutant, place = bytearray(encoded), rng.randrange(len(encoded))
        if rng.random() < 0.6:
            mutant[rng.randrange(min(80, len(mutant)))] = rng.randrange(256)  # in the headers
        else:
            mutant[place : place + 8] = rng.randbytes(8)
        outcomes += [outcome_of(decode, bytes(mutant)) for _ in range(2)]
    assert outcomes[::2] == outcomes[1::2]
    assert any(isinstance(outcome, str) for outcome in outcomes)
    assert not any("0x" in outcome or "\n" in outcome for outcome in outcomes if isinstance(outcome, str))


def test_every_flipped_bit_of_an_ogg_is_found():
    encoded = encode("OGG", "VORBIS", tone(2000))
    for place in range(0, len(encoded), 37):
        mutant = bytearray(encoded)
        mutant[place] ^= 16
        with pytest.raises(BadSampleError):
            DecodeAudio()({"ogg": bytes(mutant)})


def test_headers_that_promise_too_much_are_not_decoded():
    flac = bytearray(encode("FLAC", "PCM_16"))
    flac[21] |= 0x0F  # the total of samples, 36 bits
    flac[22:26] = b"\xff" * 4
    with pytest.raises(
        BadSampleError, match=r"fLaC of .* 68719476735 samples at 8000 Hz last .* max_seconds"
    ):
        DecodeAudio()({"flac": bytes(flac)})
    with pytest.raises(BadSampleError, match="max_samples is 50000000"):
        DecodeAudio(max_seconds=1e9)({"flac": bytes(flac)})
    with pytest.raises(BadSampleError, match=r"6000 samples at 8000 Hz last 0.8 s, max_seconds is 0.5"):
        DecodeAudio(max_seconds=0.5)({"wav": encode("WAV", "PCM_16")})
    slow = bytearray(encode("WAV", "PCM_16"))
    slow[24:28] = struct.pack("<I", 1)  # one sample a second: resampling would make 16,000 of each
    with pytest.raises(BadSampleError, match="1 samples a second"):
        DecodeAudio(sample_rate=16000)({"wav": bytes(slow)})
    with pytest.raises(BadSampleError, match="6 times as many when resampled; max_samples is 30000"):
        DecodeAudio(sample_rate=48000, max_samples=30_000)({"wav": encode("WAV", "PCM_16")})


def test_a_flac_that_states_no_length_is_a_bad_sample():
    encoded = bytearray(encode("FLAC", "PCM_16"))
    encoded[21] &= 0xF0
    encoded[22:26] = bytes(4)  # as a program writes it to a pipe
    with pytest.raises(BadSampleError, match="does not say how many samples"):
        DecodeAudio()({"flac": bytes(encoded)})


@pytest.mark.parametrize("rate", [8000, 22050, 44100])
def test_an_mp3_without_a_stated_length_is_read_to_its_end_or_not_at_all(rate):
    encoded = encode("MP3", "MPEG_LAYER_III", tone(60_000, rate=rate), rate)
    assert len(DecodeAudio()({"mp3": encoded})["audio"]) == 60_000
    assert 60_000 < count_mp3_samples(encoded) < 60_000 + 4 * 1152
    reasons = []
    silent = encode("MP3", "MPEG_LAYER_III", np.concatenate([np.zeros(40_000), tone(20_000)]), rate)
    for whole in (encoded, silent):
        bare = whole[whole.find(whole[:2], 4) :]  # the first frame states the length
        assert count_mp3_samples(bare) >= 60_000
        try:
            assert len(DecodeAudio()({"mp3": bare})["audio"]) > 60_000 - 4 * 1152
        except BadSampleError as error:
            reasons.append(str(error))
    assert all("samples could be decoded" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        (b"", "0 bytes that begin with b'' are none of WAV"),
        (b"%!PS-Adobe-3.0", "none of WAV"),
        (b"RIFF\x10\0\0\0AVI LIST", "RIFF of 16 bytes"),
        (b"OggS" + bytes(40), "OggS of 44 bytes: damaged: the page at 0 has a wrong checksum"),
        (b"ID3" + b"\x7f" * 40, "MP3 of 43 bytes"),
        ("text", "'wav' is str; a sound is the bytes"),
        (encode("WAV", "FLOAT", np.array([0.5, np.nan, 0.1], np.float32)), "no finite numbers"),
        (encode("WAV", "PCM_16", np.zeros(0, np.float32)), "RIFF of 44 bytes: has no samples"),
    ],
)  # fmt: skip
def test_what_is_no_sound_is_a_bad_sample(encoded, reason):
    with pytest.raises(BadSampleError, match=reason):
        DecodeAudio()({"wav": encoded})


def plain_log_mel(signal, *, rate, bands, hop, window, fft_size, highest_hz, floor_db):
    """As the documentation says it, one value after the other."""
    to_mel, to_hz = lambda hz: 2595 * np.log10(1 + hz / 700), lambda mel: 700 * (10 ** (mel / 2595) - 1)
    edges = [to_hz(to_mel(highest_hz) * k / (bands + 1)) for k in range(bands + 2)]
    shape = [0.5 - 0.5 * np.cos(2 * np.pi * k / window) for k in range(window)]
    rows = []
    for start in range(0, len(signal), hop):
        part = [float(x) for x in signal[start : start + window]]
        frame = np.array(part + [0.0] * (window - len(part))) * shape
        power = np.abs(np.fft.rfft(frame, fft_size)) ** 2 / (sum(shape) / 2) ** 2
        row = []
        for low, top, high in zip(edges, edges[1:], edges[2:], strict=False):
            hz = np.arange(len(power)) * rate / fft_size
            triangle = np.clip(np.minimum((hz - low) / (top - low), (high - hz) / (high - top)), 0, None)
            decibels = 10 * np.log10(max(1e-30, float((power * triangle).sum())))
            row.append(int(np.clip(np.rint((decibels - floor_db) * 255 / -floor_db), 0, 255)))
        rows.append(row)
    return np.array(rows, np.uint8)


def test_patches_are_log_mel_frames_in_order():
    signal = (tone(3000, 440) * 0.3 + tone(3000, 1700) * 0.2).astype(np.float32)
    record = PatchifyAudio()({"audio": signal, "sample_rate": 8000, "tokens": np.array([7], np.int32)})
    assert record.keys() == {"tokens", "patches"}
    assert record["patches"].shape == (4, 768)  # 38 frames, 12 in a patch
    assert record["tokens"].tolist() == [IMAGE_TOKEN] * 4 + [7]
    plain = plain_log_mel(
        signal, rate=8000, bands=64, hop=80, window=200, fft_size=512, highest_hz=8000, floor_db=-100
    )
    frames = record["patches"].reshape(48, 64)
    assert np.array_equal(frames[:38], plain)
    assert not frames[38:].any()


def test_a_tone_is_where_it_sounds_and_as_loud_as_it_is():
    patches = PatchifyAudio()({"audio": 2 * tone(16000, 1000, 16000), "sample_rate": 16000})["patches"]
    frame = patches[2].reshape(12, 64)[3]
    mel = 2595 * np.log10(1 + np.array([1000, 8000]) / 700)
    assert abs(int(frame.argmax()) - (mel[0] / mel[1] * 65 - 1)) <= 1
    assert frame.max() >= 250
    silence = PatchifyAudio()({"audio": np.zeros(100, np.float32), "sample_rate": 16000})["patches"]
    assert silence.shape == (1, 768)
    assert not silence.any()


def test_sound_and_pictures_share_a_record():
    record = Patchify(16)({"image": np.zeros((16, 32, 3), np.uint8), "audio": tone(), "sample_rate": 8000})
    record = PatchifyAudio(max_patches=3)(record)
    assert record["patches"].shape == (5, 768)
    assert record["tokens"].tolist() == [IMAGE_TOKEN] * 5
    stereo = np.stack([tone(), tone()], axis=1)
    assert np.array_equal(
        PatchifyAudio()({"audio": stereo, "sample_rate": 8000})["patches"],
        PatchifyAudio()({"audio": tone(), "sample_rate": 8000})["patches"],
    )


def test_refuses_what_makes_no_sense():
    for wrong in (
        lambda: DecodeAudio(max_samples=0),
        lambda: DecodeAudio(max_samples=2**31),
        lambda: DecodeAudio(max_seconds=0),
        lambda: DecodeAudio(sample_rate=10),
        lambda: DecodeAudio(raw=("MP3", 8000, 1)),
        lambda: DecodeAudio(raw=("GSM610", 8000, 2)),
        lambda: DecodeAudio(raw=("PCM_16", 0, 2)),
    ):
        with pytest.raises(RecipeError, match="got"):
            wrong()
    for wrong in (
        lambda: PatchifyAudio(bands=0),
        lambda: PatchifyAudio(frames=0),
        lambda: PatchifyAudio(max_patches=0),
        lambda: PatchifyAudio(hop_seconds=0),
        lambda: PatchifyAudio(floor_db=0),
        lambda: PatchifyAudio(window_seconds=2),
    ):
        with pytest.raises(RecipeError, match="at least 1"):
            wrong()
    for record in ({}, {"audio": tone()}, {"audio": tone()[:0], "sample_rate": 8000}, {"audio": [0.1]}):
        with pytest.raises(BadSampleError, match="'audio'"):
            PatchifyAudio()(record)
