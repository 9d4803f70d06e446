"""Image bytes -> pixels -> patches.

Pillow's own readers are called by the file's first bytes: `Image.open` would try some thirty formats, among
them ones that start programs, and warn about sizes that are checked here before anything is decoded.
"""

import io
import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from msdata_jax.errors import BadSampleError, RecipeError
from msdata_jax.sources.media import put_patches_first, take_bytes
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
        encoded, rest = take_bytes(record, IMAGE_KEYS if self.key is None else (self.key,), "an image")
        return {**rest, "image": self._decode(encoded)}

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
    """Cuts `image` or `frames` into squares, and puts one IMAGE_TOKEN for each before the record's `tokens`.

    The image is scaled to the nearest whole number of patches on each side (at least one), so nothing is cut
    off. `patches` are uint8 `[patches, patch * patch * 3]`, row by row from the top left, each row-major RGB.
    The frames of a video come one after the other, all cut alike.

    Attributes:
        patch: side of a square in pixels.
        max_patches: scale the image down, keeping its shape, until it has at most so many; None for no bound.
            The frames of a video have equal parts of them.

    Raises:
        RecipeError: patch or max_patches below 1.
        BadSampleError: no `image` as DecodeImage makes it nor `frames` as DecodeVideo does, or more frames
            than max_patches.
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
        name = "frames" if record.get("image") is None and "frames" in record else "image"
        pictures = record.get(name)
        pictures = pictures[None] if name == "image" and isinstance(pictures, np.ndarray) else pictures
        if not (
            isinstance(pictures, np.ndarray)
            and pictures.dtype == np.uint8
            and pictures.ndim == 4
            and pictures.shape[3] == 3
            and pictures.size
        ):
            raise BadSampleError(
                "no 'image' of uint8 [height, width, 3] or 'frames' of uint8 [frames, height, width, 3] in "
                "the record; put DecodeImage or DecodeVideo before"
            )
        rest = {key: value for key, value in record.items() if key not in (name, "frame_seconds")}
        return put_patches_first(rest, self._patches(pictures))

    def _patches(self, pictures: np.ndarray) -> np.ndarray:
        """Uint8 `[patches, values]` of `[pictures, height, width, 3]`."""
        share = None if self.max_patches is None else self.max_patches // len(pictures)
        if share == 0:
            raise BadSampleError(f"{len(pictures)} frames, and max_patches is {self.max_patches}")
        return np.concatenate([self._cut(picture, share) for picture in pictures])

    def _cut(self, image: np.ndarray, max_patches: int | None) -> np.ndarray:
        side = self.patch
        rows, columns = _grid(image.shape[0], image.shape[1], side, max_patches)
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
    pillow = require("PIL.Image", "images")
    # The warning: where warnings are errors, it comes for a GIF whose first frame is larger than its screen.
    return (*_PILLOW_ERRORS, pillow.DecompressionBombError, pillow.DecompressionBombWarning)
