"""What people see of a job: against states that were worked out by hand, and of a job that is played."""

import json

import numpy as np
import pytest
from roles.played import Job, make_placement, make_recipe

from msdata_jax.roles import messages as m
from msdata_jax.roles.effects import Send
from msdata_jax.runtime import status
from msdata_jax.runtime.status import Reading, StatusBoard, Totals, rates


def reading(seconds: float, step: int, trainers: dict[int, float], sources: list[float]) -> Reading:
    return Reading(
        seconds=seconds, step=step, trainers_waited=trainers, sources_waited=np.array(sources, dtype=float)
    )


def test_rates_are_of_the_time_between_two_moments() -> None:
    first = reading(100.0, 40, {5: 2.0, 6: 8.0}, [3.0, 1.0, 0.0])
    last = reading(110.0, 81, {5: 2.5, 6: 8.1}, [3.5, 3.0, 0.0])
    assert rates(first, last) == {"steps_per_second": 4.1, "data_wait": 0.05, "slowest_source": 1}
    assert rates(last, last) == {"steps_per_second": None, "data_wait": None, "slowest_source": None}
    assert rates(first, reading(110.0, 40, {5: 2.0, 6: 8.0}, [3.0, 1.0, 0.0])) == {
        "steps_per_second": 0.0,
        "data_wait": 0.0,
        "slowest_source": None,
    }


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Played:
    """A job that is played, message by message, with a board that looks at its planner."""

    def __init__(self, recipe=None, placement=None) -> None:
        self.clock, self.told = Clock(), []
        self.job = Job(recipe or make_recipe(), placement or make_placement())
        self.board = StatusBoard(self.job.recipe.source_names, self.told.append, self.clock)
        self.watch(self.job)

    def watch(self, job: Job) -> None:
        self.job = job
        self.job.planner = self.board.watch(job.planner)

    def tick(self, seconds: float = 1.0) -> dict:
        """Time passes; what is told then."""
        self.clock.now += seconds
        assert not self.job.planner.tick(self.clock.now - 1000.0)
        return self.told[-1]

    def take(self, step: int, wait_seconds: float) -> None:
        for rank in self.job.placement.constructors:
            self.job.tell(rank, m.Delivered(step=step, wait_seconds=wait_seconds))


def test_a_job_that_starts_says_what_is_to_come() -> None:
    played = Played(placement=make_placement(num_loaders=2, num_constructors=2))
    told = played.tick()
    assert not told["began"]
    assert (told["sources_to_open"], told["trainers_to_come"], told["step"]) == (2, 2, 0)
    assert told["sources"] == {
        "name": ["a", "b"], "known": [0, 0], "leased": [0, 0], "known_bytes": [0, 0], "bad": [0, 0],
        "samples": [0, 0], "tokens": [0, 0], "waited_seconds": [0.0, 0.0],
    }  # fmt: skip
    played.job.open()
    assert played.tick()["sources_to_open"] == 0
    played.job.join(num_steps=9)
    told = played.tick()
    assert told["began"]
    assert (told["trainers_to_come"], told["num_steps"]) == (0, 9)


def test_what_is_told_is_what_happened() -> None:
    played = Played()
    job = played.job
    job.open()
    job.join(num_steps=30)
    played.tick()
    job.run(tokens=4, num_bytes=100)  # 4 rows of 8 places: 8 samples a step, half of each source
    told = played.tick()
    assert told["step"] == 0
    assert told["steps_per_second"] is None
    assert told["recent"] is None
    assert told["budget_bytes"] == 1 << 20
    held = sum(told["held_bytes"].values())
    assert held > 0
    assert held % 100 == 0
    assert told["buffers"] == max(told["held_bytes"].values()) / (1 << 20)
    for step in range(11):
        played.take(step, wait_seconds=7.0 if step == 0 else 0.02)  # the first wait is the job's start
        job.run(tokens=4, num_bytes=100)
        told = played.tick(0.5)
    assert told["step"] == 11
    assert told["steps_per_second"] == 2.0
    assert told["data_wait"] == pytest.approx(0.04)
    assert told["wait_ms"] == {"p50": 20.0, "p95": 20.0}
    assert told["recent"] == {"imbalance": 1.0, "imbalance_unbalanced": 1.0, "fill": 1.0}
    assert told["sources"]["samples"] == [44, 44]
    assert told["sources"]["tokens"] == [176, 176]
    assert told["totals"] == {
        "steps": 11, "steps_per_second": 2.0, "waited_seconds": 0.2, "stepping_seconds": 5.0,
        "imbalance": 1.0, "imbalance_unbalanced": 1.0, "fill": 1.0,
    }  # fmt: skip
    known = [len(stream.ahead) for stream in job.planner.planner._leasing.streams]
    assert told["sources"]["known"] == known
    assert told["sources"]["known_bytes"] == [100 * count for count in known]
    assert json.loads(json.dumps(told)) == told


def test_the_last_status_is_told_before_any_rank_hears_of_the_end() -> None:
    played = Played()
    job = played.job
    job.open()
    job.join()
    job.run(tokens=4)
    played.take(0, 0.0)
    assert played.told == []
    effects = job.planner.handle(job.placement.constructors[0], m.Failed(message="as asked"))
    assert any(isinstance(each, Send) and isinstance(each.message, m.Abort) for each in effects)
    assert [each["step"] for each in played.told] == [1]


def test_time_goes_to_the_source_that_was_waited_for() -> None:
    played = Played()
    job = played.job
    job.open()
    job.join()
    first = job.planner.planner.waits_for
    assert first is not None
    told = played.tick(3.0)
    assert told["sources"]["waited_seconds"][first] == 3.0
    assert told["slowest_source"] is None  # what comes before the first step is the job's start
    job.run(tokens=4)
    assert job.planner.planner.waits_for is None
    told = played.tick(5.0)
    assert sum(told["sources"]["waited_seconds"]) == 3.0
    played.take(0, 0.0)
    played.tick()
    while job.leases:  # this loader is slow
        step = job.planner.planner.status()["step"]
        if job.planner.planner.waits_for is not None or len(job.steps()) <= step:
            break
        played.take(step, 0.0)
    waited_for = job.planner.planner.waits_for
    assert waited_for is not None
    told = played.tick(4.0)
    assert told["slowest_source"] == "ab"[waited_for]


def test_bad_samples_and_lost_ranks_are_told() -> None:
    played = Played(make_recipe(on_bad_sample="skip"))
    played.job.open()
    played.job.join()
    played.job.run(bad=(1, 3))
    played.job.lose(1, "killed by signal 9")
    told = played.tick()
    assert told["sources"]["bad"] == [2, 2]
    assert told["lost"] == [{"rank": 1, "why": "killed by signal 9"}]
    assert list(told["held_bytes"]) == ["2"]


def test_a_later_session_is_shown_once_it_begins_and_the_totals_are_of_all() -> None:
    played = Played()
    for _ in range(2):
        played.job.open()
        played.job.join()
        played.job.run(tokens=4)
        for step in range(3):
            played.take(step, 0.1)
            played.job.run(tokens=4)
            told = played.tick(1.0)
        assert told["step"] == 3
        # The next session, in which nothing has happened yet.
        played.watch(Job(make_recipe(), make_placement()))
        told = played.tick(1.0)
        assert told["step"] == 3
        assert told["began"]
    assert told["totals"]["steps"] == 6
    assert told["totals"]["waited_seconds"] == pytest.approx(0.4)
    assert told["totals"]["stepping_seconds"] == pytest.approx(4.0)
    assert told["sources"]["samples"] == [24, 24]


def test_very_many_sources_are_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "MOST_SOURCES", 2)
    played = Played(make_recipe(weights={"a": 1, "b": 1, "c": 1, "d": 1}, rows=4))
    played.job.open()
    played.job.join()
    played.job.run(tokens=4)
    played.take(0, 0.0)
    told = played.tick()["sources"]
    assert told["name"] == ["a", "b", status.OTHERS]
    assert told["samples"] == [2, 2, 4]


def test_no_steps_have_no_means() -> None:
    zeros = np.zeros(1, dtype=np.int64)
    totals = status._totals(Totals(sums=np.zeros(3), samples=zeros, tokens=zeros))
    assert (totals["steps"], totals["steps_per_second"], totals["imbalance"]) == (0, None, None)
