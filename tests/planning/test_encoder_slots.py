import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import make_infos, make_tree

from msdata_jax import costs
from msdata_jax.errors import RecipeError
from msdata_jax.planning.encoder_slots import always_enough
from msdata_jax.planning.graph import DGraph, initial_state


def planned(patches, graph):
    """A step of one sample a row, each of as many places as patches and one more."""
    infos = make_infos(0, np.array(patches) + 1, patches)
    composed = graph.compose(initial_state(1), ("a",), [infos], [False])
    return composed.plan


def pictures(num_rows, patches_per_row=8, **options):
    graph = DGraph().mix({"a": 1}).pad(seq_len=16, rows=num_rows, patches_per_row=patches_per_row)
    vit = costs.vit(num_layers=4, d_model=1024)
    return graph.cost(encoder=vit).distribute("dp", encoder_axis="world", **options).balance("lpt")


@given(st.lists(st.integers(0, 8), min_size=4, max_size=24), st.sampled_from([1, 2, 4]), st.integers(1, 3))
def test_every_image_has_a_place_of_its_own_in_one_slot(patches, dp, tp):
    patches = patches[: len(patches) // 4 * 4]
    graph, tree = pictures(len(patches)), make_tree(dp=dp, tp=tp)
    plan = graph.place(planned(patches, graph), tree)
    plan.check()
    assert plan.num_slots == dp * tp
    assert plan.patches_per_slot == always_enough(len(patches), 8, dp * tp)
    taken = []
    counts = plan.samples["patches"].tolist()
    for slot, first, count in zip(plan.slot.tolist(), plan.first_patch.tolist(), counts, strict=True):
        assert (slot >= 0) == (count > 0)
        assert first + count <= plan.patches_per_slot
        taken += [(slot, place) for place in range(first, first + count)]
    assert len(set(taken)) == len(taken) == sum(patches)
    for slot in range(plan.num_slots):  # from the first place on, without a gap
        mine = sorted(place for each, place in taken if each == slot)
        assert mine == list(range(len(mine)))


def test_slots_are_even_where_ranks_would_not_be():
    # All images in the samples of the first half: balanced for the backbone alone they crowd.
    patches = [8, 6, 7, 5, 8, 6, 7, 5] + [0] * 8
    graph, tree = pictures(16), make_tree(dp=4)
    plan = graph.place(planned(patches, graph), tree)
    of_slot = np.bincount(plan.slot[plan.slot >= 0], plan.samples["patches"][plan.slot >= 0])
    assert of_slot.tolist() == [13, 13, 13, 13]
    assert plan.group_costs().tolist() == plan.row_cost[plan.order].reshape(4, 4).sum(axis=1).tolist()


def test_the_digest_covers_the_slots():
    graph, tree = pictures(4), make_tree(dp=2)
    plan = graph.place(planned([8, 1, 8, 1], graph), tree)
    elsewhere = pictures(4, patches_per_slot=18).place(planned([8, 1, 8, 1], graph), tree)
    assert plan.content_digest == elsewhere.content_digest
    assert plan.digest != elsewhere.digest


def test_a_step_that_does_not_fit_names_the_way_out():
    graph, tree = pictures(4, patches_per_slot=9), make_tree(dp=2)
    assert graph.place(planned([8, 1, 8, 1], graph), tree).patches_per_slot == 9
    with pytest.raises(RecipeError, match=r"step 0: 3 images of 24 patches do not fit 2 slots .*=9\)"):
        graph.place(planned([8, 8, 8, 0], graph), tree)


def test_slots_that_hold_no_full_sample_are_refused():
    with pytest.raises(RecipeError, match=r"patches_per_slot=7\) cannot hold .*patches_per_row=8\)"):
        pictures(4, patches_per_slot=7).check_mesh(make_tree(dp=2))


def test_a_cut_sample_costs_the_encoder_what_is_used():
    infos = make_infos(0, [100, 5, 4, 3], [2] * 4)
    graph = DGraph().mix({"a": 1}).pad(seq_len=5, rows=4, patches_per_row=4, oversize="truncate")
    graph = graph.cost(encoder=costs.column("tokens")).distribute("dp", encoder_axis="dp")
    plan = graph.compose(initial_state(1), ("a",), [infos], [False]).plan
    slot = graph.place(plan, make_tree(dp=2)).slot
    assert sorted(np.bincount(slot, plan.length)) == [8, 9]


@given(st.data(), st.integers(1, 6), st.integers(1, 8), st.integers(1, 5))
def test_there_is_always_enough(data, num_rows, patches_per_row, num_slots):
    """Whatever the images, dealing the largest to the emptiest slot never needs more."""
    images = data.draw(st.lists(st.integers(1, patches_per_row), max_size=num_rows))
    slots = [0] * num_slots
    for image in sorted(images, reverse=True):
        slots[slots.index(min(slots))] += image
    assert max(slots) <= always_enough(num_rows, patches_per_row, num_slots)


@pytest.mark.parametrize(
    ("graph", "says"),
    [
        (pictures(4, patches_per_row=0), r"patches_per_row=...\) is 0"),
        (pictures(4).broadcast_at("tp", via="device"), "use via='host'"),
    ],
)
def test_contradictions_are_refused(graph, says):
    with pytest.raises(RecipeError, match=says):
        graph.check(["a"], [])
