"""Folders of loose files: against a plain walk and the tar of the same files; links, pipes, what changes."""

import os
import shutil
import socket
import tempfile
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from sources.opening import on_threads, opened, read_all

import msdata_jax as msd
from benchmarks.range_server import RangeServer
from msdata_jax.errors import BadSampleError, SourceError
from msdata_jax.sources import handles as handles_module
from msdata_jax.sources.files import open_files
from msdata_jax.sources.folder import _read_all, _UnreadableError
from msdata_jax.sources.handles import OpenFiles
from msdata_jax.sources.protocol import BadRecord

MDS = Path(__file__).parent / "data" / "mds" / "raw"
FILES = {
    "cat/1.JPG": b"one",
    "cat/1.txt": b"a cat",
    "cat/2.jpg": b"two",
    "cat/tiny/1.jpg": b"three",
    "dog.v2/1.jpg": b"four",
    "dog.v2/1.seg.PNG": b"mask",
    "top.cls": b"",
}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def walked(root: Path) -> dict:
    """The records by a plain loop; None for one with two values of a name."""
    records = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            stem, _, ending = name.partition(".")
            if not stem or not ending:
                continue
            label = os.path.relpath(folder, root).removeprefix(".").removeprefix("/")
            key = f"{label}/{stem}" if label else stem
            record = records.setdefault(key, {"__key__": key, "__folder__": label})
            if record is not None and ending.lower() not in record:
                record[ending.lower()] = Path(folder, name).read_bytes()
            else:
                records[key] = None
    return records


def by_key(records: list) -> dict:
    assert len({record["__key__"] for record in records}) == len(records)
    return {record["__key__"]: record for record in records}


def reasons(records: list) -> list[str]:
    return [record.reason if isinstance(record, BadRecord) else "" for record in records]


# --- records


def test_files_of_one_key_are_one_record(tmp_path):
    found = read_all(opened(write(tmp_path, FILES)))
    assert found == [
        {"__key__": "top", "__folder__": "", "cls": b""},
        {"__key__": "cat/1", "__folder__": "cat", "jpg": b"one", "txt": b"a cat"},
        {"__key__": "cat/2", "__folder__": "cat", "jpg": b"two"},
        {"__key__": "cat/tiny/1", "__folder__": "cat/tiny", "jpg": b"three"},
        {"__key__": "dog.v2/1", "__folder__": "dog.v2", "jpg": b"four", "seg.png": b"mask"},
    ]
    assert by_key(found) == walked(tmp_path)


def test_the_tar_of_the_files_has_the_same_records(tmp_path, helpers):
    folder = write(tmp_path / "loose", FILES)
    path = helpers.write_tar(tmp_path / "a.tar", sorted(FILES.items()))
    loose = by_key(read_all(opened(folder)))
    assert {key: record.pop("__folder__") for key, record in loose.items()}["cat/tiny/1"] == "cat/tiny"
    assert loose == by_key(read_all(opened(path)))


def test_records_are_sorted_by_folder_and_name(tmp_path):
    keys = [f"{folder:02}/{name:02}" for folder in range(30) for name in range(30)]
    for number in np.random.default_rng(0).permutation(len(keys)):
        write(tmp_path, {f"{keys[number]}.txt": b""})
    assert [record["__key__"] for record in read_all(opened(tmp_path))] == keys


def test_what_is_no_value_is_left_out(tmp_path):
    write(tmp_path, {"a.jpg": b"a", "README": b"-", "end.": b"-", ".DS_Store": b"-", ".a.jpg": b"-"})
    write(tmp_path, {".cache/b.jpg": b"-", "c/.hidden/d.jpg": b"-", "c/.DS_Store": b"-"})
    (tmp_path / "empty").mkdir()
    assert read_all(opened(tmp_path)) == [{"__key__": "a", "__folder__": "", "jpg": b"a"}]


NAMES = st.text("abB.é- \n\udcff", min_size=1, max_size=5).filter(lambda name: name not in (".", ".."))
FOLDERS = st.lists(st.sampled_from(["d1", "d1.x", "D1", ".h", "\udce9"]), max_size=2)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.tuples(FOLDERS.map("/".join), NAMES), st.binary(max_size=3), max_size=12))
@example({("", "a-b.x"): b"1", ("", "a.x"): b"2", ("", "a.y"): b"3", ("", "a b.x"): b"4"})
@example({("", "a.x"): b"1", ("d1", "a.x"): b"2", ("", "d1.x.x"): b"3"})
def test_any_tree_of_names_is_as_walked(tree):
    files = {f"{folder}/{name}".lstrip("/"): content for (folder, name), content in tree.items()}
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        root = write(Path(first, "a"), files)
        root.mkdir(exist_ok=True)
        expected = walked(root)
        if not expected:
            with pytest.raises(SourceError, match=r"without files named KEY\.ENDING"):
                opened(root)
            return
        records = opened(root)
        found = read_all(records)
        bad = [record for record in found if isinstance(record, BadRecord)]
        assert by_key([record for record in found if not isinstance(record, BadRecord)]) == {
            key: record for key, record in expected.items() if record is not None
        }
        assert len(bad) == sum(record is None for record in expected.values())
        assert all("two values" in record.reason.encode().decode() for record in bad)
        again = opened(write(Path(second, "a"), dict(reversed(files.items()))))
        assert read_all(again) == found
        assert again.fingerprint() == records.fingerprint()


def test_several_folders_are_one_source(tmp_path, monkeypatch):
    monkeypatch.setattr(handles_module, "_BUDGETS", {os.getpid(): OpenFiles(2)})
    for name in "cab":
        write(tmp_path / name, {f"{number}.txt": f"{name}{number}".encode() for number in range(5)})
    before = len(os.listdir("/proc/self/fd"))
    records = opened(tmp_path / "*/")
    assert records.num_open_files == 0
    for _ in range(2):
        assert [record["txt"] for record in read_all(records)] == [
            f"{name}{number}".encode() for name in "abc" for number in range(5)
        ]
        assert records.num_open_files == 2
    assert len(os.listdir("/proc/self/fd")) == before + 2
    records.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_threads_read_at_once(tmp_path):
    records = opened(write(tmp_path, {f"{number:03}.txt": b"%d" % number for number in range(200)}))
    wrong = []

    def read(seed):
        asked = np.random.default_rng(seed).permutation(200)
        wrong.extend(
            index
            for index, record in zip(asked, records.read(asked), strict=True)
            if record["txt"] != b"%d" % index
        )

    on_threads(read)
    assert wrong == []


# --- fingerprints


def test_the_fingerprint_is_of_names_and_sizes(tmp_path):
    folder = write(tmp_path / "here" / "photos", FILES)
    first = opened(folder).fingerprint()
    os.utime(folder / "top.cls", (1, 1))
    shutil.copytree(folder, tmp_path / "there" / "photos")
    assert opened(tmp_path / "there" / "photos").fingerprint() == first
    (folder / "top.cls").write_bytes(b"1")
    larger = opened(folder).fingerprint()
    (folder / "top.cls").rename(folder / "top.clt")
    renamed = opened(folder).fingerprint()
    (folder / "top.clt").rename(folder / "cat" / "top.clt")
    moved = opened(folder).fingerprint()
    (folder / "cat" / "1.txt").unlink()
    assert len({first, larger, renamed, moved, opened(folder).fingerprint()}) == 5


def test_no_name_can_pass_for_another_and_its_size(tmp_path):
    one = opened(write(tmp_path / "1" / "a", {"a.x\n1\nb.x": b"-", "c.x": b"-"}))
    two = opened(write(tmp_path / "2" / "a", {"a.x": b"-", "b.x\n1\nc.x": b"-"}))
    assert len(one) == len(two) == 2
    assert one.fingerprint() != two.fingerprint()


# --- what is no folder of loose files


@pytest.mark.parametrize(
    "names",
    [
        ["a.parquet"],
        ["b/c/a.snappy.parquet", "b/c/b.snappy.parquet"],
        ["a.JSONL"],
        ["a.json", "b/b.json"],
        ["c4.00000-of-00002.json.gz"],
        ["shard.tar.gz"],
        ["train.tfrecord-00000-of-00002"],
        ["text.idx", "text.bin"],
        ["README.md", "data/a.parquet"],
        ["photos/1.jpg", "metadata.jsonl"],
    ],
)
def test_refuses_files_of_records(tmp_path, names):
    write(tmp_path, dict.fromkeys(names, b"-"))
    with pytest.raises(
        SourceError, match=r"a file of records .*; give a glob of such files \(.*/\*\*/\*\.\w"
    ):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("names", "num_records"),
    [
        (["1.jpg", "1.json", "2.jpg"], 2),
        (["1.jpg", "labels.json"], 2),
        (["scans/1.bin", "scans/2.bin"], 2),
        (["1.bin", "1.json"], 1),
        (["1.flac", "1.parquet", "1.jsonl"], 1),
    ],
)
def test_values_may_have_the_endings_of_record_files(tmp_path, names, num_records):
    found = read_all(opened(write(tmp_path, dict.fromkeys(names, b"-"))))
    assert len(found) == num_records
    assert by_key(found) == walked(tmp_path)


def test_refuses_a_dataset_of_another_format_inside(tmp_path):
    write(tmp_path, FILES)
    shutil.copytree(MDS, tmp_path / "mds" / "train")
    with pytest.raises(
        SourceError, match=r"dataset inside, as mds/train/index\.json tells; give .*/mds/train"
    ):
        opened(tmp_path)
    (tmp_path / "mds" / "train" / "index.json").write_text("{}")
    assert len(opened(tmp_path)) > len(walked(write(tmp_path / "alone", FILES)))


def test_refuses_a_folder_without_records(tmp_path):
    write(tmp_path, {"README": b"-", ".hidden.jpg": b"-", "empty/.keep": b""})
    with pytest.raises(SourceError, match=r"without files named KEY\.ENDING"):
        opened(tmp_path)


def test_refuses_a_folder_that_cannot_be_listed(tmp_path):
    """Here for its path, which is longer than the system takes."""
    write(tmp_path, FILES)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=descriptor)
        above, descriptor = descriptor, os.open("d" * 250, os.O_RDONLY, dir_fd=descriptor)
        os.close(above)
    os.close(descriptor)
    with pytest.raises(
        SourceError, match=r"/d{250}/ cannot be listed \(File name too long\); make it readable"
    ):
        opened(tmp_path)
    shutil.rmtree(tmp_path / ("d" * 250))
    assert len(opened(tmp_path)) == 5


def test_a_remote_folder_is_not_looked_into(tmp_path):
    write(tmp_path / "served" / "photos", FILES)
    storage = {"cache_dir": str(tmp_path / "cache")}
    with RangeServer(tmp_path / "served") as server:
        (tmp_path / "served" / "folder").write_bytes(b"what a server answers for one")
        with pytest.raises(SourceError, match=r"not on a local disk cannot be looked into; .* or copy it to"):
            open_files(f"{server.url}/folder", {}, keep_damaged=False, storage_options=storage)
        with pytest.raises(
            SourceError, match=r"1\.JPG is of no known format .*a local folder of loose files"
        ):
            open_files(f"{server.url}/photos/cat/1.JPG", {}, keep_damaged=False, storage_options=storage)
    assert len(opened(f"file://{tmp_path}/served/photos/")) == 5


# --- links, pipes, what changes


def test_links_inside_the_folder(tmp_path):
    write(tmp_path, {"a.jpg": b"a", "b/c.jpg": b"c", ".store/77": b"kept"})
    (tmp_path / "link.jpg").symlink_to("b/c.jpg")
    (tmp_path / "b" / "stored.jpg").symlink_to("../.store/77")
    (tmp_path / "b" / "up").symlink_to("..")
    (tmp_path / "again").symlink_to("b")
    (tmp_path / "gone.jpg").symlink_to("nothing")
    (tmp_path / "loop1.jpg").symlink_to("loop2.jpg")
    (tmp_path / "loop2.jpg").symlink_to("loop1.jpg")
    found = read_all(opened(tmp_path))
    whole = by_key([record for record in found if not isinstance(record, BadRecord)])
    assert {key: record["jpg"] for key, record in whole.items()} == {
        "a": b"a", "link": b"c", "b/c": b"c", "b/stored": b"kept"
    }  # fmt: skip
    assert [reason for reason in reasons(found) if reason] == [
        f"{tmp_path.name}: record 'gone', file '.jpg' cannot be opened (No such file or directory)",
        f"{tmp_path.name}: record 'loop1', file '.jpg' cannot be opened (Too many levels of symbolic links)",
        f"{tmp_path.name}: record 'loop2', file '.jpg' cannot be opened (Too many levels of symbolic links)",
    ]


@pytest.mark.parametrize("target", ["secret/x.jpg", "secret", "photos-too/x.jpg", "secret/nothing"])
def test_refuses_a_link_that_leaves_the_folder(tmp_path, target):
    photos = write(tmp_path / "photos", FILES)
    write(tmp_path, {"secret/x.jpg": b"-", "photos-too/x.jpg": b"-"})
    (photos / "cat" / "x.jpg").symlink_to(tmp_path / target)
    with pytest.raises(SourceError, match=f"cat/x.jpg is a link that leaves the folder, to .*{target}; copy"):
        opened(photos)


def test_a_source_may_be_a_link_itself(tmp_path):
    write(tmp_path / "v1", FILES)
    (tmp_path / "latest").symlink_to("v1")
    assert by_key(read_all(opened(tmp_path / "latest"))) == walked(tmp_path / "v1")


def test_what_is_no_file_is_a_bad_record(tmp_path, monkeypatch):
    monkeypatch.chdir(write(tmp_path, {"a.jpg": b"a", "cls/b.jpg": b"b"}))
    os.mkfifo("pipe.jpg")
    os.mkfifo("index.json")  # not the index of an MDS folder
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.jpg")
        found = read_all(opened(tmp_path))
    assert [reason.partition(": ")[2] for reason in reasons(found)] == [
        "",
        "record 'index', file '.json' is no regular file",
        "record 'pipe', file '.jpg' is no regular file",
        "record 'socket', file '.jpg' cannot be opened (No such device or address)",
        "",
    ]


def test_files_that_change_after_the_folder_was_listed(tmp_path):
    names = ["a", "folder", "link", "pipe", "removed", "z"]
    photos = write(tmp_path / "photos", {f"{name}.jpg": name.encode() for name in names} | {"d/x.jpg": b"x"})
    write(tmp_path, {"secret/x.jpg": b"secret"})
    records = opened(photos)
    assert reasons(read_all(records)) == [""] * 7
    for name in names[1:-1]:
        (photos / f"{name}.jpg").unlink()
    (photos / "folder.jpg").mkdir()
    (photos / "link.jpg").symlink_to(tmp_path / "secret" / "x.jpg")
    os.mkfifo(photos / "pipe.jpg")
    shutil.rmtree(photos / "d")
    (photos / "d").symlink_to(tmp_path / "secret")
    found = read_all(records)
    assert [reason.partition("file ")[2] for reason in reasons(found)] == [
        "",
        "'.jpg' is no regular file",
        "'.jpg' is a link that leaves the folder",
        "'.jpg' is no regular file",
        "'.jpg' cannot be opened (No such file or directory)",
        "",
        "'.jpg' is a link that leaves the folder",
    ]
    assert [found[0]["jpg"], found[5]["jpg"]] == [b"a", b"z"]
    shutil.rmtree(photos)
    records.drop_handles()
    with pytest.raises(SourceError, match="photos can no longer be opened: No such file or directory"):
        read_all(records)


def test_a_folder_that_moves_while_it_is_open_is_read_on(tmp_path):
    records = opened(write(tmp_path / "photos", FILES))
    first = read_all(records)
    (tmp_path / "photos").rename(tmp_path / "elsewhere")
    assert read_all(records) == first


def test_a_record_that_is_too_large_is_not_read(tmp_path):
    write(tmp_path, {"a.jpg": b"123", "a.txt": b"456", "b.jpg": b"-"})
    os.truncate(tmp_path / "b.jpg", 1 << 40)
    assert len(read_all(opened(tmp_path, {"max_record_bytes": 6}))[0]) == 4
    records = opened(tmp_path, {"max_record_bytes": 5})
    tracemalloc.start()
    try:
        found = read_all(records)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert [reason.partition("file ")[2] for reason in reasons(found)] == [
        "'.txt' has 3 bytes, max_record_bytes leaves it 2",
        f"'.jpg' has {1 << 40} bytes, max_record_bytes leaves it 5",
    ]


def test_a_file_that_grows_is_read_as_far_as_it_was(tmp_path):
    path = write(tmp_path, {"a.txt": b"0123"}) / "a.txt"
    records = opened(tmp_path)
    pieces = 300

    def append():
        with open(path, "ab", buffering=0) as stream:
            for _ in range(pieces):
                stream.write(b"0123")

    writer = threading.Thread(target=append)
    writer.start()
    sizes = []
    while writer.is_alive() or not sizes or sizes[-1] < 4 * (pieces + 1):
        [record] = read_all(records)
        assert record["txt"] == (b"0123" * (pieces + 1))[: len(record["txt"])]
        sizes.append(len(record["txt"]))
    writer.join()
    assert sizes == sorted(sizes)
    with open(path, "rb") as stream:
        assert _read_all(stream.fileno(), 5) == b"01230"


def test_a_file_that_shrinks_while_it_is_read_is_bad(tmp_path):
    path = write(tmp_path, {"a.txt": b"0123"}) / "a.txt"
    with open(path, "rb") as stream, pytest.raises(_UnreadableError, match="ends after 4 of 9 bytes"):
        _read_all(stream.fileno(), 9)


# --- images, and a whole job


def test_photos_in_class_folders(tmp_path):
    random = np.random.default_rng(0)
    for label, number, ending in (
        ("cat", 1, "JPG"),
        ("cat", 2, "png"),
        ("dog", 1, "webp"),
        ("dog", 2, "gif"),
    ):
        (tmp_path / label).mkdir(exist_ok=True)
        pixels = random.integers(0, 256, (8 + number, 12, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / label / f"{number}.{ending}")
    (tmp_path / "cat" / "1.txt").write_text("a cat")
    content = (tmp_path / "cat" / "2.png").read_bytes()
    (tmp_path / "dog" / "torn.png").write_bytes(content[: len(content) // 2])
    *found, torn = read_all(opened(tmp_path))
    decoded = [msd.DecodeImage()(record) for record in found]
    assert [(each["__folder__"], each["__key__"]) for each in decoded] == [
        ("cat", "cat/1"), ("cat", "cat/2"), ("dog", "dog/1"), ("dog", "dog/2")
    ]  # fmt: skip
    assert decoded[0].keys() == {"__key__", "__folder__", "image", "txt"}
    for record, name in zip(decoded, ("cat/1.JPG", "cat/2.png", "dog/1.webp", "dog/2.gif"), strict=True):
        with Image.open(tmp_path / name) as image:
            assert np.array_equal(record["image"], np.asarray(image.convert("RGB")))
    with pytest.raises(BadSampleError, match=r"PNG of .* cut short or damaged"):
        msd.DecodeImage()(torn)


def test_a_job_over_a_folder(tmp_path):
    texts = {f"{'ab'[number % 2]}/{number:02}": bytes(range(1, 2 + number % 7)) for number in range(20)}
    write(tmp_path, {f"{key}.txt": text for key, text in texts.items()} | {"a/bad.jpg": b"-"})
    recipe = msd.Recipe(
        sources={"texts": msd.Source(tmp_path, [to_tokens], on_bad_sample="skip", block_size=3)},
        strategy=msd.DGraph().mix({"texts": 1}, on_exhausted="stop").pad(seq_len=8, rows=1),
    )
    with msd.DataLoader(recipe, num_loaders=2) as loader:
        rows = [batch["tokens"][0] for batch in loader]
    assert sorted(bytes(row[row > 0].tolist()) for row in rows) == sorted(texts.values())


def to_tokens(record):
    return {"tokens": np.frombuffer(record["txt"], np.uint8).astype(np.int32)}
