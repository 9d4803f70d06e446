"""A loader is lost: its work goes to others, or the data end at one step everywhere."""

import numpy as np
import pytest
from roles.played import Job, make_join, make_placement, make_recipe, start_job, whole_block

from msdata_jax.errors import JobFailed, LaunchError
from msdata_jax.planning.graph import DGraph
from msdata_jax.roles import messages as m
from msdata_jax.roles.effects import Finish
from msdata_jax.roles.planner import Planner
from msdata_jax.roles.watching import Watch

AWAY = "it was killed"


def orders(job, rank, since=0):
    """By step, what a loader was told to send, and to whom."""
    return {each.step: each for _, each in job.messages(m.Order, rank, since)}


def ends(job, since=0):
    return [(rank, each.step, each.error) for rank, each in job.messages(m.EndOfData, since=since)]


def blocks(job, since=0):
    return [(rank, each.source, each.start) for rank, each in job.messages(m.Lease, since=since)]


def say_that_all_left(job):
    for rank in job.placement.constructors:
        job.tell(rank, m.Leave(figures={}))


# --- while steps are under way ------------------------------------------------------------------------------


def test_what_a_lost_loader_was_to_send_is_ordered_again_for_those_that_lack_it():
    """Source a is rank 1's, b is rank 2's; ranks 3 and 4 train; three steps are under way."""
    job = start_job(placement=make_placement(2, num_constructors=2), row_axes=[], steps_ahead=3)
    job.run()
    assert len(job.steps()) == 3
    first = orders(job, 1)
    job.complete(0)
    job.complete(1, ranks=[3])
    lost_at = len(job.sent)
    job.lose(1, AWAY)
    again = orders(job, 2, since=lost_at)
    assert sorted(again) == [0, 1, 2]
    for step, order in again.items():
        assert set(order.source.tolist()) == {0}  # rank 2 sends its own samples already
        kept = order.constructor >= 0
        assert set(order.constructor[kept].tolist()) == {0: set(), 1: {4}, 2: {3, 4}}[step]
        assert order.is_last.all()
        was = first[step]
        columns = [
            list(zip(each.position.tolist(), each.index.tolist(), each.length.tolist(), strict=True))
            for each in (order, was)
        ]
        assert sorted(columns[0]) == sorted(columns[1])
    needed = {int(p) // 8 * 8 for order in again.values() for p in order.position}
    assert needed <= {start for rank, source, start in blocks(job, since=lost_at) if (rank, source) == (2, 0)}
    assert not job.messages(m.EndOfData)


def test_steps_that_all_took_are_not_ordered_again_and_their_blocks_not_read():
    job = start_job(make_recipe(weights={"a": 1}), make_placement(2))
    job.run()
    job.deliver(0)
    job.run()
    lost_at = len(job.sent)
    job.lose(1, AWAY)
    again = orders(job, 2, since=lost_at)
    assert again
    assert set(again) <= {1, 2}
    assert min(start for _, _, start in blocks(job, since=lost_at)) >= 8  # step 0 had all of the block before


def test_two_loaders_one_after_another():
    job = start_job(make_recipe(weights={"a": 1}), make_placement(3), steps_ahead=3)
    job.run()
    steps = {each.step: each.infos["position"].tolist() for each in job.steps()}
    job.lose(1, AWAY)
    lost_at = len(job.sent)
    job.lose(2, AWAY)
    job.run()
    assert list(job.planner._leasing.readers) == [3]
    for step, positions in steps.items():
        got = [each for _, each in job.messages(m.Order, 3) if each.step == step]
        assert sorted(p for order in got for p in order.position.tolist()) == sorted(positions)
    assert orders(job, 3, since=lost_at)


@pytest.mark.parametrize("noticed_by", [0, 4])
def test_everybody_is_told_once_and_nothing_more_is_heard_of_the_lost(noticed_by):
    """Also where one trainer's connection to it broke, and the planner's did not."""
    job = start_job(placement=make_placement(3, num_constructors=2, num_shadows=1))
    late = job.leases[0]
    assert late[0] == 1
    job.tell(noticed_by, m.Lost(rank=1, why=AWAY))
    assert job.messages(m.Lost) == [(rank, m.Lost(rank=1, why=AWAY)) for rank in (4, 5)]
    assert job.forgotten == [1]
    assert job.lose(1, "again") == []
    for message in (whole_block(late[1]), m.Failed(message="no"), m.Farewell(figures={})):
        assert job.tell(1, message) == []


def test_a_lost_shadow_costs_nothing():
    job = start_job(placement=make_placement(2, num_shadows=1))
    job.run()
    lost_at = len(job.sent)
    (shadow,) = job.placement.shadows
    job.lose(shadow, AWAY)
    assert [type(message) for _, message in job.sent[lost_at:]] == [m.Lost]


def test_a_shadow_takes_over_with_its_sources_open():
    job = start_job(placement=make_placement(2, num_shadows=1))
    job.run()
    (shadow,) = job.placement.shadows
    assert not job.messages(m.Lease, shadow)
    lost_at = len(job.sent)
    job.lose(2, AWAY)
    assert {source for rank, source, _ in blocks(job, since=lost_at)} == {1}
    assert {rank for rank, *_ in blocks(job, since=lost_at)} == {shadow}
    assert not job.messages(m.OpenSource, since=lost_at)


@pytest.mark.parametrize("rank", [3, 4])
def test_without_a_trainer_the_job_is_over(rank):
    job = start_job(placement=make_placement(2, num_constructors=2))
    with pytest.raises(JobFailed, match="lost contact: it was killed") as failed:
        job.lose(rank, AWAY)
    assert failed.value.rank == rank


def test_a_loader_may_be_lost_while_steps_are_skipped():
    recipe = make_recipe(weights={"a": 1})
    whole = start_job(recipe, make_placement(2), num_steps=6, steps_ahead=9)
    whole.run()
    job = start_job(recipe, make_placement(2), num_steps=6, skip_to=4, steps_ahead=9)
    job.read()
    under_way = [lease.start for rank, lease in job.leases if rank == 1]
    assert under_way
    lost_at = len(job.sent)
    job.lose(1, AWAY)
    again = [lease for _, lease in job.messages(m.Lease, since=lost_at) if lease.start in under_way]
    assert [(lease.start, lease.keep) for lease in again] == [(start, False) for start in under_way]
    job.run()
    assert [each.digest for each in job.steps()] == [each.digest for each in whole.steps()[4:]]


def test_a_block_that_is_not_the_same_again_ends_the_data_before_any_step_of_it_is_shown():
    """Also where the data had ended: some of their steps are not there yet."""
    for num_steps in (-1, 2):
        job = start_job(placement=make_placement(2, num_constructors=2), num_steps=num_steps)
        job.run()
        job.complete(0)
        job.lose(1, AWAY)
        since = len(job.sent)
        job.read(tokens=5)
        assert {(rank, step) for rank, step, _ in ends(job, since)} == {(3, 1), (4, 1)}
        assert len(ends(job, since)) == 2  # said once
        assert (
            "source 'a', positions 0 to 7: it gave other samples when it was read again"
            in ends(job, since)[0][2]
        )


# --- nobody is left -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_steps", [-1, 3])
def test_without_any_loader_the_data_end_behind_what_all_have_and_the_reason_names_all(num_steps):
    """Also where the planner had planned all steps: those under way come no more."""
    job = start_job(placement=make_placement(2, num_constructors=2), num_steps=num_steps, steps_ahead=4)
    job.run()
    job.complete(0)
    job.complete(1, ranks=[3])
    since = len(job.sent)
    job.lose(1, "it was killed")
    job.lose(2, "it was silent for 15 s")
    assert [(rank, step) for rank, step, _ in ends(job, since)] == [(3, 1), (4, 1)]
    assert ends(job, since)[0][2].startswith(
        "no source loader is left (rank 1: it was killed; rank 2: it was silent for 15 s); start the job "
        "with more loaders or with shadows"
    )
    say_that_all_left(job)
    assert not job.messages(m.Stop)
    assert [each["rank"] for each in job.finish.figures["lost"]] == [1, 2]
    assert job.finish.figures["loaders"] == []


def test_where_all_have_all_steps_nothing_is_missed():
    job = start_job(placement=make_placement(1, num_constructors=2), num_steps=2)
    job.run()
    job.complete(1)
    since = len(job.sent)
    job.lose(1, AWAY)
    assert ends(job, since) == [(2, 2, ""), (3, 2, "")]


# --- the start and the end ----------------------------------------------------------------------------------


def test_the_job_begins_without_a_loader_that_was_lost_before():
    job = Job(make_recipe(), make_placement(2))
    job.join()
    job.lose(1, AWAY)
    assert not job.messages(m.Lease)
    job.open()
    assert {rank for rank, *_ in blocks(job)} == {2}
    job.run()
    assert len(job.steps()) == 2


def test_the_one_that_all_waited_for_may_be_the_one_that_is_lost():
    job = Job(make_recipe(weights={"a": 1}), make_placement(3))
    job.join()
    asked = job.messages(m.OpenSource)
    assert [rank for rank, _ in asked] == [1]
    job.lose(1, AWAY)
    job.open()
    assert {rank for rank, *_ in blocks(job)} <= {2, 3}
    job.run()
    assert len(job.steps()) == 2


def test_a_job_that_loses_its_last_loader_before_it_began_fails():
    job = Job(make_recipe(), make_placement(2))
    job.join()
    job.lose(1, AWAY)
    with pytest.raises(
        LaunchError, match=r"no source loader is left \(rank 1: it was killed; rank 2: it was"
    ):
        job.lose(2, AWAY)


@pytest.mark.parametrize("num_loaders", [1, 2])
def test_a_loader_that_is_lost_when_all_left_does_not_block_the_end(num_loaders):
    job = start_job(placement=make_placement(num_loaders))
    job.run()
    say_that_all_left(job)
    stopped_at = len(job.sent)
    for rank in job.placement.loaders[1:]:
        job.tell(rank, m.Farewell(figures={"rank": rank}))
    assert job.finish is None
    job.lose(1, AWAY)
    assert job.finish.error is None
    assert job.finish.figures["loaders"] == [{"rank": rank} for rank in job.placement.loaders[1:]]
    assert [each["rank"] for each in job.finish.figures["lost"]] == [1]
    # Nothing is read any more by those that closed.
    kinds = {type(message) for _, message in job.sent[stopped_at:]}
    assert kinds <= {m.Lost, m.Summary}


@pytest.mark.parametrize("last", ["farewell", "loss"])
def test_a_loader_that_is_lost_behind_the_last_session_does_not_block_the_end(last):
    planner = Planner(make_recipe(), make_placement(2), lost={})  # of a later session, which nobody wants
    assert planner.start() == []
    stops = planner.handle(3, m.Goodbye())
    assert [effect.rank for effect in stops] == [1, 2]
    steps = [(0, m.Lost(rank=1, why=AWAY)), (2, m.Farewell(figures={"rank": 2}))]
    before, after = steps if last == "farewell" else steps[::-1]
    assert not any(isinstance(effect, Finish) for effect in planner.handle(*before))
    finish = planner.handle(*after)[-1]
    assert isinstance(finish, Finish)
    assert [each["rank"] for each in finish.figures["lost"]] == [1]
    assert finish.figures["loaders"] == [{"rank": 2}]


def test_those_that_stop_are_told_whom_not_to_wait_for():
    job = start_job(placement=make_placement(2, num_shadows=1))
    job.lose(1, AWAY)
    job.run()
    say_that_all_left(job)
    (shadow,) = job.placement.shadows
    assert job.messages(m.Stop) == [(rank, m.Stop(lost=[1])) for rank in (2, shadow)]


# --- silence ------------------------------------------------------------------------------------------------


def test_a_silent_loader_is_lost_like_one_that_died():
    recipe = make_recipe()
    job = Job(recipe, make_placement(2), watch=Watch([1, 2], heartbeat_seconds=3))
    job.open()
    job.join()
    job.run()
    for _ in range(3):
        assert job.take(job.planner.tick(0.0)) == []
        job.tell(2, m.Heartbeat(source=-1, start=-1, seconds=0.0))
    since = len(job.sent)
    job.take(job.planner.tick(0.0))
    assert job.messages(m.Lost, since=since) == [
        (3, m.Lost(rank=1, why="it was silent for 3 s (--heartbeat-seconds)"))
    ]
    assert {rank for rank, *_ in blocks(job, since)} == {2}
    assert job.forgotten == [1]
    job.run()
    for step in range(4):
        job.deliver(step)
        job.run()
    assert len(job.steps()) == 6


def test_before_the_start_too():
    job = Job(make_recipe(), make_placement(2), watch=Watch([1, 2], heartbeat_seconds=3))
    job.join()
    job.tell(2, m.SourceOpened(source=1, num_records=9, fingerprint="f", files={}))
    for _ in range(3):
        job.take(job.planner.tick(0.0))
    job.tell(2, m.Heartbeat(source=-1, start=-1, seconds=0.0))
    job.take(job.planner.tick(0.0))
    assert job.messages(m.OpenSource, 2)[-1][1].source == 0


def test_orders_follow_their_samples_through_slots_and_relays():
    """What was to be sent for slots is ordered again for slots, and to leaders alone."""
    graph = DGraph().mix({"a": 1}).pack(seq_len=8, rows=2).distribute("dp").broadcast_at("tp")
    recipe = make_recipe(weights={"a": 1}, graph=graph)
    job = Job(recipe, make_placement(2, num_constructors=2))
    job.open()
    mesh = {"axis_names": ["dp", "tp"], "axis_sizes": [1, 2], "row_axes": ["dp"]}
    for process, rank in enumerate(job.placement.constructors):
        job.tell(rank, make_join(recipe, process, processes=2, **mesh))
    job.run()
    job.complete(0, ranks=[4])  # the peer has all of it: the leader passed it on before it was lost to it
    since = len(job.sent)
    job.lose(1, AWAY)
    again = orders(job, 2, since)
    wanted = np.concatenate([order.constructor for order in again.values()])
    assert set(wanted.tolist()) == {3}
