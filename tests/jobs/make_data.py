"""Small real data for the jobs that tests start: text of the standard library in three formats, images."""

import io
import json
import sysconfig
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

MODULES = ("json", "email", "logging", "unittest", "http", "asyncio")


def make_data(folder: Path) -> None:
    """Write `text.jsonl`, `text.parquet`, `text.arrayrecord`, `images.tar` and `tokenizer.json`."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(path for name in MODULES for path in (root / name).glob("*.py"))
    texts = [path.read_text() for path in files]
    paragraphs = [part for text in texts for part in text.split("\n\n") if part.strip()]
    with (folder / "text.jsonl").open("w") as out:
        out.writelines(json.dumps({"text": text}) + "\n" for text in paragraphs[::3])
    pq.write_table(pa.table({"text": paragraphs[1::3]}), folder / "text.parquet", row_group_size=50)
    writer = ArrayRecordWriter(str(folder / "text.arrayrecord"), "group_size:1")
    for text in texts:
        writer.write(text.encode())
    writer.close()
    _write_images(folder / "images.tar")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(paragraphs[:200], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))


def _write_images(path: Path) -> None:
    """Forty pictures of varied size with captions; the last one is cut off."""
    random = np.random.default_rng(0)
    with tarfile.open(path, "w") as tar:
        for number in range(40):
            height, width = random.integers(8, 64, size=2)
            pixels = random.integers(0, 256, size=(height, width, 3), dtype=np.uint8)
            buffer = io.BytesIO()
            Image.fromarray(pixels).save(buffer, "PNG" if number % 2 else "JPEG")
            data = buffer.getvalue() if number < 39 else buffer.getvalue()[:60]
            _add(tar, f"{number:03d}.{'png' if number % 2 else 'jpg'}", data)
            _add(tar, f"{number:03d}.txt", f"picture number {number}".encode())


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))
