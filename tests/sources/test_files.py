"""What every file format has to do, and what damage to a file may lead to."""

import contextlib
import io
import json
import os
import random
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sources.opening import on_threads, opened, read_all

from msdata_jax.errors import SourceError
from msdata_jax.sources import files as files_module
from msdata_jax.sources import handles as handles_module
from msdata_jax.sources import tar as tar_module
from msdata_jax.sources.formats import choose_format
from msdata_jax.sources.handles import OpenFiles
from msdata_jax.sources.protocol import BadRecord


def test_records_come_back(write, helpers):
    docs = helpers.make_docs(40)
    records = opened(write(docs))
    assert len(records) == 40
    assert [helpers.text_of(record) for record in read_all(records)] == docs
    asked = np.array([7, 3, 39, 3, 0])
    assert [helpers.text_of(record) for record in records.read(asked)] == [docs[i] for i in asked]
    assert records.read(np.zeros(0, np.int64)) == []


def test_several_files_follow_each_other_in_sorted_order(write, helpers, tmp_path, file_format):
    docs = [helpers.make_docs(count, seed=count) for count in (5, 1, 9)]
    for name, part in zip("bca", docs, strict=True):
        write(part, name)
    records = opened(tmp_path / f"*.{file_format}")
    assert [helpers.text_of(record) for record in read_all(records)] == [*docs[2], *docs[0], *docs[1]]
    sizes = records.group_sizes
    assert sizes is None or sizes.sum() == len(records)


def test_few_files_stay_open(write, helpers, tmp_path, file_format, monkeypatch):
    monkeypatch.setattr(handles_module, "_BUDGETS", {os.getpid(): OpenFiles(2)})
    docs = helpers.make_docs(6)
    for name, doc in zip("abcdef", docs, strict=True):
        write([doc], name)
    before = len(os.listdir("/proc/self/fd"))
    records = opened(tmp_path / f"*.{file_format}")
    assert records.num_open_files == 0
    assert len(os.listdir("/proc/self/fd")) == before
    for _ in range(2):
        assert [helpers.text_of(record) for record in read_all(records)] == docs
        assert records.num_open_files == 2
    records.close()
    records.close()
    assert records.num_open_files == 0
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(SourceError, match="closed"):
        read_all(records)


def test_threads_read_at_once(write, helpers, tmp_path, file_format, monkeypatch):
    monkeypatch.setattr(handles_module, "_BUDGETS", {os.getpid(): OpenFiles(1)})
    docs = helpers.make_docs(60)
    for name, start in zip("abc", (0, 20, 40), strict=True):
        write(docs[start : start + 20], name)
    records = opened(tmp_path / f"*.{file_format}")
    wrong = []

    def read(seed):
        for _ in range(20):
            asked = np.random.default_rng(seed).permutation(60)[:25]
            found = [helpers.text_of(record) for record in records.read(asked)]
            if found != [docs[i] for i in asked]:
                wrong.append(seed)

    on_threads(read)
    assert not wrong


def test_fingerprint_follows_the_data(write, helpers, tmp_path, file_format):
    docs = helpers.make_docs(20)
    path = write(docs)
    first = opened(path).fingerprint()
    os.utime(path, (1, 1))
    assert opened(path).fingerprint() == first
    (tmp_path / "elsewhere").mkdir()
    moved = tmp_path / "elsewhere" / os.path.basename(path)
    os.rename(path, moved)
    assert opened(moved).fingerprint() == first
    write([*docs[:-1], "another end"])
    assert opened(path).fingerprint() != first


@pytest.mark.parametrize("content", [b"", b"\x00" * 2000, b"no such format\n" * 100, bytes(range(256)) * 12])
def test_refuses_a_file_of_another_kind(tmp_path, file_format, content):
    path = tmp_path / f"a.{file_format}"
    path.write_bytes(content)
    if file_format == "tar" and not any(content) and content:
        assert len(opened(path)) == 0  # zeros are an empty tar
        return
    with pytest.raises(SourceError, match=r"a\..*(empty|not)"):
        opened(path)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("no.jsonl", "no such file"),
        ("no-*.jsonl", "matches no file"),
        (".", r"a folder with b\.jsonl.*give a glob"),
        ("a.txt", r"no known format \(\.txt\)"),
        ("a.tar.gz", r"no known format \(\.tar\.gz\)"),
        ("?.*", "one format, got several"),
    ],
)
def test_refuses_paths_that_name_no_dataset(tmp_path, name, rule):
    for existing in ("a.txt", "a.tar.gz", "b.jsonl"):
        (tmp_path / existing).write_text('{"text": "a"}\n')
    with pytest.raises(SourceError, match=rule):
        opened(os.path.join(tmp_path, name))


def test_refuses_an_option_that_the_format_lacks(write, helpers):
    with pytest.raises(SourceError, match="compression"):
        opened(write(helpers.make_docs(2)), {"compression": "zstd"})


def mutate(content, rng):
    """A file cut short, with a bit flipped, with a piece zeroed, or with a piece missing."""
    mutant, place = bytearray(content), rng.randrange(len(content))
    kind = rng.choice(["cut", "flip", "zero", "drop"])
    if kind == "cut":
        return bytes(mutant[: place + 1])
    if kind == "flip":
        mutant[place] ^= 1 << rng.randrange(8)
    elif kind == "zero":
        size = rng.choice([1, 16, 600])
        mutant[place : place + size] = bytes(len(mutant[place : place + size]))
    else:
        del mutant[place : place + rng.choice([1, 16, 600])]
    return bytes(mutant)


@pytest.mark.parametrize("keep_damaged", [False, True])
def test_damage_is_an_error_at_open_or_a_bad_record(write, helpers, file_format, keep_damaged):
    """Never another exception, and never a wrong record where the format has checksums."""
    docs = helpers.make_docs(40)
    path = write(docs)
    with open(path, "rb") as stream:
        content = stream.read()
    rng = random.Random(f"{file_format} {keep_damaged}")
    outcomes = {"error": 0, "bad": 0, "read": 0}
    for _ in range(120):
        with open(path, "wb") as stream:
            stream.write(mutate(content, rng))
        try:
            records = opened(path, keep_damaged=keep_damaged)
        except SourceError:
            outcomes["error"] += 1
            continue
        for record in read_all(records):
            if isinstance(record, BadRecord):
                assert os.path.basename(path) in record.reason
                assert "\n" not in record.reason
                outcomes["bad"] += 1
            else:
                outcomes["read"] += 1
                # a footer has no checksum, so that a column may have another name
                if file_format in ("parquet", "arrayrecord") and {"text", "record"} & record.keys():
                    assert helpers.text_of(record) in docs
        records.close()
    assert outcomes["read"]
    # without a footer, an index or checksums there is nothing that could be wrong at open
    assert outcomes["bad" if file_format == "jsonl" else "error"]


# --- Parquet


def test_parquet_decodes_a_row_group_once_for_a_block(tmp_path, helpers, monkeypatch):
    import pyarrow.parquet as pq

    path = helpers.write_parquet(tmp_path / "a.parquet", helpers.make_docs(70), rows=10)
    decoded = []
    original = pq.ParquetFile.iter_batches

    def counted(self, rows, row_groups, **options):
        decoded.extend(row_groups)
        return original(self, rows, row_groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    records = opened(path, {"columns": ("text",)})
    assert records.group_sizes is not None
    assert records.group_sizes.tolist() == [10] * 7
    records.read(np.array([3, 15, 4, 16, 5]))
    records.read(np.array([6, 17]))
    assert sorted(decoded) == [0, 1]
    assert records.read(np.array([0]))[0].keys() == {"text"}


def test_parquet_keeps_no_more_than_its_bytes(tmp_path, helpers):
    path = helpers.write_parquet(tmp_path / "a.parquet", helpers.make_docs(400), rows=20)
    file_format = choose_format([path], {"cache_bytes": 8000}, False)
    file = file_format.index(path)
    with contextlib.closing(file.open()) as handle, pytest.warns(RuntimeWarning, match="decoded anew"):
        file.read(handle, np.arange(400))
    assert 1 <= len(file_format.groups) < 20
    assert 0 < file_format.groups.num_bytes <= 8000


def test_parquet_values(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {"tokens": [1, 2, 3], "score": 0.5, "image": {"bytes": b"x", "path": None}, "tags": ["a", "b"]},
        {"tokens": [], "score": None, "image": None, "tags": None},
        {"tokens": None, "score": 1.0, "image": {"bytes": None, "path": "p"}, "tags": []},
        {"tokens": [4, None], "score": 1.0, "image": None, "tags": [None]},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    found = read_all(opened(tmp_path / "a.parquet"))
    assert isinstance(found[0]["tokens"], np.ndarray)
    assert found[0]["tokens"].flags.owndata
    assert [
        {**row, "tokens": row["tokens"] if row["tokens"] is None else list(row["tokens"])} for row in found
    ] == rows


def test_parquet_checks_pages_and_names_the_row_group(tmp_path, helpers):
    docs = helpers.make_docs(30)
    path = helpers.write_parquet(
        tmp_path / "a.parquet", docs, rows=10, compression="none", use_dictionary=False
    )
    with open(path, "r+b") as stream:
        content = stream.read()
        place = content.index(docs[15].encode()) + 2
        stream.seek(place)
        stream.write(b"#")
    found = read_all(opened(path))
    assert [isinstance(record, BadRecord) for record in found] == [False] * 10 + [True] * 10 + [False] * 10
    assert "row group 1 cannot be decoded" in found[12].reason


def test_parquet_refuses_a_column_that_is_not_there(tmp_path, helpers):
    path = helpers.write_parquet(tmp_path / "a.parquet", helpers.make_docs(3))
    with pytest.raises(SourceError, match=r"\['text', 'n'\].*\['body'\]"):
        opened(path, {"columns": ("text", "body")})
    with pytest.raises(SourceError, match="tuple of names"):
        opened(path, {"columns": "text"})


# --- JSONL


def test_jsonl_bad_lines_are_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'\n{"text": "a"}\n  \r\n{"text": \n[1, 2]\n{"text": "\xff"}\r\n'
        + b"[" * 100_000
        + b'\n{"text": "end"}'
    )
    found = read_all(opened(path))
    assert found[0] == {"text": "a"}
    assert found[-1] == {"text": "end"}
    reasons = [record.reason for record in found[1:-1]]
    assert [reason.split(" is ")[0] for reason in reasons] == [f"a.jsonl: line {n}" for n in (4, 5, 6, 7)]
    assert "list, not an object" in reasons[1]


def test_jsonl_lines_longer_than_a_piece(tmp_path, monkeypatch):
    monkeypatch.setattr("msdata_jax.sources.jsonl._PIECE_BYTES", 8)
    docs = ["x" * length for length in range(40)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n        \n\n".join(json.dumps({"text": doc}) for doc in docs))
    assert [record["text"] for record in read_all(opened(path))] == docs
    found = read_all(opened(path, {"max_record_bytes": 30}))
    assert [isinstance(record, BadRecord) for record in found] == [len(doc) + 13 > 30 for doc in docs]


# --- tar


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar_groups_members_by_key(tmp_path, helpers, tar_format):
    long = "d" * 60 + "/" + "n" * 60
    if tar_format != tarfile.USTAR_FORMAT:
        long = "d" * 200 + "/größe" + "n" * 200
    members = [
        ("a/1.JPG", b"one"), ("a/1.txt", b"caption"), ("b/1.jpg", b"other folder"), ("b/.hidden", b"-"),
        ("README", b"-"), ("2.seg.png", b"seg"), ("2.cls", b""), (long + ".txt", b"long"),
    ]  # fmt: skip
    path = helpers.write_tar(tmp_path / "a.tar", members, tar_format)
    assert read_all(opened(path)) == [
        {"__key__": "a/1", "jpg": b"one", "txt": b"caption"},
        {"__key__": "b/1", "jpg": b"other folder"},
        {"__key__": "2", "seg.png": b"seg", "cls": b""},
        {"__key__": long, "txt": b"long"},
    ]


def test_tar_bad_records(tmp_path, helpers):
    members = [("1.txt", b"a"), ("1.txt", b"b"), ("2.txt", b"12345"), ("3.txt", b"c")]
    found = read_all(opened(helpers.write_tar(tmp_path / "a.tar", members), {"max_record_bytes": 4}))
    assert "two members .txt" in found[0].reason
    assert "5 bytes, max_record_bytes is 4" in found[1].reason
    assert found[2]["txt"] == b"c"


@pytest.mark.parametrize("cut", [512 * 9 + 5, 512 * 9, 512 * 8 + 100, 512 * 8])
def test_a_tar_cut_short(tmp_path, helpers, cut):
    """Members 0 to 3 are whole; of member 4 there is all but its data's padding, or less."""
    path = helpers.write_doc_tar(tmp_path / "a.tar", ["x" * 20] * 10)
    os.truncate(path, cut)
    with pytest.raises(SourceError, match=rf"{path} .*at byte 4096"):
        opened(path)
    found = read_all(opened(path, keep_damaged=True))
    whole = [record for record in found if not isinstance(record, BadRecord)]
    # cut between members, nothing tells whether the last record had more of them
    assert len(whole) == (4 if cut >= 512 * 9 else 3)
    assert isinstance(found[-1], BadRecord)
    assert "at byte 4096" in found[-1].reason


def test_a_tar_with_a_broken_header_is_not_taken_for_a_short_one(tmp_path, helpers):
    path = helpers.write_doc_tar(tmp_path / "a.tar", ["x" * 20] * 10)
    with open(path, "r+b") as stream:
        stream.seek(512 * 6 + 148)  # the checksum of member 3
        stream.write(b"9")
    with pytest.raises(SourceError, match="broken header at byte 3072, after 3 records"):
        opened(path)
    assert len(opened(path, keep_damaged=True)) == 3


names = st.text(st.sampled_from("ab./_ü"), min_size=1, max_size=8) | st.integers(90, 110).map("n".__mul__)
kinds = st.sampled_from(
    [tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.CONTTYPE]
)
members = st.builds(
    dict,
    name=names,
    type=kinds,
    size=st.integers(0, 1100),
    mtime=st.sampled_from([0, 1.5]),
    prefix=st.booleans(),
)


@given(
    st.lists(members, max_size=8),
    st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    st.sampled_from([{}, {"comment": "of all that follow"}]),
    st.none() | st.tuples(st.integers(0, 5000), st.integers(0, 255)),
)
def test_the_members_of_a_tar_are_those_that_tarfile_finds(
    tmp_path_factory, members, tar_format, common, flaw
):
    """Whatever the dialect, and also where a byte is wrong."""
    path = tmp_path_factory.getbasetemp() / "members.tar"
    with tarfile.open(path, "w", format=tar_format, pax_headers=common) as archive:
        for each in members:
            member = tarfile.TarInfo(("p" * 120 + "/") * each["prefix"] + each["name"] + "e")
            member.type, member.mtime = each["type"], each["mtime"]
            if member.isreg():
                member.size = each["size"]
            with contextlib.suppress(ValueError):  # the name is too long for ustar
                archive.addfile(member, io.BytesIO(b"x" * member.size))
    if flaw:
        content = bytearray(path.read_bytes())
        content[flaw[0] % len(content)] = flaw[1]
        path.write_bytes(content)
    found = []
    try:
        with tarfile.open(path, "r:", errors="surrogateescape") as archive:
            found.extend(archive)  # up to the first that raises
    except tarfile.TarError:
        if not found:
            with pytest.raises(SourceError, match="is not an uncompressed tar file"):
                list(tar_module._Headers(str(path)))
            return
    headers = tar_module._Headers(str(path))
    expected = [(each.name, each.offset_data, each.size) for each in found if each.isreg()]
    assert list(headers) == expected
    assert flaw or not headers.damage


# --- ArrayRecord


def test_arrayrecord_groups_of_records(tmp_path, helpers):
    docs = helpers.make_docs(50)
    path = helpers.write_arrayrecord(tmp_path / "a.array_record", docs, "group_size:8")
    assert [helpers.text_of(record) for record in read_all(opened(path))] == docs


def test_arrayrecord_bad_records_do_not_spoil_the_others(tmp_path, helpers):
    path = helpers.write_arrayrecord(tmp_path / "a.arrayrecord", helpers.make_docs(50))
    with open(path, "r+b") as stream:
        stream.seek(65536 // 2 // 16)
        stream.write(b"\xff" * 16)
    found = read_all(opened(path))
    bad = [record for record in found if isinstance(record, BadRecord)]
    assert 1 <= len(bad) < 10
    assert all(record.reason.startswith("a.arrayrecord: record ") for record in bad)


# --- digests and handles


def test_file_digests_are_of_the_bytes_and_free_of_folders_and_times(write, helpers, tmp_path, file_format):
    docs = helpers.make_docs(20)
    for name in "ab":
        write(docs, name)
    write(docs[:7], "c")
    digests = opened(tmp_path / f"*.{file_format}").file_digests()
    assert list(digests) == [f"{name}.{file_format}" for name in "abc"]
    assert all(len(digest) == 16 and int(digest, 16) >= 0 for digest in digests.values())
    assert digests[f"a.{file_format}"] != digests[f"c.{file_format}"]
    if file_format in ("jsonl", "tar"):  # the others put names or numbers of their own into a file
        assert digests[f"a.{file_format}"] == digests[f"b.{file_format}"]
    (tmp_path / "elsewhere").mkdir()
    for name in "ab":
        os.rename(tmp_path / f"{name}.{file_format}", tmp_path / "elsewhere" / f"{name}.{file_format}")
        os.utime(tmp_path / "elsewhere" / f"{name}.{file_format}", (1, 1))
    moved = opened(tmp_path / "elsewhere" / f"*.{file_format}").file_digests()
    assert moved == {name: digest for name, digest in digests.items() if name[0] in "ab"}
    write(docs[::-1], "c")
    assert opened(tmp_path / f"c.{file_format}").file_digests() != {
        f"c.{file_format}": digests[f"c.{file_format}"]
    }


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path, helpers, monkeypatch):
    for folder in ("x/1", "x/2", "y"):
        (tmp_path / folder).mkdir(parents=True)
        helpers.write_jsonl(tmp_path / folder / ("b.jsonl" if folder == "y" else "a.jsonl"), ["doc"])
    monkeypatch.chdir(tmp_path)
    names = ["x/1/a.jsonl", "x/2/a.jsonl", "b.jsonl"]
    assert list(opened("**/*.jsonl").file_digests()) == names
    assert list(opened(tmp_path / "**/*.jsonl").file_digests()) == names


def test_many_files_have_no_digests(tmp_path, helpers, monkeypatch):
    monkeypatch.setattr(files_module, "MAX_FILE_DIGESTS", 2)
    for name in "ab":
        helpers.write_jsonl(tmp_path / f"{name}.jsonl", ["doc"])
    assert len(opened(tmp_path / "*.jsonl").file_digests()) == 2
    helpers.write_jsonl(tmp_path / "c.jsonl", ["doc"])
    assert opened(tmp_path / "*.jsonl").file_digests() == {}
