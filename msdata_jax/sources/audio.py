"""Sound files -> signal -> patches of log-mel bands."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from msdata_jax.errors import BadSampleError, RecipeError
from msdata_jax.sources.containers import count_mp3_samples, find_damage, is_mp3
from msdata_jax.sources.media import put_patches_first, take_bytes
from msdata_jax.sources.protocol import one_line, require

AUDIO_KEYS = ("audio", "wav", "flac", "ogg", "opus", "mp3", "aiff", "aif", "au", "gsm", "raw", "record")
_FORMATS = ("WAV", "WAVEX", "RF64", "AIFF", "AU", "FLAC", "OGG", "MP3")
_FIRST_BYTES = (b"RIFF", b"RIFX", b"RF64", b"FORM", b".snd", b"fLaC", b"OggS")
_RAW_BLOCK_BYTES = {"PCM_S8": 1, "PCM_U8": 1, "PCM_16": 2, "PCM_24": 3, "PCM_32": 4, "FLOAT": 4, "DOUBLE": 8}
_RAW_BLOCK_BYTES |= {"ULAW": 1, "ALAW": 1, "GSM610": 33}
_RATES = (1_000, 768_000)
_UNKNOWN_FRAMES = 2**63 - 1
_MP3_MARGIN = 4 * 1152  # what encoders put before and behind the sound
_MOST_SAMPLES = 2**31 - 1


@dataclass(frozen=True)
class DecodeAudio:
    """Decodes WAV, FLAC, Ogg (Vorbis, Opus), MP3, AIFF or AU into `audio` and `sample_rate`.

    `audio` is float32 of about -1 to 1, `[samples]`, or `[samples, channels]` with `mono=False`;
    `sample_rate` is an int in Hz. The encoded bytes leave the record. The length in the header is compared
    with the bounds before anything is decoded, and no more than that is decoded.

    A sound that is shorter than its container says, or whose Ogg pages have wrong checksums, is a bad sample:
    the decoders would give a shorter signal and say nothing. Where the container says no length (raw data,
    some MP3 files, WAV written to a pipe) `expected_samples` can.

    Attributes:
        key: the name of the bytes in the record; None takes the first present of audio, wav, flac, ogg, opus,
            mp3, aiff, aif, au, gsm, raw, record. A mapping with `bytes` will do.
        sample_rate: the rate in Hz to resample to (soxr, quality HQ); None keeps each file's own.
        mono: the mean of the channels; or keep the channels.
        max_seconds: a sound that lasts longer is a bad sample.
        max_samples: so is one of more samples, all channels together, before or after resampling.
        raw: encoding, rate in Hz and channels of files without a header, as `("GSM610", 8000, 1)`. Encodings
            are PCM_S8, PCM_U8, PCM_16, PCM_24, PCM_32, FLOAT, DOUBLE (little-endian), ULAW, ALAW, GSM610.
        expected_samples: the name of an int in the record: samples per channel of the file, at its own rate.

    Raises:
        RecipeError: a bound, rate or encoding that no sound can have.
        BadSampleError: no such bytes, another format, too long, damage; says format and length.
    """

    key: str | None = None
    sample_rate: int | None = None
    mono: bool = True
    max_seconds: float = 3600.0
    max_samples: int = 50_000_000
    raw: tuple[str, int, int] | None = None
    expected_samples: str | None = None

    def __post_init__(self) -> None:
        """Refuse what no sound can have."""
        if not (self.max_seconds > 0 and 1 <= self.max_samples <= _MOST_SAMPLES):
            raise RecipeError(
                f"max_seconds is above 0 and max_samples between 1 and {_MOST_SAMPLES}, got "
                f"{self.max_seconds} and {self.max_samples}"
            )
        if self.raw is not None and (self.raw[0] not in _RAW_BLOCK_BYTES or not 1 <= self.raw[2] <= 64):
            raise RecipeError(
                f"raw is one of {sorted(_RAW_BLOCK_BYTES)}, Hz, 1 to 64 channels; got {self.raw}"
            )
        if self.raw is not None and self.raw[0] == "GSM610" and self.raw[2] != 1:
            raise RecipeError(f"GSM610 has 1 channel, got raw={self.raw}")
        for rate in (self.sample_rate, self.raw and self.raw[1]):
            if rate is not None and not _RATES[0] <= rate <= _RATES[1]:
                raise RecipeError(f"a sample rate is {_RATES[0]} to {_RATES[1]} Hz, got {rate}")

    def open(self) -> None:
        """Import the libraries."""
        require("soundfile", "audio")
        if self.sample_rate is not None:
            require("soxr", "audio")

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record with its signal."""
        encoded, rest = take_bytes(record, AUDIO_KEYS if self.key is None else (self.key,), "a sound")
        expected = self._expected(rest)
        what = f"{self._kind(encoded)} of {len(encoded)} bytes"
        try:
            signal, rate = self._signal(encoded, expected)
        except BadSampleError as error:
            raise BadSampleError(f"{what}: {error}") from error
        return {**rest, "audio": signal, "sample_rate": rate}

    def _expected(self, record: dict[str, Any]) -> int | None:
        if self.expected_samples is None:
            return None
        value = record.get(self.expected_samples)
        if not isinstance(value, int | np.integer):
            raise BadSampleError(
                f"expected_samples names an int in the record; {self.expected_samples!r} is "
                f"{type(value).__name__}"
            )
        return int(value)

    def _kind(self, encoded: bytes) -> str:
        if self.raw is not None:
            return f"raw {self.raw[0]}"
        if encoded.startswith(_FIRST_BYTES):
            return encoded[:4].decode().strip(".")
        if is_mp3(encoded):
            return "MP3"
        raise BadSampleError(
            f"{len(encoded)} bytes that begin with {encoded[:8]!r} are none of WAV, FLAC, Ogg, MP3, AIFF, "
            "AU; sound without a header needs DecodeAudio(raw=...)"
        )

    def _signal(self, encoded: bytes, expected: int | None) -> tuple[np.ndarray, int]:
        """The signal as it is delivered, and its rate."""
        damage = self._raw_damage(encoded) if self.raw else find_damage(encoded)
        if damage is not None:
            raise BadSampleError(damage)
        soundfile = require("soundfile", "audio")
        try:
            with soundfile.SoundFile(io.BytesIO(encoded), **self._raw_options()) as file:
                self._check_header(file)
                samples = self._decoded(file)
                stated = file.frames
        except (soundfile.SoundFileError, ValueError, OverflowError) as error:
            text = getattr(error, "error_string", None) or one_line(error)
            raise BadSampleError(f"cut short or damaged: {text}") from error
        if is_mp3(encoded) and not self.raw:
            stated = max(stated, count_mp3_samples(encoded) - _MP3_MARGIN)
        _check_length(len(samples), None if self.raw else stated, expected)
        return self._finished(samples, file.samplerate)

    def _raw_damage(self, encoded: bytes) -> str | None:
        encoding, _, channels = self.raw or ("", 0, 0)
        block = _RAW_BLOCK_BYTES[encoding] * channels
        left = len(encoded) % block
        return f"cut short: {left} bytes behind the last whole block of {block}" if left else None

    def _raw_options(self) -> dict[str, Any]:
        if self.raw is None:
            return {}
        encoding, rate, channels = self.raw
        options = {"format": "RAW", "subtype": encoding, "samplerate": rate, "channels": channels}
        return options if encoding == "GSM610" else {**options, "endian": "LITTLE"}

    def _check_header(self, file: Any) -> None:
        if self.raw is None and file.format not in _FORMATS:
            raise BadSampleError(f"a {file.format} file; read are {', '.join(_FORMATS)}")
        if not _RATES[0] <= file.samplerate <= _RATES[1]:
            raise BadSampleError(f"{file.samplerate} samples a second; {_RATES[0]} to {_RATES[1]} are read")
        if file.frames == _UNKNOWN_FRAMES:
            raise BadSampleError("its header does not say how many samples there are; write it anew")
        self._check_bounds(file.frames, file.samplerate, file.channels)

    def _check_bounds(self, num_frames: int, rate: int, channels: int) -> None:
        """Refuse what is too long, as it is or resampled."""
        if num_frames > self.max_seconds * rate:
            raise BadSampleError(
                f"{num_frames} samples at {rate} Hz last {num_frames / rate:.1f} s, max_seconds is "
                f"{self.max_seconds}"
            )
        growth = max(1.0, (self.sample_rate or rate) / rate)
        if num_frames * channels * growth > self.max_samples:
            raise BadSampleError(
                f"{num_frames} samples of {channels} channels, {growth:g} times as many when resampled; "
                f"max_samples is {self.max_samples}"
            )

    def _decoded(self, file: Any) -> np.ndarray:
        """Float32 `[samples, channels]`."""
        # At once: soundfile seeks between reads, and MP3 is rounded otherwise then.
        samples = file.read(file.frames, dtype="float32", always_2d=True)
        if len(samples) == 0:
            raise BadSampleError("has no samples")
        with np.errstate(all="ignore"):
            return samples.mean(axis=1, keepdims=True) if self.mono else samples

    def _finished(self, samples: np.ndarray, rate: int) -> tuple[np.ndarray, int]:
        """Resampled and finite, `[samples]` or `[samples, channels]`."""
        if self.sample_rate is not None and self.sample_rate != rate:
            with np.errstate(all="ignore"):
                samples = require("soxr", "audio").resample(samples, rate, self.sample_rate, quality="HQ")
            rate = self.sample_rate
        if not np.isfinite(samples).all():
            raise BadSampleError("damaged: samples that are no finite numbers")
        if len(samples) == 0:
            raise BadSampleError(f"too short for a sample at {rate} Hz")
        return np.ascontiguousarray(samples[:, 0] if self.mono else samples), rate


@dataclass(frozen=True)
class PatchifyAudio:
    """Turns `audio` into patches of log-mel bands, one IMAGE_TOKEN for each before the record's `tokens`.

    A patch is uint8 `[frames * bands]`, frame after frame: 12 frames of 64 bands are as wide as a 16 x 16
    square of RGB, so that sound and images share a recipe. A frame is a Hann window of the signal, every
    `hop_seconds` from its beginning; a band is 10 log10 of the power in a triangle on the mel scale, 0 for
    `floor_db` or less, 255 for a sine of full amplitude. The last patch is filled up with silence.

    Attributes:
        bands: mel bands between 0 Hz and `highest_hz`.
        frames: frames in a patch.
        hop_seconds: from one frame to the next.
        window_seconds: length of a window.
        highest_hz: upper end of the highest band; what the signal's rate does not hold is silence.
        floor_db: the power that becomes 0, in decibels below a sine of full amplitude.
        max_patches: a longer sound is cut after so many; None: whole.

    Raises:
        RecipeError: sizes that nothing can have.
        BadSampleError: no `audio` and `sample_rate` as DecodeAudio makes them.
    """

    bands: int = 64
    frames: int = 12
    hop_seconds: float = 0.010
    window_seconds: float = 0.025
    highest_hz: float = 8000.0
    floor_db: float = -100.0
    max_patches: int | None = None

    def __post_init__(self) -> None:
        """Refuse sizes that nothing can have."""
        whole = min(self.bands, self.frames, 1 if self.max_patches is None else self.max_patches)
        lengths = (self.hop_seconds, self.window_seconds, self.highest_hz, -self.floor_db)
        if whole < 1 or min(lengths) <= 0 or max(self.hop_seconds, self.window_seconds) > 1:
            raise RecipeError(
                f"{self}: bands, frames and max_patches are at least 1, hop and window above 0 and up to 1 "
                "s, highest_hz above 0, floor_db below 0"
            )

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record with patches and tokens instead of the signal."""
        signal, rate = record.get("audio"), record.get("sample_rate")
        if not (isinstance(signal, np.ndarray) and signal.dtype == np.float32 and signal.ndim in (1, 2)):
            raise BadSampleError("no 'audio' of float32 [samples] in the record; put DecodeAudio before")
        if not (isinstance(rate, int) and _RATES[0] <= rate <= _RATES[1] and signal.size):
            raise BadSampleError(f"'audio' of {signal.shape} samples at {rate!r} Hz is no sound")
        rest = {name: value for name, value in record.items() if name not in ("audio", "sample_rate")}
        return put_patches_first(rest, self._patches(signal, rate))

    def _patches(self, signal: np.ndarray, rate: int) -> np.ndarray:
        """Uint8 `[patches, frames * bands]`."""
        hop, window = max(1, round(self.hop_seconds * rate)), max(2, round(self.window_seconds * rate))
        num_patches = -(-len(signal) // (hop * self.frames))
        if self.max_patches is not None:
            num_patches = min(num_patches, self.max_patches)
        patches = np.empty((num_patches * self.frames, self.bands), np.uint8)
        filters = _mel_filters(self.bands, self.highest_hz, rate, _fft_size(window))
        for start, frames in _windows(signal, hop, window, len(patches)):
            power = np.abs(np.fft.rfft(frames * _hann(window), _fft_size(window))) ** 2
            bands = power / (_hann(window).sum() / 2) ** 2 @ filters
            decibels = 10 * np.log10(np.maximum(bands, 1e-30))
            scaled = np.rint((decibels - self.floor_db) * (255 / -self.floor_db))
            patches[start : start + len(frames)] = np.clip(scaled, 0, 255).astype(np.uint8)
        # [patches*frames, bands] -> [patches, frames*bands]
        return patches.reshape(num_patches, self.frames * self.bands)


def _check_length(num_samples: int, stated: int | None, expected: int | None) -> None:
    if stated is not None and num_samples != stated:
        raise BadSampleError(f"cut short or damaged: {num_samples} of {stated} samples could be decoded")
    if expected is not None and num_samples != expected:
        raise BadSampleError(f"{num_samples} samples, and the record expects {expected}")


def _windows(signal: np.ndarray, hop: int, window: int, count: int) -> Iterator[tuple[int, np.ndarray]]:
    """(number of the first, float64 `[frames, window]`), a block at a time; beyond the signal is silence."""
    block = max(1, (1 << 20) // window)
    for start in range(0, count, block):
        stop = min(start + block, count)
        part = signal[start * hop : (stop - 1) * hop + window]
        part = np.asarray(part if part.ndim == 1 else part.mean(axis=1), np.float64)
        part = np.pad(part, (0, (stop - start - 1) * hop + window - len(part)))
        yield start, np.lib.stride_tricks.sliding_window_view(part, window)[::hop]


def _hann(window: int) -> np.ndarray:
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)


def _fft_size(window: int) -> int:
    """A power of two, at least twice the window: the lowest bands are narrower than its own bins."""
    return 1 << (2 * window - 1).bit_length()


def _mel_filters(bands: int, highest_hz: float, rate: int, fft_size: int) -> np.ndarray:
    """Float64 `[bins, bands]`: triangles between neighbouring points of the mel scale, 1 at the top."""
    highest_mel = 2595 * np.log10(1 + highest_hz / 700)
    edges = 700 * (10 ** (np.linspace(0, highest_mel, bands + 2) / 2595) - 1)
    bins = np.fft.rfftfreq(fft_size, 1 / rate)[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rising, falling))
