"""Writes the folders of `mds/` by mosaicml-streaming, and `mds/expected.json`: what its own reader gives.

    pip install --no-deps --target DIR mosaicml-streaming==0.13.0 zstd brotli xxhash python-snappy cramjam \
        catalogue tqdm
    PYTHONPATH=DIR python tests/sources/data/write_mds.py
"""

import base64
import importlib.abc
import importlib.machinery
import io
import json
import shutil
import sys
import types
from decimal import Decimal
from pathlib import Path

import numpy as np
from PIL import Image

FOLDER = Path(__file__).parent / "mds"
# What the library imports, and its writer and reader of local files do not use.
NOT_NEEDED = {"azure", "boto3", "botocore", "google", "oci", "paramiko", "torchvision", "transformers"}
COLUMNS = {
    "text": "str",
    "number": "int",
    "raw": "bytes",
    "meta": "json",
    "tokens": "ndarray:uint16",
    "any_array": "ndarray",
    "grid": "ndarray:int32:2,3",
    "vector": "ndarray:float32:4",
    "score": "float32",
    "half": "float16",
    "byte": "uint8",
    "big": "uint64",
    "str_int": "str_int",
    "str_float": "str_float",
    "str_decimal": "str_decimal",
    "image": "png",
    "photo": "jpeg",
    "images": "list[png]",
    "photos": "jpeg_array",
}
IMAGES = ("image", "photo", "images", "photos")


class Stub(types.ModuleType):
    __path__: tuple = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Exception,), {})


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] in NOT_NEEDED:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        return Stub(spec.name)

    def exec_module(self, module):
        pass


def picture(number, kind):
    pixels = np.random.default_rng(number).integers(0, 255, (2, 3, 3), np.uint8)
    image = Image.fromarray(np.repeat(np.repeat(pixels, 2, 0), 2, 1))
    stream = io.BytesIO()
    image.save(stream, kind)
    stream.seek(0)
    return Image.open(stream)


def samples():
    """The texts are paragraphs of the README."""
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    for number, text in enumerate(readme.split("\n\n")[:6]):
        random = np.random.default_rng(number)
        dtype = ["int8", "uint16", "float16", "int64", "float64"][number % 5]
        sample = {
            "text": text[:400],
            "number": -(3**number),
            "raw": bytes(range(number)),
            "meta": {"words": text.split()[:3], "n": number, "none": None},
            "tokens": random.integers(0, 60000, 5 + 9 * number).astype(np.uint16),
            "any_array": random.integers(0, 100, (1 + number, 300 if number == 4 else 2)).astype(dtype),
            "grid": random.integers(-9, 9, (2, 3)).astype(np.int32),
            "vector": random.normal(size=4).astype(np.float32),
            "score": np.float32(number / 7),
            "half": np.float16(number / 3),
            "byte": np.uint8(number),
            "big": np.uint64(2**64 - 1 - number),
            "str_int": 10**number,
            "str_float": number / 3,
            "str_decimal": Decimal(number) / 3,
        }
        png, jpeg = picture(number, "PNG"), picture(number, "JPEG")
        photos = [jpeg.fp.getvalue()] * (1 + number % 2)
        yield {**sample, "image": png, "photo": jpeg, "images": [png] * (number % 3), "photos": photos}


def as_json(value):
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray | np.generic):
        return {"dtype": str(value.dtype), "shape": list(value.shape), "values": value.tolist()}
    return {"decimal": str(value)} if isinstance(value, Decimal) else {"is": value}


def main():
    sys.meta_path.insert(0, Stubs())
    from streaming import MDSWriter
    from streaming.base.format.mds.encodings import mds_encode
    from streaming.base.format.mds.reader import MDSReader

    expected = []
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name, options in {
        "raw": {},
        "hashed": {"hashes": ["sha1", "xxh64"]},
        "zstd": {"compression": "zstd:7", "hashes": ["sha256"]},
        "gz": {"compression": "gz"},
    }.items():
        with MDSWriter(out=str(FOLDER / name), columns=COLUMNS, size_limit=6000, **options) as writer:
            for sample in samples():
                writer.write(sample)
    index = json.loads((FOLDER / "raw" / "index.json").read_text())
    written = samples()
    for shard in index["shards"]:
        reader = MDSReader.from_json(str(FOLDER / "raw"), None, shard)
        for place in range(len(reader)):
            sample = next(written)
            found = {name: as_json(value) for name, value in reader[place].items() if name not in IMAGES}
            for each in ("image", "photo"):
                found[each] = as_json(mds_encode(COLUMNS[each], sample[each]))
            found["images"] = {"list": [as_json(mds_encode("png", each)) for each in sample["images"]]}
            found["photos"] = {"list": [as_json(each) for each in sample["photos"]]}
            expected.append(found)
    (FOLDER / "expected.json").write_text(json.dumps(expected, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
