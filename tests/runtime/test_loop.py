"""The loop over the in-process transport: whatever goes wrong, every rank ends with the reason, in time."""

import re
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from msdata_transport import Faults, Message, connect
from roles.played import make_join, make_placement

import msdata_jax as msd
from msdata_jax.batching.assembly import RowFormat
from msdata_jax.errors import BadSampleError, JobFailed
from msdata_jax.roles import messages as m
from msdata_jax.roles.data_constructor import DataConstructor
from msdata_jax.roles.effects import Deliver, EndStream, Finish, Forget, Run, Send, Show
from msdata_jax.runtime import loop as loop_module
from msdata_jax.runtime import wire
from msdata_jax.runtime.data_rank import run_loader, run_planner
from msdata_jax.runtime.loop import RoleLoop

PATIENCE_SECONDS = 20.0


class Thread:
    """Runs a loop on a thread and keeps what it ended with."""

    def __init__(self, run: Callable[[], object]) -> None:
        self.result: object = None
        self._run = run
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        try:
            self.result = self._run()
        except JobFailed as failed:
            self.result = failed

    def join(self) -> object:
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        return self.result


class Job:
    """A planner, two loaders and a constructor: ranks 0 to 3, on threads. The trainer takes what it may."""

    def __init__(self, faults: Faults | None = None, read: Callable[[dict], dict] = lambda record: record):
        records = [{"tokens": np.full(8, 1 + i, np.int32)} for i in range(50)]
        source = msd.Source(records, [read], block_size=4)
        strategy = msd.DGraph().mix({"a": 1, "b": 1}).pack(seq_len=8, rows=2)
        recipe = msd.Recipe(sources={"a": source, "b": source}, strategy=strategy)
        placement = make_placement(num_loaders=2)
        self.endpoints = connect(4, faults)
        role = DataConstructor(placement, {8: RowFormat(seq_len=8)})
        self.steps: list[int] = []
        self.shown = -1
        self.end: EndStream | None = None
        self.forgotten: list[int] = []
        self.changed = threading.Condition()
        self.loop = RoleLoop(
            role, self.endpoints[3], on_deliver=self._deliver, on_show=self._show, on_end=self._end
        )
        self.loop.post(make_join(recipe))
        self.threads = [
            Thread(lambda: run_planner(recipe, placement, self.endpoints[0], on_forget=self._forget)),
            *(
                Thread(lambda rank=rank: run_loader(recipe, placement, self.endpoints[rank], num_threads=1))
                for rank in (1, 2)
            ),
            Thread(self.loop.run),
        ]

    def _deliver(self, delivered: Deliver) -> None:
        self.steps.append(delivered.expect.step)

    def _show(self, show: Show) -> None:
        for step in range(self.shown + 1, show.step + 1):
            self.loop.post(m.Delivered(step=step))
        with self.changed:
            self.shown = show.step
            self.changed.notify_all()

    def _end(self, end: EndStream) -> None:
        with self.changed:
            self.end = end
            self.changed.notify_all()

    def _forget(self, forget: Forget) -> None:
        self.forgotten.append(forget.rank)

    def wait_for_steps(self, count: int = 1) -> None:
        """Until the trainer has so many more steps."""
        with self.changed:
            step = self.shown + count
            assert self.changed.wait_for(lambda: self.shown >= step, PATIENCE_SECONDS)

    def wait_for_end(self) -> Exception | None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.end is not None, PATIENCE_SECONDS)
        return self.end.error

    def join(self) -> list:
        return [thread.join() for thread in self.threads]


@pytest.mark.parametrize("victim", [1, 2])
def test_a_loader_that_dies_is_done_without(victim: int) -> None:
    faults = Faults()
    job = Job(faults)
    job.wait_for_steps()
    faults.kill(victim)
    job.wait_for_steps(20)
    job.loop.post(m.Leave())
    ends = job.join()
    assert job.forgotten == [victim]
    assert [end.rank for end in ends if isinstance(end, JobFailed)] == [victim]  # it says so to itself
    (lost,) = ends[3]["lost"]
    assert (lost["rank"], lost["why"]) == (victim, "it was killed")
    assert ends[0] == ends[3]
    assert ends[3 - victim] == {"lost": [{"rank": victim}]}
    assert len(ends[3]["loaders"]) == 1
    assert job.steps == list(range(len(job.steps)))


def test_the_data_end_where_the_last_loader_dies_and_the_error_names_all() -> None:
    faults = Faults()
    job = Job(faults)
    job.wait_for_steps()
    for rank in (1, 2):
        faults.kill(rank)
    error = job.wait_for_end()
    assert isinstance(error, BadSampleError)
    for rank in (1, 2):
        assert re.search(rf"^no source loader is left \(.*rank {rank}: it was killed", str(error))
    job.loop.post(m.Leave())
    ends = job.join()
    assert {each["rank"] for each in ends[3]["lost"]} == {1, 2}
    assert ends[3]["loaders"] == []


@pytest.mark.parametrize("victim", [0, 3])
def test_any_other_rank_that_dies_ends_the_job_on_every_rank_and_is_named(
    monkeypatch: pytest.MonkeyPatch, victim: int
) -> None:
    monkeypatch.setattr(loop_module, "FAILURE_SECONDS", 0.2)
    faults = Faults()
    job = Job(faults)
    job.wait_for_steps()
    begin = time.monotonic()
    faults.kill(victim)
    ends = job.join()
    assert time.monotonic() - begin < 5
    assert [end.rank for end in ends] == [victim] * 4
    assert "lost contact: it was killed" in ends[1].message


def test_a_message_of_no_known_kind_ends_the_job() -> None:
    job = Job()
    job.wait_for_steps()
    job.endpoints[2].send(1, Message(kind="Gossip"))
    ends = job.join()
    assert {str(end) for end in ends} == {
        "rank 1 failed: MSDataError: a message of kind 'Gossip' is none that roles exchange"
    }


def test_a_worker_that_raises_ends_the_job_whatever_it_raises() -> None:
    def leave(record: dict) -> dict:
        raise SystemExit("a transform called sys.exit")

    ends = Job(read=leave).join()
    assert len({str(end) for end in ends}) == 1
    assert ends[3].rank in (1, 2)
    assert "SystemExit: a transform called sys.exit" in ends[3].message


def test_leaving_is_an_orderly_end() -> None:
    job = Job()
    job.wait_for_steps()
    job.loop.post(m.Leave())
    ends = job.join()
    assert not [end for end in ends if isinstance(end, JobFailed)]
    assert len(ends[3]["loaders"]) == 2
    assert job.steps == list(range(len(job.steps)))


class Scripted:
    """A role that does what a test says, and tells nobody of a failure but rank 1."""

    def __init__(self, start=(), handle=None, tick=None) -> None:
        self._start, self._handle, self._tick = start, handle, tick

    def start(self):
        return self._start() if callable(self._start) else self._start

    def handle(self, sender, message):
        if isinstance(message, m.Failed):
            return [Send(rank=1, message=message)]
        return self._handle(sender, message)

    def tick(self, elapsed_seconds, *, caught_up=True):
        return self._tick(elapsed_seconds) if self._tick else []


def raises(*_: object) -> None:
    raise ValueError("broken")


STOP = wire.encode(m.Stop(lost=[]))


@pytest.mark.parametrize(
    "role",
    [
        Scripted(start=raises),
        Scripted(handle=raises),
        Scripted(handle=lambda *_: [], tick=raises),
        Scripted(start=[Run(call=raises)], handle=lambda *_: []),
    ],
    ids=["start", "handle", "tick", "worker"],
)
def test_a_role_that_raises_says_so_and_ends_where_nobody_answers(
    monkeypatch: pytest.MonkeyPatch, role: Scripted
) -> None:
    shown: list[JobFailed] = []
    endpoint, other = connect(2)
    monkeypatch.setattr(loop_module, "FAILURE_SECONDS", 0.1)
    monkeypatch.setattr(loop_module, "TICK_SECONDS", 0.05)
    other.send(0, STOP)
    end = Thread(RoleLoop(role, endpoint, on_failure=shown.append).run).join()
    assert isinstance(end, JobFailed)
    assert end.rank == 0
    assert end.message.endswith("ValueError: broken")
    assert shown == [end]
    sender, message = other.receive(0.0)
    assert (sender, message.kind) == (0, "Failed")
    assert message.header["values"]["message"] == end.message


def test_nothing_happens_after_finish() -> None:
    def finish(*_: object) -> list:
        return [Finish(figures={"steps": 3})]

    endpoint, other = connect(2)
    for _ in range(3):
        other.send(0, STOP)
    loop = RoleLoop(Scripted(handle=finish, tick=lambda elapsed: []), endpoint)
    assert Thread(loop.run).join() == {"steps": 3}
    assert endpoint.receive(0.0)[1].kind == "Stop"  # the others were left where they are


def test_a_worker_that_hangs_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "WORKER_SECONDS", 0.1)
    never = threading.Event()

    def hang() -> m.Stop:
        never.wait(PATIENCE_SECONDS)
        return m.Stop(lost=[])

    endpoint, other = connect(2)
    role = Scripted(start=[Run(call=hang)], handle=lambda *_: [Finish()])
    other.send(0, STOP)
    begin = time.monotonic()
    assert Thread(RoleLoop(role, endpoint).run).join() == {}
    assert time.monotonic() - begin < 5
    never.set()


@pytest.mark.parametrize("waiting", [0, 3, 64, 200])
def test_a_tick_says_whether_messages_wait_that_nobody_looked_at(
    monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    """They wait while the first one is handled; a few are handled, of a backlog nobody knows the end."""
    monkeypatch.setattr(loop_module, "TICK_SECONDS", 0.0)  # at every turn
    endpoint, other = connect(2)
    said: list[bool] = []

    class Watching(Scripted):
        def tick(self, elapsed_seconds, *, caught_up=True):
            said.append(caught_up)
            return [Finish()]

    def handle(sender: int, message: object) -> list:
        if not handled:
            for _ in range(waiting):
                other.send(0, STOP)
        handled.append(message)
        return []

    handled: list[object] = []
    other.send(0, STOP)
    Thread(RoleLoop(Watching(handle=handle), endpoint).run).join()
    assert said == [waiting < 64]
    assert len(handled) == 1 + min(waiting, 64)
