"""JSON Lines in gzip and zstd: the same records as without, few bytes in memory, and no trust in the file."""

import contextlib
import gc
import gzip
import io
import json
import os
import struct
import subprocess
import sys
import sysconfig
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from sources.opening import OPENED, on_threads, opened, read_all

from msdata_jax.errors import SourceError
from msdata_jax.sources import compressed, decompress
from msdata_jax.sources.files import open_files
from msdata_jax.sources.order import Order
from msdata_jax.sources.protocol import BadRecord
from msdata_jax.sources.spill import Spill


def bgzip(text, size=60):
    """Members with the size in an extra field, and an empty one as the end, as `bgzip` writes them."""
    members = []
    for piece in [*(text[at : at + size] for at in range(0, len(text), size)), b""]:
        packer = zlib.compressobj(wbits=-15)
        body = packer.compress(piece) + packer.flush()
        header = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x06\0BC\x02\0" + struct.pack("<H", len(body) + 25)
        members.append(header + body + struct.pack("<II", zlib.crc32(piece), len(piece)))
    return b"".join(members)


def gzip_with_empty_members(text):
    """Members that end with a line, as `cat *.gz` makes them, some of which are empty."""
    return gzip.compress(b"").join([b"", *map(gzip.compress, text.splitlines(keepends=True)), b""])


def zstd(text):
    """One frame in blocks of 1 KiB."""
    parameters = zstandard.ZstdCompressionParameters(window_log=10, write_checksum=True)
    return zstandard.ZstdCompressor(compression_params=parameters).compress(text)


def skippable(content):
    return b"\x5e\x2a\x4d\x18" + struct.pack("<I", len(content)) + content


def zstd_frames(text, size=100):
    """Frames, and a skippable one behind them, as the seekable format has its table."""
    return b"".join(zstd(text[at : at + size]) for at in range(0, len(text), size)) + skippable(bytes(9))


def zstd_parallel(text, size=700):
    """Each frame behind a skippable one, as `pzstd` writes them."""
    frames = [zstd(text[at : at + size]) for at in range(0, len(text), size)]
    return b"".join(skippable(struct.pack("<I", len(frame))) + frame for frame in frames)


def zstd_stream(text):
    """One frame that does not say its size, as a pipe is compressed."""
    parameters = zstandard.ZstdCompressionParameters(window_log=10, write_checksum=True)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(text) + packer.flush()


LAYOUTS = {
    "gz": gzip.compress,
    "gz-members": bgzip,
    "gz-lines": gzip_with_empty_members,
    "gz-padded": lambda text: gzip.compress(text) + bytes(700),
    "zst": zstd,
    "zst-frames": zstd_frames,
    "zst-parallel": zstd_parallel,
    "zst-stream": zstd_stream,
}


def text_of(docs):
    return "".join(json.dumps({"text": doc}) + "\n" for doc in docs).encode()


def write(tmp_path, layout, text):
    path = tmp_path / f"a.jsonl.{layout.partition('-')[0]}"
    path.write_bytes(LAYOUTS[layout](text))
    return path


def texts(records):
    return [record["text"] for record in records]


def close_all():
    while OPENED:
        OPENED.pop().close()


@pytest.fixture
def small_groups(monkeypatch):
    """Groups of 300 bytes at least, units of 500 bytes at most, pieces of 64 (zstd: a block)."""
    monkeypatch.setattr(compressed, "_GROUP_BYTES", 300)
    monkeypatch.setattr(decompress, "PIECE_BYTES", 64)
    monkeypatch.setattr(decompress, "_INPUT_BYTES", 50)
    return {"max_group_bytes": 500}


@pytest.fixture
def decoded(monkeypatch):
    """The groups that are decompressed, in order."""
    groups = []
    original = compressed.CompressedJsonlFile._decode

    def counted(self, handle, group):
        groups.append(group)
        return original(self, handle, group)

    monkeypatch.setattr(compressed.CompressedJsonlFile, "_decode", counted)
    return groups


# --- records


@pytest.mark.parametrize("layout", LAYOUTS)
def test_records_come_back(tmp_path, helpers, layout, small_groups):
    docs = helpers.make_docs(200)
    records = opened(write(tmp_path, layout, text_of(docs)), small_groups)
    assert texts(read_all(records)) == docs
    assert len(records.group_sizes) > 10
    assert records.group_sizes.sum() == 200
    asked = np.random.default_rng(0).permutation(200)
    assert texts(records.read(asked)) == [docs[i] for i in asked]


@pytest.mark.parametrize(
    ("layout", "size"), [("gz", None), ("gz-members", 20000), ("zst", None), ("zst-frames", 20000)]
)
def test_real_text_comes_back_as_the_reference_readers_give_it(tmp_path, layout, size, monkeypatch):
    """Modules of Python, one a record."""
    monkeypatch.setattr(compressed, "_GROUP_BYTES", 32 << 10)
    monkeypatch.setattr(decompress, "PIECE_BYTES", 16 << 10)
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:40]
    text = text_of(module.read_text(encoding="utf-8") for module in modules)
    path = tmp_path / f"a.jsonl.{layout.partition('-')[0]}"
    path.write_bytes(LAYOUTS[layout](text, *([size] if size else [])))
    with path.open("rb") as packed:
        if layout.startswith("gz"):
            reader = gzip.GzipFile(fileobj=packed)
        else:
            reader = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
        expected = [json.loads(line) for line in io.TextIOWrapper(reader, encoding="utf-8")]
    records = opened(path, {"max_group_bytes": 64 << 10})
    assert len(records.group_sizes) > 5
    assert read_all(records) == expected
    assert len(expected) == 40


@pytest.mark.parametrize("suffix", ["jsonl.gz", "ndjson.gz", "json.gz", "JSONL.GZ"])
def test_names(tmp_path, suffix):
    path = tmp_path / f"c4-train.00000-of-01024.{suffix}"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n\n{"text": "b"}'))
    assert texts(read_all(opened(path))) == ["a", "b"]


def test_the_command_line_tool_writes_what_is_read(tmp_path, helpers):
    docs = helpers.make_docs(50)
    plain = tmp_path / "a.jsonl"
    plain.write_bytes(text_of(docs))
    with (tmp_path / "b.jsonl.gz").open("wb") as stream:
        subprocess.run(["gzip", "-c", str(plain)], stdout=stream, check=True, timeout=30)
    assert texts(read_all(opened(tmp_path / "b.jsonl.gz"))) == docs


@pytest.mark.parametrize("layout", ["gz", "gz-members", "zst"])
@pytest.mark.parametrize(
    "text",
    [
        b'\xef\xbb\xbf{"text": "a"}\n{"text": "b"}\n',
        b'{"text": "a"}\r\n{"text": "b"}\r\n',
        b'\n \n\t\r\n{"text": "a"}\n\n\n{"text": "b"}\n   ',
        b'\xef\xbb\xbf{"text": "a"}\n\xef\xbb\xbf{"text": "b"}',
    ],
    ids=["byte-order mark", "CRLF", "blank lines", "no last line break"],
)
def test_lines_are_as_those_of_a_plain_file(tmp_path, layout, text, small_groups):
    path = write(tmp_path, layout, text)
    assert read_all(opened(path, small_groups)) == [{"text": "a"}, {"text": "b"}]
    plain = tmp_path / "a.jsonl"
    plain.write_bytes(text)
    assert read_all(opened(plain)) == [{"text": "a"}, {"text": "b"}]


def test_a_file_of_nothing_has_no_records(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"") * 3)
    records = opened(path)
    assert len(records) == 0
    assert records.group_sizes.tolist() == []


def test_bad_lines_are_named(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n\n[1]\n{"text": "too long"}\n'))
    found = read_all(opened(path, {"max_record_bytes": 15}))
    assert found[0] == {"text": "a"}
    assert [record.reason.split(" is a ")[0] for record in found[1:]] == [
        "a.jsonl.gz: line 3",
        "a.jsonl.gz: line 4 has 21 bytes, max_record_bytes is 15",
    ]


def test_remote_files(tmp_path, helpers, small_groups):
    from fsspec.implementations.memory import MemoryFileSystem

    memory = MemoryFileSystem()
    docs = helpers.make_docs(90)
    memory.pipe("/packed/a.jsonl.gz", gzip.compress(text_of(docs[:40])))
    memory.pipe("/packed/b.jsonl.gz", bgzip(text_of(docs[40:])))
    try:
        records = open_files(
            "memory://packed/*.jsonl.gz",
            small_groups,
            keep_damaged=False,
            storage_options={"cache_dir": str(tmp_path / "cache")},
        )
        OPENED.append(records)
        assert texts(read_all(records)) == docs
    finally:
        memory.rm("/packed", recursive=True)


# --- groups

SHORT_DOCS = [f"{i:03d}" * (1 + i % 20) for i in range(500)]


def read_in_shuffled_order(records):
    order = Order(500, seed=0, source_name="a", group_sizes=records.group_sizes, window_groups=4)
    for start in range(0, 500, 20):
        chosen = order.locate(np.arange(start, start + 20)).records
        assert texts(records.read(chosen)) == [SHORT_DOCS[i] for i in chosen]


@pytest.mark.parametrize("layout", ["gz", "zst-stream", "gz-lines"])
def test_a_group_is_decompressed_once_in_shuffled_order(tmp_path, layout, small_groups, decoded):
    """The cache has room for the groups of two windows."""
    path = write(tmp_path, layout, text_of(SHORT_DOCS))
    records = opened(path, {**small_groups, "cache_bytes": 12000})
    read_in_shuffled_order(records)
    assert len(records.group_sizes) > 15
    assert sorted(decoded) == list(range(len(records.group_sizes)))


def test_a_line_in_two_groups_costs_both(tmp_path, small_groups, decoded):
    """Members end anywhere, and what is left of a line is in the next group."""
    path = write(tmp_path, "gz-members", text_of(SHORT_DOCS))
    records = opened(path, {**small_groups, "cache_bytes": 4000})
    read_in_shuffled_order(records)
    num_groups = len(records.group_sizes)
    assert num_groups < len(decoded) <= 2 * num_groups


def test_a_cache_of_nothing_decodes_once_for_a_block(tmp_path, helpers, small_groups, decoded):
    docs = helpers.make_docs(300)
    records = opened(write(tmp_path, "gz", text_of(docs)), {**small_groups, "cache_bytes": 0})
    assert texts(records.read(np.arange(299, -1, -1))) == docs[::-1]
    assert decoded == list(range(len(records.group_sizes)))


def test_threads_read_at_once(tmp_path, helpers, small_groups):
    docs = helpers.make_docs(100)
    records = opened(write(tmp_path, "gz", text_of(docs)), {**small_groups, "cache_bytes": 1000})
    wrong = []

    def read(seed):
        for _ in range(5):
            asked = np.random.default_rng(seed).permutation(100)[:30]
            if texts(records.read(asked)) != [docs[i] for i in asked]:
                wrong.append(seed)

    on_threads(read)
    assert not wrong


# --- the temporary file


def num_descriptors():
    """Of temporary files without a name; others come and go with whatever else the process does."""
    links = []
    for each in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            links.append(os.readlink(f"/proc/self/fd/{each}"))
    return sum("/msdata-" in link and link.endswith("(deleted)") for link in links)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_the_temporary_file_has_no_name_and_goes_with_its_source(tmp_path, helpers, small_groups, temporary):
    path = write(tmp_path, "zst", text_of(helpers.make_docs(200)))
    gc.collect()
    before = num_descriptors()
    opened(path, small_groups)
    assert num_descriptors() == before + 1
    assert os.listdir(temporary) == []
    OPENED.clear()
    gc.collect()
    assert num_descriptors() == before


def test_a_closed_file_frees_the_temporary_one(tmp_path, helpers, small_groups, temporary):
    path = write(tmp_path, "gz", text_of(helpers.make_docs(200)))
    records = opened(path, {**small_groups, "cache_bytes": 0})
    read_all(records)
    before = num_descriptors()
    [file] = records._files
    file.close()
    file.close()
    assert num_descriptors() == before - 1
    with pytest.raises(SourceError, match="the source is closed"):
        read_all(records)


def test_the_temporary_file_is_freed_where_a_source_does_not_open(tmp_path, helpers, small_groups, temporary):
    content = LAYOUTS["gz"](text_of(helpers.make_docs(200)))
    (tmp_path / "a.jsonl.gz").write_bytes(content)
    (tmp_path / "b.jsonl.gz").write_bytes(content[:-20])
    before = num_descriptors()
    with pytest.raises(SourceError, match=r"b\.jsonl\.gz: the gzip member at byte 0 is cut short") as caught:
        opened(tmp_path / "*.gz", small_groups)
    assert num_descriptors() == before
    assert caught.tb is not None  # holds whatever there was


def test_the_temporary_file_has_a_bound(tmp_path, helpers, small_groups):
    path = write(tmp_path, "gz", text_of(helpers.make_docs(200)))
    with pytest.raises(SourceError, match=r"a\.jsonl\.gz needs more than max_temp_bytes=1000 "):
        opened(path, {**small_groups, "max_temp_bytes": 1000})


def test_the_temporary_file_needs_no_zstd(tmp_path, helpers, small_groups, monkeypatch):
    monkeypatch.setattr(compressed, "zstandard", None)
    docs = helpers.make_docs(200)
    assert texts(read_all(opened(write(tmp_path, "gz", text_of(docs)), small_groups))) == docs


@pytest.mark.parametrize("packed_by", [zstandard, None])
@pytest.mark.parametrize("change", [lambda packed: packed[:-1], lambda packed: packed[:-1] + b"\0", bytes])
def test_damage_to_the_temporary_file_is_bad_records(
    tmp_path, helpers, small_groups, monkeypatch, packed_by, change
):
    monkeypatch.setattr(compressed, "zstandard", packed_by)
    docs = helpers.make_docs(200)
    records = opened(write(tmp_path, "gz", text_of(docs)), {**small_groups, "cache_bytes": 0})
    original = Spill.read
    monkeypatch.setattr(Spill, "read", lambda self, offset, size: change(original(self, offset, size)))
    found = read_all(records)
    if change is bytes:
        assert texts(found) == docs
    else:
        assert all("the temporary file is damaged" in record.reason for record in found)


def test_a_temporary_file_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "no such folder"))
    with pytest.raises(SourceError, match=r"a\.gz needs a temporary file.*No such file.*TMPDIR"):
        Spill(1000).append(b"text", "a.gz")


# --- what is refused


def zstd_frame(window, blocks):
    """A frame with that window descriptor and blocks of one repeated byte, as (byte, size)."""
    words = [size << 3 | 1 << 1 | (place == len(blocks) - 1) for place, (_, size) in enumerate(blocks)]
    packed = [struct.pack("<I", word)[:3] + byte for word, (byte, _) in zip(words, blocks, strict=True)]
    return b"\x28\xb5\x2f\xfd\x00" + bytes([window]) + b"".join(packed)


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b'{"text": "a"}\n', "neither gzip nor zstd.*name it .jsonl"),
        (b"BZh91AY&SY", "neither gzip nor zstd"),
        (gzip.compress(b"no lines of JSON"), "is not JSON Lines"),
        (gzip.compress(gzip.compress(b'{"text": "a"}\n')), "is not JSON Lines"),
        (
            gzip.compress(b'{"text": "a"}\n')[:-9],
            "byte 0 is cut short, after 0 whole records; write it again$",
        ),
        (gzip.compress(b'{"text": "a"}\n') + b"rest", "byte 34 is .*after 1 whole records; .*on_bad_sample"),
        (zstd(b'{"text": "a"}\n')[:-2], "byte 0 is cut short|byte 0 is damaged"),
        (b"\x5e\x2a\x4d\x18\xff\xff\xff\xff" + bytes(40), "skippable zstd frame is cut short"),
    ],
)
def test_refuses_what_is_no_whole_file(tmp_path, content, rule):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=rf"a\.jsonl\.gz.*{rule}"):
        opened(path)


def test_a_compressed_file_with_the_name_of_a_plain_one(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n'))
    with pytest.raises(SourceError, match=r"a\.jsonl is not JSON Lines.*name it \.jsonl\.gz"):
        opened(path)


@pytest.mark.parametrize(
    ("window", "num_bytes"), [(18 << 3, 2**28), (17 << 3 | 1, 9 << 24), (21 << 3, 2**31), (255, 15 << 38)]
)
def test_refuses_a_window_that_takes_too_much_memory(tmp_path, window, num_bytes):
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstd(b'{"text": "a"}\n') + zstd_frame(window, [(b"\n", 1)]))
    rule = rf"needs a window of {num_bytes} bytes, 134217728 are allowed; compress without --long, or with"
    with pytest.raises(SourceError, match=rule):
        opened(path)
    found = read_all(opened(path, keep_damaged=True))
    assert found[0] == {"text": "a"}
    assert "--long=27 at most" in found[1].reason


def test_takes_the_largest_window_that_is_allowed(tmp_path):
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstd(b'{"text": "a"}') + zstd_frame(17 << 3, [(b"\n", 1), (b" ", 1 << 17)]))
    assert read_all(opened(path)) == [{"text": "a"}]


def test_refuses_a_single_segment_that_takes_too_much_memory(tmp_path):
    """Its window is its content, which is said to have 1 GiB."""
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", 1 << 30) + b"\x01\x00\x00")
    with pytest.raises(SourceError, match="needs a window of 1073741824 bytes"):
        opened(path)


@pytest.mark.parametrize(
    "options",
    [
        {"window_groups": 0},
        {"cache_bytes": -1},
        {"max_ratio": 0},
        {"max_record_bytes": -1},
        {"max_index_bytes": -1},
        {"max_temp_bytes": -1},
        {"max_group_bytes": (4 << 20) - 1},
    ],
)
def test_refuses_options_that_make_no_sense(tmp_path, options):
    path = write(tmp_path, "gz", b'{"text": "a"}\n')
    [(name, value)] = options.items()
    with pytest.raises(SourceError, match=rf"{name}.*{value}"):
        opened(path, options)


# --- damage


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
    assert texts(found[:-1]) == docs[: len(found) - 1]
    assert "all records from there on are lost" in found[-1].reason
    assert records.group_sizes.sum() == len(found)


@pytest.mark.parametrize("layout", ["gz", "zst"])
def test_damage_to_a_unit_that_was_packed_anew_leaves_those_before_it(
    tmp_path, helpers, layout, small_groups
):
    docs = helpers.make_docs(120)
    path = write(tmp_path, layout, text_of(docs[:60]))
    with path.open("ab") as stream:
        stream.write(LAYOUTS[layout](text_of(docs[60:]))[:-20])
    records = opened(path, small_groups, keep_damaged=True)
    found = read_all(records)
    assert texts(found[:-1]) == docs[:60]
    assert "all records from there on are lost" in found[-1].reason
    assert records.group_sizes.sum() == len(found)


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
@pytest.mark.parametrize("end", [b'"}\n{"text": "c"}\n', b'\n{"text": "c"}\n'])
def test_half_a_line_before_the_damage_is_no_record(tmp_path, pack, end):
    """The second unit, which has the rest of the second line, is cut anywhere."""
    begin = b'{"text": "a"}\n{"text": "b' + (b'"}' if end.startswith(b"\n") else b"")
    first, second = pack(begin), pack(end)
    path = tmp_path / "a.jsonl.gz"
    for size in range(1, len(second)):
        path.write_bytes(first + second[:size])
        found = read_all(opened(path, keep_damaged=True))
        assert found[0] == {"text": "a"}
        assert "all records from there on are lost" in found[1].reason
        assert len(found) == 2
    path.write_bytes(first + second)
    assert texts(read_all(opened(path))) == ["a", "b", "c"]


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
        except SourceError:
            continue
        whole = texts(record for record in found if not isinstance(record, BadRecord))
        # frames or members that are cut away whole leave no trace
        assert whole == DOCS[: len(whole)]
    close_all()


# --- bombs


def gzip_bomb(first, unit, count):
    """One member of `first`, and `count` times `unit`, which ratio is that of level 9."""
    begin = zlib.compressobj(9, wbits=-15)
    body = begin.compress(first) + begin.flush(zlib.Z_FULL_FLUSH)
    packer = zlib.compressobj(9, wbits=-15)
    again = packer.compress(unit) + packer.flush(zlib.Z_FULL_FLUSH)
    checksum = zlib.crc32(first)
    for _ in range(count):
        checksum = zlib.crc32(unit, checksum)
    size = len(first) + count * len(unit) & 0xFFFFFFFF
    header = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    return header + body + again * count + b"\x03\0" + struct.pack("<II", checksum, size)


def zstd_bomb(first, byte, count):
    """A frame of `first`, and one of `count` times 128 KiB of a byte, with the largest window."""
    return zstd(first) + zstd_frame(17 << 3, [(byte, 1 << 17)] * count)


OPEN_BOMBS = """
import json, resource, sys
import numpy, zstandard
from msdata_jax.errors import SourceError
from msdata_jax.sources import compressed
from msdata_jax.sources.files import open_files
compressed._FREE_BYTES = 4 << 20
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]),) * 2)
for path, options in json.loads(sys.argv[2]):
    try:
        records = open_files(path, options, keep_damaged=False)
        print(len(records), records.read(numpy.arange(min(len(records), 2))))
    except SourceError as error:
        print(error)
"""


def open_in_little_memory(num_bytes, cases):
    """What a process says that opens files with so much more memory than it has when it starts."""
    command = [sys.executable, "-c", OPEN_BOMBS, str(num_bytes), json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


FIRST = b'{"text": "a"}\n'
MIB = 1 << 20
BOMBS = {
    "zeros.jsonl.gz": gzip_bomb(FIRST, bytes(MIB), 80),
    "line.jsonl.gz": gzip_bomb(FIRST + b'{"text": "', b"x" * MIB, 80),
    "newlines.jsonl.gz": gzip_bomb(FIRST, b"\n" * MIB, 24),
    "spaces.jsonl.gz": gzip_bomb(FIRST, b" " * MIB, 80),
    "zeros.jsonl.zst": zstd_bomb(FIRST, b"\0", 8 * 160),
}


def test_bombs_take_little_memory(tmp_path):
    """80 MiB of text with room for 64; 160 with room for 350, of which zstd takes two windows."""
    allowed = {"max_ratio": 1 << 20, "max_record_bytes": MIB, "max_group_bytes": 8 * MIB}
    cases = {"gz": [], "zst": []}
    for name, content in BOMBS.items():
        path = tmp_path / name
        path.write_bytes(content)
        cases[name.rpartition(".")[2]] += [(str(path), {}), (str(path), allowed)]
    verdicts = open_in_little_memory(64 * MIB, cases["gz"]) + open_in_little_memory(350 * MIB, cases["zst"])
    for (name, content), refused, taken in zip(BOMBS.items(), verdicts[::2], verdicts[1::2], strict=True):
        assert f"{name} has {len(content)} bytes and decompresses to " in refused
        assert "max_ratio is 256" in refused
        if name.startswith(("zeros", "line")):
            assert taken.startswith("2 [{'text': 'a'}, BadRecord(")
            assert "bytes, max_record_bytes is 1048576" in taken
        else:
            assert taken == "1 [{'text': 'a'}]"


def test_one_read_holds_few_groups(tmp_path):
    """48 MiB of lines that are no records, in groups of 4 MiB."""
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip_bomb(FIRST, b"[" + b" " * (MIB - 3) + b"]\n", 48))
    records = opened(path, {"max_ratio": 1 << 20, "max_group_bytes": 8 * MIB, "cache_bytes": 0})
    tracemalloc.start()
    found = read_all(records)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(records.group_sizes) == 13
    assert [record.reason for record in found[1:]] == [
        f"a.jsonl.gz: line {number} is a JSON list, not an object" for number in range(2, 50)
    ]
    assert peak < 24 * MIB


def test_an_index_has_a_largest_size(tmp_path):
    """30 MiB of the shortest records, whose index would have 240 MiB."""
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip_bomb(FIRST, b"{}\n" * (MIB // 3), 30))
    options = {"max_index_bytes": 16 * MIB, "max_ratio": 1 << 20}
    [verdict] = open_in_little_memory(128 * MIB, [(str(path), options)])
    assert "a.jsonl.gz has an index of 25165" in verdict
    assert "max_index_bytes is 16777216" in verdict


def test_closing_the_source_frees_the_temporary_file(tmp_path, helpers, small_groups, temporary):
    path = write(tmp_path, "gz", text_of(helpers.make_docs(200)))
    before = num_descriptors()
    records = opened(path, small_groups)
    read_all(records)
    assert num_descriptors() == before + 1
    records.close()
    records.close()
    assert num_descriptors() == before


@pytest.mark.parametrize("how", ["gz", "zst"])
def test_groups_that_are_packed_anew_depend_on_the_text_alone(tmp_path, helpers, monkeypatch, how):
    text = text_of([{"text": "x" * (37 * number % 501)} for number in range(60)])
    path = write(tmp_path, how, text)
    monkeypatch.setattr(compressed, "_GROUP_BYTES", 300)
    sizes = []
    for piece_bytes in (64, 333, 5000):
        monkeypatch.setattr(decompress, "PIECE_BYTES", piece_bytes)
        records = opened(path, {"max_group_bytes": 300})
        sizes.append(records.group_sizes.tolist())
        assert len(read_all(records)) == 60
    assert sizes[0] == sizes[1] == sizes[2]
    assert len(sizes[0]) > 20
