"""Image bytes -> pixels -> patches.

Pillow's own readers are called by the file's first bytes: `Image.open` would try some thirty formats, among
them ones that start programs, and warn about sizes that are checked here before anything is decoded.
"""

import io
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from msdata_jax.errors import BadSampleError, RecipeError
from msdata_jax.records import IMAGE_TOKEN
from msdata_jax.sources.protocol import one_line, require

IMAGE_KEYS = ("image", "jpg", "jpeg", "png", "webp", "gif", "bmp", "img", "record")
_BOMB_PIXELS = 89_478_485  # where Pillow starts to warn

# first bytes -> format, module and class in Pillow
_READERS = (
    (b"\xff\xd8\xff", "JPEG", "JpegImagePlugin", "JpegImageFile"),
    (b"\x89PNG\r\n\x1a\n", "PNG", "PngImagePlugin", "PngImageFile"),
    (b"RIFF", "WebP", "WebPImagePlugin", "WebPImageFile"),
    (b"GIF8", "GIF", "GifImagePlugin", "GifImageFile"),
    (b"BM", "BMP", "BmpImagePlugin", "BmpImageFile"),
)
# What Pillow raises on files that are cut or wrong: no class of its own, but those of its parsers.
_PILLOW_ERRORS = (
    OSError, SyntaxError, ValueError, struct.error, EOFError, IndexError, KeyError, TypeError, OverflowError,
    ZeroDivisionError, AttributeError,
)  # fmt: skip


@dataclass(frozen=True)
class DecodeImage:
    """Decodes a JPEG, PNG, WebP, GIF (first frame) or BMP into `image`, RGB uint8 `[height, width, 3]`.

    The encoded bytes leave the record. Transparency is dropped, and an EXIF orientation is not applied.

    Attributes:
        key: the name of the bytes in the record; None takes the first present of image, jpg, jpeg, png, webp,
            gif, bmp, img, record. A mapping with `bytes` (as in Hugging Face's Parquet files) will do.
        max_pixels: an image whose header promises more is a bad sample, and is not decoded.
        longest_side: scale down to this many pixels on the longer side, keeping the shape; None: do not.

    Raises:
        RecipeError: a bound that no image can keep, or one beyond 89,478,485 pixels (Pillow's own).
        BadSampleError: no such bytes, another format, too many pixels, or damage; says format and size.
    """

    key: str | None = None
    max_pixels: int = 50_000_000
    longest_side: int | None = None

    def __post_init__(self) -> None:
        """Refuse bounds that no image can keep."""
        if not 1 <= self.max_pixels <= _BOMB_PIXELS:
            raise RecipeError(f"max_pixels is between 1 and {_BOMB_PIXELS}, got {self.max_pixels}")
        if self.longest_side is not None and self.longest_side < 1:
            raise RecipeError(f"longest_side is at least 1 pixel, got {self.longest_side}")

    def open(self) -> None:
        """Import Pillow."""
        require("PIL", "images")

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record with its image."""
        key, encoded = self._encoded(record)
        rest = {name: value for name, value in record.items() if name != key}
        return {**rest, "image": self._decode(encoded)}

    def _encoded(self, record: dict[str, Any]) -> tuple[str, bytes]:
        keys = IMAGE_KEYS if self.key is None else (self.key,)
        key = next((key for key in keys if key in record), None)
        if key is None:
            raise BadSampleError(f"no {' or '.join(keys)} in the record, which has {sorted(record)}")
        value = record[key]
        if isinstance(value, Mapping):
            value = value.get("bytes")
        if not isinstance(value, bytes):
            raise BadSampleError(f"{key!r} is {type(value).__name__}; an image is the bytes of its file")
        return key, value

    def _decode(self, encoded: bytes) -> np.ndarray:
        reader = next((reader for reader in _READERS if encoded.startswith(reader[0])), None)
        if reader is None:
            raise BadSampleError(
                f"{len(encoded)} bytes that begin with {encoded[:8]!r} are none of JPEG, PNG, WebP, GIF, BMP"
            )
        _, what, module, class_name = reader
        what = f"{what} of {len(encoded)} bytes"
        try:
            with getattr(require(f"PIL.{module}", "images"), class_name)(io.BytesIO(encoded)) as image:
                what += f", {image.width}x{image.height} pixels"
                self._check_size(image.width, image.height)
                return self._pixels(image)
        except BadSampleError as error:
            raise BadSampleError(f"{what}: {error}") from error
        except _pillow_errors() as error:
            raise BadSampleError(f"{what}, cut short or damaged: {one_line(error)}") from error

    def _check_size(self, width: int, height: int) -> None:
        if width < 1 or height < 1:
            raise BadSampleError("has no pixels")
        if width * height > self.max_pixels:
            raise BadSampleError(f"{width * height} pixels, max_pixels is {self.max_pixels}")

    def _pixels(self, image: Any) -> np.ndarray:
        scale = 1.0 if self.longest_side is None else self.longest_side / max(image.size)
        if scale >= 1:
            return np.array(_rgb(image))
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        image.draft("RGB", size)  # a JPEG decodes at a half, a quarter or an eighth at less cost
        return np.array(_resized(_rgb(image), size))


@dataclass(frozen=True)
class Patchify:
    """Cuts `image` into squares, and puts one IMAGE_TOKEN for each before the record's `tokens`.

    The image is scaled to the nearest whole number of patches on each side (at least one), so nothing is cut
    off. `patches` are uint8 `[patches, patch * patch * 3]`, row by row from the top left, each row-major RGB.

    Attributes:
        patch: side of a square in pixels.
        max_patches: scale the image down, keeping its shape, until it has at most so many; None for no bound.

    Raises:
        RecipeError: patch or max_patches below 1.
        BadSampleError: no `image` as DecodeImage makes it.
    """

    patch: int = 16
    max_patches: int | None = None

    def __post_init__(self) -> None:
        """Refuse sizes that no patch can have."""
        if self.patch < 1 or (self.max_patches is not None and self.max_patches < 1):
            raise RecipeError(
                f"Patchify needs patch and max_patches of at least 1, got {self.patch} and {self.max_patches}"
            )

    def open(self) -> None:
        """Import Pillow."""
        require("PIL.Image", "images")

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record with patches and tokens instead of the image."""
        image = record.get("image")
        if not (
            isinstance(image, np.ndarray)
            and image.dtype == np.uint8
            and image.shape[2:] == (3,)
            and image.size
        ):
            raise BadSampleError(
                "no 'image' of uint8 [height, width, 3] in the record; put DecodeImage before"
            )
        patches = self._cut(image)
        tokens = np.full(len(patches), IMAGE_TOKEN, np.int32)
        if record.get("tokens") is not None:
            tokens = np.concatenate([tokens, np.asarray(record["tokens"], np.int32)])
        if record.get("patches") is not None:
            patches = np.concatenate([patches, record["patches"]])
        rest = {name: value for name, value in record.items() if name != "image"}
        return {**rest, "tokens": tokens, "patches": patches}

    def _cut(self, image: np.ndarray) -> np.ndarray:
        side = self.patch
        rows, columns = _grid(image.shape[0], image.shape[1], side, self.max_patches)
        if image.shape[:2] != (rows * side, columns * side):
            pillow = require("PIL.Image", "images")
            image = np.asarray(_resized(pillow.fromarray(image), (columns * side, rows * side)))
        # [rows*side, columns*side, 3] -> [rows, side, columns, side, 3] -> [rows*columns, side*side*3]
        squares = image.reshape(rows, side, columns, side, 3).swapaxes(1, 2)
        return squares.reshape(rows * columns, side * side * 3)


def _grid(height: int, width: int, side: int, max_patches: int | None) -> tuple[int, int]:
    """Rows and columns of patches."""
    rows, columns = max(1, (height + side // 2) // side), max(1, (width + side // 2) // side)
    if max_patches is not None and rows * columns > max_patches:
        scale = math.sqrt(max_patches / (rows * columns))
        rows = min(max(1, math.floor(rows * scale)), max_patches)
        columns = max(1, min(math.floor(columns * scale), max_patches // rows))
    return rows, columns


def _rgb(image: Any) -> Any:
    if image.mode in (
        "P",
        "PA",
    ):  # a palette may hold transparency, which Pillow warns about on the way to RGB
        image = image.convert("RGBA")
    return image.convert("RGB")


def _resized(image: Any, size: tuple[int, int]) -> Any:
    pillow = require("PIL.Image", "images")
    return image.resize(size, pillow.Resampling.BICUBIC, reducing_gap=3.0)


def _pillow_errors() -> tuple[type[BaseException], ...]:
    return (*_PILLOW_ERRORS, require("PIL.Image", "images").DecompressionBombError)
