"""Worker threads: what is due first begins first, and they grow and shrink."""

import threading
import time

from msdata_jax.runtime.workers import Workers

SECONDS = 20.0


class Gate:
    """Calls that begin when they may, and say so."""

    def __init__(self) -> None:
        self.begun: list[object] = []
        self.may_end = threading.Event()
        self._changed = threading.Condition()

    def call(self, name: object, *, waits: bool = False):
        def run() -> None:
            with self._changed:
                self.begun.append(name)
                self._changed.notify_all()
            if waits:
                assert self.may_end.wait(SECONDS)

        return run

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= count, SECONDS), self.begun


def test_what_is_due_first_begins_first_and_equals_in_order() -> None:
    gate, workers = Gate(), Workers(1)
    workers.submit(gate.call("first", waits=True), due=9)
    gate.wait_for(1)
    for name, due in (("late", 7), ("soon", 2), ("as soon", 2), ("at once", -1)):
        workers.submit(gate.call(name), due)
    gate.may_end.set()
    gate.wait_for(5)
    assert gate.begun == ["first", "at once", "soon", "as soon", "late"]
    workers.close(SECONDS)


def test_more_threads_begin_what_waits() -> None:
    gate, workers = Gate(), Workers(1)
    for number in range(4):
        workers.submit(gate.call(number, waits=True))
    gate.wait_for(1)
    assert len(gate.begun) == 1
    workers.resize(3)
    gate.wait_for(3)
    assert len(gate.begun) == 3
    gate.may_end.set()
    gate.wait_for(4)
    workers.close(SECONDS)


def test_fewer_threads_are_left_when_they_are_done() -> None:
    before = set(threading.enumerate())
    gate, workers = Gate(), Workers(3)
    for number in range(3):
        workers.submit(gate.call(number, waits=True))
    gate.wait_for(3)
    mine = set(threading.enumerate()) - before
    workers.resize(1)
    gate.may_end.set()
    for number in range(3, 6):
        workers.submit(gate.call(number))
    gate.wait_for(6)
    deadline = time.monotonic() + SECONDS
    while (num_left := sum(each.is_alive() for each in mine)) > 1 and time.monotonic() < deadline:
        next(each for each in mine if each.is_alive()).join(0.01)
    assert (len(mine), num_left) == (3, 1)
    workers.close(SECONDS)
    assert not any(each.is_alive() for each in mine)


def test_what_has_not_begun_is_dropped_at_the_end() -> None:
    gate, workers = Gate(), Workers(1)
    workers.submit(gate.call("first", waits=True))
    gate.wait_for(1)
    workers.submit(gate.call("second"))
    workers.close(0.0)
    gate.may_end.set()
    workers.close(SECONDS)
    assert gate.begun == ["first"]


def test_threads_come_with_work() -> None:
    before = threading.active_count()
    workers = Workers(8)
    assert threading.active_count() == before
    gate = Gate()
    for number in range(3):
        workers.submit(gate.call(number))
        gate.wait_for(number + 1)
    assert threading.active_count() <= before + 3
    workers.close(SECONDS)
