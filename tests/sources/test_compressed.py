"""JSON Lines in gzip and zstd: the same records as without, few bytes in memory, and no trust in the file."""

import gzip
import json
import os
import struct
import subprocess
import sys
import threading
import zlib

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from msdata_jax.errors import SourceError
from msdata_jax.sources import compressed, decompress
from msdata_jax.sources.files import open_files
from msdata_jax.sources.order import Order
from msdata_jax.sources.protocol import BadRecord


def bgzip(text, size=60):
    """Members with the size in an extra field, and an empty one as the end, as `bgzip` writes them."""
    members = []
    for piece in [*(text[at : at + size] for at in range(0, len(text), size)), b""]:
        packer = zlib.compressobj(wbits=-15)
        body = packer.compress(piece) + packer.flush()
        header = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x06\0BC\x02\0" + struct.pack("<H", len(body) + 25)
        members.append(header + body + struct.pack("<II", zlib.crc32(piece), len(piece)))
    return b"".join(members)


def zstd(text, **options):
    return zstandard.ZstdCompressor(level=3, write_checksum=True, **options).compress(text)


def zstd_frames(text, size=100):
    """Frames, and a skippable one behind them, as the seekable format has its table."""
    frames = b"".join(zstd(text[at : at + size]) for at in range(0, len(text), size))
    return frames + b"\x5e\x2a\x4d\x18" + struct.pack("<I", 9) + bytes(9)


def zstd_stream(text):
    """One frame that does not say its size, as a pipe is compressed."""
    packer = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    return packer.compress(text) + packer.flush()


LAYOUTS = {
    "gz": gzip.compress,
    "gz-members": bgzip,
    "gz-padded": lambda text: gzip.compress(text) + bytes(700),
    "zst": zstd,
    "zst-frames": zstd_frames,
    "zst-stream": zstd_stream,
}


def text_of(docs):
    return "".join(json.dumps({"text": doc}) + "\n" for doc in docs).encode()


def opened(path, options=None, *, keep_damaged=False):
    return open_files(str(path), options or {}, keep_damaged=keep_damaged)


def read_all(records):
    return records.read(np.arange(len(records)))


def write(tmp_path, layout, text):
    path = tmp_path / f"a.jsonl.{layout.partition('-')[0]}"
    path.write_bytes(LAYOUTS[layout](text))
    return path


@pytest.fixture
def small_groups(monkeypatch):
    """Groups of 300 bytes at least, units of 500 bytes at most, pieces of 64."""
    monkeypatch.setattr(compressed, "_GROUP_BYTES", 300)
    monkeypatch.setattr(decompress, "PIECE_BYTES", 64)
    monkeypatch.setattr(decompress, "_INPUT_BYTES", 50)
    return {"max_group_bytes": 500}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_records_come_back(tmp_path, helpers, layout, small_groups):
    docs = helpers.make_docs(200)
    records = opened(write(tmp_path, layout, text_of(docs)), small_groups)
    assert [record["text"] for record in read_all(records)] == docs
    assert len(records.group_sizes) > 10
    assert records.group_sizes.sum() == 200
    asked = np.random.default_rng(0).permutation(200)
    assert [record["text"] for record in records.read(asked)] == [docs[i] for i in asked]
    records.close()


@pytest.mark.parametrize("suffix", ["jsonl.gz", "ndjson.gz", "json.gz", "JSONL.GZ"])
def test_names(tmp_path, suffix):
    path = tmp_path / f"c4-train.00000-of-01024.{suffix}"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n\n{"text": "b"}'))
    assert [record["text"] for record in read_all(opened(path))] == ["a", "b"]


def test_the_command_line_tools_write_what_is_read(tmp_path, helpers):
    docs = helpers.make_docs(50)
    plain = tmp_path / "a.jsonl"
    plain.write_bytes(text_of(docs))
    with open(tmp_path / "b.jsonl.gz", "wb") as stream:
        subprocess.run(["gzip", "-c", str(plain)], stdout=stream, check=True, timeout=30)
    assert [record["text"] for record in read_all(opened(tmp_path / "b.jsonl.gz"))] == docs


def test_a_group_is_decompressed_once_in_shuffled_order(tmp_path, helpers, monkeypatch):
    monkeypatch.setattr(compressed, "_GROUP_BYTES", 2000)
    records = opened(write(tmp_path, "zst-frames", text_of(helpers.make_docs(500))))
    decoded = []
    original = compressed.CompressedJsonlFile._decode

    def counted(self, handle, group):
        decoded.append(group)
        return original(self, handle, group)

    monkeypatch.setattr(compressed.CompressedJsonlFile, "_decode", counted)
    order = Order(500, seed=0, source_name="a", group_sizes=records.group_sizes, window_groups=4)
    for start in range(0, 500, 20):
        records.read(order.locate(np.arange(start, start + 20)).records)
    assert sorted(decoded) == list(range(len(records.group_sizes)))


def test_a_cache_of_nothing_decodes_once_for_a_block(tmp_path, helpers):
    docs = helpers.make_docs(300)
    records = opened(write(tmp_path, "gz", text_of(docs)), {"cache_bytes": 0})
    assert [record["text"] for record in records.read(np.arange(299, -1, -1))] == docs[::-1]


def test_threads_read_at_once(tmp_path, helpers, small_groups):
    docs = helpers.make_docs(100)
    records = opened(write(tmp_path, "gz", text_of(docs)), {**small_groups, "cache_bytes": 1000})
    wrong = []

    def read(seed):
        for _ in range(5):
            asked = np.random.default_rng(seed).permutation(100)[:30]
            if [record["text"] for record in records.read(asked)] != [docs[i] for i in asked]:
                wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_the_temporary_file_has_no_name_and_a_bound(tmp_path, helpers, small_groups, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "spill"))
    (tmp_path / "spill").mkdir()
    path = write(tmp_path, "zst", text_of(helpers.make_docs(200)))
    before = len(os.listdir("/proc/self/fd"))
    records = opened(path, small_groups)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    assert os.listdir(tmp_path / "spill") == []
    del records
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(SourceError, match="max_temp_bytes=1000 "):
        opened(path, {**small_groups, "max_temp_bytes": 1000})


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b'{"text": "a"}\n', "neither gzip nor zstd"),
        (gzip.compress(b"no lines of JSON"), "is not JSON Lines"),
        (gzip.compress(b'{"text": "a"}\n')[:-9], "byte 0 is cut short"),
        (gzip.compress(b'{"text": "a"}\n') + b"rest", "byte 34 is damaged|byte 34 is cut"),
        (zstd(b'{"text": "a"}\n')[:-2], "byte 0 is cut short|byte 0 is damaged"),
        (b"\x28\xb5\x2f\xfd\x00\xff" + bytes(40), "needs a window of"),
        (b"\x5e\x2a\x4d\x18\xff\xff\xff\xff" + bytes(40), "skippable zstd frame is cut short"),
    ],
)
def test_refuses_what_is_no_whole_file(tmp_path, content, rule):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=rule):
        opened(path)


def test_bad_lines_are_named(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n\n[1]\n{"text": "too long"}\n'))
    found = read_all(opened(path, {"max_record_bytes": 15}))
    assert found[0] == {"text": "a"}
    assert [record.reason.split(" is a ")[0] for record in found[1:]] == [
        "a.jsonl.gz: line 3",
        "a.jsonl.gz: line 4 has 21 bytes, max_record_bytes is 15",
    ]


@pytest.mark.parametrize("layout", ["gz-members", "zst-frames"])
def test_what_is_before_the_damage_is_kept_where_the_policy_says_so(tmp_path, helpers, layout):
    docs = helpers.make_docs(60)
    path = write(tmp_path, layout, text_of(docs))
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(SourceError, match=r"cut short.*whole records"):
        opened(path)
    records = opened(path, keep_damaged=True)
    found = read_all(records)
    assert 10 < len(found) < 50
    assert [record["text"] for record in found[:-1]] == docs[: len(found) - 1]
    assert "all records from there on are lost" in found[-1].reason
    assert records.group_sizes.sum() == len(found)


def test_a_file_that_changes_after_it_was_opened(tmp_path, helpers):
    docs = helpers.make_docs(60)
    path = write(tmp_path, "gz-members", text_of(docs))
    records = opened(path)
    path.write_bytes(bgzip(text_of(docs[::-1]), 50))
    found = read_all(records)
    assert all(isinstance(record, BadRecord) for record in found)
    assert "the file has changed" in found[0].reason


DOCS = [f"doc {i} " + "größe " * (i % 5) for i in range(40)]
CONTENT = {layout: make(text_of(DOCS)) for layout, make in LAYOUTS.items()}


@given(data=st.data())
def test_damage_anywhere_is_an_error_or_a_bad_record(data, tmp_path_factory):
    layout = data.draw(st.sampled_from(sorted(LAYOUTS)))
    content = bytearray(CONTENT[layout])
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[place:]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("damage") / "a.jsonl.gz"
    path.write_bytes(content)
    for keep_damaged in (False, True):
        try:
            found = read_all(opened(path, keep_damaged=keep_damaged))
        except SourceError as error:
            assert "a.jsonl.gz" in str(error)
            continue
        texts = [record["text"] for record in found if not isinstance(record, BadRecord)]
        # frames or members that are cut away whole leave no trace
        assert texts == DOCS[: len(texts)]


@given(
    lines=st.lists(st.binary(max_size=30).map(lambda raw: raw.replace(b"\n", b" ")), max_size=20),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
def test_lines_are_found_however_the_text_comes(lines, cuts):
    from msdata_jax.sources.jsonl import LineFinder

    text = b"\n".join(lines)
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    finder = LineFinder()
    for start, stop in zip(edges, edges[1:], strict=False):
        finder.feed(text[start:stop])
    found = finder.lines()
    expected = [(n, line) for n, line in enumerate(lines, 1) if line.strip(b" \t\n\r\x0b\x0c")]
    assert found.numbers.tolist() == [number for number, _ in expected]
    pieces = zip(found.starts.tolist(), found.sizes.tolist(), strict=True)
    assert [text[start : start + size].rstrip(b"\n") for start, size in pieces] == [
        line for _, line in expected
    ]


BOMB = """
import resource, sys
from msdata_jax.sources.files import open_files
from msdata_jax.errors import SourceError
import numpy, zstandard
import msdata_jax.sources.compressed
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (192 << 20),) * 2)
try:
    open_files(sys.argv[1], {"max_ratio": int(sys.argv[2])}, keep_damaged=False)
except SourceError as error:
    print(error)
else:
    print("opened")
"""


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_bomb_takes_little_memory(tmp_path, suffix):
    """1 GiB of zeros behind a first line; with 192 MiB of room, also where the ratio is allowed."""
    path = tmp_path / f"a.jsonl.{suffix}"
    first, zeros = b'{"text": "a"}\n', bytes(1 << 20)
    with gzip.open(path, "wb", 1) if suffix == "gz" else zstandard.open(path, "wb") as stream:
        stream.write(first)
        for _ in range(1024):
            stream.write(zeros)
    for ratio, verdict in ((256, "max_ratio is 256"), (1 << 20, "opened")):
        command = [sys.executable, "-c", BOMB, str(path), str(ratio)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert verdict in done.stdout, done.stderr
