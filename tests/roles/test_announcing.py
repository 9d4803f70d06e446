"""What the planner tells constructors and loaders of strategies that send less, or more, than whole rows."""

from dataclasses import replace

import numpy as np
import pytest
from roles.played import make_placement, make_recipe, start_job, whole_block

from msdata_jax.planning.graph import DGraph
from msdata_jax.roles import messages as m


def told(graph, *, processes=2, axes=("dp",), sizes=None, row_axes=("dp",), **content):
    """A job of one source over some processes that ran until two steps were planned and none delivered."""
    recipe = make_recipe(weights={"a": 1}, graph=graph)
    placement = make_placement(num_loaders=1, num_constructors=processes)
    job = start_job(
        recipe,
        placement,
        axis_names=list(axes),
        axis_sizes=list(sizes or [processes]),
        row_axes=list(row_axes),
    )
    job.run(**content)
    return job


def orders(job, step):
    return [each for _, each in job.messages(m.Order) if each.step == step]


def test_images_go_to_the_processes_of_their_slots():
    graph = DGraph().mix({"a": 1}).pad(seq_len=8, rows=4, patches_per_row=4)
    job = start_job(
        make_recipe(weights={"a": 1}, graph=graph.distribute("dp", encoder_axis="dp")),
        make_placement(num_loaders=1, num_constructors=2),
    )
    (_, lease), *_ = job.leases
    block = whole_block(lease, tokens=5)
    block.infos["patches"] = [4, 4, 0, 0, 1, 0, 3, 2]
    job.leases.pop(0)
    job.tell(1, block)
    (order,) = orders(job, 0)
    assert order.without_patches
    images = order.is_image
    assert sorted(order.position[images].tolist()) == [0, 1]
    assert sorted(order.constructor[images].tolist()) == [2, 3]  # one each, whatever their rows
    assert sorted(order.position[~images].tolist()) == [0, 1, 2, 3]
    for rank in (2, 3):
        expect = job.steps(rank)[0]
        assert (expect.num_slots, expect.patches_per_slot) == (1, 10)
        assert (expect.slot.tolist(), expect.slot_first.tolist()) == ([0], [0])
        assert expect.slot_patches.tolist() == [4]
        with_images = expect.infos["patches"] > 0
        assert set(expect.first_patch[with_images].tolist()) <= {0, 10}


def test_images_that_do_not_fit_their_slots_end_the_data_at_that_step():
    graph = DGraph().mix({"a": 1}).pad(seq_len=8, rows=2, patches_per_row=4)
    graph = graph.distribute("dp", encoder_axis="dp", patches_per_slot=5)
    job = start_job(make_recipe(weights={"a": 1}, graph=graph), make_placement(num_loaders=1))
    (_, lease), *_ = job.leases
    block = whole_block(lease, tokens=5)
    block.infos["patches"] = [2, 2, 4, 4, 1, 1, 1, 1]
    job.leases.pop(0)
    job.tell(1, block)
    assert [each.step for each in job.steps()] == [0]
    ((_, end),) = job.messages(m.EndOfData)
    assert end.step == 1
    assert "step 1: 2 images of 8 patches do not fit 1 slots" in end.error


@pytest.mark.parametrize(("factor", "expected"), [(3, (1.0, 5 / 3)), (0, (1.0, 1.0))])
def test_trainers_are_told_how_even_a_step_is(factor, expected):
    graph = (
        DGraph().mix({"a": 1}).pad(seq_len=8, rows=4).cost(backbone=lambda infos: factor * infos["tokens"])
    )
    job = start_job(
        make_recipe(weights={"a": 1}, graph=graph.distribute("dp").balance("lpt")),
        make_placement(num_loaders=1, num_constructors=2),
    )
    (_, lease), *_ = job.leases
    block = whole_block(lease, tokens=1)
    block.infos["tokens"][:4] = [5, 1, 1, 5]
    job.leases.pop(0)
    job.tell(1, block)
    for rank in (2, 3):
        expect = job.steps(rank)[0]
        assert (expect.imbalance, expect.imbalance_unbalanced) == expected
        assert expect.group_costs.tolist() == [6 * factor, 6 * factor]


def test_a_split_sample_is_held_until_its_last_piece_is_sent():
    graph = DGraph().mix({"a": 1}).pack(seq_len=4, rows=1, oversize="split")
    job = told(graph, processes=1, row_axes=(), tokens=9, num_bytes=100)
    seen, last = [], []
    for step in range(2):
        (order,) = orders(job, step)
        seen += list(zip(order.position.tolist(), order.start.tolist(), order.length.tolist(), strict=True))
        last += order.is_last.tolist()
    assert seen == [(0, 0, 4), (0, 4, 4)]
    assert last == [False, False]  # the ninth place is to come
    held = job.planner._leasing.holdings
    before = held.num_bytes(1)
    job.deliver(0)
    assert held.num_bytes(1) == before  # nothing of it is released
    job.deliver(1)
    (order,) = orders(job, 2)
    assert order.position.tolist() == [0, 1]  # a piece of the next sample fills the row up
    assert (order.start.tolist(), order.is_last.tolist()) == ([8, 8], [True, False])
    before = held.num_bytes(1)
    job.deliver(2)
    assert held.num_bytes(1) == before - 100


def test_two_pieces_in_one_step_count_once():
    graph = DGraph().mix({"a": 1}).pack(seq_len=4, rows=2, oversize="split")
    job = told(graph, processes=1, row_axes=(), tokens=8, num_bytes=100)
    (order,) = orders(job, 0)
    assert order.position.tolist() == [0, 0]
    assert order.is_last.tolist() == [True, True]
    before = job.planner._leasing.holdings.num_bytes(1)
    job.deliver(0)
    assert job.planner._leasing.holdings.num_bytes(1) == before - 100


@pytest.mark.parametrize("via", ["host", "device"])
def test_peers_get_nothing_from_loaders_and_relays_only_by_host(via):
    graph = DGraph().mix({"a": 1}).pack(seq_len=8, rows=2).distribute("dp").broadcast_at("tp", via=via)
    job = told(graph, axes=("tp", "dp"), sizes=(2, 1))
    leader, peer = job.steps(2)[0], job.steps(3)[0]
    assert leader.relay_to == ([3] if via == "host" else [])
    assert len(leader.infos) == len(orders(job, 0)[0].position) == 4
    assert set(orders(job, 0)[0].constructor.tolist()) == {2}
    assert len(peer.infos) == (4 if via == "host" else 0)
    assert peer.rows.tolist() == leader.rows.tolist() == [0, 1]


def test_middle_stages_expect_rows_without_samples():
    graph = DGraph().mix({"a": 1}).pack(seq_len=8, rows=2).distribute("dp", pipeline_axis="pp")
    job = told(graph, processes=3, axes=("pp", "dp"), sizes=(3, 1))
    first, middle, last = (job.steps(rank)[0] for rank in (2, 3, 4))
    assert len(first.infos) == len(last.infos) == 4
    assert len(middle.infos) == 0
    assert middle.rows.tolist() == [0, 1]
    assert sorted(set(orders(job, 0)[0].constructor.tolist())) == [2, 4]


def test_steps_of_a_window_are_composed_as_their_samples_come():
    graph = DGraph().mix({"a": 1}).pack(seq_len=8, rows=2).regroup(steps=3)
    recipe = make_recipe(weights={"a": 1}, graph=graph)
    job = start_job(recipe, make_placement(num_loaders=1))
    gathered = []
    while not job.steps():
        gathered.append(len(job.planner._state.gathered))
        job.read()
    assert gathered[0] == 0
    assert max(gathered) >= 1  # what is composed is kept, and not composed again
    assert [each.step for each in job.steps()] == [0, 1]
    assert [plan.step for plan in job.planner._state.pending] == [2]
    job.deliver(0)
    assert [each.step for each in job.steps()] == [0, 1, 2]
    plain = start_job(make_recipe(weights={"a": 1}, graph=replace(graph, regrouped_steps=1)))
    plain.run()
    plain.deliver(0)
    positions = [
        np.sort(np.concatenate([each.infos["position"] for each in one.steps()[:3]])).tolist()
        for one in (job, plain)
    ]
    assert positions[0] == positions[1]  # the window holds what its steps would have


def test_giants_and_what_no_placement_can_even_out_are_told():
    graph = DGraph().mix({"a": 1}).pad(seq_len=8, rows=4).cost(backbone=lambda infos: infos["tokens"] ** 2)
    job = start_job(
        make_recipe(weights={"a": 1}, graph=graph.distribute("dp").balance()),
        make_placement(num_loaders=1, num_constructors=2),
    )
    (_, lease), *_ = job.leases
    block = whole_block(lease)
    block.infos["tokens"] = [8, 1, 1, 2, 4, 4, 4, 4]
    job.leases.pop(0)
    job.tell(1, block)
    first, second = job.steps(2)[:2]
    assert (first.num_giants, first.dominance) == (1, 64 / 35)  # 64 + 1 + 1 + 4 over two groups
    assert (second.num_giants, second.dominance) == (0, 1.0)
