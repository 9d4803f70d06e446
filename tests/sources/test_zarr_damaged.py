"""Zarr and N5 that are damaged or absurd: bad records or an error at opening, and nothing large allocated."""

import bz2
import json
import os
import random
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numcodecs import blosc
from sources.opening import OPENED, read_all
from sources.opening import opened as open_anyhow
from sources.test_zarr import LAYOUTS, ramp, write_group, write_n5, write_ragged, write_zarr

import msdata_jax as msd
from msdata_jax.errors import SourceError
from msdata_jax.sources.forking import ForkUnsafeError
from msdata_jax.sources.isolation import open_reader
from msdata_jax.sources.protocol import BadRecord
from msdata_jax.sources.zarr import ZarrFormat

MEGABYTE = 1 << 20
BOMB_BYTES = 128 * MEGABYTE
PACKED = ("v2", "v2-blosc", "v2-gzip", "v2-zlib", "v2-zstd", "v2-bz2", "v2-fortran")
PACKED += ("v3", "v3-blosc", "v3-gzip", "v3-zstd", "v3-checksum")


def opened(path, options=None):
    return open_anyhow(path, options, keep_damaged=True)


def change(path, **members):
    path.write_text(json.dumps({**json.loads(path.read_text()), **members}))


def peak_bytes(act):
    """What `act` returns, and by how much the process grew: tensorstore's memory is not Python's."""
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS:")
    result = act()
    return result, memory("VmHWM:") - before


def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def reasons(records):
    return {
        index: record.reason
        for index, record in enumerate(read_all(records))
        if isinstance(record, BadRecord)
    }


# --- chunks


@pytest.mark.parametrize("layout", PACKED)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_a_chunk_that_is_cut_costs_its_rows(tmp_path, layout, share):
    write_zarr(tmp_path / "a", ramp((10, 3)), (4, 3), **LAYOUTS[layout])
    path = tmp_path / "a" / ("1.0" if layout.startswith("v2") else "c/1/0")
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    found = reasons(opened(tmp_path / "a"))
    assert sorted(found) == [4, 5, 6, 7]
    for reason in found.values():
        assert reason.startswith("a: rows 4 to 7 of 'tokens' cannot be decoded: ")
        assert str(tmp_path) not in reason
        assert "tensorstore_spec" not in reason


def test_a_block_of_n5_that_is_cut_costs_its_rows(tmp_path):
    write_n5(tmp_path / "a", ramp((10,)), (4,), {"type": "gzip", "level": 1})
    path = tmp_path / "a" / "1"
    content = path.read_bytes()
    for size in (0, 3, 9, len(content) - 1):
        path.write_bytes(content[:size])
        assert sorted(reasons(opened(tmp_path / "a"))) == [4, 5, 6, 7]


@given(bit=st.integers(0, 8 * 60 - 1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
def test_a_flipped_bit_shows_by_the_checksum(tmp_path, bit):
    folder = tmp_path / "a"
    if not folder.exists():
        write_zarr(folder, ramp((10, 3)), (4, 3), **LAYOUTS["v3-checksum"])
    path = folder / "c" / "1" / "0"
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(damaged)
    try:
        assert sorted(reasons(opened(folder))) == [4, 5, 6, 7]
    finally:
        path.write_bytes(content)
        OPENED.pop().close()


@pytest.mark.parametrize("layout", ["v2-gzip", "v2-zlib", "v2-bz2", "v3-gzip"])
def test_checksums_of_compressors_are_checked(tmp_path, layout):
    """A cut or changed checksum may pass, where the values are right."""
    write_zarr(tmp_path / "a", ramp((10, 3)), (10, 3), **LAYOUTS[layout])
    path = tmp_path / "a" / ("0.0" if layout.startswith("v2") else "c/0/0")
    content, num_bad = path.read_bytes(), 0
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        found = read_all(opened(tmp_path / "a"))
        OPENED.pop().close()
        if isinstance(found[0], BadRecord):
            num_bad += 1
        else:
            assert [record["tokens"].tolist() for record in found] == ramp((10, 3)).tolist()
    assert num_bad > len(content) // 2


def test_a_chunk_that_is_gone_costs_its_rows(tmp_path):
    write_zarr(tmp_path / "a", ramp((10, 3)), (4, 2))
    (tmp_path / "a" / "c" / "1" / "1").unlink()
    found = reasons(opened(tmp_path / "a"))
    assert sorted(found) == [4, 5, 6, 7]
    assert "is missing; if it was left out as all of it is the fill value, set fill_missing" in found[4]


def test_a_record_over_a_damaged_chunk_is_bad_and_its_neighbours_are_not(tmp_path):
    group = write_ragged(tmp_path / "g", ramp((16,)), np.array([0, 3, 6, 7, 8, 8, 13, 16]), 4)
    (group / "tokens" / "c" / "1").unlink()
    assert sorted(reasons(opened(group))) == [1, 2, 3]
    assert "rows 4 to 7 of 'tokens'" in reasons(opened(group))[1]


def test_a_chunk_of_one_array_makes_the_whole_record_bad(tmp_path):
    group = write_group(tmp_path / "g", {"a": ramp((6,)), "b": ramp((6,))}, 2)
    (group / "b" / "c" / "2").unlink()
    assert sorted(reasons(opened(group))) == [4, 5]


@pytest.mark.parametrize("layout", ["v2-blosc", "v2-zstd", "v3-checksum", "v3-shards", "v3-shards-blosc"])
@given(seed=st.integers(0, 2**32))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
def test_any_damage_to_a_file_costs_its_rows_only(tmp_path, layout, seed):
    folder, rng = tmp_path / "a", random.Random(seed)
    values = ramp((24, 3))
    if not folder.exists():
        write_zarr(folder, values, (4, 3), **LAYOUTS[layout])
    path = rng.choice(sorted(path for path in folder.rglob("[0-9]*") if path.is_file()))
    content = path.read_bytes()
    damaged = bytearray(content)
    if rng.random() < 0.3:
        del damaged[rng.randrange(len(content)) :]
    else:
        damaged[rng.randrange(len(content))] = rng.randrange(256)
    path.write_bytes(damaged)
    try:
        found = read_all(opened(folder))
        number = int(path.name.split(".")[0] if layout.startswith("v2") else path.parent.name)
        rows = 4 * LAYOUTS[layout].get("shards", 1)
        for index, record in enumerate(found):
            if not number * rows <= index < (number + 1) * rows:
                assert record["tokens"].tolist() == values[index].tolist()
            elif isinstance(record, BadRecord):
                assert not record.transient
                assert "\n" not in record.reason
            else:
                assert record["tokens"].shape == (3,)
                if layout == "v3-checksum":
                    assert damaged == content
    finally:
        path.write_bytes(content)
        OPENED.pop().close()


# --- files that are no chunks


def test_a_link_that_leaves_the_folder_is_not_followed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(np.arange(8, dtype=np.int32).tobytes())
    write_zarr(tmp_path / "a", ramp((8,)), (4,), **LAYOUTS["v3"])
    (tmp_path / "a" / "c" / "0").unlink()
    (tmp_path / "a" / "c" / "0").symlink_to(secret)
    found = reasons(opened(tmp_path / "a"))
    assert sorted(found) == [0, 1, 2, 3]
    assert "the chunk c/0 is no file of the folder; a link must not leave it" in found[0]


def test_a_link_to_a_folder_of_chunks_outside_is_not_followed(tmp_path):
    write_zarr(tmp_path / "other", ramp((8,)), (4,), **LAYOUTS["v3"])
    write_zarr(tmp_path / "a", ramp((8,)), (4,), **LAYOUTS["v3"])
    (tmp_path / "a" / "c").rename(tmp_path / "moved")
    (tmp_path / "a" / "c").symlink_to(tmp_path / "other" / "c")
    assert sorted(reasons(opened(tmp_path / "a"))) == list(range(8))


def test_a_link_inside_the_folder_is_followed(tmp_path):
    write_zarr(tmp_path / "a", ramp((8,)), (4,), **LAYOUTS["v3"])
    (tmp_path / "a" / "c" / "0").rename(tmp_path / "a" / "first")
    (tmp_path / "a" / "c" / "0").symlink_to("../first")
    assert [int(record["tokens"]) for record in read_all(opened(tmp_path / "a"))] == list(range(1, 9))


def test_an_array_of_a_group_that_is_a_link_outside_is_an_error(tmp_path):
    write_zarr(tmp_path / "other", ramp((8,)), (4,))
    group = write_group(tmp_path / "g", {"a": ramp((8,))}, 4)
    (group / "b").symlink_to(tmp_path / "other")
    with pytest.raises(SourceError, match=r"g: b is a link that leaves the folder, to .*other; copy"):
        opened(group)


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_file_costs_its_rows_and_does_not_wait(tmp_path, kind):
    write_zarr(tmp_path / "a", ramp((8,)), (4,))
    path = tmp_path / "a" / "c" / "1"
    path.unlink()
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    found = reasons(opened(tmp_path / "a"))
    assert sorted(found) == [4, 5, 6, 7]
    assert "the chunk c/1 is no file of the folder" in found[4]


# --- bombs


def gzip_bomb():
    return packed_bomb(zlib.compressobj(9, wbits=31))


def zlib_bomb():
    return packed_bomb(zlib.compressobj(9, wbits=15))


def zstd_bomb():
    return packed_bomb(zstandard.ZstdCompressor().compressobj())


def bz2_bomb():
    return packed_bomb(bz2.BZ2Compressor(1))


def packed_bomb(packer):
    return b"".join(packer.compress(bytes(MEGABYTE)) for _ in range(BOMB_BYTES >> 20)) + packer.flush()


def blosc_bomb():
    return blosc.compress(np.zeros(BOMB_BYTES, np.uint8), b"lz4", 5, 0)


BOMBS = {
    "v2-gzip": ("1", gzip_bomb),
    "v2-zlib": ("1", zlib_bomb),
    "v2-zstd": ("1", zstd_bomb),
    "v2-bz2": ("1", bz2_bomb),
    "v2-blosc": ("1", blosc_bomb),
    "v3-gzip": ("c/1", gzip_bomb),
    "v3-zstd": ("c/1", zstd_bomb),
    "v3-blosc": ("c/1", blosc_bomb),
}


@pytest.mark.parametrize("layout", BOMBS)
def test_a_bomb_decompresses_no_further_than_its_shape(tmp_path, layout):
    write_zarr(tmp_path / "a", ramp((2000,)), (1000,), **LAYOUTS[layout])
    name, make = BOMBS[layout]
    (tmp_path / "a" / name).write_bytes(make())
    records = opened(tmp_path / "a")
    records.read(np.array([0]))
    found, peak = peak_bytes(lambda: read_all(records))
    assert [isinstance(record, BadRecord) for record in found] == [False] * 1000 + [True] * 1000
    assert peak < 32 * MEGABYTE


@pytest.mark.parametrize(("kind", "make"), [("gzip", gzip_bomb), ("zstd", zstd_bomb), ("blosc", blosc_bomb)])
def test_a_bomb_in_n5(tmp_path, kind, make):
    compression = {
        "gzip": {"type": "gzip", "level": 1},
        "zstd": {"type": "zstd", "level": 1},
        "blosc": {"type": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},
    }[kind]
    write_n5(tmp_path / "a", ramp((2000,)), (1000,), compression)
    (tmp_path / "a" / "1").write_bytes(struct.pack(">HHI", 0, 1, 1000) + make())
    records = opened(tmp_path / "a")
    records.read(np.array([0]))
    found, peak = peak_bytes(lambda: reasons(records))
    assert sorted(found) == list(range(1000, 2000))
    assert peak < 32 * MEGABYTE


def test_a_block_of_n5_is_no_larger_than_its_metadata_say(tmp_path):
    write_n5(tmp_path / "a", ramp((8,)), (4,), {"type": "raw"})
    (tmp_path / "a" / "1").write_bytes(struct.pack(">HHI", 0, 1, 1 << 30) + bytes(16))
    assert "exceeds blockSize" in reasons(opened(tmp_path / "a"))[4]


@pytest.mark.parametrize("layout", ["v2", "v3", "v3-zstd", "v3-shards"])
def test_a_file_that_is_larger_than_its_shape_is_not_read(tmp_path, layout):
    write_zarr(tmp_path / "a", ramp((8,)), (2,), **LAYOUTS[layout])
    name = "1" if layout == "v2" else "c/1"
    os.truncate(tmp_path / "a" / name, BOMB_BYTES)  # sparse
    records = opened(tmp_path / "a")
    found, peak = peak_bytes(lambda: reasons(records))
    assert 2 in found or 4 in found
    assert f"the chunk {name} has {BOMB_BYTES} bytes, and its shape takes" in next(iter(found.values()))
    assert peak < 32 * MEGABYTE


def write_shard(path, chunks, entries):
    """A shard: its chunks, the index of (offset, size), and the checksum of the index."""
    from google_crc32c import value as crc32c

    index = np.array(entries, "<u8").tobytes()
    path.write_bytes(chunks + index + crc32c(index).to_bytes(4, "little"))


def test_a_bomb_in_a_shard(tmp_path):
    write_zarr(tmp_path / "a", ramp((3000,)), (1000,), **LAYOUTS["v3-shards-blosc"])
    path = tmp_path / "a" / "c" / "0"
    bomb = blosc_bomb()[:4000]
    write_shard(path, bomb, [(0, len(bomb))] * 3)
    found, peak = peak_bytes(lambda: reasons(opened(tmp_path / "a")))
    assert sorted(found) == list(range(3000))
    assert f"the chunk c/0 decompresses to {BOMB_BYTES} bytes, its shape takes 4000" in found[0]
    assert peak < 32 * MEGABYTE


@pytest.mark.parametrize("entry", [(0, 2**40), (2**63, 10), (0, 2**64 - 1), (2**62, 2**62), (2**64 - 1, 4)])
@pytest.mark.parametrize("layout", ["v3-shards", "v3-shards-blosc"])
def test_an_index_of_a_shard_with_absurd_places(tmp_path, layout, entry):
    write_zarr(tmp_path / "a", ramp((12,)), (2,), **LAYOUTS[layout])
    path = tmp_path / "a" / "c" / "0"
    num_inner = LAYOUTS[layout]["shards"]
    write_shard(path, bytes(64), [entry] * num_inner)
    found, peak = peak_bytes(lambda: reasons(opened(tmp_path / "a")))
    assert sorted(found) == list(range(2 * num_inner))
    if entry[1] > 2**32:
        assert f"the chunk c/0 has a chunk of {entry[1]} bytes, its shape takes 4105 at most" in found[0]
    assert peak < 32 * MEGABYTE


def test_an_index_of_a_shard_at_the_start(tmp_path):
    from zarr.codecs import BytesCodec, ShardingCodec

    codec = ShardingCodec(chunk_shape=(2,), codecs=[BytesCodec()], index_location="start")
    write_zarr(tmp_path / "a", ramp((10,)), (4,), serializer=codec, compressors=None)
    assert [int(record["tokens"]) for record in read_all(opened(tmp_path / "a"))] == list(range(1, 11))
    path = tmp_path / "a" / "c" / "1"
    path.write_bytes(path.read_bytes()[:20])
    assert "is cut short: it has 20 bytes, its index alone 32" in reasons(opened(tmp_path / "a"))[4]


def test_a_shard_in_a_shard_is_an_error(tmp_path):
    from zarr.codecs import BytesCodec, ShardingCodec

    inner = ShardingCodec(chunk_shape=(1,), codecs=[BytesCodec()])
    codec = ShardingCodec(chunk_shape=(2,), codecs=[inner])
    write_zarr(tmp_path / "a", ramp((10,)), (4,), serializer=codec, compressors=None)
    with pytest.raises(SourceError, match="the array has shards in its shards"):
        opened(tmp_path / "a")


# --- metadata


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"shape": [2**60, 3]}, r"says that it has the shape \(1152921504606846976, 3\) of int32"),
        ({"shape": [2**45, 3]}, "17592186044416 bytes are allowed"),
        (
            {"chunks": [2**38, 3]},
            r"3298534883328 bytes are decoded for a record.*max_chunk_bytes is 268435456",
        ),
        ({"shape": [10, 2**40], "chunks": [1, 1]}, "4398046511104 bytes are decoded for a record"),
        ({"shape": [10, 2**62], "chunks": [1, 2**61]}, "the array cannot be opened: .*too large"),
        ({"shape": [2**70, 3]}, "the array cannot be opened: .*shape"),
        ({"shape": [-1, 3]}, "the array cannot be opened: .*shape"),
        ({"shape": [10]}, "the array cannot be opened"),
        ({"shape": "10"}, "the array cannot be opened: .*shape"),
        ({"shape": None}, "the array cannot be opened: .*shape"),
        ({"shape": [10, 0]}, r"shape \(10, 0\) of int32; it takes numbers, at least one axis, and rows"),
        ({"shape": [], "chunks": []}, r"shape \(\) of int32; it takes numbers, at least one axis"),
        ({"chunks": [0, 3]}, "the array cannot be opened: .*chunks"),
        ({"dtype": "|O"}, r"the array cannot be opened: .*Unsupported zarr dtype: \W+\|O"),
        ({"dtype": "<U5"}, "the array cannot be opened: .*Unsupported zarr dtype"),
        ({"dtype": "|S5", "fill_value": None}, r"of \|S0; it takes numbers"),
        ({"dtype": "|V4", "fill_value": None}, r"of \|V0; it takes numbers"),
        ({"dtype": "<M8[s]"}, "the array cannot be opened: .*Unsupported zarr dtype"),
        ({"dtype": [["x", "<i4"], ["y", "<f4"]], "fill_value": None}, "the array cannot be opened: .*field"),
        ({"filters": [{"id": "delta", "dtype": "<i4"}]}, "the array cannot be opened: .*filters"),
        ({"compressor": {"id": "pickle"}}, "the array cannot be opened: .*not registered"),
        ({"compressor": {"id": "../../lib"}}, "the array cannot be opened: .*not registered"),
        ({"dimension_separator": "/../"}, "the array cannot be opened: .*dimension_separator"),
        ({"zarr_format": 3}, "the array cannot be opened"),
    ],
)
def test_metadata_of_v2_that_make_no_sense_are_an_error(tmp_path, members, reason):
    write_zarr(tmp_path / "a", ramp((10, 3)), (4, 3), **LAYOUTS["v2"])
    change(tmp_path / "a" / ".zarray", **{"fill_value": 0, **members})

    def open_it():
        with pytest.raises(SourceError, match=rf"a: .*{reason}"):
            opened(tmp_path / "a")

    assert peak_bytes(open_it)[1] < 16 * MEGABYTE


def sharding(chunk):
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    index = [*codecs, {"name": "crc32c"}]
    configuration = {"chunk_shape": [chunk], "codecs": codecs, "index_codecs": index}
    return [{"name": "sharding_indexed", "configuration": configuration}]


def grid(size):
    return {"name": "regular", "configuration": {"chunk_shape": [size]}}


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"shape": [2**60]}, "says that it has the shape"),
        ({"chunk_grid": grid(2**40)}, "4398046511104 bytes are decoded for a record"),
        ({"chunk_grid": grid(2**26), "codecs": sharding(1)}, "1073741824 for the index of a shard"),
        ({"codecs": [{"name": "../lib"}]}, "the array cannot be opened: .*codecs"),
        ({"data_type": "string"}, "the array cannot be opened: .*data_type"),
        ({"chunk_key_encoding": {"name": "../x"}}, "the array cannot be opened: .*chunk_key_encoding"),
        (
            {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "../"}}},
            "the array cannot be opened: .*separator",
        ),
        ({"storage_transformers": [{"name": "x"}]}, "the array cannot be opened"),
        ({"must_understand_this": {"name": "x"}}, "the array cannot be opened"),
    ],
)
def test_metadata_of_v3_that_make_no_sense_are_an_error(tmp_path, members, reason):
    write_zarr(tmp_path / "a", ramp((10,)), (4,), **LAYOUTS["v3"])
    change(tmp_path / "a" / "zarr.json", **members)

    def open_it():
        with pytest.raises(SourceError, match=rf"a: .*{reason}"):
            opened(tmp_path / "a")

    assert peak_bytes(open_it)[1] < 16 * MEGABYTE


@pytest.mark.parametrize(
    "content",
    [b"{}", b"[]", b'{"shape"', b"\xff\xfe", b'["shape"]', b'{"shape":' + b"[" * 100000, b'{"shape": 3}'],
)
def test_a_file_that_is_no_metadata_is_an_error(tmp_path, content):
    write_zarr(tmp_path / "a", ramp((10,)), (4,), **LAYOUTS["v2"])
    (tmp_path / "a" / ".zarray").write_bytes(content)
    with pytest.raises(SourceError, match=r"is damaged, no JSON|the array cannot be opened"):
        opened(tmp_path / "a" / ".zarray")


def test_metadata_have_a_largest_size(tmp_path):
    write_zarr(tmp_path / "a", ramp((10,)), (4,))
    with open(tmp_path / "a" / "zarr.json", "ab") as stream:
        stream.truncate(1 << 34)  # sparse
    opening = pytest.raises(SourceError, match=r"zarr\.json has more than 16777216 bytes")

    def open_it():
        with opening:
            opened(tmp_path / "a")

    assert peak_bytes(open_it)[1] < 64 * MEGABYTE


def test_metadata_that_are_no_file_do_not_wait(tmp_path):
    (tmp_path / "g" / "a").mkdir(parents=True)
    (tmp_path / "g" / ".zgroup").write_text('{"zarr_format": 2}')
    os.mkfifo(tmp_path / "g" / "a" / ".zarray")
    with pytest.raises(SourceError, match=r"a/\.zarray is no file"):
        opened(tmp_path / "g")


@pytest.mark.parametrize("layout", ["v2", "v3"])
def test_a_group_without_arrays_is_an_error(tmp_path, layout):
    group = write_group(tmp_path / "g", {}, 1, **LAYOUTS[layout])
    with pytest.raises(SourceError, match=r"g is a group without arrays right inside it; it has \[\]"):
        opened(group)
    write_group(group / "train", {"ids": ramp((3,))}, 2, **LAYOUTS[layout])
    with pytest.raises(SourceError, match=r"without arrays right inside it; it has \['train'\]"):
        opened(group)
    assert len(opened(group / "train")) == 3


def test_metadata_that_change_meanwhile_are_an_error(tmp_path):
    write_zarr(tmp_path / "a", ramp((10,)), (4,), **LAYOUTS["v3"])
    records = opened(tmp_path / "a")
    assert int(records.read(np.array([9]))[0]["tokens"]) == 10
    change(tmp_path / "a" / "zarr.json", chunk_grid=grid(2**40))
    records.drop_handles()
    with pytest.raises(SourceError, match="the metadata changed since the source was opened"):
        records.read(np.array([9]))


def test_an_address_is_refused():
    with pytest.raises(SourceError, match="read from local disks only"):
        ZarrFormat().index("https://localhost:1/a/.zarray")


# --- offsets


@pytest.mark.parametrize(
    ("offsets", "reason"),
    [
        (np.array([0, 5, 3, 9]), "from 0 to 9 and decreases first at 2"),
        (np.array([-1, 5, 9]), "goes from -1 to 9"),
        (np.array([0, 5, 10]), "goes from 0 to 10"),
        (np.array([0, 2**63, 9], np.uint64), "decreases first at 1"),
        (np.array([2**64 - 1, 5, 9], np.uint64), "goes from -1 to 9"),
        (np.array([0, 2**63 - 1]), f"goes from 0 to {2**63 - 1}"),
        (np.array([0.0, 9.0]), "one axis of at least 1 integer.*float64"),
        (np.array([[0, 9]]), r"one axis of at least 1 integer.*the shape \(2,\)"),
        (np.array([], np.int64), "got 0 rows"),
        (np.array([True, True]), "got 2 rows .* of bool"),
    ],
)
def test_offsets_that_make_no_sense_are_an_error(tmp_path, offsets, reason):
    group = write_ragged(tmp_path / "g", ramp((9,)), offsets)
    with pytest.raises(SourceError, match=rf"g: the array 'offsets' .*{reason}"):
        opened(group)


def test_offsets_that_are_gone_are_an_error(tmp_path):
    group = write_ragged(tmp_path / "g", ramp((9,)), np.array([0, 2, 4, 6, 8, 9]))
    (group / "offsets" / "c" / "1").unlink()
    with pytest.raises(SourceError, match=r"the array 'offsets' cannot be read: rows 4 to 5 .* is missing"):
        opened(group)


def test_offsets_have_a_largest_size(tmp_path):
    group = write_ragged(tmp_path / "g", ramp((9,)), np.array([0, 9]))
    with pytest.raises(SourceError, match=r"8 bytes \(max_index_bytes\) at most, got 2 rows"):
        opened(group, {"max_index_bytes": 8})
    change(group / "offsets" / "zarr.json", shape=[2**40])
    with pytest.raises(SourceError, match=r"\(max_index_bytes\) at most, got 1099511627776 rows"):
        opened(group)


def test_a_record_has_a_largest_size(tmp_path):
    group = write_ragged(tmp_path / "g", ramp((9,)), np.array([0, 3, 9]))
    found = reasons(opened(group, {"max_record_bytes": 12}))
    assert found == {1: "g: a record has 24 bytes, max_record_bytes is 12"}


# --- processes


def test_a_child_of_a_process_that_reads_says_so(tmp_path):
    """It would be aborted by tensorstore."""
    path = str(write_zarr(tmp_path / "a", ramp((9,)), (4,)))
    read_all(opened(path))
    rule = "forked by one that reads them too; give all such sources isolate=True, or none"
    with pytest.raises(ForkUnsafeError, match=rule):
        open_reader("a", 0, msd.Source(path, isolate=True), seed=0)
