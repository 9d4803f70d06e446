"""Sources read from a web server and an object store of this machine, with faults."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import msdata_jax as msd
from benchmarks.range_server import RangeServer
from msdata_jax.errors import SourceError
from msdata_jax.sources import storage
from msdata_jax.sources.files import open_files
from msdata_jax.sources.isolation import open_reader
from msdata_jax.sources.protocol import is_transient
from msdata_jax.sources.remote.cache import DiskCache
from msdata_jax.sources.remote.options import PAGE_BYTES
from msdata_jax.sources.remote.store import RemoteFile

KEY = "ab" + "0" * 38


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "served"
    path.mkdir()
    return path


@pytest.fixture
def server(folder):
    with RangeServer(folder) as found:
        yield found


@pytest.fixture
def options(tmp_path):
    """Small blocks, and a cache that does not outlive the test."""
    return {"cache_dir": str(tmp_path / "cache"), "block_bytes": PAGE_BYTES, "deadline_seconds": 20}


@pytest.fixture
def big(folder):
    """A file of 12 and a half blocks."""
    content = np.random.default_rng(0).bytes(12 * PAGE_BYTES + PAGE_BYTES // 2)
    (folder / "big.bin").write_bytes(content)
    return content


def opened(url, options) -> RemoteFile:
    (path,) = storage.find(url, options)
    return storage.open_bytes(path)


def counts(file):
    return file._store.counts


def eventually(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("names", ["*", "{a,b}"])
def test_remote_files_are_as_local_ones(server, folder, options, helpers, file_format, names):
    docs = helpers.make_docs(400)
    for place, name in enumerate("ab"):
        helpers.WRITERS[file_format](folder / f"{name}.{file_format}", docs[place::2])
    local = open_files(f"{folder}/*.{file_format}", {}, keep_damaged=False)
    url = f"{server.url}/{names}.{file_format}"
    with contextlib.closing(open_files(url, {}, keep_damaged=False, storage_options=options)) as remote:
        order = np.random.default_rng(1).permutation(400)
        assert [helpers.text_of(each) for each in remote.read(order)] == [
            helpers.text_of(each) for each in local.read(order)
        ]
        assert remote.fingerprint() == local.fingerprint()
        assert remote.file_digests() == local.file_digests()
        assert remote.describe(201) == local.describe(201)
    local.close()
    num_requests = len(server.requests)
    with contextlib.closing(open_files(url, {}, keep_damaged=False, storage_options=options)) as again:
        again.read(order)
    asked = {(first, last) for _, first, last in server.requests[num_requests:]}
    assert asked <= {(0, 0), (0, -1)}, "only versions and the folder are asked for again"


def test_a_list_of_files(server, folder, options, helpers):
    (folder / "sub").mkdir()
    for name in ("b", "a"):
        helpers.write_jsonl(folder / "sub" / f"{name} 1.jsonl", helpers.make_docs(5))
    (folder / "list.txt").write_text("# mine\nsub/b%201.jsonl\nsub/a%201.jsonl\n")
    url = f"{server.url}/list.txt"
    with contextlib.closing(open_files(url, {}, keep_damaged=False, storage_options=options)) as records:
        assert [records.describe(0), records.describe(9)] == [
            "record 0 of b 1.jsonl",
            "record 4 of a 1.jsonl",
        ]


@pytest.mark.parametrize("isolate", [False, True])
def test_a_job_over_remote_sources_is_the_job_over_local_ones(server, folder, options, helpers, isolate):
    docs = helpers.make_docs(60)
    helpers.write_parquet(folder / "books.parquet", docs)
    helpers.write_doc_tar(folder / "web.tar", docs)

    def batches(where, **more):
        def tokens(record):
            return {"tokens": np.frombuffer(helpers.text_of(record).encode(), np.uint8).astype(np.int32)[:64]}

        recipe = msd.Recipe(
            sources={
                "books": msd.Source(f"{where}/books.parquet", [tokens], isolate=isolate, **more),
                "web": msd.Source(f"{where}/*.tar", [tokens], **more),
            },
            strategy=msd.DGraph().mix({"books": 1, "web": 2}).pack(seq_len=64, rows=4),
        )
        with msd.DataLoader(recipe, num_steps=6) as loader:
            return [batch["tokens"].copy() for batch in loader]

    server.fail(3, lambda handler: handler.send_status(503))
    local, remote = batches(folder), batches(server.url, storage=options)
    assert len(local) == 6
    np.testing.assert_array_equal(local, remote)


FAULTS = {
    "503": lambda handler: handler.send_status(503),
    "429": lambda handler: handler.send_status(429),
    "dropped": lambda handler: handler.drop(),
    "cut": lambda handler: handler.send_cut(),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_may_pass_is_tried_again(server, options, big, fault):
    file = opened(f"{server.url}/big.bin", {**options, "read_ahead": 0})
    server.fail(2, FAULTS[fault])
    assert file.pread(10, 1000) == big[10:1010]
    num_retries = storage.num_retries([file._path])
    # The client itself tries once more where a connection that was open before is dropped.
    assert num_retries == 2 or (fault == "dropped" and num_retries == 1)


def test_a_server_that_is_silent_is_tried_again(server, options, big):
    waiting = threading.Event()
    file = opened(f"{server.url}/big.bin", {**options, "request_seconds": 0.3, "read_ahead": 0})
    server.fail(1, lambda handler: waiting.wait(10) and None)
    assert file.pread(0, 10) == big[:10]
    assert counts(file).num_retries == 1
    waiting.set()


@pytest.mark.parametrize("fault", FAULTS)
def test_trying_again_has_an_end(server, options, big, fault):
    file = opened(f"{server.url}/big.bin", {**options, "deadline_seconds": 0.25})
    server.fail(1000, FAULTS[fault])
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:\d+/big.bin") as caught:
        file.pread(0, 10)
    assert is_transient(caught.value)
    server.fault = None
    assert file.pread(0, 10) == big[:10]


@pytest.mark.parametrize(
    ("status", "kind"), [(403, PermissionError), (404, FileNotFoundError), (400, OSError)]
)
def test_what_does_not_pass_is_not_tried_again(server, options, big, status, kind):
    url = server.url.replace("//", "//me:hush@") + "/big.bin?sig=hush"
    file = opened(url, options)
    server.fail(1, lambda handler: handler.send_status(status))
    with pytest.raises(kind, match=f"{server.url}/big.bin: status {status}") as caught:
        file.pread(0, 10)
    assert not is_transient(caught.value)
    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert counts(file).num_retries == 0
    assert server.seen["Authorization: Basic bWU6aHVzaA=="] == len(server.requests)


@pytest.mark.parametrize("name", ["none.jsonl", "none/*.jsonl"])
def test_a_source_that_is_not_there(server, folder, options, name):
    with pytest.raises(SourceError, match=r"none.*(status 404|no file|no such file)"):
        open_files(f"{server.url}/{name}", {}, keep_damaged=False, storage_options=options)


def test_an_empty_file_is_refused(server, folder, options):
    (folder / "a.jsonl").touch()
    with pytest.raises(SourceError, match="empty"):
        open_files(f"{server.url}/a.jsonl", {}, keep_damaged=False, storage_options=options)


def test_a_server_without_ranges(server, folder, options, big):
    server.has_ranges = False
    with pytest.raises(OSError, match="sends no ranges"):
        opened(f"{server.url}/big.bin", options).pread(0, 10)
    (folder / "small.bin").write_bytes(b"less than a block")
    assert opened(f"{server.url}/small.bin", options).pread(5, 4) == b"than"


def test_a_changed_object_is_an_error_and_never_mixed(server, folder, options, big):
    file = opened(f"{server.url}/big.bin", {**options, "read_ahead": 0})
    assert file.pread(0, 10) == big[:10]
    new = big[::-1]
    (folder / "big.bin").write_bytes(new)
    with pytest.raises(OSError, match="was changed while") as caught:
        file.pread(5 * PAGE_BYTES, 10)
    assert not is_transient(caught.value)
    assert opened(f"{server.url}/big.bin", options).pread(0, len(big)) == new


def test_an_object_that_changes_under_a_source_ends_the_data(server, folder, options, helpers):
    helpers.write_jsonl(folder / "a.jsonl", helpers.make_docs(3000))
    source = msd.Source(f"{server.url}/a.jsonl", storage={**options, "read_ahead": 0}, read_retries=1)
    reader = open_reader("a", 0, source, seed=0)
    for block in (Path(options["cache_dir"]) / "v1").glob("*/*"):
        block.unlink()
    helpers.write_jsonl(folder / "a.jsonl", helpers.make_docs(3000, seed=1))
    with contextlib.closing(reader), pytest.raises(SourceError, match="was changed while the job read it"):
        reader.read_block(0, 64)


def test_a_slow_network_makes_no_bad_sample(server, folder, options, helpers):
    helpers.write_jsonl(folder / "a.jsonl", helpers.make_docs(20))

    def tokens(record):
        return {"tokens": np.arange(record["n"] + 1)}

    source = msd.Source(
        f"{server.url}/a.jsonl", [tokens], storage=options, isolate=True, sample_seconds=0.2, shuffle=False
    )
    with contextlib.closing(open_reader("a", 0, source, seed=0)) as reader:
        for block in blocks_of(options):
            block.unlink()
        server.seconds = 0.6
        block = reader.read_block(3, 4)
        assert (len(block.samples), block.bad, reader.num_deaths) == (1, [], 0)


def test_without_tags_nothing_is_kept_for_others(server, folder, options, big):
    server.has_tags = False
    assert opened(f"{server.url}/big.bin", options).pread(0, 10) == big[:10]
    (folder / "big.bin").write_bytes(big[::-1])
    assert opened(f"{server.url}/big.bin", options).pread(0, 10) == big[::-1][:10]


def test_reads_in_order_are_fetched_ahead(server, options, big):
    server.seconds = 0.02
    file = opened(f"{server.url}/big.bin", {**options, "read_ahead": 4})
    found = b"".join(file.pread(at, 10_000) for at in range(0, len(big), 10_000))
    assert found == big
    ranges = [(first, last) for _, first, last in server.requests[1:]]
    assert len(ranges) == len(set(ranges)) == 13, "each block once"
    eventually(lambda: counts(file).num_ahead >= 6)


def test_blocks_of_one_read_are_fetched_at_the_same_time(server, options, big):
    server.seconds = 0.02
    file = opened(f"{server.url}/big.bin", options)
    at = PAGE_BYTES + 5
    assert file.pread(at, 6 * PAGE_BYTES) == big[at : at + 6 * PAGE_BYTES]
    assert {first // PAGE_BYTES for _, first, last in server.requests if last} == set(range(1, 8))


def test_random_reads_fetch_nothing_else(server, options, big):
    file = opened(f"{server.url}/big.bin", options)
    for number in (7, 2, 11, 4):
        assert file.pread(number * PAGE_BYTES + 3, 5) == big[number * PAGE_BYTES + 3 :][:5]
    assert [first // PAGE_BYTES for _, first, last in server.requests if last] == [7, 2, 11, 4]


def test_threads_that_want_one_block_ask_once(server, options, big):
    server.seconds = 0.1
    file = opened(f"{server.url}/big.bin", options)
    found = []
    threads = [threading.Thread(target=lambda: found.append(file.pread(3, 5))) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(20)
    assert found == [big[3:8]] * 6
    assert len([last for _, _, last in server.requests if last]) == 1


READER = """
import json, sys
from msdata_jax.sources import storage
url, options = sys.argv[1], json.loads(sys.argv[2])
file = storage.open_bytes(storage.find(url, options)[0])
print("ready", flush=True)
sys.stdin.readline()
print(hash(b"".join(file.pread(at, 30_000) for at in range(0, file.size, 30_000))))
"""


def test_processes_that_want_the_same_blocks_ask_once(server, options, big):
    arguments = [sys.executable, "-c", READER, f"{server.url}/big.bin", json.dumps(options)]
    processes = [
        subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        for _ in range(3)
    ]  # fmt: skip
    for each in processes:
        assert each.stdout.readline() == "ready\n"
    server.seconds = 0.02
    results = [each.communicate("\n", timeout=60)[0] for each in processes]
    assert len(set(results)) == 1
    assert results[0].strip()
    assert len([last for _, _, last in server.requests if last]) == 13


def blocks_of(options):
    return [each for each in (Path(options["cache_dir"]) / "v1").glob("??/*") if each.is_file()]


def test_damaged_blocks_are_fetched_again(server, options, big):
    quiet = {**options, "read_ahead": 0}
    opened(f"{server.url}/big.bin", quiet).pread(0, 10)
    (block,) = blocks_of(options)
    whole = block.read_bytes()
    for place in (0, 6, 13, len(whole) // 2, len(whole) - 1):
        block.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        asked = len(server.requests)
        assert opened(f"{server.url}/big.bin", quiet).pread(0, PAGE_BYTES) == big[:PAGE_BYTES]
        assert len(server.requests) == asked + 2, "its version, and the block"
    block.write_bytes(whole[:-1])
    assert opened(f"{server.url}/big.bin", quiet).pread(0, PAGE_BYTES) == big[:PAGE_BYTES]


def test_a_damaged_copy_is_fetched_again(server, options, big):
    (path,) = storage.find(f"{server.url}/big.bin", options)
    copy = Path(storage.local_copy(path))
    assert copy.read_bytes() == big
    assert storage.local_copy(path) == str(copy)
    copy.write_bytes(b"x" + big[1:])
    (again,) = storage.find(f"{server.url}/big.bin", options)
    assert Path(storage.local_copy(again)).read_bytes() == big


def test_a_copy_that_finds_no_room_says_what_to_do(server, options, big):
    (path,) = storage.find(f"{server.url}/big.bin", {**options, "cache_bytes": 2 * PAGE_BYTES})
    with pytest.raises(OSError, match="MSDATA_CACHE_BYTES"):
        storage.local_copy(path)


def test_a_full_cache_drops_what_was_used_longest_ago(tmp_path):
    cache = DiskCache(str(tmp_path), 10 * 1200)
    keys = [f"{number:02d}" + "0" * 38 for number in range(10)]
    for number, key in enumerate(keys[:9]):
        assert cache.put(key, bytes([number]) * 1000)
        os.utime(tmp_path / "v1" / key[:2] / key, (number, number))
    assert cache.read(keys[0], 0, 5) == bytes(5)  # used now
    for key in keys[9:]:
        cache.put(key, b"9" * 1000)
    fresh = DiskCache(str(tmp_path), 4 * 1200)
    assert fresh.put(KEY, b"k" * 1000)
    assert {key for key in keys if fresh.has(key)} <= {keys[0], keys[9], keys[8]}
    assert fresh.has(keys[0])
    assert fresh.num_bytes <= 4 * 1200
    assert not fresh.put("cd" + "0" * 38, b"x" * 9000), "larger than all"


WRITER = """
import sys
from msdata_jax.sources.remote.cache import DiskCache
folder, seed, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
cache = DiskCache(folder, limit)
print("ready", flush=True)
sys.stdin.readline()
for number in range(100):
    key = f"{(number * 7 + seed) % 100:02d}" + "0" * 38
    content = key.encode() * 100
    found = cache.read(key, 0, 1 << 20)
    assert found in (None, content), key
    cache.put(key, content)
    assert sum(each.size for each in cache._entries()) <= limit, "the bound holds at all times"
"""


def test_the_bound_holds_for_several_processes(tmp_path):
    limit = 30 * 4100
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(seed), str(limit)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for seed in range(3)
    ]  # fmt: skip
    for each in processes:
        assert each.stdout.readline() == "ready\n"
    results = [each.communicate("\n", timeout=60) for each in processes]
    assert [each.returncode for each in processes] == [0, 0, 0], results
    cache = DiskCache(str(tmp_path), limit)
    assert limit // 2 < cache.num_bytes <= limit


KILLED = """
import sys, time
from msdata_jax.sources.remote.cache import DiskCache
cache = DiskCache(sys.argv[1], 1 << 20)
def pieces():
    yield b"x" * 1000
    print("half", flush=True)
    time.sleep(60)
cache.put_copy("ab" + "0" * 38, 600_000, pieces())
"""


def test_a_process_that_is_killed_while_it_writes_leaves_nothing_bad(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "half\n"
    cache = DiskCache(str(tmp_path), 1 << 20)
    assert not cache.put("cd" + "0" * 38, b"y" * 600_000), "what is being written keeps its room"
    process.send_signal(signal.SIGKILL)
    process.wait(20)
    process.stdout.close()
    assert cache.copy_of(KEY) is None
    assert not cache.has(KEY)
    assert cache.put("cd" + "0" * 38, b"y" * 600_000), "its room is free again"
    assert cache.read("cd" + "0" * 38, 0, 5) == b"yyyyy"
    assert cache.num_bytes < 610_000


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match="MSDATA_CACHE_DIR"):
        storage.find("memory://a.bin", {"cache_dir": str(tmp_path / "file")})


def test_any_file_system_of_fsspec(options, helpers, tmp_path):
    from fsspec.implementations.memory import MemoryFileSystem

    memory = MemoryFileSystem()
    content = Path(helpers.write_doc_tar(tmp_path / "a.tar", helpers.make_docs(50))).read_bytes()
    memory.pipe("/served/a.tar", content)
    try:
        url = "memory://served/*.tar"
        with contextlib.closing(open_files(url, {}, keep_damaged=False, storage_options=options)) as records:
            assert len(records) == 50
        file = opened(url, options)
        assert file.pread(0, 1 << 30) == content
        memory.pipe("/served/a.tar", content[::-1])
        for block in blocks_of(options):
            block.unlink()
        with pytest.raises(OSError, match="was changed while"):
            file.pread(0, 10)
    finally:
        memory.rm("/served", recursive=True)


def test_a_file_system_that_is_not_there(options):
    with pytest.raises(SourceError, match="nosuch"):
        open_files("nosuch://a/b.tar", {}, keep_damaged=False, storage_options=options)


def test_chained_urls_are_refused(options):
    with pytest.raises(SourceError, match="chains"):
        open_files("simplecache::https://h/a.tar", {}, keep_damaged=False, storage_options=options)


STORE = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.readline()
server.stop()
"""


@pytest.fixture(scope="module")
def object_store():
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", STORE],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        port = next(line for line in process.stdout if line.strip().isdigit())
        yield f"http://127.0.0.1:{port.strip()}"
    finally:
        process.communicate("\n", timeout=20)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:botocore")
def test_an_object_store(object_store, options, helpers, tmp_path, file_format):
    import s3fs

    login = {"key": "me", "secret": "hush", "endpoint_url": object_store}
    bucket = f"box-{file_format}"
    store = s3fs.S3FileSystem(**login)
    store.mkdir(bucket)
    docs = helpers.make_docs(300)
    path = helpers.WRITERS[file_format](tmp_path / f"a.{file_format}", docs)
    store.put_file(path, f"{bucket}/data/a.{file_format}")
    local = open_files(path, {}, keep_damaged=False)
    url, all_options = f"s3://{bucket}/data/*.{file_format}", {**options, **login}
    remote = open_files(url, {}, keep_damaged=False, storage_options=all_options)
    order = np.random.default_rng(1).permutation(300)
    assert [helpers.text_of(each) for each in remote.read(order)] == [
        helpers.text_of(each) for each in local.read(order)
    ]
    assert remote.fingerprint() == local.fingerprint()
    local.close()
    remote.close()
    file = opened(url, all_options)
    for block in blocks_of(options):
        block.unlink()
    store.pipe_file(f"{bucket}/data/a.{file_format}", Path(path).read_bytes()[::-1])
    with pytest.raises(OSError, match="was changed while"):
        file.pread(0, 10)
    with pytest.raises(SourceError, match="no such file") as caught:
        open_files(f"s3://{bucket}/none.tar", {}, keep_damaged=False, storage_options=all_options)
    assert "hush" not in str(caught.value)


def test_the_benchmark_counts_requests(folder, tmp_path):
    from benchmarks import remote

    remote._write(folder / "docs.jsonl", 2)
    rows = {row["way"]: row for row in remote.measure(tmp_path, 0.0)}
    assert [row["requests"] for row in rows.values()] == [0, 3, 3, 1]
