"""What a policy is shown of a job, and what becomes of its decisions."""

from dataclasses import dataclass, field

import pytest
from roles.played import Job, make_placement, make_recipe, opened, start_job, whole_block

from msdata_jax.planning.graph import DGraph
from msdata_jax.roles import messages as m
from msdata_jax.roles.scaler import Scaling
from msdata_jax.scaling import Decision, Hysteresis, Limits


@dataclass
class Scripted:
    """Decides what the test says, and keeps what it was shown."""

    decisions: list = field(default_factory=list)
    interval_seconds: float = 1.0
    lookahead_seconds: float = 10.0
    error: Exception | None = None
    seen: list = field(default_factory=list)

    def decide(self, observation, memory):
        self.seen.append(observation)
        if self.error is not None:
            raise self.error
        decisions, self.decisions = self.decisions, []
        return decisions, memory


def padded(weights):
    """Eight samples of four tokens a step."""
    return make_recipe(graph=DGraph().mix(weights).pad(seq_len=8, rows=8))


def start(policy, recipe=None, **joining):
    """A job at its first step, and the rounds that are told."""
    rounds = []
    scaling = Scaling(policy=policy, limits=Limits(max_threads=2, total_threads=4), on_round=rounds.append)
    job = start_job(recipe, make_placement(2), scaling, **joining)
    job.take(job.planner.tick(1.0))  # the first one only starts the clock
    assert not policy.seen
    return job, rounds


def test_what_a_policy_sees():
    policy = Scripted()
    job, rounds = start(policy, padded({"a": 1, "b": 1}))
    job.run(seconds=4.0)  # blocks of 8, half a second a position
    job.tell(1, m.Heartbeat(source=-1, start=-1, seconds=0.0, memory_bytes=5 << 20))
    for step in range(2):
        job.deliver(step)
    job.run(seconds=4.0)
    job.take(job.planner.tick(2.0))
    (seen,) = policy.seen
    assert (seen.seconds, seen.interval, seen.step, seen.steps) == (2.0, 1.0, 2, 2)
    assert [(each.name, each.loaders, each.seconds_per_sample) for each in seen.sources] == [
        ("a", (1,), 0.5),
        ("b", (2,), 0.5),
    ]
    # Eight samples a step, half from each.
    assert [each.samples_per_step for each in seen.sources] == [4.0, 4.0]
    assert [(each.rank, each.threads, each.memory_bytes) for each in seen.loaders] == [
        (1, 1, 5 << 20),
        (2, 1, 0),
    ]
    assert all(each.busy >= 4.0 for each in seen.loaders)
    assert seen.limits.total_threads == 4
    assert rounds == [], "nothing was decided"


def test_it_is_asked_once_an_interval():
    policy = Scripted(interval_seconds=3.0)
    job, _ = start(policy)
    for second in range(2, 12):
        job.take(job.planner.tick(float(second)))
    assert [each.seconds for each in policy.seen] == [4.0, 7.0, 10.0]


def test_scheduled_changes_are_seen_ahead():
    policy = Scripted(lookahead_seconds=4.0)
    job, _ = start(policy, padded([(0, {"a": 3, "b": 1}), (8, {"a": 1, "b": 3})]))
    second = 2.0
    for step in range(6):
        job.run()
        job.deliver(step)
        if step % 2:
            job.take(job.planner.tick(second))
            second += 1
    ahead = [[each.samples_ahead for each in seen.sources] for seen in policy.seen]
    assert ahead[0] == pytest.approx([6.0, 6.0]), "two steps a second: eight steps are in sight"
    assert policy.seen[0].step == 2


def test_waits_are_told_by_the_source_that_steps_lacked():
    policy = Scripted()
    job, _ = start(policy, padded({"a": 1, "b": 1}))

    def read(source):
        mine = [each for each in job.leases if each[1].source == source]
        job.leases = [each for each in job.leases if each[1].source != source]
        for rank, lease in mine:
            job.tell(rank, whole_block(lease))
        return bool(mine)

    read(1)
    while read(0):  # as far as b's first blocks go
        pass
    first_lacking = len(job.steps())
    for step in range(first_lacking):
        job.tell(3, m.Delivered(step=step, wait_seconds=100.0 if step == 0 else 0.01))  # the job's start
        read(0)
    assert len(job.steps()) == first_lacking
    assert job.planner.waits_for == 1
    read(1)
    job.tell(3, m.Delivered(step=first_lacking, wait_seconds=0.7))
    job.take(job.planner.tick(2.0))
    (seen,) = policy.seen
    assert [each.waited_seconds for each in seen.sources] == pytest.approx([0.0, 0.7])
    assert seen.waited_seconds == pytest.approx(0.7 + 0.01 * (first_lacking - 1))


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (Scripted(error=ZeroDivisionError("by nothing")), "ZeroDivisionError: by nothing"),
        (Scripted([Decision(kind="narrow", source=0, loader=1)]), "rank 1 cannot leave it"),
        (Scripted([Decision(kind="threads", loader=1, threads=9)]), "1 to 2 worker threads"),
    ],
)
def test_a_policy_that_fails_is_switched_off_and_the_job_goes_on(policy, why):
    job, rounds = start(policy, num_steps=6)
    job.run()
    for step in range(6):
        job.take(job.planner.tick(2.0 + step))
        job.deliver(step)
        job.run()
    assert len(policy.seen) == 1
    (told,) = rounds
    assert told.note.startswith("the scaling policy is switched off")
    assert why in told.note
    assert [each.step for each in job.steps()] == list(range(6))


def test_decisions_are_followed_up_to_one_that_breaks_a_rule():
    decisions = [
        Decision(kind="widen", source=0, loader=2, why="a test"),
        Decision(kind="threads", loader=1, threads=2),
        Decision(kind="widen", source=0, loader=7),
        Decision(kind="widen", source=1, loader=1),
    ]
    job, rounds = start(Scripted(decisions))
    since = len(job.sent)
    job.take(job.planner.tick(2.0))
    told = [(rank, each) for rank, each in job.sent[since:] if isinstance(each, m.OpenSource | m.SetThreads)]
    assert told == [(2, m.OpenSource(source=0, may_fail=True)), (1, m.SetThreads(num_threads=2))]
    assert rounds[0].decisions == tuple(decisions[:2])
    assert "rank 7 is no loader" in rounds[0].note
    job.tell(2, opened(0))
    assert job.planner._leasing.loaders_of(0) == [1, 2]


def test_threads_that_were_planned_are_told_when_sources_are_opened():
    scaling = Scaling(threads={1: 3, 2: 1}, tell_threads=True, affinity=[[2], [1, 2]])
    job = start_job(scaling=scaling)
    assert job.messages(m.SetThreads) == [
        (1, m.SetThreads(num_threads=3)),
        (2, m.SetThreads(num_threads=1)),
    ]
    assert {(rank, each.source) for rank, each in job.messages(m.OpenSource)} == {(2, 0), (1, 1), (2, 1)}


# --- what is known before, and what is kept -----------------------------------------------------------------

SWING = 40
COSTS = (0.001, 0.04)
"""Seconds of a sample."""


def swing(costs):
    """A job of two loaders and five steps a second; `b` is first drawn at `SWING`, for 1.2 threads of work.

    Gives its steps, the one at which `b` was first leased, and the rounds that widened it.
    """
    recipe = padded([(0, {"a": 1, "b": 0}), (SWING, {"a": 1, "b": 3})])
    rounds = []
    policy = Hysteresis(lookahead_seconds=4)
    job = start_job(
        recipe,
        make_placement(2),
        Scaling(policy=policy, limits=Limits(total_threads=2), costs=costs, on_round=rounds.append),
    )

    def read():
        while job.leases:
            rank, lease = job.leases.pop(0)
            job.tell(rank, whole_block(lease, seconds=COSTS[lease.source] * (lease.stop - lease.start)))

    leased_at = []
    for step in range(SWING + 20):
        read()
        if step % 5 == 0:
            job.take(job.planner.tick(step / 5))
        if any(each.source == 1 for _, each in job.messages(m.Lease)):
            leased_at.append(step)
        job.deliver(step)
    widened = [each for each in rounds if ("widen", 1) in {(d.kind, d.source) for d in each.decisions}]
    return job.steps(), leased_at[0], widened


def test_a_source_that_was_never_read_is_widened_before_its_swing_where_its_cost_is_known():
    known, first_leased, before = swing(COSTS)
    assert [(each.observation.step, each.decisions[0].loader) for each in before] == [(25, 1)]
    assert first_leased > 25
    seen = before[0].observation.sources[1]
    assert (seen.samples_per_step, seen.samples_ahead, seen.seconds_per_sample) == (0.0, 6.0, 0.04)
    assert before[0].decisions[0].why == "it keeps 1.20 threads busy soon, its loaders are 120 % busy"
    unknown, first_leased_too, behind = swing(None)
    assert [each.observation.step >= SWING for each in behind] == [True]
    assert first_leased_too == first_leased
    assert [each.digest for each in known] == [each.digest for each in unknown]


def test_what_is_measured_replaces_what_was_known():
    policy = Scripted()
    scaling = Scaling(policy=policy, costs=[9.0, 9.0])
    job = start_job(padded({"a": 1, "b": 0}), make_placement(2), scaling)
    job.take(job.planner.tick(1.0))
    job.run(seconds=4.0)  # blocks of 8
    job.take(job.planner.tick(2.0))
    (seen,) = policy.seen
    assert [each.seconds_per_sample for each in seen.sources] == [0.5, 9.0]


def test_the_next_session_begins_as_this_one_ends():
    decisions = [
        Decision(kind="widen", source=0, loader=2),
        Decision(kind="threads", loader=1, threads=2),
    ]
    job, _ = start(Scripted(decisions), padded({"a": 1, "b": 0}))
    before = job.planner.learnt()
    assert (before.affinity, before.costs, before.tell_threads) == ([[1], [2]], [None, None], False)
    job.run(seconds=4.0)
    job.take(job.planner.tick(2.0))
    job.tell(2, opened(0))
    job.lose(2)
    learnt = job.planner.learnt()
    assert (learnt.affinity, learnt.costs) == ([[1], [1]], [0.5, None])
    assert (learnt.threads, learnt.tell_threads) == ({1: 2}, True)
    assert learnt.policy is before.policy
    job = Job(padded({"a": 1, "b": 0}), make_placement(2), scaling=learnt)
    assert job.messages(m.SetThreads) == [(1, m.SetThreads(num_threads=2))]
    assert job.messages(m.OpenSource) == [(1, m.OpenSource(source=0)), (1, m.OpenSource(source=1))]
    assert job.planner.learnt() == learnt
