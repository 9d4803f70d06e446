"""MDS: what mosaicml-streaming wrote comes back as its own reader gives it; damage, bombs, ways out."""

import base64
import json
import os
import random
import shutil
import tracemalloc
import zlib
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sources.opening import OPENED, on_threads, read_all
from sources.opening import opened as open_anyhow

from benchmarks.range_server import RangeServer
from msdata_jax.errors import SourceError
from msdata_jax.sources.files import open_files
from msdata_jax.sources.mds_columns import read_columns
from msdata_jax.sources.protocol import BadRecord

DATA = Path(__file__).parent / "data" / "mds"
KINDS = ("raw", "hashed", "zstd", "gz")


def opened(path, options=None):
    return open_anyhow(path, options, keep_damaged=True)


def from_json(told):
    if "base64" in told:
        return base64.b64decode(told["base64"])
    if "list" in told:
        return [from_json(each) for each in told["list"]]
    if "dtype" in told:
        return np.array(told["values"], told["dtype"]).reshape(told["shape"])
    return Decimal(told["decimal"]) if "decimal" in told else told["is"]


EXPECTED = [
    {name: from_json(told) for name, told in sample.items()}
    for sample in json.loads((DATA / "expected.json").read_text())
]


def same(found, expected):
    if isinstance(expected, np.ndarray):
        return found.dtype == expected.dtype and found.shape == expected.shape and (found == expected).all()
    return type(found) is type(expected) and found == expected


def is_whole(record):
    return any(all(same(record[name], value) for name, value in sample.items()) for sample in EXPECTED)


def copy(tmp_path, kind, name="a"):
    folder = tmp_path / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DATA / kind, folder)
    return folder


def change_index(folder, change):
    path = folder / "index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))
    return folder


def change_shard(folder, change):
    return change_index(folder, lambda index: change(index["shards"][0]))


# --- what the library wrote


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["", "index.json"])
def test_samples_come_back_as_the_library_reads_them(kind, place):
    records = opened(DATA / kind / place)
    found = read_all(records)
    assert len(records) == len(found) == len(EXPECTED) == 6
    for record, expected in zip(found, EXPECTED, strict=True):
        assert list(record) == sorted(expected)
        assert {name for name in expected if not same(record[name], expected[name])} == set()
    assert same(records.read(np.array([5, 1, 5]))[0]["text"], EXPECTED[5]["text"])
    assert (records.group_sizes is None) == (kind == "raw")


def test_a_glob_of_folders_is_one_dataset(tmp_path):
    copy(tmp_path, "zstd", "a")
    copy(tmp_path, "raw", "b")
    records = opened(tmp_path / "*")
    assert [record["number"] for record in read_all(records)] == [each["number"] for each in EXPECTED] * 2
    assert records.describe(7) == "record 1 of b"


def test_columns_are_chosen(tmp_path):
    assert set(read_all(opened(DATA / "zstd", {"columns": ("text", "number")}))[0]) == {"text", "number"}
    with pytest.raises(SourceError, match=r"asks for \['no'\]"):
        opened(DATA / "raw", {"columns": ("no",)})
    with pytest.raises(SourceError, match="tuple"):
        opened(DATA / "raw", {"columns": "text"})


def test_an_index_that_was_merged_names_files_in_folders_below(tmp_path):
    copy(tmp_path / "all", "raw", "part")
    (tmp_path / "all" / "part" / "index.json").rename(tmp_path / "all" / "index.json")

    def below(index):
        for shard in index["shards"]:
            shard["raw_data"]["basename"] = "part/" + shard["raw_data"]["basename"]

    change_index(tmp_path / "all", below)
    assert all(map(is_whole, read_all(opened(tmp_path / "all"))))


def test_a_shard_that_was_decompressed_before_serves_for_the_compressed_one(tmp_path):
    folder = copy(tmp_path, "gz")
    for path in folder.glob("*.gz"):
        path.with_suffix("").write_bytes(zlib.decompress(path.read_bytes(), wbits=31))
        path.unlink()
    assert all(map(is_whole, read_all(opened(folder))))


def test_few_decompressed_shards_are_kept():
    records = opened(DATA / "zstd", {"cache_bytes": 1})
    for index in (0, 5, 0, 3, 5):
        assert is_whole(records.read(np.array([index]))[0])
    [folder] = records._files
    assert len(folder._options.shards._groups) == 1
    assert records.group_sizes.sum() == 6


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_on_a_web_server_is_as_a_local_one(tmp_path, kind):
    shutil.copytree(DATA, tmp_path / "served")
    storage_options = {"cache_dir": str(tmp_path / "cache")}
    with RangeServer(tmp_path / "served") as server:
        remote = open_files(
            f"{server.url}/{kind}/index.json", {}, keep_damaged=False, storage_options=storage_options
        )
        OPENED.append(remote)
        assert all(map(is_whole, read_all(remote)))
        assert set(remote.file_digests()) == {"index.json"}
        local = opened(DATA / kind / "index.json")
        assert remote.fingerprint() == local.fingerprint()


@pytest.mark.parametrize("kind", KINDS)
def test_threads_read_at_once_and_leave_no_file_open(tmp_path, kind):
    for name in "abc":
        copy(tmp_path, kind, name)
    before = len(os.listdir("/proc/self/fd"))
    records = opened(tmp_path / "*", {"cache_bytes": 1})
    wrong = []

    def read(seed):
        for _ in range(20):
            asked = np.random.default_rng(seed).permutation(18)[:9]
            found = records.read(asked)
            if not all(
                same(record["text"], EXPECTED[i % 6]["text"]) for record, i in zip(found, asked, strict=True)
            ):
                wrong.append(seed)

    on_threads(read)
    assert not wrong
    records.drop_handles()
    assert is_whole(records.read(np.array([17]))[0])
    records.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_fingerprint_follows_index_and_shards(tmp_path):
    first = opened(DATA / "raw").fingerprint()
    folder = copy(tmp_path, "raw", "raw")
    assert opened(folder).fingerprint() == first
    path = sorted(folder.glob("*.mds"))[1]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert opened(folder).fingerprint() != first


# --- what is refused


@pytest.mark.parametrize(
    "name",
    [
        "../a/shard.00000.mds",
        "/etc/passwd",
        "..",
        "",
        ".",
        "x/../../y",
        "a//b",
        "a\\b",
        "s3://b/c",
        "a\0",
        "a?b",
        3,
        None,
    ],
)
@pytest.mark.parametrize("file", ["raw_data", "zip_data"])
def test_no_name_leads_out_of_the_folder(tmp_path, name, file):
    folder = change_shard(copy(tmp_path, "zstd"), lambda shard: shard[file].update(basename=name))
    with pytest.raises(SourceError, match=r"a/index.json, shard 0: the file name .* leads out of the folder"):
        opened(folder)


def test_pickled_columns_are_never_read(tmp_path):
    folder = change_index(
        copy(tmp_path, "raw"),
        lambda index: [shard["column_encodings"].__setitem__(-3, "pkl") for shard in index["shards"]],
    )
    with pytest.raises(SourceError, match="'text' is pickled, and reading it would run code"):
        opened(folder)
    assert same(read_all(opened(folder, {"columns": ("number",)}))[2]["number"], EXPECTED[2]["number"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 1}, r"\(1, 'mds'\)"),
        ({"format": "json"}, "'json'"),
        ({"samples": 2**62}, "4611686018427387904 samples take"),
        ({"samples": -1}, "-1 samples"),
        ({"samples": 1.5}, "1.5 samples"),
        ({"samples": True}, "True samples"),
        ({"compression": "br"}, "compressed by 'br', this reads gz and zstd"),
        ({"compression": None}, "either a compression or a compressed file"),
        ({"raw_data": None}, "None"),
        ({"raw_data": {"basename": "a", "bytes": 2**62, "hashes": {}}}, "4611686018427387904 bytes"),
        ({"raw_data": {"basename": "a", "bytes": 2**31, "hashes": {}}}, "max_shard_bytes is 268435456"),
        ({"zip_data": {"basename": "a", "bytes": 2**31, "hashes": {}}}, "max_shard_bytes is 268435456"),
        ({"raw_data": {"basename": "a", "bytes": 100, "hashes": {"sha1": 3}}}, "has the hashes"),
        ({"column_names": "text"}, "no columns"),
        ({"column_names": [1] * 19}, "its columns are"),
        ({"column_names": ["a"] * 19}, "19 names"),
        ({"column_sizes": []}, "0 sizes"),
        ({"column_sizes": [-1] * 19}, "the size -1"),
        ({"column_encodings": ["ndarray:int32:0"] * 19}, r"shape \(0,\)"),
        ({"column_encodings": ["ndarray:object"] * 19}, "no ndarray of 'object'"),
        ({"column_encodings": ["ndarray:int8:x"] * 19}, "invalid literal"),
        ({"column_encodings": ["unknown"] * 19}, "'unknown'"),
    ],
)
def test_an_index_that_makes_no_sense_is_an_error_at_opening(tmp_path, change, reason):
    folder = change_shard(copy(tmp_path, "zstd"), lambda shard: shard.update(change))
    with pytest.raises(SourceError, match=rf"index\.json.*{reason}"):
        opened(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"{}",
        b'{"shards": 3}',
        b'{"version": 3, "shards": []}',
        b"[" * 100000,
        b'{"version": 2, "shards": [[]]}',
    ],
)
def test_a_file_that_is_no_index_is_an_error_at_opening(tmp_path, content):
    (tmp_path / "index.json").write_bytes(content)
    with pytest.raises(SourceError, match=r"index\.json"):
        opened(tmp_path / "index.json")


def test_an_index_has_a_largest_size():
    with pytest.raises(SourceError, match="max_index_bytes is 100"):
        opened(DATA / "raw", {"max_index_bytes": 100})


# --- damage


def mutate(content, rng):
    mutant, place = bytearray(content), rng.randrange(len(content))
    kind = rng.choice(["cut", "flip", "zero", "drop"])
    if kind == "cut":
        return bytes(mutant[:place])
    if kind == "flip":
        mutant[place] ^= 1 << rng.randrange(8)
    elif kind == "zero":
        mutant[place : place + 16] = bytes(len(mutant[place : place + 16]))
    else:
        del mutant[place : place + 16]
    return bytes(mutant)


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**32))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
def test_damage_to_a_shard_costs_its_samples_only(tmp_path, kind, seed):
    rng = random.Random(seed)
    folder = copy(tmp_path, kind)
    shards = sorted(path for path in folder.iterdir() if path.name != "index.json")
    path = rng.choice(shards)
    content = path.read_bytes()
    mutant = mutate(content, rng)
    path.write_bytes(mutant)
    found = read_all(opened(folder))
    OPENED.pop().close()
    for record, expected in zip(found, EXPECTED, strict=True):
        if isinstance(record, BadRecord):
            assert record.reason.startswith(
                f"a: {'sample' if ' of ' + path.name[:11] in record.reason else path.name[:11]}"
            )
            assert not record.transient
            assert "\n" not in record.reason
        elif kind in ("hashed", "zstd"):
            assert is_whole(record)
        else:  # without hashes, changed values of the right size pass, in gzip by chance of 2**-32
            assert record.keys() == expected.keys()
    num_bad = sum(isinstance(record, BadRecord) for record in found)
    if mutant != content and (kind != "raw" or len(mutant) != len(content)):
        assert 0 < num_bad < len(found) or kind == "gz"


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
def test_damage_to_the_index_is_an_error_or_a_bad_record(tmp_path, data):
    folder = copy(tmp_path, data.draw(st.sampled_from(KINDS)))
    path = folder / "index.json"
    content = path.read_bytes()
    path.write_bytes(mutate(content, random.Random(data.draw(st.integers(0, 2**32)))))
    try:
        records = opened(path)
    except SourceError:
        return
    for record in read_all(records):
        assert isinstance(record, BadRecord | dict)
    OPENED.pop().close()


def test_a_missing_shard_costs_its_samples_only(tmp_path):
    folder = copy(tmp_path, "raw")
    shards = sorted(folder.glob("*.mds"))
    shards[0].unlink()
    found = read_all(opened(folder))
    assert found[0] == BadRecord("a: shard.00000.mds is missing")
    assert is_whole(found[-1])


def test_hashes_may_be_left_unchecked(tmp_path):
    folder = copy(tmp_path, "hashed")
    path = folder / "shard.00000.mds"
    content = path.read_bytes().replace(b"msdata_jax", b"msdata_JAX")
    path.write_bytes(content)
    assert read_all(opened(folder))[0] == BadRecord("a: shard.00000.mds does not have the sha1 of its index")
    records = opened(folder, {"verify_hashes": False})
    assert records.group_sizes is None
    assert "msdata_JAX" in read_all(records)[0]["text"]


# --- bounds


def test_a_bomb_decompresses_no_further_than_its_index_says(tmp_path):
    folder = copy(tmp_path, "gz")
    bomb = zlib.compressobj(9, wbits=31)
    packed = b"".join(bomb.compress(bytes(1 << 20)) for _ in range(200)) + bomb.flush()
    (folder / "shard.00000.mds.gz").write_bytes(packed)
    change_shard(folder, lambda shard: shard["zip_data"].update(bytes=len(packed)))
    records = opened(folder)
    tracemalloc.start()
    found = read_all(records)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "decompresses to more than" in found[0].reason
    assert is_whole(found[-1])
    assert peak < 8 << 20


def test_an_absurd_index_allocates_nothing_large(tmp_path):
    """A shard that is said to have 256 MiB, and has a few kB."""
    folder = change_shard(copy(tmp_path, "zstd"), lambda shard: shard["raw_data"].update(bytes=256 << 20))
    tracemalloc.start()
    found = read_all(opened(folder))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "its index says 268435456" in found[0].reason
    assert peak < 8 << 20


def test_a_sample_has_a_largest_size():
    found = read_all(opened(DATA / "raw", {"max_record_bytes": 2500}))
    assert any(
        isinstance(record, BadRecord) and "max_record_bytes is 2500" in record.reason for record in found
    )
    assert any(isinstance(record, dict) for record in found)


@pytest.mark.parametrize(
    ("encoding", "value"),
    [
        ("ndarray", b"\x08" + bytes([63 << 2 | 3]) + b"\xff" * 8 * 63),  # 2**4032 values
        ("ndarray", b"\x08\x04\x05abc"),
        ("ndarray", b"\x07\x04\x01a"),
        ("ndarray", b"\x08\x07\x01"),
        ("ndarray", b"\x08"),
        ("ndarray", b""),
        ("ndarray:int32:2,3", b"abc"),
        ("jpeg_array", b"\xff\xff\xff\xff"),
        ("jpeg_array", b"\x01\x00\x00\x00\x05\x00\x00\x00abc"),
        ("list[png]", b"\0\0\0\0\xff\xff\xff\xff\x01\0\0\0"),
        ("list[png]", b""),
        ("int", b"1234567"),
        ("str", b"\xff"),
        ("json", b"{"),
        ("json", b"[" * 100000),
        ("str_int", b"1" * 5000),
        ("str_int", b"one"),
        ("str_float", b"one"),
        ("str_decimal", b"one"),
    ],
)
def test_a_value_that_does_not_fit_its_encoding_is_a_bad_record(encoding, value):
    columns = read_columns(["a"], [encoding], [None], None)
    with pytest.raises(ValueError, match=r"has a damaged column 'a': ."):
        columns.decode(len(value).to_bytes(4, "little") + value)
