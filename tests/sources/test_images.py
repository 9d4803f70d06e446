import io
import random
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from msdata_jax.errors import BadSampleError, RecipeError
from msdata_jax.records import IMAGE_TOKEN
from msdata_jax.sources.images import DecodeImage, Patchify, _grid

FORMATS = ["JPEG", "PNG", "WEBP", "GIF", "BMP"]


def make_pixels(height, width, seed=0):
    """A smooth picture with some noise."""
    y, x = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(seed).integers(0, 30, (height, width, 3))
    return (np.stack([y * 2 % 200, x % 200, (x + y) % 200], axis=-1) + noise).astype(np.uint8)


def encode(pixels, file_format="PNG", mode="RGB", **options):
    stream = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(stream, file_format, **options)
    return stream.getvalue()


def png_header(width, height):
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    checksum = struct.pack(">I", zlib.crc32(chunk))
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + checksum + struct.pack(">I", 10) + b"IDAT"


@pytest.mark.parametrize("file_format", FORMATS)
def test_decodes_as_pillow_does(file_format):
    encoded = encode(make_pixels(40, 60), file_format)
    record = DecodeImage()({"jpg": encoded, "txt": b"caption"})
    assert record.keys() == {"image", "txt"}
    assert record["image"].shape == (40, 60, 3)
    assert record["image"].dtype == np.uint8
    assert np.array_equal(record["image"], np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB")))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "I;16"])
def test_modes_become_rgb_without_a_warning(mode):
    if mode == "I;16":
        stream = io.BytesIO()
        Image.fromarray(np.full((8, 9), 300, np.uint16)).save(stream, "PNG")
        encoded = stream.getvalue()
    else:
        transparency = {"transparency": bytes(range(200))} if mode == "P" else {}
        encoded = encode(make_pixels(8, 9), "PNG", mode, **transparency)
    assert DecodeImage()({"png": encoded})["image"].shape == (8, 9, 3)


def test_takes_the_bytes_of_a_hugging_face_column():
    record = {"image": {"bytes": encode(make_pixels(4, 5)), "path": None}}
    assert DecodeImage()(record)["image"].shape == (4, 5, 3)


@pytest.mark.parametrize("file_format", ["JPEG", "PNG"])
def test_scales_down_and_never_up(file_format):
    encoded = encode(make_pixels(300, 200), file_format)
    for longest_side, shape in ((100, (100, 67, 3)), (30, (30, 20, 3)), (1, (1, 1, 3)), (500, (300, 200, 3))):
        image = DecodeImage(longest_side=longest_side)({"img": encoded})["image"]
        assert image.shape == shape


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        (b"", "0 bytes"),
        (b"GIF", "3 bytes"),
        (b"%!PS-Adobe-3.0", "none of JPEG"),
        (png_header(64250, 64250), r"PNG of 41 bytes, 64250x64250 pixels: 4128062500 pixels, max_pixels is"),
        (png_header(0, 5), "PNG of 41 bytes"),
        (png_header(5, 5), "PNG of 41 bytes, 5x5 pixels, cut short or damaged"),
        ("text", "'img' is str"),
        (None, "'img' is NoneType"),
    ],
)
def test_what_is_no_image_is_a_bad_sample(encoded, reason):
    with pytest.raises(BadSampleError, match=reason):
        DecodeImage()({"img": encoded})


def test_a_jpeg_header_that_promises_too_much_is_not_decoded():
    encoded = bytearray(encode(make_pixels(40, 60), "JPEG"))
    place = encoded.index(b"\xff\xc0") + 5
    encoded[place : place + 4] = struct.pack(">HH", 64250, 64250)
    with pytest.raises(BadSampleError, match=r"JPEG of .* 64250x64250 pixels: 4128062500 pixels, max_pixels"):
        DecodeImage()({"jpg": bytes(encoded)})
    with pytest.raises(BadSampleError, match="max_pixels is 100"):
        DecodeImage(max_pixels=100)({"jpg": encode(make_pixels(40, 60), "JPEG")})


@pytest.mark.parametrize("side", [10_000, 20_000])
def test_a_gif_whose_frame_is_larger_than_its_screen_is_not_decoded(side):
    """Pillow warns about the smaller one, and raises an error of its own for the larger one."""
    screen = b"GIF89a" + struct.pack("<HHBBB", 4, 4, 0x80, 0, 0) + bytes(6)
    frame = b"," + struct.pack("<HHHHB", 0, 0, side, side, 0) + b"\x02\x02\x4c\x01\x00;"
    with pytest.raises(BadSampleError, match=f"GIF of {len(screen + frame)} bytes.*{side * side}"):
        DecodeImage()({"gif": screen + frame})


@pytest.mark.parametrize("file_format", FORMATS)
def test_damage_is_a_bad_sample_or_an_image(file_format):
    """Never another exception or a warning; Pillow cannot tell every flipped bit."""
    encoded = encode(make_pixels(40, 60), file_format)
    rng = random.Random(file_format)
    num_bad = 0
    for _ in range(300):
        mutant, place = bytearray(encoded), rng.randrange(len(encoded))
        if rng.random() < 0.3:
            del mutant[place:]
        elif rng.random() < 0.5:
            mutant[rng.randrange(min(120, len(mutant)))] = rng.randrange(256)  # in the headers
        else:
            mutant[place : place + 8] = rng.randbytes(8)
        try:
            image = DecodeImage(max_pixels=10_000_000, longest_side=30)({"image": bytes(mutant)})["image"]
            assert image.ndim == 3
        except BadSampleError:
            num_bad += 1
    assert num_bad > 30


@settings(deadline=None)
@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 9), st.one_of(st.none(), st.integers(1, 30)))
def test_patches_tile_the_image(height, width, patch, max_patches):
    image = make_pixels(height, width)
    record = Patchify(patch, max_patches)({"image": image, "tokens": np.array([5, 6])})
    rows, columns = _grid(height, width, patch, max_patches)
    assert max_patches is None or rows * columns <= max_patches
    assert record.keys() == {"tokens", "patches"}
    assert record["patches"].dtype == np.uint8
    assert record["patches"].shape == (rows * columns, patch * patch * 3)
    assert record["tokens"].tolist() == [IMAGE_TOKEN] * (rows * columns) + [5, 6]
    if (rows * patch, columns * patch) == (height, width):
        for number, flat in enumerate(record["patches"]):
            top, left = number // columns * patch, number % columns * patch
            assert np.array_equal(
                flat.reshape(patch, patch, 3), image[top : top + patch, left : left + patch]
            )


def test_the_shape_is_kept_when_patches_are_bounded():
    assert _grid(640, 320, 16, None) == (40, 20)
    assert _grid(640, 320, 16, 200) == (20, 10)
    assert _grid(1, 100_000, 16, 256) == (1, 256)
    assert _grid(100_000, 1, 16, 256) == (256, 1)


def test_a_second_image_goes_before_the_first():
    record = Patchify(2)({"image": make_pixels(2, 4)})
    first = record["patches"]
    record = Patchify(2)({**record, "image": make_pixels(2, 2, seed=1)})
    assert np.array_equal(record["patches"][1:], first)
    assert record["tokens"].tolist() == [IMAGE_TOKEN] * 3


def test_frames_become_patches_one_after_the_other():
    frames = np.stack([make_pixels(32, 48, seed) for seed in range(3)])
    record = Patchify(16)({"frames": frames, "frame_seconds": np.arange(3.0), "tokens": np.array([7])})
    assert record.keys() == {"tokens", "patches"}
    assert record["tokens"].tolist() == [IMAGE_TOKEN] * 18 + [7]
    alone = [Patchify(16)({"image": frame})["patches"] for frame in frames]
    assert np.array_equal(record["patches"], np.concatenate(alone))
    assert len(Patchify(16, max_patches=14)({"frames": frames})["patches"]) == 3 * 2
    with pytest.raises(BadSampleError, match="3 frames, and max_patches is 2"):
        Patchify(16, max_patches=2)({"frames": frames})


def test_patches_of_one_record_are_equally_wide():
    record = Patchify(16)({"image": make_pixels(16, 16)})
    with pytest.raises(BadSampleError, match="patch_values"):
        Patchify(8)({**record, "image": make_pixels(16, 16)})


def test_refuses_bounds_that_make_no_sense():
    for wrong in (
        lambda: DecodeImage(max_pixels=0),
        lambda: DecodeImage(max_pixels=10**9),
        lambda: DecodeImage(longest_side=0),
        lambda: Patchify(0),
        lambda: Patchify(16, 0),
    ):
        with pytest.raises(RecipeError, match="got"):
            wrong()
    for image in (None, np.zeros((3, 3)), np.zeros((3, 3, 4), np.uint8), np.zeros((0, 3, 3), np.uint8)):
        with pytest.raises(BadSampleError, match="no 'image'"):
            Patchify()({"image": image})
