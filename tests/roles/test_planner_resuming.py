"""The planner goes on from a saved state, or begins at a later step."""

from dataclasses import replace

import numpy as np
import pytest
from roles.played import Job, make_join, make_placement, make_recipe, start_job

from msdata_jax.data_state import DataState, change_leaves, leaves_digest, pack_leaves
from msdata_jax.errors import CheckpointError, LaunchError, RecipeError
from msdata_jax.planning.graph import DGraph
from msdata_jax.roles import messages as m

NUM_STEPS = 8
GRAPHS = {
    "pack": DGraph().mix({"a": 2, "b": 1}).pack(seq_len=10, rows=3),
    "regroup": DGraph().mix({"a": 2, "b": 1}).pack(seq_len=10, rows=3).regroup(steps=3),
    "split": DGraph().mix({"a": 2, "b": 1}).pack(seq_len=3, rows=5, oversize="split"),
}


def play(job):
    """Answer every lease, and let the trainers take every step, one after another."""
    job.run()
    taken = 0
    while taken < len(job.steps()):
        job.deliver(job.steps()[taken].step)
        taken += 1
        job.run()
    return job


def leaves_of(job):
    """By step, the leaves of the state behind it, as the keeper puts them together."""
    keeper, leaves, states = job.placement.constructors[0], {}, {}
    for _, told in job.messages(m.StateAfter, keeper):
        change_leaves(leaves, told.changed, told.removed)
        states[told.step] = dict(leaves)
    return states


def joining(leaves, **changes):
    return {
        "state": np.frombuffer(pack_leaves(leaves), np.uint8),
        "state_digest": leaves_digest(leaves),
        **changes,
    }


def digests(job):
    return [(each.step, each.digest) for each in job.steps()]


def whole_job(recipe, **changes):
    return play(start_job(recipe, num_steps=NUM_STEPS, **changes))


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_goes_on_as_if_it_had_never_stopped(graph):
    recipe = make_recipe(weights={"a": 2, "b": 1}, graph=graph)
    whole = whole_job(recipe)
    states = leaves_of(whole)
    assert sorted(states) == list(range(-1, NUM_STEPS))
    for step in range(NUM_STEPS):
        job = play(start_job(recipe, make_placement(3), num_steps=NUM_STEPS, **joining(states[step])))
        assert digests(job) == digests(whole)[step + 1 :]
        again = leaves_of(job)
        assert again == {each: states[each] for each in range(step, NUM_STEPS)}
        assert [(each.step, each.error) for _, each in job.messages(m.EndOfData)] == [(NUM_STEPS, "")]


def test_reads_what_waits_and_the_block_that_each_source_stands_in_and_nothing_before():
    recipe = make_recipe(weights={"a": 2, "b": 1}, graph=GRAPHS["pack"])
    leaves = leaves_of(whole_job(recipe))[6]
    state = DataState.from_leaves(leaves)
    job = start_job(recipe, num_steps=NUM_STEPS, **joining(leaves))
    first = [(lease.source, lease.start) for _, lease in job.messages(m.Lease)]
    assert len(set(first)) == len(first)
    waits = {(int(info["source"]), int(info["position"]) // 8 * 8) for info in state.stream.carry.infos}
    stands = {(source, int(position) // 8 * 8) for source, position in enumerate(state.stream.last_position)}
    assert waits <= set(first)
    assert stands <= set(first)
    assert {
        (source, start) for source, start in first if start < 8 * (state.stream.last_position[source] // 8)
    } <= waits
    play(job)
    leased = [(lease.source, lease.start) for _, lease in job.messages(m.Lease)]
    assert len(set(leased)) == len(leased)


def test_the_state_comes_from_the_first_process_and_all_agree_in_its_digest():
    recipe = make_recipe(weights={"a": 1})
    leaves = leaves_of(whole_job(recipe))[3]
    job = Job(recipe, make_placement(1, num_constructors=2))
    job.open()
    first, second = (make_join(recipe, process, processes=2) for process in range(2))
    job.tell(2, replace(first, **joining(leaves)))
    with pytest.raises(LaunchError, match=r"state_digest is \w+ on rank 2 and  on rank 3"):
        job.tell(3, second)


@pytest.mark.parametrize("num_steps", [4, 2, 0])
def test_steps_are_counted_from_0_so_that_a_run_that_had_all_of_them_ends_at_once(num_steps):
    recipe = make_recipe(weights={"a": 1})
    leaves = leaves_of(whole_job(recipe))[3]
    job = start_job(recipe, num_steps=num_steps, **joining(leaves))
    job.run()
    assert [(each.step, each.error) for _, each in job.messages(m.EndOfData)] == [(4, "")]
    assert not job.steps()


def test_the_keeper_is_told_the_state_behind_a_step_before_the_step():
    """For the step may be complete as soon as it is expected."""
    job = start_job(placement=make_placement(num_constructors=2), num_steps=3)
    play(job)
    order = [
        (type(each), each.step)
        for rank, each in job.sent
        if rank == 3 and isinstance(each, m.StateAfter | m.Expect)
    ]
    assert order == [
        (m.StateAfter, -1),
        *((kind, step) for step in range(3) for kind in (m.StateAfter, m.Expect)),
    ]
    assert not job.messages(m.StateAfter, 4)  # one keeps it


def test_a_state_can_be_read_though_the_schedule_ends_with_the_run():
    weights = [{"a": 1, "b": 1 + step} for step in range(3)]
    graph = DGraph().mix(lambda step: weights[step]).pack(seq_len=8, rows=2)
    job = play(start_job(make_recipe(graph=graph), num_steps=3))
    last = DataState.from_leaves(leaves_of(job)[2])
    assert last.step == 3
    assert last.mixture.weights_at(3, "ab").tolist() == last.mixture.weights_at(2, "ab").tolist()


# --- what changed -------------------------------------------------------------------------------------------


def test_a_silent_change_is_refused_and_may_be_accepted():
    recipe = make_recipe(weights={"a": 2, "b": 1}, graph=GRAPHS["pack"])
    leaves = leaves_of(whole_job(recipe))[3]
    waiting = DataState.from_leaves(leaves).stream.carry.infos
    assert len(waiting)
    other = replace(recipe, seed=5)
    with pytest.raises(CheckpointError, match=r"the seed was 0 and is 5.*accept_changes=True"):
        start_job(other, **joining(leaves))
    job = play(start_job(other, num_steps=NUM_STEPS, **joining(leaves, accept_changes=True)))
    assert [step for step, _ in digests(job)] == [4, 5, 6, 7]
    shown = {key for each in job.steps() for key in each.infos[["source", "position"]].tolist()}
    assert not shown & set(waiting[["source", "position"]].tolist())  # they are other samples now
    first = {source: min(p for s, p in shown if s == source) for source in (0, 1)}
    last = DataState.from_leaves(leaves).stream.last_position.tolist()
    assert first == {0: last[0] + 1, 1: last[1] + 1}


def test_changes_inside_a_window_are_refused_also_where_they_are_accepted():
    recipe = make_recipe(weights={"a": 2, "b": 1}, graph=GRAPHS["regroup"])
    states = leaves_of(whole_job(recipe))
    other = replace(recipe, seed=5)
    with pytest.raises(RecipeError, match=r"steps up to 5 are composed already.*change that at step 6"):
        start_job(other, **joining(states[3], accept_changes=True))
    job = play(start_job(other, num_steps=NUM_STEPS, **joining(states[5], accept_changes=True)))
    assert [step for step, _ in digests(job)] == [6, 7]


def test_data_that_changed_name_the_file():
    recipe = make_recipe(weights={"a": 1})
    job = Job(recipe, make_placement(1))
    job.open(files={"x.parquet": "1", "y.parquet": "2"})
    job.join(num_steps=NUM_STEPS)
    leaves = leaves_of(play(job))[3]
    job = Job(recipe, make_placement(1))
    job.open(files={"x.parquet": "1", "y.parquet": "3", "z.parquet": "4"}, fingerprint="g", num_records=1001)
    says = (
        r"the data of source 'a' changed: other bytes in y\.parquet; new z\.parquet; "
        "1000 records were there and 1001 are"
    )
    with pytest.raises(CheckpointError, match=says):
        job.join(**joining(leaves))
    job = Job(recipe, make_placement(1))
    job.open(files={"x.parquet": "1"}, fingerprint="g")
    job.join(**joining(leaves, accept_changes=True), num_steps=NUM_STEPS)
    assert [step for step, _ in digests(play(job))] == [4, 5, 6, 7]


def test_data_that_yield_other_samples_under_the_same_fingerprint_end_the_data_with_a_reason():
    recipe = make_recipe(weights={"a": 2, "b": 1}, graph=GRAPHS["pack"])
    leaves = leaves_of(whole_job(recipe))[3]
    job = start_job(recipe, num_steps=NUM_STEPS, **joining(leaves))
    job.read(tokens=5)
    ((_, end), *_) = job.messages(m.EndOfData)
    assert end.step == 4
    assert "it does not give the samples that the saved state has drawn from it" in end.error


# --- skipping -----------------------------------------------------------------------------------------------


def test_goes_to_a_step_at_once_where_steps_follow_from_their_number():
    graph = DGraph().mix({"a": 2, "b": 1}).pad(seq_len=8, rows=3)
    recipe = make_recipe(weights={"a": 2, "b": 1}, graph=graph, one_per_record=True)
    whole = play(start_job(recipe, num_steps=40))
    job = start_job(recipe, num_steps=40, skip_to=30)
    assert {lease.start for _, lease in job.messages(m.Lease)} == {
        56,
        24,
    }  # 60 and 30 samples are drawn before
    assert all(lease.keep for _, lease in job.messages(m.Lease))
    assert digests(play(job)) == digests(whole)[30:]
    states, expected = leaves_of(job), leaves_of(whole)
    for step in range(30, 40):
        state, plain = (DataState.from_leaves(each[step]) for each in (states, expected))
        assert replace(state, plan_digest="").to_leaves() == replace(plain, plan_digest="").to_leaves()
        assert state.plan_digest != plain.plan_digest  # nobody saw the steps before


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_goes_through_the_steps_before_and_sends_nothing_of_them(graph):
    recipe = make_recipe(weights={"a": 2, "b": 1}, graph=graph)
    whole = whole_job(recipe)
    for step in (1, 4, 7):
        job = start_job(recipe, num_steps=NUM_STEPS, skip_to=step, steps_ahead=2)
        while not job.messages(m.Expect) and job.leases:
            assert not job.messages(m.Order)
            job.read()
        assert job.messages(m.StateAfter)[0][1].step == step - 1
        skipped = [lease for _, lease in job.messages(m.Lease) if not lease.keep]
        assert {lease.start for lease in skipped} >= {0}
        assert digests(play(job)) == digests(whole)[step:]
        kept = [(lease.source, lease.start) for _, lease in job.messages(m.Lease) if lease.keep]
        assert len(set(kept)) == len(kept)
        sent = {
            (int(source), int(position) // 8 * 8)
            for _, order in job.messages(m.Order)
            for source, position in zip(order.source, order.position, strict=True)
        }
        assert sent <= set(kept)
        assert leaves_of(job) == {each: leaves_of(whole)[each] for each in range(step - 1, NUM_STEPS)}


def test_skips_on_from_a_saved_state():
    recipe = make_recipe(weights={"a": 2, "b": 1}, graph=GRAPHS["pack"])
    whole = whole_job(recipe)
    leaves = leaves_of(whole)[2]
    job = play(start_job(recipe, num_steps=NUM_STEPS, **joining(leaves, skip_to=6)))
    assert digests(job) == digests(whole)[6:]
    job = play(start_job(recipe, num_steps=NUM_STEPS, **joining(leaves, skip_to=2)))
    assert digests(job) == digests(whole)[3:]  # it stands behind that step


def test_data_that_end_before_the_step_simply_end():
    recipe = make_recipe(weights={"a": 1}, on_exhausted="stop")
    job = Job(recipe, make_placement(1))
    job.open(num_records=20)
    job.join(skip_to=50)
    job.run()
    ((_, end),) = job.messages(m.EndOfData)
    assert (end.step, end.error) == (3, "")
    assert not job.steps()
    job = start_job(recipe, num_steps=2, skip_to=50)
    job.run()
    assert [each.step for _, each in job.messages(m.EndOfData)] == [2]


def test_a_bad_record_among_the_steps_that_are_skipped_ends_the_data():
    job = start_job(make_recipe(weights={"a": 1}), make_placement(1), skip_to=50)
    for _ in range(20):
        job.read(bad=[18])
    ((_, end),) = job.messages(m.EndOfData)
    assert end.step == 2
    assert "position 18: cannot be read" in end.error
