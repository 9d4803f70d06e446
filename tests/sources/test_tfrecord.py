"""TFRecord: what two other libraries write comes back as theirs reads it; damage and bounds."""

import gzip
import io
import os
import random
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sources.opening import OPENED, opened, read_all

from benchmarks.range_server import RangeServer
from msdata_jax.errors import SourceError
from msdata_jax.sources.files import open_files
from msdata_jax.sources.protocol import BadRecord
from msdata_jax.sources.tf_example import MAX_FEATURES, parse_example

TEXTS = [
    (Path(os.__file__).parent / f"{name}.py").read_text()
    for name in ("this", "bisect", "heapq", "copy", "stat")
]


def masked(content):
    checksum = google_crc32c.value(content)
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def framed(content, length=None):
    header = struct.pack("<Q", len(content) if length is None else length)
    return b"".join((header, struct.pack("<I", masked(header)), content, struct.pack("<I", masked(content))))


def write(path, contents):
    path.write_bytes(b"".join(map(framed, contents)))
    return path


@pytest.fixture(scope="module")
def example_class():
    """tf.train.Example as the protobuf library has it, made from the same description as TensorFlow's."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    proto = descriptor_pb2.FileDescriptorProto(name="msdata_example.proto", package="msdata", syntax="proto3")

    def message(name, fields, within=None):
        made = (within.nested_type if within else proto.message_type).add(name=name)
        for number, (field, kind, repeated) in enumerate(fields, start=1):
            added = made.field.add(name=field, number=number, label=3 if repeated else 1)
            if isinstance(kind, int):
                added.type = kind
            else:
                added.type, added.type_name = 11, f".msdata.{kind}"
        return made

    message("BytesList", [("value", 12, True)])
    message("FloatList", [("value", 2, True)])
    message("Int64List", [("value", 3, True)])
    feature = message(
        "Feature",
        [
            ("bytes_list", "BytesList", False),
            ("float_list", "FloatList", False),
            ("int64_list", "Int64List", False),
        ],
    )
    feature.oneof_decl.add(name="kind")
    for field in feature.field:
        field.oneof_index = 0
    features = message("Features", [("feature", "Features.FeatureEntry", True)])
    entry = message("FeatureEntry", [("key", 9, False), ("value", "Feature", False)], within=features)
    entry.options.map_entry = True
    message("Example", [("features", "Features", False)])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("msdata.Example"))


def as_protobuf_reads(example_class, encoded):
    found = {}
    for name, feature in example_class.FromString(encoded).features.feature.items():
        kind = feature.WhichOneof("kind")
        values = list(getattr(feature, kind).value) if kind else None
        if kind == "bytes_list":
            found[name] = values[0] if len(values) == 1 else values
        elif kind:
            found[name] = np.array(values, np.float32 if kind == "float_list" else np.int64)
    return found


def same(found, expected):
    if found.keys() != expected.keys():
        return False
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            if found[name].dtype != value.dtype or not np.array_equal(found[name], value, equal_nan=True):
                return False
        elif found[name] != value or type(found[name]) is not type(value):
            return False
    return True


# --- against other libraries


def test_what_the_tfrecord_library_writes_comes_back_as_its_own_reader_gives_it(tmp_path):
    """It runs in a process of its own, which it would make import PyTorch otherwise."""
    program = f"""
import sys
sys.modules["torch"] = None
import numpy as np, tfrecord
path, texts = {str(tmp_path / "a.tfrecord")!r}, {TEXTS!r}
writer = tfrecord.TFRecordWriter(path)
for n, text in enumerate(texts):
    ids = [-n, 2**40, *text.encode()]
    writer.write({{"text": (text.encode(), "byte"), "ids": (ids, "int"), "x": ([n / 3, 1e30], "float")}})
writer.close()
for text, found in zip(texts, tfrecord.tfrecord_loader(path, None), strict=True):
    assert found["text"] == text.encode()
    np.save(sys.stdout.buffer, found["ids"])
    np.save(sys.stdout.buffer, found["x"])
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    theirs = io.BytesIO(done.stdout)
    found = read_all(opened(tmp_path / "a.tfrecord"))
    assert [record["text"].decode() for record in found] == TEXTS
    for record in found:
        assert same({"ids": record["ids"]}, {"ids": np.load(theirs)})
        assert same({"x": record["x"]}, {"x": np.load(theirs)})
        assert record.keys() == {"text", "ids", "x"}


def test_what_tensorboardx_writes_comes_back(tmp_path):
    from tensorboardX.record_writer import RecordWriter

    writer = RecordWriter(str(tmp_path / "a.tfrecords"))
    for text in TEXTS:
        writer.write(text.encode())
    writer.close()
    records = opened(tmp_path / "a.tfrecords", {"parse": "bytes"})
    assert [record["record"].decode() for record in read_all(records)] == TEXTS
    assert (tmp_path / "a.tfrecords").read_bytes() == b"".join(framed(text.encode()) for text in TEXTS)


def test_numbered_files_are_one_dataset(tmp_path):
    for number in range(3):
        write(tmp_path / f"train.tfrecord-0000{number}-of-00003", [TEXTS[number].encode()])
    records = opened(tmp_path / "train.tfrecord-*", {"parse": "bytes"})
    assert [record["record"].decode() for record in read_all(records)] == TEXTS[:3]


def test_a_file_on_a_web_server_is_as_a_local_one(tmp_path):
    (tmp_path / "served").mkdir()
    write(tmp_path / "served" / "a.tfrecord", CONTENTS)
    storage_options = {"cache_dir": str(tmp_path / "cache")}
    with RangeServer(tmp_path / "served") as server:
        remote = open_files(
            f"{server.url}/a.tfrecord",
            {"parse": "bytes"},
            keep_damaged=False,
            storage_options=storage_options,
        )
        OPENED.append(remote)
        assert [record["record"] for record in read_all(remote)] == CONTENTS


FEATURE_VALUES = st.one_of(
    st.tuples(st.just("bytes_list"), st.lists(st.binary(max_size=9), max_size=4)),
    st.tuples(st.just("float_list"), st.lists(st.floats(width=32, allow_nan=False), max_size=9)),
    st.tuples(st.just("int64_list"), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9)),
)


@given(features=st.dictionaries(st.text(max_size=5), FEATURE_VALUES, max_size=5), seed=st.integers(0, 2**32))
def test_examples_are_parsed_as_protobuf_does(example_class, features, seed):
    """Also those that damage leaves valid; what protobuf refuses is refused."""
    example = example_class()
    for name, (kind, values) in features.items():
        made = getattr(example.features.feature[name], kind)
        made.SetInParent()
        made.value.extend(values)
    encoded = example.SerializeToString()
    assert same(parse_example(encoded), as_protobuf_reads(example_class, encoded))
    rng = random.Random(seed)
    for _ in range(20):
        mutant = bytearray(encoded)
        for _ in range(rng.choice([1, 1, 2])):
            place = rng.randrange(len(mutant) + 1)
            mutant[place : place + rng.choice([0, 1, 1])] = rng.choice(
                [b"", bytes([rng.randrange(256)]), mutant[place : place + rng.randrange(8)] * 2]
            )
        try:
            found = parse_example(bytes(mutant))
        except ValueError:
            continue
        assert same(found, as_protobuf_reads(example_class, bytes(mutant)))


def test_lists_that_come_in_parts_are_merged(example_class):
    parts = []
    for number in range(3):
        example = example_class()
        example.features.feature["a"].int64_list.value.extend([number, -number])
        example.features.feature["b"].bytes_list.value.append(b"%d" % number)
        parts.append(example.SerializeToString())
    encoded = b"".join(parts)
    assert same(parse_example(encoded), as_protobuf_reads(example_class, encoded))
    entry = b"\n\x01c\x12\x06\x1a\x04\x08\x05\x08\x07"  # numbers one by one, as old writers have them
    loose = b"\n" + bytes([len(entry) + 2]) + b"\n" + bytes([len(entry)]) + entry
    assert parse_example(loose)["c"].tolist() == [5, 7]
    assert same(parse_example(loose), as_protobuf_reads(example_class, loose))


def test_long_lists_are_parsed_in_pieces(example_class):
    values = np.random.default_rng(0).integers(-(2**62), 2**62, 300_000) >> np.arange(300_000) % 63
    example = example_class()
    example.features.feature["a"].int64_list.value.extend(values.tolist())
    encoded = example.SerializeToString()
    assert len(encoded) > 1 << 20
    assert (parse_example(encoded)["a"] == values).all()


def test_other_messages_are_bad_records_or_bytes(tmp_path):
    sequence_example = b"\n\x00\x12\x00"
    path = write(tmp_path / "a.tfrecord", [b"", sequence_example, b"just text", b"\n\x02\n\x00"])
    found = read_all(opened(path))
    assert found[0] == {}
    assert "SequenceExample" in found[1].reason
    assert "parse='bytes'" in found[2].reason
    assert found[3] == {}  # a feature without a name and a kind
    assert read_all(opened(path, {"parse": "bytes"}))[2] == {"record": b"just text"}
    with pytest.raises(SourceError, match="parse out of"):
        opened(path, {"parse": "json"})


# --- damage


CONTENTS = [text.encode()[:800] for text in TEXTS] + [b"", b"x" * 70_000, b"last"]


@given(
    place=st.integers(0, 73_000), change=st.integers(1, 255), keep_damaged=st.booleans(), cut=st.booleans()
)
def test_damage_anywhere_is_found(tmp_path_factory, place, change, keep_damaged, cut):
    """Records before a broken length stay, and a broken record is one; a cut between records is no damage."""
    whole = b"".join(map(framed, CONTENTS))
    ends = np.cumsum([len(framed(content)) for content in CONTENTS]).tolist()
    place %= len(whole)
    mutant = bytearray(whole)
    if cut:
        mutant = mutant[: place + 1]
    else:
        mutant[place] ^= change
    path = tmp_path_factory.getbasetemp() / "mutant.tfrecord"
    path.write_bytes(mutant)
    number = next(n for n, end in enumerate(ends) if place < end)
    start = ends[number - 1] if number else 0
    if cut and place + 1 == ends[number]:
        assert [record["record"] for record in read_all(opened(path, {"parse": "bytes"}))] == CONTENTS[
            : number + 1
        ]
        return
    is_length = cut or place < start + 12
    if is_length and not (keep_damaged and number):
        with pytest.raises(
            SourceError, match=r"mutant\.tfrecord (is not a TFRecord file|is cut short|has a length)"
        ):
            opened(path, {"parse": "bytes"}, keep_damaged=keep_damaged)
        return
    found = read_all(opened(path, {"parse": "bytes"}, keep_damaged=keep_damaged))
    expected = CONTENTS[: number + 1] if is_length else CONTENTS
    assert len(found) == len(expected)
    for n, (record, content) in enumerate(zip(found, expected, strict=True)):
        assert isinstance(record, BadRecord) if n == number else record == {"record": content}
    assert str(start) in found[number].reason


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (gzip.compress(framed(b"abc")), "it is gzip"),
        (b"\x78\x9c" + bytes(30), "it is zlib"),
        (bytes(2000), "without its checksum at byte 0"),
        (b"abc", "within a header"),
        (framed(b"", length=2**62), "4611686018427387904 bytes, 16 follow"),
        (framed(b"", length=2**64 - 1), "18446744073709551615 bytes, 16 follow"),
        (b"", "empty"),
    ],
)
def test_refuses_what_is_no_tfrecord(tmp_path, content, reason):
    path = tmp_path / "a.tfrecord"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=f"a.tfrecord.*{reason}"):
        opened(path, keep_damaged=True)


# --- bounds


def test_a_large_record_is_bad_and_not_read(tmp_path):
    path = write(tmp_path / "a.tfrecord", [b"a", bytes(20 << 20), b"b"])
    tracemalloc.start()
    found = read_all(opened(path, {"parse": "bytes", "max_record_bytes": 1 << 20}))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [found[0], found[2]] == [{"record": b"a"}, {"record": b"b"}]
    assert "has 20971520 bytes, max_record_bytes is 1048576" in found[1].reason
    assert peak < 1 << 20


def test_an_absurd_length_with_its_checksum_allocates_nothing(tmp_path):
    path = tmp_path / "a.tfrecord"
    path.write_bytes(framed(b"whole") + framed(b"x", length=2**40))
    tracemalloc.start()
    found = read_all(opened(path, {"parse": "bytes"}, keep_damaged=True))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found[0] == {"record": b"whole"}
    assert "1099511627776 bytes" in found[1].reason
    assert peak < 1 << 20


def nested(*numbers_and_bytes):
    """A message of fields of the kind bytes."""
    parts = []
    for number, content in numbers_and_bytes:
        size, encoded = len(content), bytearray()
        while size > 127:
            encoded.append(size & 127 | 128)
            size >>= 7
        parts += [bytes([number << 3 | 2]), bytes(encoded), bytes([size]), content]
    return b"".join(parts)


@pytest.mark.parametrize(
    "feature",
    [
        nested((1, b"\n\x02ab" * 20_000)),  # bytes of two
        nested((1, b"\n\x00" * 40_000)),
        nested((3, b"\n\x00" * 40_000)),  # empty lists
        nested((3, b"\x08\x01" * 40_000)),  # numbers one by one
        nested((3, b"\n\x01\x01" * 30_000)),
        nested((3, nested((1, b"\x01" * 200_000)))),
        nested((2, b"\n\x00" * 40_000)),
        b"\x1a\x00" * 40_000,
    ],
)
def test_parsing_takes_a_bounded_multiple_of_the_bytes(feature):
    encoded = nested((1, nested((1, nested((1, b"a"), (2, feature))))))
    tracemalloc.start()
    parse_example(encoded)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 * len(encoded) + (4 << 20)  # and the pieces in which lists are parsed


def test_an_example_has_a_largest_number_of_features():
    entries = b"".join(nested((1, nested((1, b"%d" % number)))) for number in range(MAX_FEATURES + 1))
    with pytest.raises(ValueError, match="more than 65536 features"):
        parse_example(nested((1, entries)))
