"""Zarr v2 and v3 come back as zarr-python reads them, N5 as tensorstore wrote it."""

import contextlib
import itertools
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorstore
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from sources.opening import OPENED, on_threads, opened, read_all
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec

import msdata_jax as msd
from msdata_jax.errors import SourceError
from msdata_jax.sources.handles import Handles, OpenFiles
from msdata_jax.sources.order import Order
from msdata_jax.sources.protocol import BadRecord
from msdata_jax.sources.zarr_array import OpenArray

LAYOUTS = {
    "v2": {"zarr_format": 2, "compressors": None},
    "v2-blosc": {"zarr_format": 2, "compressors": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}},
    "v2-gzip": {"zarr_format": 2, "compressors": {"id": "gzip", "level": 1}},
    "v2-zlib": {"zarr_format": 2, "compressors": {"id": "zlib", "level": 1}},
    "v2-zstd": {"zarr_format": 2, "compressors": {"id": "zstd", "level": 1}},
    "v2-bz2": {"zarr_format": 2, "compressors": {"id": "bz2", "level": 1}},
    "v2-fortran": {"zarr_format": 2, "order": "F"},
    "v2-folders": {"zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
    "v3": {"compressors": None},
    "v3-blosc": {"compressors": BloscCodec(cname="zstd")},
    "v3-gzip": {"compressors": GzipCodec(level=1)},
    "v3-zstd": {"compressors": ZstdCodec(level=1)},
    "v3-checksum": {"compressors": [ZstdCodec(level=1), Crc32cCodec()]},
    "v3-dots": {"chunk_key_encoding": {"name": "default", "separator": "."}},
    "v3-named-as-v2": {"chunk_key_encoding": {"name": "v2", "separator": "."}},
    "v3-shards": {"compressors": ZstdCodec(level=1), "shards": 2},
    "v3-shards-blosc": {"compressors": BloscCodec(cname="lz4"), "shards": 3},
}


def write_zarr(folder, values, chunks, shards=None, **options):
    """`shards` is how many chunks a shard has along each axis."""
    array = zarr.create_array(
        str(folder),
        shape=values.shape,
        dtype=values.dtype,
        chunks=chunks,
        shards=None if shards is None else tuple(shards * size for size in chunks),
        config={"write_empty_chunks": True},
        **options,
    )
    array[...] = values
    return folder


def write_n5(folder, values, chunks, compression):
    metadata = {
        "dimensions": values.shape,
        "blockSize": chunks,
        "dataType": str(values.dtype),
        "compression": compression,
    }
    spec = {"driver": "n5", "kvstore": {"driver": "file", "path": f"{folder}/"}, "metadata": metadata}
    store = tensorstore.open(spec, create=True).result()
    store[...] = values
    return folder


def write_group(folder, arrays, chunks, **options):
    zarr.create_group(str(folder), zarr_format=options.get("zarr_format", 3))
    for name, values in arrays.items():
        write_zarr(folder / name, values, (chunks, *values.shape[1:]), **options)
    return folder


def write_ragged(folder, tokens, offsets, chunks=4, **options):
    return write_group(folder, {"tokens": tokens, "offsets": offsets}, chunks, **options)


def ramp(shape, dtype="int32"):
    count = int(np.prod(shape))
    values = np.arange(1, count + 1).reshape(shape)
    return (values % 3 == 0) if dtype == "bool" else values.astype(dtype)


def check(found, expected):
    """One value, its dtype and its shape."""
    assert isinstance(found, np.ndarray)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tolist() == expected.tolist()


def check_rows(records, array, name="tokens"):
    found = read_all(records)
    assert len(records) == len(found) == array.shape[0]
    for index, record in enumerate(found):
        assert list(record) == [name]
        check(record[name], np.asarray(array[index]))


# --- one array


@pytest.mark.parametrize("shape", [(10,), (10, 3), (7, 3, 5)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_come_back_as_zarr_reads_them(tmp_path, layout, shape):
    write_zarr(tmp_path / "a.zarr", ramp(shape), (4, 2, 2)[: len(shape)], **LAYOUTS[layout])
    check_rows(opened(tmp_path / "a.zarr"), zarr.open_array(tmp_path / "a.zarr", mode="r"))


@pytest.mark.parametrize("dtype", ["int32", "uint16", "float32", "bool", "int64", "uint8", "float16"])
@pytest.mark.parametrize("layout", ["v2", "v3"])
def test_dtypes_are_kept(tmp_path, layout, dtype):
    write_zarr(tmp_path / "a", ramp((5, 2), dtype), (2, 2), **LAYOUTS[layout])
    check_rows(opened(tmp_path / "a"), zarr.open_array(tmp_path / "a", mode="r"))


@pytest.mark.parametrize("layout", ["v2", "v3"])
def test_the_other_byte_order_gives_equal_values(tmp_path, layout):
    values = ramp((5, 2), ">i4")
    write_zarr(tmp_path / "a", values, (2, 2), **LAYOUTS[layout])
    assert [record["tokens"].tolist() for record in read_all(opened(tmp_path / "a"))] == values.tolist()


def test_columns_may_be_stored_before_rows(tmp_path):
    write_zarr(tmp_path / "a", ramp((5, 3, 2)), (2, 2, 2), filters=TransposeCodec(order=(2, 0, 1)))
    check_rows(opened(tmp_path / "a"), zarr.open_array(tmp_path / "a", mode="r"))


@pytest.mark.parametrize(
    "compression",
    [
        {"type": "raw"},
        {"type": "gzip", "level": 1},
        {"type": "bzip2", "blockSize": 1},
        {"type": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},
        {"type": "zstd", "level": 1},
    ],
    ids=lambda compression: compression["type"],
)
@pytest.mark.parametrize("shape", [(10,), (10, 3), (7, 3, 5)])
def test_n5_comes_back_in_the_order_of_its_axes(tmp_path, compression, shape):
    values = ramp(shape, "uint16")
    write_n5(tmp_path / "a.n5", values, (4, 2, 2)[: len(shape)], compression)
    check_rows(opened(tmp_path / "a.n5"), values)


def test_a_group_of_n5(tmp_path):
    for name, dtype in {"ids": "int32", "weights": "float32"}.items():
        write_n5(tmp_path / "a" / name, ramp((5,), dtype), (2,), {"type": "raw"})
    (tmp_path / "a" / "attributes.json").write_text('{"n5": "2.0.0"}')
    found = read_all(opened(tmp_path / "a"))
    assert found == [{"ids": n, "weights": n} for n in range(1, 6)]


def test_a_single_array_is_named(tmp_path):
    write_zarr(tmp_path / "a", ramp((5, 2)), (2, 2))
    check_rows(opened(tmp_path / "a", {"name": "ids"}), zarr.open_array(tmp_path / "a", mode="r"), "ids")


@pytest.mark.parametrize("layout", ["v2", "v3"])
def test_any_way_to_write_the_path_is_the_same_data(tmp_path, layout, monkeypatch):
    write_zarr(tmp_path / "a b" / "c%d.zarr", ramp((5, 2)), (2, 2), **LAYOUTS[layout])
    marker = {"v2": ".zarray", "v3": "zarr.json"}[layout]
    (tmp_path / "link").symlink_to(tmp_path / "a b" / "c%d.zarr")
    monkeypatch.chdir(tmp_path / "a b")
    paths = ["c%d.zarr", "./c%d.zarr", "../a b/c%d.zarr/", f"c%d.zarr/{marker}", str(tmp_path / "link")]
    for path in paths:
        check_rows(opened(path), ramp((5, 2)))
    monkeypatch.chdir("c%d.zarr")
    check_rows(opened("."), ramp((5, 2)))
    check_rows(opened(marker), ramp((5, 2)))


def test_a_glob_of_arrays_is_one_dataset(tmp_path):
    for number, name in enumerate("ab"):
        write_zarr(tmp_path / f"{name}.zarr", ramp((3, 2)) + 100 * number, (2, 2))
    records = opened(tmp_path / "*.zarr")
    assert [record["tokens"].tolist() for record in read_all(records)] == [
        *ramp((3, 2)).tolist(),
        *(ramp((3, 2)) + 100).tolist(),
    ]
    assert records.describe(4) == "record 1 of b.zarr"


def test_indices_in_any_order_and_more_than_once(tmp_path):
    write_zarr(tmp_path / "a", ramp((9, 2)), (2, 2))
    asked = np.array([8, 0, 5, 8, 1])
    found = opened(tmp_path / "a").read(asked)
    assert [record["tokens"].tolist() for record in found] == ramp((9, 2))[asked].tolist()


def test_no_rows(tmp_path):
    write_zarr(tmp_path / "a", ramp((0, 2)), (2, 2))
    records = opened(tmp_path / "a")
    assert len(records) == 0
    assert records.group_sizes.tolist() == []
    assert len(records.fingerprint()) == 32


# --- groups


@pytest.mark.parametrize("layout", ["v2", "v3"])
def test_a_group_gives_a_value_of_each_array(tmp_path, layout):
    arrays = {"ids": ramp((9,)), "images": ramp((9, 2, 3), "uint8"), "labels": ramp((9,), "float32")}
    group = write_group(tmp_path / "g", arrays, 4, **LAYOUTS[layout])
    zarr.create_group(str(group / "below"), zarr_format=LAYOUTS[layout].get("zarr_format", 3))
    found = read_all(opened(group))
    assert len(found) == 9
    for index, record in enumerate(found):
        assert sorted(record) == ["ids", "images", "labels"]
        for name in record:
            check(record[name], np.asarray(zarr.open_group(group, mode="r")[name][index]))


@pytest.mark.parametrize("layout", ["v2", "v3"])
def test_metadata_that_are_consolidated(tmp_path, layout):
    group = write_group(tmp_path / "g", {"ids": ramp((5, 2))}, 2, **LAYOUTS[layout])
    expected = pytest.warns(UserWarning, match="Consolidated metadata")
    with expected if layout == "v3" else contextlib.nullcontext():
        zarr.consolidate_metadata(str(group))
    check_rows(opened(group), ramp((5, 2)), "ids")


def test_arrays_of_a_group_have_chunks_of_their_own(tmp_path):
    write_zarr(tmp_path / "g" / "a", ramp((11, 2)), (3, 1))
    write_zarr(tmp_path / "g" / "b", -ramp((11,)), (5,))
    zarr.create_group(str(tmp_path / "g"))
    found = read_all(opened(tmp_path / "g"))
    assert [record["a"].tolist() for record in found] == ramp((11, 2)).tolist()
    assert [int(record["b"]) for record in found] == [-n for n in range(1, 12)]


def test_columns_are_chosen(tmp_path):
    group = write_group(tmp_path / "g", {"a": ramp((3,)), "b": ramp((4,)), "c": -ramp((3,))}, 2)
    found = read_all(opened(group, {"columns": ("c", "a")}))
    assert found == [{"c": -n, "a": n} for n in (1, 2, 3)]
    with pytest.raises(SourceError, match=r"unequal numbers of rows, \{'a': 3, 'b': 4, 'c': 3\}.*'columns'"):
        opened(group)
    with pytest.raises(
        SourceError, match=r"has the arrays \['a', 'b', 'c'\], Source.options asks for \['d'\]"
    ):
        opened(group, {"columns": ("d",)})


@pytest.mark.parametrize("options", [{"columns": "abc"}, {"window_groups": 0}, {"cache_bytes": -1}])
def test_options_that_make_no_sense(tmp_path, options):
    write_zarr(tmp_path / "a", ramp((3,)), (2,))
    with pytest.raises(SourceError, match="ZarrFormat takes columns as a tuple"):
        opened(tmp_path / "a", options)


# --- tokens and offsets


@pytest.mark.parametrize("layout", ["v2", "v2-blosc", "v3", "v3-shards"])
@pytest.mark.parametrize("dtype", ["uint64", "int32", "int64", "uint16"])
def test_records_of_unequal_lengths(tmp_path, layout, dtype):
    offsets = np.array([0, 0, 3, 4, 4, 17, 21, 21], dtype)  # empty ones, and one over several chunks
    group = write_ragged(tmp_path / "g", ramp((21,), "uint16"), offsets, **LAYOUTS[layout])
    found = read_all(opened(group))
    tokens = zarr.open_array(group / "tokens", mode="r")
    assert len(found) == 7
    for record, start, stop in zip(found, offsets[:-1], offsets[1:], strict=True):
        assert list(record) == ["tokens"]
        check(record["tokens"], np.asarray(tokens[int(start) : int(stop)]))


def test_other_arrays_of_the_tokens_are_cut_with_them(tmp_path):
    arrays = {
        "tokens": ramp((7,)),
        "mask": ramp((7,), "bool"),
        "frames": ramp((7, 2)),
        "offsets": np.array([0, 2, 7]),
    }
    group = write_group(tmp_path / "g", arrays, 3)
    found = read_all(opened(group))
    for name in ("tokens", "mask", "frames"):
        check(found[0][name], arrays[name][:2])
        check(found[1][name], arrays[name][2:])
    assert sorted(found[0]) == ["frames", "mask", "tokens"]
    assert sorted(read_all(opened(group, {"columns": ("tokens", "mask")}))[0]) == ["mask", "tokens"]


def test_an_array_with_a_row_for_a_record_is_not_dropped_in_silence(tmp_path):
    arrays = {"tokens": ramp((7,)), "labels": ramp((2,)), "offsets": np.array([0, 2, 7])}
    group = write_group(tmp_path / "g", arrays, 3)
    with pytest.raises(SourceError, match=r"unequal numbers of rows, \{'labels': 2, 'tokens': 7\}"):
        opened(group)
    assert len(opened(group, {"columns": ("tokens",)})) == 2


def test_offsets_under_another_name(tmp_path):
    group = write_group(tmp_path / "g", {"tokens": ramp((7,)), "bounds": np.array([0, 2, 7])}, 3)
    assert [len(r["tokens"]) for r in read_all(opened(group, {"offsets": "bounds"}))] == [2, 5]


def test_gaps_around_the_records(tmp_path):
    group = write_ragged(tmp_path / "g", ramp((9,)), np.array([1, 3, 7]))
    with pytest.raises(SourceError, match=r"from 1 to 7, there are 9 tokens.*'allow_gaps': True"):
        opened(group)
    found = read_all(opened(group, {"allow_gaps": True}))
    assert [record["tokens"].tolist() for record in found] == [[2, 3], [4, 5, 6, 7]]


def test_no_records_and_no_tokens(tmp_path):
    assert len(opened(write_ragged(tmp_path / "a", ramp((0,)), np.array([0])))) == 0
    found = read_all(opened(write_ragged(tmp_path / "b", ramp((0,)), np.array([0, 0, 0]))))
    for record in found:
        check(record["tokens"], np.zeros(0, np.int32))
    assert len(found) == 2


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    chunks=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    layout=st.sampled_from(["v2", "v2-zstd", "v3", "v3-shards", "v3-shards-blosc"]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=25, deadline=None)
def test_any_lengths_and_chunks_give_what_a_plain_loop_gives(tmp_path_factory, lengths, chunks, layout, seed):
    group = tmp_path_factory.mktemp("ragged") / "g"
    zarr.create_group(str(group), zarr_format=LAYOUTS[layout].get("zarr_format", 3))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    write_zarr(group / "tokens", ramp((sum(lengths),)), (chunks[0],), **LAYOUTS[layout])
    write_zarr(group / "offsets", offsets, (chunks[1],), **LAYOUTS[layout])
    asked = np.random.default_rng(seed).integers(0, len(lengths), 2 * len(lengths))
    records = opened(group, {"cache_bytes": 1})
    tokens = zarr.open_array(group / "tokens", mode="r")[...].tolist()
    expected = [tokens[sum(lengths[:index]) : sum(lengths[: index + 1])] for index in asked.tolist()]
    assert [record["tokens"].tolist() for record in records.read(asked)] == expected
    assert records.group_sizes.sum() == len(lengths)
    OPENED.pop().close()


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_any_shape_gives_what_a_plain_loop_gives(tmp_path_factory, data):
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    chunks = tuple(data.draw(st.integers(1, size + 1)) for size in shape)
    layout = data.draw(st.sampled_from(sorted(LAYOUTS)))
    folder = write_zarr(tmp_path_factory.mktemp("any") / "a", ramp(shape), chunks, **LAYOUTS[layout])
    check_rows(opened(folder), zarr.open_array(folder, mode="r"))
    OPENED.pop().close()


# --- fill values


@pytest.mark.parametrize("layout", ["v2", "v3", "v3-shards"])
def test_chunks_that_are_not_stored(tmp_path, layout):
    options = {**LAYOUTS[layout], "fill_value": 7}
    shards = (2 * options.pop("shards"),) if "shards" in options else None
    array = zarr.create_array(
        str(tmp_path / "a"), shape=(8,), dtype="int32", chunks=(2,), shards=shards, **options
    )
    array[:2] = [1, 2]
    array[4:6] = [5, 6]
    found = read_all(opened(tmp_path / "a"))
    assert [int(found[index]["tokens"]) for index in (0, 1, 4, 5)] == [1, 2, 5, 6]
    for index, rows in {2: "2 to 3", 3: "2 to 3", 6: "6 to 7", 7: "6 to 7"}.items():
        assert isinstance(found[index], BadRecord)
        assert f"a: rows {rows} of 'tokens' cannot be decoded" in found[index].reason
        assert "is missing" in found[index].reason
        assert "set fill_missing" in found[index].reason
    filled = read_all(opened(tmp_path / "a", {"fill_missing": True}))
    assert [int(record["tokens"]) for record in filled] == [1, 2, 7, 7, 5, 6, 7, 7]


# --- groups of records, caches, handles


def count_decodes(monkeypatch):
    """The (array, first row) of each decode."""
    counted = []
    decode = OpenArray.decode

    def counting(self, start, stop):
        counted.append((self._name, start))
        return decode(self, start, stop)

    monkeypatch.setattr(OpenArray, "decode", counting)
    return counted


@pytest.mark.parametrize("is_ragged", [False, True])
def test_a_shuffle_decodes_each_chunk_once(tmp_path, monkeypatch, is_ragged):
    """Chunks of 4 MiB: the groups of the shuffle."""
    rows = 4 << 20
    values = np.arange(5 * rows, dtype=np.uint32).astype(np.uint8)
    offsets = np.arange(0, len(values) + 1, rows // 8)
    if is_ragged:
        write_ragged(tmp_path / "a", values, offsets, rows)
    else:
        write_zarr(tmp_path / "a", values.reshape(-1, rows // 8), (8, rows // 8))
    records = opened(tmp_path / "a", {"cache_bytes": 2 * rows, "window_groups": 2})
    assert records.group_sizes.tolist() == [8] * 5
    order = Order(
        len(records), seed=1, source_name="a", group_sizes=records.group_sizes, window_groups=2
    ).locate(np.arange(len(records)))
    counted = count_decodes(monkeypatch)
    for start in range(0, 40, 4):
        asked = order.records[start : start + 4]
        for index, record in zip(asked.tolist(), records.read(asked), strict=True):
            assert (record["tokens"] == values[offsets[index] : offsets[index + 1]]).all()
    assert len(counted) == 5
    assert len(set(counted)) == 5


def test_small_chunks_are_taken_together(tmp_path):
    write_zarr(tmp_path / "a", np.zeros((40, 1 << 18), np.uint8), (2, 1 << 18))
    assert opened(tmp_path / "a").group_sizes.tolist() == [16, 16, 8]


def test_decoded_chunks_are_bounded(tmp_path):
    write_zarr(tmp_path / "a", ramp((64, 256)), (4, 256))
    records = opened(tmp_path / "a", {"cache_bytes": 3 * 4096})
    for index in range(64):
        check(records.read(np.array([index]))[0]["tokens"], ramp((64, 256))[index])
        groups = records._files[0]._options.groups
        assert groups.num_bytes <= 3 * 4096
    assert len(groups) == 3


def test_a_record_does_not_keep_its_chunk(tmp_path):
    write_zarr(tmp_path / "a", ramp((64, 256)), (64, 256))
    [record] = opened(tmp_path / "a").read(np.array([3]))
    base = record["tokens"].base
    assert base is None or base.nbytes == 1024


def test_many_arrays_are_not_open_at_once(tmp_path):
    for number in range(6):
        write_group(tmp_path / f"{number}", {"a": ramp((4,)) + number, "b": ramp((4,))}, 2)
    files = [opened(tmp_path / f"{number}")._files[0] for number in range(6)]
    budget = OpenFiles(2)
    seen = []

    def open_one(number):
        seen.append(files[number].open())
        return seen[-1]

    handles = Handles(open_one, budget)
    for number in range(6):
        with handles.using(number) as handle:
            assert int(files[number].read(handle, np.array([2]))[0]["a"]) == 3 + number
    assert budget.num_open == 2
    assert [sorted(handle.arrays) for handle in seen] == [[]] * 4 + [["a", "b"]] * 2
    handles.close()
    assert not any(handle.arrays for handle in seen)


@pytest.mark.parametrize("layout", ["v2-zstd", "v3-shards"])
def test_threads_read_at_once_and_leave_no_file_open(tmp_path, layout):
    arrays = {"a": ramp((40, 3)), "b": ramp((40,))}
    for name in "xy":
        write_group(tmp_path / name, arrays, 3, **LAYOUTS[layout])
    before = len(os.listdir("/proc/self/fd"))
    records = opened(tmp_path / "*", {"cache_bytes": 1})
    wrong = []

    def read(seed):
        for _ in range(10):
            asked = np.random.default_rng(seed).permutation(80)[:20]
            for index, record in zip(asked.tolist(), records.read(asked), strict=True):
                if record["a"].tolist() != arrays["a"][index % 40].tolist():
                    wrong.append(index)

    on_threads(read)
    assert not wrong
    records.drop_handles()
    assert int(records.read(np.array([41]))[0]["b"]) == 2
    records.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_fingerprint_follows_the_data(tmp_path):
    def fingerprint(name, tokens, offsets, **options):
        write_ragged(tmp_path / name / "g", tokens, np.array(offsets), **options)
        return opened(tmp_path / name / "g").fingerprint()

    tokens = ramp((9,))
    first = fingerprint("a", tokens, [0, 2, 4, 6, 9])
    assert fingerprint("b", tokens, [0, 2, 4, 6, 9]) == first
    assert fingerprint("c", tokens, [0, 2, 4, 6, 9], **LAYOUTS["v2-zstd"]) == first
    assert fingerprint("d", tokens, [0, 2, 5, 6, 9]) != first  # neither the first record nor the last
    assert fingerprint("e", tokens + 1, [0, 2, 4, 6, 9]) != first
    assert fingerprint("f", tokens.astype(np.int64), [0, 2, 4, 6, 9]) != first


MEMORY = """
import os, sys
from pathlib import Path
import numpy as np
from msdata_jax.sources.files import open_files
from msdata_jax.runtime.figures import smaps_bytes

def pss(): return smaps_bytes("Pss:") / (1 << 20)
def threads(): return len(os.listdir("/proc/self/task"))

folder = Path(sys.argv[1])
records = [open_files(str(folder / "0"), {"cache_bytes": 0}, keep_damaged=False)]
records[0].read(np.arange(4))
before = pss(), threads()
records += [open_files(str(folder / str(n)), {"cache_bytes": 0}, keep_damaged=False) for n in range(1, 32)]
for each in records:
    assert each.read(np.arange(4))[3]["tokens"].tolist() == [4] * 8
print(pss() - before[0], threads() - before[1])
"""


def test_a_loader_of_many_arrays_has_few_threads_and_little_memory(tmp_path):
    write_zarr(tmp_path / "0", np.arange(1, 257, dtype=np.int32)[:, None].repeat(8, axis=1), (64, 8))
    for number in range(1, 32):
        shutil.copytree(tmp_path / "0", tmp_path / f"{number}")
    command = [sys.executable, "-c", MEMORY, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    megabytes, num_threads = map(float, done.stdout.split())
    assert megabytes < 16
    assert num_threads <= 4


# --- a job


def test_a_recipe_delivers_the_tokens_of_a_plain_loop(tmp_path):
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 17, 40)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = rng.integers(1, 1000, offsets[-1]).astype(np.uint16)
    group = write_ragged(tmp_path / "tokens.zarr", tokens, offsets, 50, **LAYOUTS["v3-shards"])
    expected = [tokens[start:stop].tolist() for start, stop in itertools.pairwise(offsets)]
    expected = sorted(filter(None, expected))

    source = msd.Source(str(group), shuffle=True)
    recipe = msd.Recipe(
        sources={"zarr": source}, strategy=msd.DGraph().mix({"zarr": 1}).pad(seq_len=16, rows=len(expected))
    )
    with msd.DataLoader(recipe, num_steps=1) as loader:
        batch = next(iter(loader))
    found = [
        row[mask.astype(bool)].tolist()
        for row, mask in zip(batch["tokens"], batch["segment_ids"], strict=True)
    ]
    assert sorted(found) == expected
