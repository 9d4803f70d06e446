import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roles.played import Job, make_join, make_placement, make_recipe, opened, start_job, whole_block
from strategies import make_infos

from msdata_jax.errors import LaunchError, MSDataError, RecipeError
from msdata_jax.planning.graph import DGraph
from msdata_jax.roles import messages as m
from msdata_jax.roles.placement import Placement
from msdata_jax.roles.planner import Planner

# --- start --------------------------------------------------------------------------------------------------


def test_opens_each_source_on_its_loaders_first():
    job = Job(make_recipe(weights={"a": 1, "b": 1, "c": 1}), make_placement(num_loaders=2))
    assert [(r, each.source) for r, each in job.messages(m.OpenSource)] == [(1, 0), (2, 1), (1, 2)]
    job = Job(make_recipe(weights={"a": 1}), make_placement(num_loaders=3))
    assert [(r, each.source) for r, each in job.messages(m.OpenSource)] == [(1, 0)]  # it may fail: once
    job.open()
    assert [(r, each.source) for r, each in job.messages(m.OpenSource)] == [(1, 0), (2, 0), (3, 0)]


@given(st.permutations(range(4)))
@settings(max_examples=24)
def test_leases_only_once_everybody_is_there(order):
    recipe, placement = make_recipe(), make_placement(num_loaders=2, num_constructors=2)
    job = Job(recipe, placement)
    arrivals = [
        (1, opened(0, num_records=9)),
        (2, opened(1, num_records=9)),
        (3, make_join(recipe, 0, processes=2)),
        (4, make_join(recipe, 1, processes=2)),
    ]
    for i in order:
        assert not job.messages(m.Lease)
        job.tell(*arrivals[i])
    assert {(rank, each.source, each.start) for rank, each in job.messages(m.Lease)} == {(1, 0, 0), (2, 1, 0)}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"recipe": "other"}, "recipe"),
        ({"num_steps": 7}, "num_steps is -1 on rank 3 and 7 on rank 4"),
        ({"steps_ahead": 3}, "steps_ahead is 2 on rank 3 and 3 on rank 4"),
        ({"axis_names": ["tp"]}, r"axis_names is \['dp'\] on rank 3"),
        ({"process": 0}, r"ranks \[3, 4\] joined as processes \[0, 0\]; the mesh has each of \[0, 1\] once"),
    ],
)
def test_constructors_that_differ_are_told_apart(changes, says):
    recipe = make_recipe()
    job = Job(recipe, make_placement(num_constructors=2))
    job.open()
    job.tell(4, replace(make_join(recipe, 1, processes=2), **changes))
    with pytest.raises(LaunchError, match=says):
        job.tell(3, make_join(recipe, 0, processes=2))


def test_trainers_with_another_recipe_than_the_data_ranks():
    job = Job(make_recipe(), make_placement())
    job.open()
    with pytest.raises(LaunchError, match=r"give `msdata launch`.* the same recipe file"):
        job.join(recipe="other")


def test_a_mesh_over_too_few_processes():
    recipe = make_recipe()
    job = Job(recipe, make_placement(num_constructors=2))
    job.open()
    job.tell(3, make_join(recipe, 0))
    with pytest.raises(LaunchError, match="the mesh spans 1 processes; the job has 2 training ranks"):
        job.tell(4, make_join(recipe, 0))


def test_a_mesh_that_does_not_divide():
    graph = DGraph().mix({"a": 1}).pack(seq_len=8, rows=3).distribute("dp")
    job = Job(make_recipe(weights={"a": 1}, graph=graph), make_placement(num_constructors=2))
    job.open()
    with pytest.raises(RecipeError, match=r"rows=3\) does not divide"):
        job.join()


def test_a_source_that_differs_between_its_loaders():
    recipe = make_recipe(weights={"a": 1})
    job = Job(recipe, make_placement(num_loaders=2))
    job.tell(1, opened(0, num_records=9))
    says = (
        "'a' is not the same on all its loaders: 9 records, fingerprint f on rank 1, 8 records, "
        "fingerprint g on rank 2"
    )
    with pytest.raises(LaunchError, match=says):
        job.tell(2, opened(0, num_records=8, fingerprint="g"))


def test_the_deadline_names_who_is_missing():
    job = Job(make_recipe(), make_placement(num_loaders=2, num_constructors=2))
    assert job.take(job.planner.tick(9.9)) == []
    job.tell(1, opened(0, num_records=9))
    job.tell(4, m.Built())
    with pytest.raises(LaunchError) as late:
        job.planner.tick(10)
    assert str(late.value).endswith("[3] to build their DataLoader; for sources to open: 'b' on rank 2")


def test_the_deadline_names_only_what_is_missing_and_ends_with_the_start():
    job = Job(make_recipe(), make_placement())
    job.open()
    with pytest.raises(LaunchError, match=r"waiting for constructor ranks \[3\] to build their DataLoader$"):
        job.planner.tick(11)
    job = start_job()
    assert job.take(job.planner.tick(10**6)) == []


def test_only_a_dgraph_is_a_strategy():
    class Other:
        def check(self, source_names, columns):
            pass

        def describe(self):
            return ""

    recipe = replace(make_recipe(), strategy=Other())
    with pytest.raises(RecipeError, match="DGraph, got Other"):
        Planner(recipe, make_placement())


def test_a_message_for_somebody_else():
    job = start_job()
    with pytest.raises(MSDataError, match="planner got Stop from rank 1"):
        job.tell(1, m.Stop(lost=[]))


# --- steps --------------------------------------------------------------------------------------------------


def test_a_step_goes_to_constructors_and_loaders():
    job = start_job(placement=make_placement(num_loaders=2, num_constructors=2), row_axes=[])
    job.run()
    first, second = job.steps(3)[0], job.steps(4)[0]
    assert (first.step, second.step) == (0, 0)
    assert (first.digest, first.content_digest) == (second.digest, second.content_digest)
    assert (first.rows.tolist(), second.rows.tolist()) == ([0, 1, 2, 3], [0, 1, 2, 3])  # no axis cuts rows
    assert first.source_samples.sum() == len(first.infos) == 8
    assert first.fill == 1
    assert first.global_row.tolist() == [0, 1, 2, 3]
    orders = [(rank, order) for rank, order in job.messages(m.Order) if order.step == 0]
    assert [rank for rank, _ in orders] == [1, 2]  # one each
    for rank, order in orders:
        assert set(order.source.tolist()) == {rank - 1}
        for constructor in (3, 4):
            mine = order.constructor == constructor
            infos = first.infos[order.index[mine]]
            assert infos["position"].tolist() == order.position[mine].tolist()
            assert order.length[mine].tolist() == first.length[order.index[mine]].tolist()
    for constructor in (3, 4):
        index = np.concatenate([order.index[order.constructor == constructor] for _, order in orders])
        assert sorted(index.tolist()) == list(range(8))


def test_rows_are_cut_along_the_row_axes():
    graph = DGraph().mix({"a": 1}).pack(seq_len=8, rows=4).distribute("dp").balance("lpt")
    recipe = make_recipe(weights={"a": 1}, graph=graph)
    job = Job(recipe, make_placement(num_loaders=1, num_constructors=2))
    job.open()
    job.join()
    job.run()
    first, second = job.steps(2)[0], job.steps(3)[0]
    assert (first.rows.tolist(), second.rows.tolist()) == ([0, 1], [2, 3])
    assert set(first.row.tolist()) == set(second.row.tolist()) == {0, 1}
    assert len(first.group_costs) == len(first.unbalanced_costs) == 2
    together = [*first.infos["position"].tolist(), *second.infos["position"].tolist()]
    assert sorted(together) == list(range(8))


def test_only_leaders_are_sent_samples_where_a_broadcast_axis_spans_processes():
    graph = DGraph().mix({"a": 1}).pack(seq_len=8, rows=4).distribute("dp").broadcast_at("tp")
    recipe = make_recipe(weights={"a": 1}, graph=graph)
    job = Job(recipe, Placement(planner=0, loaders=(1,), constructors=(5, 4, 3, 2)))
    job.open()
    for process, rank in enumerate(job.placement.constructors):
        mesh = {"axis_names": ["dp", "tp"], "axis_sizes": [2, 2], "process_of_device": [0, 1, 2, 3]}
        job.tell(rank, make_join(recipe, process, row_axes=["dp"], **{"processes": 4, **mesh}))
    job.run()
    assert {rank: each.relay_to for rank in (5, 4, 3, 2) for each in job.steps(rank)[:1]} == {
        5: [4],
        4: [],
        3: [2],
        2: [],
    }
    order = job.messages(m.Order)[0][1]
    assert set(order.constructor.tolist()) == {5, 3}
    for leader, follower in ((5, 4), (3, 2)):
        for field in ("rows", "infos", "row", "offset", "length"):
            assert np.array_equal(
                getattr(job.steps(leader)[0], field), getattr(job.steps(follower)[0], field)
            )


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 4), st.sampled_from([1, 200, 1 << 20]))
@settings(max_examples=30)
def test_the_steps_do_not_depend_on_loaders_credit_or_order_of_arrival(seed, num_loaders, ahead, budget):
    def steps(job, order=None):
        for step in range(6):
            for _ in range(200):
                if len(job.steps()) > step:
                    break
                job.read(order)
            job.deliver(step)
        return [(each.step, each.digest) for each in job.steps()[:6]]

    rng = np.random.default_rng(seed)
    recipe = make_recipe(weights={"a": 2, "b": 1, "c": 4})
    expected = steps(start_job(recipe))
    job = start_job(recipe, make_placement(num_loaders), steps_ahead=ahead, buffer_bytes_per_loader=budget)
    assert steps(job, rng.permutation) == expected
    assert [step for step, _ in expected] == list(range(6))


def test_a_first_step_waits_for_the_sources_that_it_draws_alone():
    """A step takes 4 samples of 16 sources, and packing looks at two more."""
    job = start_job(make_recipe(weights=dict.fromkeys("abcdefghijklmnop", 1), rows=2), make_placement(1))
    num_read = 0
    while not job.steps():
        rank, lease = job.leases.pop(0)
        job.tell(rank, whole_block(lease))
        num_read += 1
    assert num_read <= 8


def test_dropped_samples_are_ordered_away():
    graph = DGraph().mix({"a": 1}).pack(seq_len=8, rows=1, oversize="drop")
    job = start_job(make_recipe(weights={"a": 1}, graph=graph), make_placement(1))
    rank, lease = job.leases.pop()
    infos = make_infos(0, [8, 9, 8, 8, 8, 8, 8, 8])
    job.tell(rank, replace(whole_block(lease), infos=infos))
    order = job.messages(m.Order)[0][1]
    assert order.constructor.tolist() == [3 - 1, -1]
    assert order.position.tolist() == [0, 1]
    assert job.steps()[0].num_dropped == 1


# --- credit and bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_never_more_steps_ahead_than_the_slowest_constructor_allows(ahead):
    job = start_job(placement=make_placement(2, num_constructors=2), steps_ahead=ahead)
    job.run()
    assert len(job.steps()) == ahead
    job.deliver(0, ranks=[3])
    job.run()
    assert len(job.steps()) == ahead  # the other one has not taken it
    assert not job.messages(m.Release)
    job.deliver(0, ranks=[4])
    job.run()
    assert len(job.steps()) == ahead + 1
    assert [(rank, each.step) for rank, each in job.messages(m.Release)] == [(1, 0), (2, 0)]
    for step in range(1, ahead + 1):
        job.deliver(step, ranks=[3])
    job.run()
    assert len(job.steps()) == ahead + 1


def test_a_full_loader_gets_no_leases_until_samples_are_released():
    recipe = make_recipe(weights={"a": 1})
    job = start_job(recipe, make_placement(1), steps_ahead=8, buffer_bytes_per_loader=2000)
    reported = 0
    while job.leases:
        rank, lease = job.leases.pop(0)
        reported += 8 * 100
        job.tell(rank, whole_block(lease, num_bytes=100))
        # What is held, and what is on its way, stays within the budget and one block.
        assert reported + 800 * len(job.leases) <= 2000 + 800
    num_steps = len(job.steps())
    assert num_steps == 2  # of 8 that the credit would allow
    job.deliver(0)
    assert job.leases  # a step's bytes are free again


@pytest.mark.parametrize("budget", [1, 500])
def test_a_tiny_buffer_slows_but_never_stops(budget):
    job = start_job(make_recipe(weights={"a": 5, "b": 1, "c": 3}), buffer_bytes_per_loader=budget)
    for step in range(20):
        for _ in range(100):
            if len(job.steps()) > step:
                break
            assert job.leases, "nothing is on its way and a step is missing"
            job.read(num_bytes=100)
        job.deliver(step)
    assert len(job.steps()) >= 20


def test_a_burst_of_leases_is_spread_over_the_loaders():
    job = start_job(make_recipe(weights={"a": 1}, rows=64), make_placement(4), steps_ahead=4)
    job.run(num_bytes=100)
    counts = [len(job.messages(m.Lease, rank)) for rank in (1, 2, 3, 4)]
    assert max(counts) - min(counts) <= 1
    assert sum(counts) * 8 >= 4 * 64 * 2


def test_the_account_of_blocks_does_not_grow():
    job = start_job(make_recipe(weights={"a": 3, "b": 1}))
    sizes = []
    for step in range(120):
        job.run()
        job.deliver(step)
        sizes.append(len(job.planner._leasing.holdings._owner))
    assert max(sizes[60:]) <= max(sizes[:20])


# --- failures -----------------------------------------------------------------------------------------------


def ends(job):
    return [(rank, each.step, each.error) for rank, each in job.messages(m.EndOfData)]


@pytest.mark.parametrize("num_constructors", [1, 2])
@pytest.mark.parametrize("order", [None, lambda n: range(n - 1, -1, -1)])
def test_a_bad_sample_ends_the_data_at_exactly_the_step_that_needs_it(num_constructors, order):
    # One source, 8 samples fill a step and 2 more are drawn ahead: step t draws up to position 8 t + 9.
    for position, step in ((9, 0), (10, 1), (17, 1), (18, 2), (40, 4)):
        job = start_job(make_recipe(weights={"a": 1}), make_placement(1, num_constructors), steps_ahead=99)
        for _ in range(20):
            job.read(order, bad=[position])
        last = job.placement.constructors
        assert len(job.steps()) == step
        text = f"step {step}: source 'a', position {position}: cannot be read (on_bad_sample='raise'; 'skip'"
        assert [(rank, at) for rank, at, _ in ends(job)] == [(rank, step) for rank in last]
        assert all(error.startswith(text) for _, _, error in ends(job))


def test_skip_goes_on_until_the_budget_is_spent():
    bad = [3, 30, 33]
    recipe = make_recipe(weights={"a": 1}, on_bad_sample="skip", max_bad_samples=2)
    job = start_job(recipe, make_placement(1), steps_ahead=99)
    for _ in range(20):
        job.read(bad=bad)
    ((_, step, error),) = ends(job)
    assert step == 3  # samples up to position 32 fill three steps; the fourth needs the one behind 33
    assert (
        "position 33: cannot be read (max_bad_samples=2 bad records came before it; raise the limit" in error
    )
    job = start_job(make_recipe(weights={"a": 1}, on_bad_sample="skip"), make_placement(1), steps_ahead=5)
    job.run(bad=bad)
    assert not ends(job)
    assert len(job.steps()) == 5


def test_a_bad_sample_in_the_last_block_fails_and_does_not_just_end():
    recipe = make_recipe(weights={"a": 1}, on_exhausted="stop")
    job = Job(recipe, make_placement(1))
    job.open(num_records=16)
    job.join(steps_ahead=99)
    job.run(bad=[15])
    ((_, step, error),) = ends(job)
    assert (step, len(job.steps())) == (1, 1)
    assert "position 15" in error


def test_an_epoch_without_a_sample_is_an_error_that_names_the_source():
    recipe = make_recipe(weights={"a": 1}, on_bad_sample="skip")
    job = Job(recipe, make_placement(1))
    job.open(num_records=20)
    job.join()
    job.run(bad=range(10**6))
    ((_, step, error),) = ends(job)
    assert step == 0
    assert "'a' yielded no sample in a whole epoch of 20 records (24 bad ones)" in error


def test_a_sample_too_long_for_a_row_ends_the_data():
    job = start_job(make_recipe(weights={"a": 1}), make_placement(1))
    job.run(tokens=9)
    ((_, step, error),) = ends(job)
    assert (step, len(job.steps())) == (0, 0)
    assert "9 tokens, more than pack(seq_len=8)" in error


@pytest.mark.parametrize("sender", [0, 1, 3, 4])
def test_a_failure_reaches_everybody(sender):
    job = start_job(placement=make_placement(2, num_constructors=2))
    job.tell(sender, m.Failed(message="out of luck"))
    aborts = job.messages(m.Abort)
    assert sorted(rank for rank, _ in aborts) == [1, 2, 3, 4]
    assert {(each.rank, each.message) for _, each in aborts} == {(sender, "out of luck")}
    assert str(job.finish.error) == f"rank {sender} failed: out of luck"


# --- end ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_num_steps_ends_the_data(num_steps):
    job = start_job(num_steps=num_steps, steps_ahead=5)
    job.run()
    assert len(job.steps()) == num_steps
    assert ends(job) == [(3, num_steps, "")]


def test_a_source_whose_share_begins_inside_a_window_is_read():
    graph = DGraph().mix([(0, {"a": 1, "b": 0}), (2, {"a": 0, "b": 1})]).pack(seq_len=8, rows=2)
    job = start_job(make_recipe(graph=graph.regroup(steps=4)))
    job.run()
    for step in range(4):
        job.deliver(step)
        job.run()
    shares = np.sum([step.source_samples for step in job.steps()[:4]], axis=0)
    assert shares.tolist() == [10, 6]  # a row more is drawn than is delivered


def test_a_schedule_is_not_asked_for_steps_behind_the_last():
    weights = [{"a": 1, "b": 1}] * 5
    graph = DGraph().mix(lambda step: weights[step]).pack(seq_len=8, rows=2)
    job = start_job(make_recipe(graph=graph), num_steps=5)
    for step in range(5):
        job.run()
        job.deliver(step)
    assert [end.step for _, end in job.messages(m.EndOfData)] == [5]


def test_wrong_weights_end_the_data_at_their_step():
    graph = DGraph().mix(lambda step: {"a": 1 if step < 5 else -1, "b": 1}).pack(seq_len=8, rows=2)
    job = start_job(make_recipe(graph=graph))
    for step in range(5):
        job.run()
        job.deliver(step)
    assert [step.step for step in job.steps()] == [0, 1, 2, 3, 4]
    ((_, end),) = job.messages(m.EndOfData)
    assert end.step == 5
    assert "at step 5 got {'a': -1}" in end.error


def test_stop_ends_the_data_where_a_source_is_exhausted():
    recipe = make_recipe(on_exhausted="stop")
    job = Job(recipe, make_placement())
    job.open(num_records=20)
    job.join(steps_ahead=99)
    job.run()
    assert ends(job) == [(3, 5, "")]
    drawn = [key for each in job.steps() for key in each.infos[["source", "position"]].tolist()]
    assert sorted(drawn) == [(s, p) for s in range(2) for p in range(20)]
    assert max(each.stop for _, each in job.messages(m.Lease)) == 20


@pytest.mark.parametrize(("num_steps", "stopped"), [(2, False), (3, True)])
def test_a_request_to_stop_behind_the_last_planned_step_stops_nothing(num_steps, stopped):
    job = start_job(num_steps=num_steps, steps_ahead=1)
    job.run()
    job.deliver(0)
    assert len(job.steps()) == 2  # all of two; nobody may have a third yet
    job.tell(3, m.AskToStop())
    assert [(each.step, each.stopped) for _, each in job.messages(m.EndOfData)] == [(2, stopped)]


def test_leave_ends_the_others_at_the_next_step_then_stop_farewell_summary():
    job = start_job(placement=make_placement(2, num_constructors=2), steps_ahead=2)
    job.run()
    job.tell(3, m.Leave(figures={"who": "first"}))
    assert ends(job) == [(3, 2, ""), (4, 2, "")]  # both planned steps are still delivered
    job.deliver(0, ranks=[4])
    job.read()
    assert len(job.steps()) == 2
    assert not job.messages(m.Stop)
    job.tell(4, m.Leave(figures={"who": "second"}))
    assert len(ends(job)) == 2  # said once
    assert [rank for rank, _ in job.messages(m.Stop)] == [1, 2]
    job.tell(2, m.Farewell(figures={"samples": 2}))
    assert job.finish is None
    job.tell(1, m.Farewell(figures={"samples": 1}))
    (rank, summary), (other, same) = job.messages(m.Summary)
    assert ((rank, other), same) == ((3, 4), summary)
    assert summary.figures["loaders"] == [{"samples": 1}, {"samples": 2}]
    assert summary.figures["constructors"] == [{"who": "first"}, {"who": "second"}]
    assert summary.figures["steps"] == 2
    assert (job.finish.error, job.finish.figures) == (None, summary.figures)


def test_who_leaves_before_the_others_came_ends_their_data_too():
    recipe = make_recipe()
    job = Job(recipe, make_placement(num_constructors=2))
    job.tell(3, make_join(recipe, 0, processes=2))
    job.tell(3, m.Leave())
    job.open()
    job.tell(4, make_join(recipe, 1, processes=2))
    assert ends(job) == [(3, 0, ""), (4, 0, "")]
    assert not job.messages(m.Lease)
    job.tell(4, m.Leave())
    assert len(job.messages(m.Stop)) == 2


def test_bad_samples_are_in_the_summary():
    job = start_job(make_recipe(weights={"a": 1}, on_bad_sample="skip"), make_placement(1), num_steps=2)
    job.run(bad=[1, 5])
    job.tell(2, m.Leave())
    job.tell(1, m.Farewell(figures={}))
    assert job.finish.figures["sources"] == {
        "a": {"bad_samples": 2, "bad": [[0, 1, "cannot be read"], [0, 5, "cannot be read"]]}
    }


def test_messages_are_plain_enough_to_travel():
    job = start_job(num_steps=2)
    job.run()
    for _, message in job.sent:
        assert re.fullmatch(r"[A-Za-z]+", type(message).__name__)
        assert type(message) in m.WIRE_MESSAGES


def test_a_first_step_of_many_blocks_is_leased_in_few_rounds():
    """A round is what is read at once; nobody knew that the step has 130 blocks."""
    graph = DGraph().mix({"a": 1}).pack(seq_len=64, rows=64)
    job = start_job(make_recipe(weights={"a": 1}, graph=graph), make_placement(num_loaders=2))
    rounds = 0
    while not job.steps():
        job.read()
        rounds += 1
    assert 130 <= len(job.messages(m.Lease)) <= 4 * 130  # the step, and those that may be planned ahead
    assert rounds <= 12
