"""Indexed datasets of Megatron-LM: what its own builder writes is read as its class does; damage, bounds."""

import importlib.util
import json
import os
import struct
import subprocess
import sys
import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sources.opening import OPENED, opened

from benchmarks.range_server import RangeServer
from msdata_jax.errors import SourceError
from msdata_jax.sources.files import open_files
from msdata_jax.sources.protocol import BadRecord

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def tokens_of(records):
    return [record["tokens"].tolist() for record in records.read(np.arange(len(records)))]


def real_documents():
    """Sentences of documents, as the bytes of their lines: modules of the standard library."""
    folder = Path(os.__file__).parent
    texts = [(folder / f"{name}.py").read_text() for name in ("this", "bisect", "heapq", "stat", "keyword")]
    return [[list(line.encode("ascii", "replace")) for line in text.splitlines() if line] for text in texts]


DOCUMENTS = real_documents()
SEQUENCES = [sequence for document in DOCUMENTS for sequence in document]


def joined(sequences):
    return [token for sequence in sequences for token in sequence]


def layout(documents, dtype="int32", pointers=None):
    """The bytes of `.idx` and `.bin` as Megatron's documentation has them."""
    sequences = [sequence for document in documents for sequence in document]
    lengths = np.array([len(sequence) for sequence in sequences], "<i4")
    size = np.dtype(dtype).itemsize
    starts = np.cumsum([0, *lengths])[: len(lengths)].astype("<i8") * size if pointers is None else pointers
    bounds = np.cumsum([0, *map(len, documents)]).astype("<i8")
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, CODES.get(dtype, 0), len(lengths), len(bounds))
    tokens = np.array([token for sequence in sequences for token in sequence], dtype)
    return header + lengths.tobytes() + np.asarray(
        starts, "<i8"
    ).tobytes() + bounds.tobytes(), tokens.tobytes()


def write(folder, index, tokens, name="a"):
    (folder / f"{name}.idx").write_bytes(index)
    (folder / f"{name}.bin").write_bytes(tokens)
    return folder / f"{name}.idx"


# --- against Megatron itself

PROGRAM = """
import json, sys
import numpy as np, torch
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
folder, documents = json.load(sys.stdin)
found = {}
for dtype in ("uint16", "int32"):
    prefix = f"{folder}/{dtype}"
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=getattr(np, dtype))
    for document in documents:
        builder.add_document([t for sequence in document for t in sequence], [len(s) for s in document])
    builder.finalize(prefix + ".idx")
    data = IndexedDataset(prefix)
    found[dtype] = [data[i].tolist() for i in range(len(data))], data.document_indices.tolist()
builder = IndexedDatasetBuilder(f"{folder}/modes.bin", multimodal=True)
builder.add_item(torch.arange(5), mode=1)
builder.end_document()
builder.finalize(f"{folder}/modes.idx")
json.dump(found, sys.stdout)
"""


@pytest.mark.torch
def test_what_megatron_writes_is_read_as_megatron_does(tmp_path):
    if importlib.util.find_spec("megatron") is None:
        pytest.skip("megatron-core is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        input=json.dumps([str(tmp_path), DOCUMENTS]).encode(),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    theirs = json.loads(done.stdout.decode().splitlines()[-1])
    for dtype, (sequences, bounds) in theirs.items():
        assert tokens_of(opened(tmp_path / f"{dtype}.idx")) == sequences == SEQUENCES
        documents = opened(tmp_path / f"{dtype}.bin", {"unit": "document"})
        assert len(documents) == len(bounds) - 1
        assert tokens_of(documents) == [joined(sequences[a:b]) for a, b in pairwise(bounds)]
        assert documents.read(np.array([1]))[0]["tokens"].dtype == dtype
        index, tokens = layout(DOCUMENTS, dtype)
        assert (
            tmp_path / f"{dtype}.idx"
        ).read_bytes() == index  # the layout of the tests below is Megatron's
        assert (tmp_path / f"{dtype}.bin").read_bytes() == tokens
    assert tokens_of(opened(tmp_path / "modes.idx")) == [[0, 1, 2, 3, 4]]


# --- records


@pytest.mark.parametrize("dtype", sorted(CODES))
@pytest.mark.parametrize("suffix", ["idx", "bin"])
def test_every_integer_dtype_and_either_file_will_do(tmp_path, dtype, suffix):
    write(tmp_path, *layout(DOCUMENTS, dtype))
    records = opened(tmp_path / f"a.{suffix}")
    assert tokens_of(records) == SEQUENCES
    [record] = records.read(np.array([3]))
    assert record["tokens"].dtype == dtype
    record["tokens"][:] = 0  # its own memory
    assert records.read(np.array([3]))[0]["tokens"].tolist() == SEQUENCES[3]


def test_a_glob_of_pairs_is_one_dataset_and_a_source_of_tokens(tmp_path):
    import msdata_jax as msd

    write(tmp_path, *layout(DOCUMENTS[:2]), name="a")
    write(tmp_path, *layout(DOCUMENTS[2:]), name="b")
    assert tokens_of(opened(tmp_path / "*.idx")) == SEQUENCES
    assert tokens_of(opened(tmp_path / "*.bin")) == SEQUENCES
    (tmp_path / "b.idx").unlink()
    with pytest.raises(SourceError, match=r"b\.idx is missing beside"):
        opened(tmp_path / "*.bin")
    source = msd.Source(str(tmp_path / "a.idx"), [msd.Split(64)], shuffle=False, options={"unit": "document"})
    strategy = msd.DGraph().mix({"a": 1}).pack(seq_len=64, rows=1).distribute("dp")
    with msd.DataLoader(msd.Recipe(sources={"a": source}, strategy=strategy), num_steps=1) as loader:
        assert next(iter(loader))["tokens"][0].tolist() == joined(DOCUMENTS[0])[:64]


@pytest.mark.parametrize("suffix", ["idx", "bin"])
def test_a_pair_on_a_web_server_is_as_a_local_one(tmp_path, suffix):
    (tmp_path / "served").mkdir()
    write(tmp_path / "served", *layout(DOCUMENTS))
    storage_options = {"cache_dir": str(tmp_path / "cache")}
    with RangeServer(tmp_path / "served") as server:
        remote = open_files(
            f"{server.url}/a.{suffix}", {}, keep_damaged=False, storage_options=storage_options
        )
        OPENED.append(remote)
        assert tokens_of(remote) == SEQUENCES
        assert remote.fingerprint() == opened(tmp_path / "served" / f"a.{suffix}").fingerprint()


def test_empty_documents_and_sequences_are_empty_records(tmp_path):
    documents = [[], [[1, 2], []], [], [[3]], []]
    path = write(tmp_path, *layout(documents))
    assert tokens_of(opened(path)) == [[1, 2], [], [3]]
    assert tokens_of(opened(path, {"unit": "document"})) == [[], [1, 2], [], [3], []]
    path = write(tmp_path, *layout([]), name="none")
    assert len(opened(path)) == len(opened(path, {"unit": "document"})) == 0


def test_sequences_anywhere_are_read_where_that_is_allowed(tmp_path):
    """One that is shared, one backwards, and bytes that belong to none."""
    documents = [[[1, 2], [3]], [[1, 2]]]
    index, _ = layout(documents, pointers=[8, 0, 8])
    path = write(tmp_path, index, np.array([3, 9, 1, 2, 9], "<i4").tobytes())
    with pytest.raises(SourceError, match=r"'allow_gaps': True"):
        opened(path)
    assert tokens_of(opened(path, {"allow_gaps": True})) == [[1, 2], [3], [1, 2]]
    assert tokens_of(opened(path, {"allow_gaps": True, "unit": "document"})) == [[1, 2, 3], [1, 2]]


def test_the_fingerprint_follows_both_files(tmp_path):
    index, tokens = layout(DOCUMENTS)
    first = opened(write(tmp_path, index, tokens)).fingerprint()
    (tmp_path / "b").mkdir()
    assert opened(write(tmp_path / "b", index, tokens)).fingerprint() == first
    assert opened(write(tmp_path, index, tokens[:-1] + b"\x01")).fingerprint() != first


# --- damage

INDEX, TOKENS = layout([*DOCUMENTS[:2], []])
FEW = joined(DOCUMENTS[:2])
DAMAGED_DOCUMENTS = [joined(DOCUMENTS[0]), joined(DOCUMENTS[1]), []]


@given(place=st.integers(0, len(INDEX) - 1), change=st.integers(1, 255), keep_damaged=st.booleans())
def test_damage_to_the_entry_of_a_sequence_is_found(tmp_path_factory, place, change, keep_damaged):
    mutant = bytearray(INDEX)
    mutant[place] ^= change
    path = write(tmp_path_factory.getbasetemp(), bytes(mutant), TOKENS, "mutant")
    try:
        records = opened(path, keep_damaged=keep_damaged)
    except SourceError:
        return
    for record, expected in zip(records.read(np.arange(len(records))), FEW, strict=True):
        assert isinstance(record, BadRecord) or record["tokens"].tolist() == expected
    is_bound = place >= len(INDEX) - 8 * 4
    found = [isinstance(record, BadRecord) for record in records.read(np.arange(len(records)))]
    assert is_bound != any(found)
    documents = opened(path, {"unit": "document"}, keep_damaged=keep_damaged)
    for record in documents.read(np.arange(len(documents))):  # bounds of documents are said once only
        assert isinstance(record, BadRecord) or is_bound or record["tokens"].tolist() in DAMAGED_DOCUMENTS


@given(size=st.integers(1, len(TOKENS) - 1), allow_gaps=st.booleans())
def test_tokens_that_are_cut_short_cost_what_is_missing(tmp_path_factory, size, allow_gaps):
    path = write(tmp_path_factory.getbasetemp(), INDEX, TOKENS[:size], "short")
    with pytest.raises(
        SourceError, match=rf"short\.bin has {size} bytes, its index ends at byte {len(TOKENS)}"
    ):
        opened(path, {"allow_gaps": allow_gaps})
    records = opened(path, {"allow_gaps": allow_gaps}, keep_damaged=True)
    end = 0
    for record, expected in zip(records.read(np.arange(len(records))), FEW, strict=True):
        end += 4 * len(expected)
        if end <= size:
            assert record["tokens"].tolist() == expected
        else:
            assert f"ends at byte {end}, the .bin has {size}" in record.reason


@given(size=st.integers(1, len(INDEX) - 1))
def test_an_index_that_is_cut_short_is_an_error(tmp_path_factory, size):
    path = write(tmp_path_factory.getbasetemp(), INDEX[:size], TOKENS, "cut")
    with pytest.raises(SourceError, match=r"cut\.idx is (not a Megatron index|cut short or damaged)"):
        opened(path, keep_damaged=True)


def header(magic=b"MMIDIDX\x00\x00", version=1, code=4, sequences=0, bounds=1):
    return magic + struct.pack("<QBQQ", version, code, sequences, bounds)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"TNTIDX\x00\x00" + bytes(100), "begins with b'TNTIDX"),
        (header(version=2), "version 2"),
        (header(code=0), "dtype code 0"),
        (header(code=7), "float32; this reads version 1 and integers"),
        (header(sequences=2**62), "4611686018427387904 sequences"),
        (header(sequences=2**64 - 1, bounds=2**64 - 1), "18446744073709551615 sequences"),
        (header(bounds=2**62), "4611686018427387904 document bounds"),
        (header() + bytes(7), "it has 41"),
    ],
)
def test_refuses_what_is_no_index(tmp_path, content, reason):
    path = write(tmp_path, content, bytes(100))
    tracemalloc.start()
    with pytest.raises(SourceError, match=rf"a\.idx.*{reason}"):
        opened(path, keep_damaged=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_refuses_units_that_there_are_not(tmp_path):
    with pytest.raises(SourceError, match="unit out of"):
        opened(write(tmp_path, INDEX, TOKENS), {"unit": "page"})


@pytest.mark.parametrize("unit", ["sequence", "document"])
def test_a_large_record_is_bad_and_not_read(tmp_path, unit):
    """A file with holes of 8 GiB: a record of it, and the index of a document of 2**28 sequences."""
    path = write(tmp_path, *layout([[[1]], [[2] * 3]]))
    lengths = np.array([1, 2**31 - 1], "<i4")
    index = header(sequences=2, bounds=3) + lengths.tobytes() + np.array([0, 4, 0, 1, 2], "<i8").tobytes()
    path.write_bytes(index)
    os.truncate(tmp_path / "a.bin", 4 * 2**31)
    tracemalloc.start()
    first, second = opened(path, {"unit": unit}).read(np.arange(2))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert first["tokens"].tolist() == [1]
    assert f"{unit} 1 has 8589934588 bytes, max_record_bytes is 268435456" in second.reason
    assert peak < 1 << 20


def test_a_document_of_too_many_sequences_is_bad_and_its_index_is_not_read(tmp_path):
    path = write(tmp_path, *layout([[[1]] * 1000, [[2]]]))
    first, second = opened(path, {"unit": "document", "max_record_bytes": 8000}).read(np.arange(2))
    assert "has 1000 sequences, whose index alone has more than max_record_bytes (8000)" in first.reason
    assert second["tokens"].tolist() == [2]
