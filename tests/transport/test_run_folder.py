"""The run folder: what its two sides tell each other; neither minds what is not there or not ours."""

import json
import os
import queue
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msdata_transport import RunFolder, run_folder


@pytest.fixture
def folder() -> Iterator[RunFolder]:
    with RunFolder.temporary() as made:
        yield made


def test_is_private_and_goes() -> None:
    with RunFolder.temporary() as made:
        assert stat.S_IMODE(os.stat(made.path).st_mode) == 0o700
        assert RunFolder.from_environment({run_folder.VARIABLE: made.path}).path == made.path
        made.announce_formed()
        made.write_outcome({"ok": True})
    assert not os.path.exists(made.path)
    assert RunFolder.from_environment({run_folder.VARIABLE: made.path}) is None
    assert RunFolder.from_environment({}) is None


def test_its_path_is_short_where_temporary_paths_are_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with RunFolder.temporary() as made, made.listen_as_guard(1_000_000):
        pass


def test_the_length_of_its_path_is_counted_in_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wide = tmp_path / ("\u4f60" * 30)
    wide.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(wide))
    with RunFolder.temporary() as made, made.listen_as_guard(1_000_000):
        pass


def test_it_is_held_while_its_maker_or_a_vital_guard_lives(folder: RunFolder, tmp_path: Path) -> None:
    assert folder.is_held
    left = RunFolder(tmp_path)
    assert not left.is_held
    line = [sys.executable, "-c", HOLDER, left.path]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"holds\n"
        assert left.is_held
        holder.kill()
        holder.wait(20)
    assert not left.is_held


def test_deaths_reach_the_planner(folder: RunFolder) -> None:
    assert not folder.report_death(3, "killed by signal 9")
    heard: queue.Queue[tuple[int, str]] = queue.Queue()
    listener = folder.listen_for_deaths(lambda rank, how: heard.put((rank, how)))
    assert folder.report_death(3, "killed by signal 9")
    assert heard.get(timeout=10) == (3, "killed by signal 9")
    assert folder.report_death(4, "x" * 5000)
    assert heard.get(timeout=10) == (4, "x" * 200)
    listener.close()
    listener.close()
    assert not folder.report_death(3, "killed by signal 9")
    assert "msdata-deaths" not in {thread.name for thread in threading.enumerate()}


def test_many_deaths_at_once_wait_for_room(folder: RunFolder) -> None:
    heard: queue.Queue[int] = queue.Queue()
    listener = folder.listen_for_deaths(lambda rank, how: heard.put(rank))
    for rank in range(100):
        assert folder.report_death(rank, "killed by signal 9")
    assert [heard.get(timeout=10) for _ in range(100)] == list(range(100))
    listener.close()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\x00",
        b"[]",
        b"7",
        b"[" * 1000,
        b'{"event": "died"}',
        b'{"event": "died", "rank": -1, "how": "x"}',
        b'{"event": "died", "rank": 1.5, "how": "x"}',
        b'{"event": "died", "rank": true, "how": "x"}',
        b'{"event": "died", "rank": 1, "how": 2}',
        b'{"event": "other", "rank": 1, "how": "x"}',
        json.dumps({"event": "died", "rank": 1, "how": "x" * 2000}).encode(),
    ],
)
def test_what_is_no_death_is_ignored(folder: RunFolder, data: bytes) -> None:
    heard: queue.Queue[int] = queue.Queue()
    listener = folder.listen_for_deaths(lambda rank, how: heard.put(rank))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(data, os.path.join(folder.path, "planner.sock"))
    folder.report_death(7, "x")
    assert heard.get(timeout=10) == 7
    listener.close()


def test_guards_are_told_alone_or_all(folder: RunFolder) -> None:
    assert not folder.kill(1)
    folder.done()
    with folder.listen_as_guard(1) as first, folder.listen_as_guard(2) as second:
        assert run_folder.receive_event(first) is None
        assert folder.kill(1)
        folder.done()
        assert run_folder.receive_event(first) == {"event": "kill"}
        assert [run_folder.receive_event(sock) for sock in (first, second)] == [{"event": "done"}] * 2
    assert not folder.kill(1)
    folder.done()


def test_a_guard_that_does_not_listen_blocks_nobody(folder: RunFolder) -> None:
    with folder.listen_as_guard(1):
        told = [folder.kill(1) for _ in range(2000)]
        assert told[0]
        assert not told[-1]
        folder.done()


def test_what_is_written_is_read(folder: RunFolder) -> None:
    assert not folder.is_formed
    assert not folder.is_over
    assert folder.read_outcome() is None
    assert folder.failures() == []
    folder.announce_formed()
    folder.report_failure(4, "killed by signal 11")
    folder.report_failure(None, "ended with status 3")
    outcome = {"ok": True, "lost": [{"rank": 3, "why": "killed by signal 9"}]}
    folder.write_outcome(outcome)
    assert folder.is_formed
    assert folder.is_over
    assert folder.read_outcome() == outcome
    assert folder.failures() == ["rank 4: killed by signal 11", "rank x: ended with status 3"]
    assert sorted(os.listdir(folder.path)) == ["failed-4", "failed-x", "formed", "outcome.json"]
    Path(folder.path, "outcome.json").write_text("{")
    assert folder.read_outcome() is None


def test_the_status_is_the_last_one_and_bounded(folder: RunFolder) -> None:
    assert folder.read_status() is None
    for step in range(3):
        folder.write_status({"step": step})
        assert folder.read_status() == {"step": step}
    folder.write_status({"step": 3, "names": ["x" * run_folder.MAX_STATUS_BYTES]})
    assert folder.read_status() == {"step": 2}
    assert os.listdir(folder.path) == ["status.json"]
    Path(folder.path, "status.json").write_text("[" * 100_000)
    assert folder.read_status() is None
    with RunFolder.temporary() as gone:
        pass
    gone.write_status({"step": 0})
    assert gone.read_status() is None


HOLDER = """
import sys, time
from msdata_transport import RunFolder
RunFolder(sys.argv[1]).hold_vital(4)
print("holds", flush=True)
time.sleep(60)
"""


def test_the_death_of_a_vital_guard_is_seen(folder: RunFolder) -> None:
    assert folder.find_unguarded() is None
    line = [sys.executable, "-c", HOLDER, folder.path]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"holds\n"
        assert folder.find_unguarded() is None
        holder.kill()
        holder.wait(20)
    assert folder.find_unguarded() == 4
    folder.release_vital(4)
    assert folder.find_unguarded() is None
    folder.release_vital(4)


def test_a_folder_that_is_gone_is_no_error() -> None:
    with RunFolder.temporary() as made:
        pass
    made.announce_formed()
    made.write_outcome({"ok": True})
    made.report_failure(1, "x")
    made.hold_vital(1)
    made.release_vital(1)
    assert made.find_unguarded() is None
    made.done()
    assert made.is_over
    assert not made.is_formed
    assert made.failures() == []
    assert made.listen_as_guard(1) is None
    with pytest.raises(OSError, match="No such file"):
        made.listen_for_deaths(print)
