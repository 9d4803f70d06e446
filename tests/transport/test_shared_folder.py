"""The run folder of several hosts: the same words by files, without sockets and locks."""

import threading
from pathlib import Path

import pytest
from msdata_transport import RunFolder
from msdata_transport.run_folder import VARIABLE
from msdata_transport.shared_folder import VARIABLE as SHARED_VARIABLE
from msdata_transport.shared_folder import SharedRunFolder


@pytest.fixture
def folder(tmp_path: Path) -> SharedRunFolder:
    return SharedRunFolder(tmp_path)


def test_the_environment_says_which_kind_it_is(tmp_path: Path) -> None:
    environ = {VARIABLE: str(tmp_path)}
    assert type(RunFolder.from_environment(environ)) is RunFolder
    assert type(RunFolder.from_environment({**environ, SHARED_VARIABLE: "1"})) is SharedRunFolder
    assert RunFolder.from_environment({VARIABLE: "/nowhere", SHARED_VARIABLE: "1"}) is None


def test_a_fresh_one_is_removed_in_the_end(tmp_path: Path) -> None:
    with SharedRunFolder.fresh(tmp_path / "new", "msdata-run-7") as folder:
        path = Path(folder.path)
        assert path.parent == tmp_path / "new"
        assert path.name.startswith("msdata-run-7-")
        with SharedRunFolder.fresh(tmp_path / "new", "msdata-run-7") as other:
            assert other.path != folder.path
        folder.ask_to_stop()
    assert not path.exists()


def test_each_death_is_heard_once(folder: SharedRunFolder) -> None:
    heard: list[tuple[int, str]] = []
    all_of_them = threading.Event()

    def hear(rank: int, how: str) -> None:
        heard.append((rank, how))
        if len(heard) == 2:
            all_of_them.set()

    assert folder.report_death(3, "killed by signal 9")
    listener = folder.listen_for_deaths(hear)
    assert folder.report_death(12, "ended with status 1")
    assert all_of_them.wait(20)
    listener.close()
    assert sorted(heard) == [(3, "killed by signal 9"), (12, "ended with status 1")]
    folder.report_death(4, "nobody listens")
    listener.close()
    assert len(heard) == 2


def test_what_a_guard_is_told(folder: SharedRunFolder) -> None:
    assert folder.listen_as_guard(3) is None
    assert folder.told(3) is None
    assert folder.kill(3)
    assert (folder.told(3), folder.told(13)) == ("kill", None)
    folder.done()
    assert folder.told(13) is None
    folder.write_outcome({"ok": True, "lost": []})
    assert folder.told(13) == "done"


def test_vital_ranks_are_counted(folder: SharedRunFolder) -> None:
    assert folder.num_vital == 0
    for rank in (0, 4):
        folder.hold_vital(rank)
    assert folder.num_vital == 2
    assert folder.find_unguarded() is None
    folder.release_vital(4)
    assert folder.num_vital == 1


def test_a_folder_that_is_gone_is_no_trouble(tmp_path: Path) -> None:
    folder = SharedRunFolder(tmp_path / "gone")
    assert not folder.report_death(1, "killed")
    assert not folder.kill(1)
    assert folder.told(1) == "done"
    assert folder.num_vital == -1
    folder.hold_vital(1)
    heard: list[int] = []
    folder.listen_for_deaths(lambda rank, how: heard.append(rank)).close()
    assert not heard
