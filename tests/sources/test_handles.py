"""The open files of a process: never more idle ones than the budget, and none closed that is in use."""

import contextlib
import errno
import json
import os
import resource
import threading

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sources.opening import on_threads

from msdata_jax.errors import SourceError
from msdata_jax.sources import handles as handles_module
from msdata_jax.sources.files import open_files
from msdata_jax.sources.handles import Handles, OpenFiles, choose_max_open, read_count, shared_budget

MAX_OPEN = 3
NUM_SOURCES, NUM_FILES = 3, 4


class Handle:
    """An open file that knows when it was closed."""

    def __init__(self, name=None, opened=None):
        self.name, self.is_closed = name, False
        if opened is not None:
            opened.append(self)

    def close(self):
        assert not self.is_closed, f"{self.name} was closed twice"
        self.is_closed = True


class SharedHandles(RuleBasedStateMachine):
    """Several sources use, drop and close their handles; a list of what was used last says what may close."""

    def __init__(self):
        super().__init__()
        self.opened = []
        self.budget = OpenFiles(MAX_OPEN)
        self.sources = [self.new_source(source) for source in range(NUM_SOURCES)]
        self.used = []  # (context, handle, (source, number)), in no order
        self.idle = []  # (source, number), the least recently used first
        self.dropped = set()  # handles to close when nobody uses them

    def new_source(self, source):
        return Handles(lambda number: Handle((source, number), self.opened), self.budget)

    def still_open(self):
        return [handle for handle in self.opened if not handle.is_closed]

    @rule(source=st.integers(0, NUM_SOURCES - 1), number=st.integers(0, NUM_FILES - 1))
    def use(self, source, number):
        key = source, number
        kept = [h for h in self.still_open() if h.name == key and h not in self.dropped]
        context = self.sources[source].using(number)
        handle = context.__enter__()
        assert handle.name == key
        assert not handle.is_closed
        if kept:  # it is the one that was open
            assert kept == [handle]
        self.used.append((context, handle, key))
        if key in self.idle:
            self.idle.remove(key)
        self.close_surplus()

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def end_use(self, data):
        place = data.draw(st.integers(0, len(self.used) - 1))
        context, handle, key = self.used.pop(place)
        assert not handle.is_closed
        context.__exit__(None, None, None)
        if not any(other is handle for _, other, _ in self.used):
            if handle in self.dropped:
                assert handle.is_closed
            else:
                self.idle.append(key)
        self.close_surplus()

    @rule(source=st.integers(0, NUM_SOURCES - 1))
    def drop(self, source):
        self.sources[source].drop()
        self.forget(source)

    @rule(source=st.integers(0, NUM_SOURCES - 1))
    def close_and_open_anew(self, source):
        self.sources[source].close()
        with pytest.raises(SourceError, match="closed"), self.sources[source].using(0):
            pass
        self.forget(source)
        self.sources[source] = self.new_source(source)

    def forget(self, source):
        self.dropped |= {handle for _, handle, key in self.used if key[0] == source}
        self.idle = [key for key in self.idle if key[0] != source]
        assert len(self.sources[source]) == 0

    def close_surplus(self):
        """What the model expects: the idle ones used longest ago are closed while there are too many."""
        in_use = {handle for _, handle, _ in self.used}
        while self.idle and len(self.idle) + len(in_use) > MAX_OPEN:
            self.idle.pop(0)

    @invariant()
    def open_are_those_in_use_and_the_last_idle_ones(self):
        in_use = {handle for _, handle, _ in self.used}
        still_open = self.still_open()
        assert in_use <= set(still_open)
        assert sorted(h.name for h in still_open if h not in in_use) == sorted(self.idle)
        assert self.budget.num_open == len(still_open) <= max(MAX_OPEN, len(in_use))
        for source, handles in enumerate(self.sources):
            of_source = {h for h in still_open if h.name[0] == source and h not in self.dropped}
            assert len(handles) == len(of_source)


TestSharedHandles = SharedHandles.TestCase
TestSharedHandles.settings = settings(max_examples=60, stateful_step_count=40)


def test_handles_that_are_dropped_in_use_close_after_it():
    handles = Handles(lambda number: Handle(), OpenFiles(2))
    with handles.using(0) as idle:
        pass
    with handles.using(1) as used:
        with handles.using(1) as shared:
            handles.drop()
            assert shared is used
            assert (idle.is_closed, used.is_closed, len(handles)) == (True, False, 0)
            with handles.using(1) as new:
                assert new is not used
        assert not used.is_closed
    assert used.is_closed
    assert not new.is_closed
    handles.close()
    assert new.is_closed


def test_a_file_that_does_not_open_counts_as_closed():
    fails = [True]

    def open_handle(number):
        if fails.pop():
            raise FileNotFoundError(errno.ENOENT, "gone")
        return Handle()

    budget = OpenFiles(2)
    handles = Handles(open_handle, budget)
    with pytest.raises(FileNotFoundError), handles.using(0):
        pass
    assert budget.num_open == len(handles) == 0
    fails.append(False)
    with handles.using(0):
        assert budget.num_open == 1


def test_a_slow_file_holds_up_nobody_else():
    opening, go_on, found = threading.Event(), threading.Event(), []

    def open_slowly(number):
        opening.set()
        assert go_on.wait(30)
        return Handle(number, found)

    budget = OpenFiles(4)
    slow, fast = Handles(open_slowly, budget), Handles(Handle, budget)

    def use():
        with slow.using(0) as handle:
            assert handle is found[0]

    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert opening.wait(30)
    with fast.using(0), fast.using(1):
        fast.drop()
    fast.close()
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert len(found) == 1  # the second thread waited for the first one's


def test_threads_share_a_budget_of_real_files(tmp_path, helpers):
    docs = helpers.make_docs(12)
    for number, doc in enumerate(docs):
        helpers.write_jsonl(tmp_path / f"{number:02d}.jsonl", [doc])
    budget, most = OpenFiles(3), []
    sources = [
        Handles(lambda number: open(tmp_path / f"{number:02d}.jsonl", "rb"), budget)  # noqa: SIM115
        for _ in range(2)
    ]

    def read(seed):
        rng = np.random.default_rng(seed)
        for number in rng.integers(0, 12, 300).tolist():
            with sources[seed % 2].using(number) as handle:
                content = os.pread(handle.fileno(), 10_000, 0)
                most.append(budget.num_open)
            assert json.loads(content)["text"] == docs[number]
            if number == 5 and seed == 0:
                sources[0].drop()

    on_threads(read)
    assert len(most) == 4 * 300
    assert max(most) <= 3 + 4  # those in use, and for a moment a dropped one of each thread
    for handles in sources:
        handles.close()
    assert budget.num_open == 0


@pytest.fixture
def few_files(monkeypatch):
    """`few_files(number)` sets the budget of this process."""

    def choose(number):
        budget = OpenFiles(number)
        monkeypatch.setattr(handles_module, "_BUDGETS", {os.getpid(): budget})
        return budget

    return choose


def test_sources_share_the_budget_of_the_process(write, helpers, file_format, tmp_path, few_files):
    budget = few_files(5)
    docs = helpers.make_docs(24)
    for number, doc in enumerate(docs):
        write([doc], f"{number:02d}")
    before = len(os.listdir("/proc/self/fd"))
    sources = [open_files(f"{tmp_path}/?{last}.*", {}, keep_damaged=False) for last in range(10)]
    for _ in range(2):
        for last, source in enumerate(sources):
            found = [helpers.text_of(record) for record in source.read(np.arange(len(source)))]
            assert found == docs[last::10]
            assert 1 <= budget.num_open == sum(each.num_open_files for each in sources) <= 5
            assert len(os.listdir("/proc/self/fd")) <= before + 5
    for source in sources:
        source.close()
    assert budget.num_open == 0
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_process_without_descriptors_closes_idle_files(tmp_path, helpers, few_files):
    few_files(1000)  # more than there will be
    for number in range(40):
        helpers.write_jsonl(tmp_path / f"{number:02d}.jsonl", [f"doc {number}"])
    source = open_files(f"{tmp_path}/*.jsonl", {}, keep_damaged=False)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 10, hard))
    try:
        found = source.read(np.arange(40))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [record["text"] for record in found] == [f"doc {number}" for number in range(40)]
    assert source.num_open_files <= 10
    source.close()


def test_the_limit_of_the_process_bounds_what_is_wanted():
    assert choose_max_open({}, 1024) == 64
    assert choose_max_open({"MSDATA_OPEN_FILES": "300"}, 1024) == 300
    with pytest.warns(
        RuntimeWarning, match=r"at most 128 files open instead of 300.*limit of 256.*ulimit -n 600"
    ):
        assert choose_max_open({"MSDATA_OPEN_FILES": "300"}, 256) == 128
    with pytest.warns(RuntimeWarning, match="at most 1 files"):
        assert choose_max_open({}, 1) == 1


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", "٣", " 3"])
def test_a_wrong_number_says_its_rule(text):
    with pytest.raises(SourceError, match=r"MSDATA_OPEN_FILES is a whole number of at least 1, got .*"):
        choose_max_open({"MSDATA_OPEN_FILES": text}, 1024)
    assert read_count({"OTHER": ""}, "OTHER", 7) == 7


def test_a_forked_child_has_a_budget_of_its_own():
    budget = shared_budget()
    assert shared_budget() is budget
    with budget._lock:  # as when another thread holds it at the time of the fork
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException), Handles(Handle).using(0):
                os.write(write_end, b"used" if shared_budget() is not budget else b"same")
            os._exit(0)
    os.close(write_end)
    assert os.read(read_end, 4) == b"used"
    os.close(read_end)
    os.waitpid(pid, 0)
