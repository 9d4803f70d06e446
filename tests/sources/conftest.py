"""Small real datasets and tokenizer files that the tests of sources share."""

import importlib.util
import io
import json
import os
import shutil
import sys
import tarfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from sources.opening import OPENED

WORDS = ("data", "layer", "größe", "東京", "mixture", "rank", "plan", "2048", "(x)", "tokens", "the", "of")


def make_docs(count, seed=0):
    rng = np.random.default_rng(seed)
    return [f"doc {i}: " + " ".join(rng.choice(WORDS, int(rng.integers(1, 40)))) for i in range(count)]


def write_jsonl(path, docs):
    path.write_text("".join(json.dumps({"text": doc, "n": i}) + "\n" for i, doc in enumerate(docs)))
    return str(path)


def write_parquet(path, docs, rows=7, **options):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"text": docs, "n": list(range(len(docs)))})
    pq.write_table(table, path, row_group_size=rows, write_page_checksum=True, **options)
    return str(path)


def write_arrayrecord(path, docs, options="group_size:1"):
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), options)
    for doc in docs:
        writer.write(doc.encode())
    writer.close()
    return str(path)


def write_tar(path, members, tar_format=tarfile.USTAR_FORMAT):
    with tarfile.open(path, "w", format=tar_format) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return str(path)


def write_doc_tar(path, docs):
    return write_tar(path, [(f"{i:06d}.txt", doc.encode()) for i, doc in enumerate(docs)])


WRITERS = {
    "jsonl": write_jsonl,
    "parquet": write_parquet,
    "arrayrecord": write_arrayrecord,
    "tar": write_doc_tar,
}


def text_of(record):
    """The document of a raw record, whatever its format."""
    value = next(record[key] for key in ("text", "txt", "record") if key in record)
    return value.decode() if isinstance(value, bytes) else value


@pytest.fixture(autouse=True)
def _close_what_is_opened():
    yield
    while OPENED:
        OPENED.pop().close()


@pytest.fixture(params=sorted(WRITERS))
def file_format(request):
    return request.param


@pytest.fixture
def write(file_format, tmp_path):
    """`write(docs, name)` writes one file of the format under test and returns its path."""
    return lambda docs, name="a": WRITERS[file_format](tmp_path / f"{name}.{file_format}", docs)


@pytest.fixture(scope="session")
def mistral_data():
    spec = importlib.util.find_spec("mistral_common")
    if spec is None or spec.origin is None:
        pytest.skip("mistral_common is not installed")
    return Path(os.path.dirname(spec.origin)) / "data"


@pytest.fixture(scope="session")
def huggingface_file(tmp_path_factory):
    """A byte-level BPE trained here, with truncation and padding set, as some published files have."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(make_docs(300), trainer)
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=16)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return str(path)


@pytest.fixture(scope="session")
def rank_file(mistral_data, tmp_path_factory):
    """A tiktoken rank file: the first 3000 ranks of tekken."""
    vocab = json.loads((mistral_data / "tekken_240911.json").read_bytes())["vocab"][:3000]
    path = tmp_path_factory.mktemp("ranks") / "small.tiktoken"
    path.write_text("".join(f"{item['token_bytes']} {item['rank']}\n" for item in vocab))
    return str(path)


@pytest.fixture(autouse=True, scope="module")
def _no_thread_is_left():
    """Threads that read ahead end soon after the last read; other modules count threads."""
    yield
    deadline = time.monotonic() + 10
    while any(each.name == "msdata-read-ahead" for each in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="session")
def helpers():
    """The writers, for tests that need one by name."""
    import types

    return types.SimpleNamespace(
        WRITERS=WRITERS,
        make_docs=make_docs,
        text_of=text_of,
        write_tar=write_tar,
        write_doc_tar=write_doc_tar,
        write_jsonl=write_jsonl,
        write_parquet=write_parquet,
        write_arrayrecord=write_arrayrecord,
    )


@pytest.fixture(scope="session")
def broken_images():
    """Real malformed images by number, as (name, content): the tests of gdk-pixbuf, as Debian packs them."""
    root = Path(__file__).parents[2]
    spec = importlib.util.spec_from_file_location("debian_packages", root / "examples" / "debian_packages.py")
    assert spec is not None
    assert spec.loader is not None
    debian_packages = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(spec.name, debian_packages)
    spec.loader.exec_module(debian_packages)
    if shutil.which("apt-get") is None:
        pytest.skip("the malformed images come from a Debian package")
    [package] = debian_packages.fetch([["gdk-pixbuf-tests"]], root / "out" / "debs")
    pattern = r"\.(jpg|jpeg|png|gif|bmp|tif|tiff|tga|ppm|ico|webp)$"
    files = debian_packages.read_files(package.path, pattern)
    return dict(enumerate((os.path.basename(name), content) for name, content in files))
