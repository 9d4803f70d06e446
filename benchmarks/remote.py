"""Remote files: one reader over a web server with latency, with and without read-ahead and disk cache.

The server is a process of its own on the loopback that serves a JSON Lines file by ranges and lets each
request wait. `index` is the pass that finds the lines, which reads the whole file in order. `in_order` reads
all records one after the other, `shuffled` in a random order. The first two rows begin with an empty cache;
"cached" is the same again in a fresh reader. Requests are those that the server got, the one for the version
too.
"""

import contextlib
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.headline import headline
from benchmarks.range_server import RangeServer
from msdata_jax.sources.files import open_files

_SERVER_SECONDS = 600
_DOC_BYTES = 4000


def run(quick: bool) -> dict[str, Any]:
    """Rows for each way to read; `quick` takes a file of 16 MB instead of 128 MB."""
    num_mb, latency_seconds = (16, 0.05) if quick else (128, 0.05)
    with tempfile.TemporaryDirectory(prefix="msdata-remote-") as name:
        folder = Path(name)
        (folder / "served").mkdir()
        _write(folder / "served" / "docs.jsonl", num_mb)
        rows = measure(folder, latency_seconds)
    by_way = {row["way"]: row for row in rows}
    ratio = by_way["without read-ahead"]["index_seconds"] / by_way["read-ahead of 8 blocks"]["index_seconds"]
    return {
        "name": "remote",
        "rows": rows,
        "notes": [
            f"{num_mb} MB of JSON Lines in records of {_DOC_BYTES} bytes, blocks of 1 MiB",
            f"each request waits {1000 * latency_seconds:.0f} ms at the server",
            f"read-ahead makes the pass over the file {ratio:.1f} times as fast",
        ],
    }


def headlines(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What read-ahead brings."""
    seconds = {row["way"]: row["index_seconds"] for row in result["rows"]}
    ours = seconds.pop("read-ahead of 8 blocks")
    return [headline("seconds of the first pass over a remote file", ours, beside=seconds)]


def measure(folder: Path, latency_seconds: float) -> list[dict[str, Any]]:
    """One row a way.

    Raises:
        AssertionError: a way delivered other records than the local file.
    """
    rows = [_row("local file", str(folder / "served" / "docs.jsonl"), {}, None)]
    with _server(folder / "served", latency_seconds) as server:
        url, ask = server
        for way, blocks in (("without read-ahead", 0), ("read-ahead of 8 blocks", 8)):
            options = {"cache_dir": str(folder / f"cache{blocks}"), "read_ahead": blocks}
            rows.append(_row(way, f"{url}/docs.jsonl", options, ask))
        rows.append(_row("cached", f"{url}/docs.jsonl", options, ask))
    assert len({row.pop("digest") for row in rows}) == 1, "the ways differ"
    return rows


def _row(way: str, path: str, options: dict[str, Any], ask: Any) -> dict[str, Any]:
    before = ask() if ask else 0
    begin = time.monotonic()
    records = open_files(path, {}, keep_damaged=False, storage_options=options)
    indexed = time.monotonic()
    digest = 0
    order = np.arange(len(records))
    for first in range(0, len(records), 64):
        digest += sum(len(each["text"]) * each["n"] for each in records.read(order[first : first + 64]))
    in_order = time.monotonic()
    np.random.default_rng(0).shuffle(order)
    for first in range(0, len(records), 64):
        records.read(order[first : first + 64])
    shuffled = time.monotonic()
    records.close()
    return {
        "way": way,
        "index_seconds": round(indexed - begin, 2),
        "in_order_per_second": round(len(records) / (in_order - indexed)),
        "shuffled_per_second": round(len(records) / (shuffled - in_order)),
        "requests": ask() - before if ask else 0,
        "digest": digest,
    }


def _write(path: Path, num_mb: int) -> None:
    generator = np.random.default_rng(0)
    with path.open("w") as stream:
        for number in range(num_mb * 1_000_000 // _DOC_BYTES):
            text = generator.bytes((_DOC_BYTES - 40) // 2).hex()
            stream.write(json.dumps({"n": number, "text": text}) + "\n")


@contextlib.contextmanager
def _server(folder: Path, latency_seconds: float) -> Iterator[tuple[str, Any]]:
    """URL of a server in a process of its own, and a function that asks how many requests it got."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(folder, latency_seconds, theirs), daemon=True)
    process.start()
    theirs.close()

    def ask() -> int:
        ours.send("requests")
        assert ours.poll(30), "the server does not answer"
        return ours.recv()

    try:
        assert ours.poll(60), "the server does not begin"
        yield ours.recv(), ask
    finally:
        ours.close()
        process.join(30)


def _serve(folder: Path, latency_seconds: float, pipe: Connection) -> None:
    """Serve until the other end of the pipe is closed, or for ten minutes."""
    deadline = time.monotonic() + _SERVER_SECONDS
    with RangeServer(folder, seconds=latency_seconds) as server:
        pipe.send(server.url)
        with contextlib.suppress(EOFError):
            while time.monotonic() < deadline:
                if pipe.poll(1):
                    pipe.recv()
                    pipe.send(len(server.requests))
