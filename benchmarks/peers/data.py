"""The records, written once into a cache folder: the same in every format, whatever is asked for.

Texts are random tokens of log-normal lengths; a source of 2048 is about 2.7 MB, and one Parquet row group.
Images are JPEGs of 256 by 256. A source depends on its number alone, so that runs with more sources add to
the files that are there. What the formats of other loaders need to write is in their adapters.
"""

import io
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.peers.job import Source
from benchmarks.peers.work import IMAGE, NUM_PATCHES, SEQ_LEN, TEXT, encode

SEED = 1234
TEXT_SHARE = 0.8
LOG_MEAN, LOG_SIGMA = 6.0, 1.0
SHORTEST, LONGEST = 8, 8192
VOCABULARY_SIZE = 50_000
DISTINCT_IMAGES = 32
NUM_PARTS = 16


def cache_folder() -> Path:
    """Where data and the other loaders' environment are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "msdata_jax" / "peers"


def mixture(num_text: int, num_images: int, records_per_source: int, *, even: bool) -> tuple[Source, ...]:
    """Text sources, then image sources with a fifth of the samples; each kind evenly, or log-normally."""
    text_share = TEXT_SHARE if num_images else 1.0
    sources = []
    for kind, count, share in (("text", num_text, text_share), ("image", num_images, 1 - text_share)):
        drawn = np.random.default_rng([SEED, len(kind)]).lognormal(0.0, 1.0, count)
        weights = np.ones(count) if even else drawn
        for index, weight in enumerate((share * weights / weights.sum()).tolist()):
            # Image sources have numbers of their own, whatever the number of text sources.
            number = index + (10_000 if kind == "image" else 0)
            name = f"{kind}{index:04d}x{records_per_source}"
            sources.append(Source(name=name, number=number, num_records=records_per_source, weight=weight))
    return tuple(sources)


def records_of(source: Source) -> list[bytes]:
    """All records of a source."""
    rng = np.random.default_rng([SEED, source.number])
    is_image = source.name.startswith("image")
    payloads = _images(rng, source.num_records) if is_image else _texts(rng, source.num_records)
    kind = IMAGE if is_image else TEXT
    return [encode(source.number, number, kind, payload) for number, payload in enumerate(payloads)]


def mean_tokens(sources: Sequence[Source]) -> float:
    """Of a sample of the mixture, as `work.decode` makes it."""
    lengths = np.clip(draw_lengths(np.random.default_rng(SEED), 100_000), None, SEQ_LEN - 2)
    image_share = sum(source.weight for source in sources if source.name.startswith("image"))
    return 2 + (1 - image_share) * float(lengths.mean()) + image_share * NUM_PATCHES


def write_whole(
    path: Path, records: Sequence[bytes], writer: Callable[[Sequence[bytes], Path], None]
) -> None:
    """Write a file or folder that is there as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"unfinished{os.getpid()}{path.suffix}")
    shutil.rmtree(unfinished, ignore_errors=True)
    writer(records, unfinished)
    unfinished.replace(path)


def write_parquet(records: Sequence[bytes], path: Path) -> None:
    """One column, one row group."""
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"record": pyarrow.array(records, pyarrow.binary())})
    parquet.write_table(table, path, row_group_size=len(records))


def write_parts(records: Sequence[bytes], path: Path) -> None:
    """A folder of Parquet files, for loaders that give whole files to their readers."""
    path.mkdir()
    for part in range(NUM_PARTS):
        write_parquet(records[part::NUM_PARTS], path / f"{part:02d}.parquet")


def write_arrayrecord(records: Sequence[bytes], path: Path) -> None:
    """Records one by one, as grain's documentation advises for random access."""
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()


WRITERS: Mapping[str, Callable[[Sequence[bytes], Path], None]] = {
    "parquet": write_parquet,
    "parquet_parts": write_parts,
    "arrayrecord": write_arrayrecord,
}


def draw_lengths(rng: np.random.Generator, count: int, longest: int = LONGEST) -> np.ndarray:
    """Tokens of texts, int64 `[count]`."""
    return np.clip(rng.lognormal(LOG_MEAN, LOG_SIGMA, count), SHORTEST, longest).astype(np.int64)


def _texts(rng: np.random.Generator, count: int) -> list[bytes]:
    """Small tokens are more frequent than large ones."""
    lengths = draw_lengths(rng, count)
    tokens = (VOCABULARY_SIZE * rng.random(int(lengths.sum())) ** 3).astype(np.uint16)
    return [piece.tobytes() for piece in np.split(tokens, np.cumsum(lengths)[:-1])]


def _images(rng: np.random.Generator, count: int) -> list[bytes]:
    """A few distinct pictures, over and over."""
    pictures = [_jpeg(rng) for _ in range(min(count, DISTINCT_IMAGES))]
    return [pictures[number % len(pictures)] for number in range(count)]


def _jpeg(rng: np.random.Generator) -> bytes:
    """Smooth colours with a little noise."""
    from PIL import Image

    colours = Image.fromarray(rng.integers(0, 255, (16, 16, 3), np.uint8))
    smooth = np.asarray(colours.resize((256, 256), Image.Resampling.BICUBIC)).astype(np.int16)
    noisy = (smooth + rng.integers(-12, 12, smooth.shape, np.int16)).clip(0, 255).astype(np.uint8)
    content = io.BytesIO()
    Image.fromarray(noisy).save(content, "JPEG", quality=85)
    return content.getvalue()
