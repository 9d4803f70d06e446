"""One job, several DataLoaders one after the other: what the ranks on threads do, with a job's sessions."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msdata_transport import Faults, connect
from roles.played import make_join, make_placement

import msdata_jax as msd
from msdata_jax.batching.assembly import RowFormat
from msdata_jax.errors import JobFailed, MSDataError
from msdata_jax.roles import messages as m
from msdata_jax.roles.data_constructor import DataConstructor
from msdata_jax.runtime import trainer, wire
from msdata_jax.runtime.data_rank import run_loader, run_planner
from msdata_jax.runtime.loop import RoleLoop
from msdata_jax.runtime.scaling import ScaleOptions
from msdata_jax.runtime.trainer import Step, TrainerSide
from msdata_jax.scaling import Decision

PATIENCE_SECONDS = 20.0


@pytest.fixture(autouse=True)
def stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training process ends some seconds after its job failed; this one runs other tests then."""
    monkeypatch.setattr(trainer, "end_badly", lambda: None)


def next_or_end(side: TrainerSide) -> Step | None:
    try:
        return side.next_step(PATIENCE_SECONDS)
    except StopIteration:
        return None


class Job:
    """A planner, two loaders and two training processes: ranks 0 to 4."""

    def __init__(self, faults: Faults | None = None, num_shadows: int = 0, policy: Any = None) -> None:
        self.scale = ScaleOptions(policy="auto" if policy else "off")
        records = [{"tokens": np.full(1 + i % 5, 1 + i, np.int32)} for i in range(60)]
        source = msd.Source(records, [lambda record: record], block_size=4)
        strategy = msd.DGraph().mix({"a": 1, "b": 1}).pack(seq_len=8, rows=2).distribute("dp")
        self.recipe = msd.Recipe(sources={"a": source, "b": source}, strategy=strategy, scaling=policy)
        self.placement = make_placement(2, 2, num_shadows)
        self.endpoints = connect(5 + num_shadows, faults)
        self.results: dict[int, object] = {}
        self.loops: list[RoleLoop] = []
        self.session = 0
        self.threads = [self._start(0, self._plan)]
        self.threads += [
            self._start(rank, lambda rank=rank: run_loader(
                self.recipe, self.placement, self.endpoints[rank], num_threads=1))
            for rank in self.placement.readers
        ]  # fmt: skip

    def _plan(self) -> object:
        return run_planner(
            self.recipe, self.placement, self.endpoints[0], on_loop=self.loops.append, scale=self.scale
        )

    def _start(self, rank: int, run: Callable[[], object]) -> threading.Thread:
        def call() -> None:
            try:
                self.results[rank] = run()
            except JobFailed as failed:
                self.results[rank] = failed

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        return thread

    def open(self, **joining: object) -> list[TrainerSide]:
        """A DataLoader on every training process."""
        sides = []
        for process, rank in enumerate(self.placement.constructors):
            role = DataConstructor(self.placement, {8: RowFormat(seq_len=8)})
            side = TrainerSide(role, self.endpoints[rank], dict, session=self.session)
            side.begin(make_join(self.recipe, process, processes=2, **joining))
            sides.append(side)
        self.session += 1
        return sides

    def take(self, sides: list[TrainerSide], steps: int | None = None) -> list[tuple[str, list[bytes]]]:
        """Digest and rows of the next steps, by default of all that are left."""
        taken = []
        while steps is None or len(taken) < steps:
            both = [next_or_end(side) for side in sides]
            if None in both:
                assert both == [None, None]
                break
            (digest,) = {step.expect.digest for step in both}
            taken.append((digest, [step.batch["tokens"].tobytes() for step in both]))
        return taken

    def close(self, sides: list[TrainerSide]) -> None:
        for side in sides:
            side.leave()
        for side in sides:
            side._thread.join(PATIENCE_SECONDS)

    def say_goodbye(self) -> None:
        for rank in self.placement.constructors:
            self.endpoints[rank].send(0, wire.encode(m.Goodbye(), self.session))

    def join(self) -> dict[int, object]:
        for thread in self.threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
        return self.results


def test_each_session_gives_its_own_steps_again_and_the_job_ends_when_all_say_goodbye() -> None:
    job = Job()
    first = job.open(num_steps=6)
    steps = job.take(first)
    job.close(first)
    assert len(steps) == 6
    second = job.open()
    assert job.take(second, 2) == steps[:2]
    job.close(second)  # in the midst of steps that are under way
    third = job.open(skip_to=3, num_steps=6)
    assert job.take(third) == steps[3:]
    job.close(third)
    job.say_goodbye()
    figures = job.join()[0]
    assert isinstance(figures, dict)
    assert (figures["steps"], figures["lost"], figures["stopped"]) == (6, [], False)


def test_sources_are_opened_once_for_all_sessions() -> None:
    job = Job()
    opened = []
    for _ in range(3):
        sides = job.open(num_steps=2)
        job.take(sides)
        job.close(sides)
        opened.append([each["sources"] for each in sides[0].figures["loaders"]])
    job.say_goodbye()
    job.join()
    assert opened == [[1, 1]] * 3


@pytest.mark.parametrize(("victims", "shadows"), [([1], 0), ([1, 2], 1)])
def test_a_loader_that_is_lost_between_sessions_is_not_missed(victims: list[int], shadows: int) -> None:
    faults = Faults()
    job = Job(faults, shadows)
    first = job.open(num_steps=6)
    steps = job.take(first)
    job.close(first)
    for rank in victims:
        faults.kill(rank)
        job.loops[-1].post(m.Lost(rank=rank, why="it was killed"))
    second = job.open(num_steps=6)
    assert job.take(second) == steps
    job.close(second)
    job.say_goodbye()
    figures = job.join()[0]
    assert isinstance(figures, dict)
    assert [(each["rank"], each["why"]) for each in figures["lost"]] == [
        (rank, "it was killed") for rank in victims
    ]


def test_without_a_loader_the_next_session_says_so() -> None:
    faults = Faults()
    job = Job(faults)
    first = job.open(num_steps=1)
    job.take(first)
    job.close(first)
    for rank in (1, 2):
        faults.kill(rank)
        job.loops[-1].post(m.Lost(rank=rank, why="it was killed"))
    sides = job.open(num_steps=1)
    with pytest.raises(JobFailed, match=r"no source loader is left \(rank 1: it was killed; rank 2"):
        sides[0].next_step(PATIENCE_SECONDS)


def test_a_training_process_that_ends_while_another_builds_a_dataloader_ends_the_job() -> None:
    job = Job()
    sides = job.open(num_steps=1)
    job.take(sides)
    job.close(sides)
    job.endpoints[4].send(0, wire.encode(m.Goodbye(), 1))
    role = DataConstructor(job.placement, {8: RowFormat(seq_len=8)})
    side = TrainerSide(role, job.endpoints[3], dict, session=1)
    side.begin(make_join(job.recipe, 0, processes=2))
    with pytest.raises(JobFailed, match=r"ranks \[3\] build another DataLoader, and ranks \[4\] have ended"):
        side.next_step(PATIENCE_SECONDS)


def test_a_request_to_stop_ends_all_at_one_step_and_another_session_goes_on_behind_it() -> None:
    job = Job()
    sides = job.open(num_steps=500)
    steps = job.take(sides, 3)
    sides[1].ask_to_stop()
    steps += job.take(sides)
    assert [side.stopped for side in sides] == [True, True]
    assert 3 <= len(steps) < 50
    job.close(sides)
    sides = job.open(skip_to=len(steps), num_steps=len(steps) + 2)
    rest = job.take(sides)
    assert [side.stopped for side in sides] == [False, False]
    job.close(sides)
    sides = job.open(num_steps=len(steps) + 2)
    assert job.take(sides) == steps + rest
    job.close(sides)
    job.say_goodbye()
    job.join()


def test_closing_again_waits_again_for_those_that_have_not_closed() -> None:
    job = Job()
    sides = job.open(num_steps=1)
    job.take(sides)
    for _ in range(2):
        with pytest.raises(MSDataError, match="another training process has not closed its DataLoader"):
            sides[0].close(0.05)
    sides[1].leave()
    sides[0].close(PATIENCE_SECONDS)
    assert sides[0].figures["steps"] == 1
    job.close(sides)
    job.say_goodbye()
    job.join()


def test_who_is_told_to_stop_before_a_session_begins_gets_no_step() -> None:
    job = Job()
    first = job.open(num_steps=2)
    job.take(first)
    job.close(first)
    job.loops[-1].post(m.AskToStop())
    second = job.open(num_steps=2)
    assert job.take(second) == []
    assert [side.stopped for side in second] == [True, True]
    job.close(second)
    job.say_goodbye()
    job.join()


class Widening:
    """Gives the first source to rank 2."""

    interval_seconds = lookahead_seconds = 0.0

    def decide(self, observation, memory):
        is_wide = {*observation.sources[0].loaders, *observation.sources[0].opening} == {1, 2}
        return [] if is_wide else [Decision(kind="widen", source=0, loader=2)], memory


def test_the_next_session_begins_with_the_loaders_that_the_one_before_ended_with() -> None:
    job = Job(policy=Widening())
    sides = job.open()
    steps = job.take(sides, 1)
    leasing = job.loops[-1]._role._leasing
    while len(leasing.loaders_of(0)) < 2:
        steps += job.take(sides, 1)
    job.close(sides)
    sides = job.open(num_steps=2)
    assert job.take(sides) == steps[:2]
    assert job.loops[-1]._role._leasing.loaders_of(0) == [1, 2]
    job.close(sides)
    job.say_goodbye()
    job.join()
