import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roles.played import make_recipe
from strategies import make_infos, stories

from msdata_jax.data_state import BadRecords, DataState, SourceFacts, change_leaves
from msdata_jax.planning.graph import Composed, DGraph, EndOfData, initial_state
from msdata_jax.planning.place_tree import MeshLayout
from msdata_jax.records import BadSample
from msdata_jax.roles.standing import Standing

LAYOUT = MeshLayout(axis_names=("dp", "cp"), axis_sizes=(2, 1), process_of_device=(0, 1))


def make_facts(names):
    return tuple(
        SourceFacts(
            name=name,
            data=f"/data/{name}.parquet",
            content="transforms=()",
            num_records=10 + index,
            fingerprint=f"{index:032x}",
            files={f"{name}.parquet": f"{index:016x}"},
        )
        for index, name in enumerate(names)
    )


def make_standing(graph, names, plan_digest=""):
    recipe = make_recipe(weights=dict.fromkeys(names, 1), graph=graph)
    return Standing(recipe=recipe, facts=make_facts(names), layout=LAYOUT, keeper=7, plan_digest=plan_digest)


def plain_state(standing, stream, bad, plan_digest):
    graph = standing.recipe.strategy
    return DataState(
        stream=stream,
        sources=standing.facts,
        bad=bad,
        mixture=graph.mixture,
        packing=graph.describe_content(),
        columns=(),
        seed=0,
        recipe=standing.recipe.fingerprint(),
        plan_digest=plan_digest,
        mesh="dp=2,cp=1",
    )


def compose_steps(graph, names, streams, count):
    """(plan, state behind it) of the first steps."""
    stream, ahead = initial_state(len(names)), list(streams)
    while count:
        composed = graph.compose(stream, names, ahead, [True] * len(names))
        if isinstance(composed, EndOfData):
            return
        stream = composed.state
        ahead = [infos[n:] for infos, n in zip(ahead, composed.drawn.tolist(), strict=True)]
        if isinstance(composed, Composed):
            count -= 1
            yield composed.plan, stream


bad_records = st.builds(
    BadRecords,
    num_bad=st.integers(0, 9),
    listed=st.lists(
        st.builds(BadSample, position=st.integers(0, 99), reason=st.text(max_size=5), by_luck=st.booleans()),
        max_size=2,
    ).map(tuple),
    verdicts=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99), st.text(max_size=5)), max_size=2).map(
        tuple
    ),
)


@given(stories(), st.data())
def test_the_keeper_can_put_the_state_behind_every_step_together(story, data):
    graph, names, streams = story
    standing, digest = make_standing(graph, names), ""
    none = (BadRecords(),) * len(names)
    stream, leaves = initial_state(len(names)), {}
    for plan, state, bad in [
        (None, stream, none),
        *(
            (plan, state, tuple(data.draw(bad_records) for _ in names))
            for plan, state in compose_steps(graph, names, streams, 5)
        ),
    ]:
        if plan is not None:
            standing.planned(plan)
            digest = hashlib.blake2b(f"{digest} {plan.content_digest}".encode(), digest_size=16).hexdigest()
        (send,) = standing.after(state, bad)
        assert (send.rank, send.message.step) == (7, state.step - 1)
        assert not set(send.message.changed) & set(send.message.removed)
        change_leaves(leaves, send.message.changed, send.message.removed)
        assert leaves == plain_state(standing, state, bad, digest).to_leaves()
        assert DataState.from_leaves(leaves).step == state.step


def large_run(num_sources=40):
    names = [f"source-{index}" for index in range(num_sources)]
    graph = DGraph().mix(dict.fromkeys(names, 1)).pack(seq_len=16, rows=8)
    streams = [make_infos(s, [5, 3, 7, 6, 1] * 20) for s in range(num_sources)]
    return graph, names, list(compose_steps(graph, names, streams, 6))


def test_what_stays_the_same_in_a_run_is_sent_once():
    graph, names, steps = large_run()
    standing = make_standing(graph, names)
    bad = (BadRecords(),) * len(names)
    messages = []
    for plan, state in steps:
        standing.planned(plan)
        messages.append(standing.after(state, bad)[0].message)
    first, *later = messages
    of_run = {"run", *(f"source/{index}" for index in range(len(names)))}
    assert of_run <= set(first.changed)
    assert {"stream/exhausted", "mixture"} <= set(first.changed)
    size = sum(map(len, first.changed.values()))
    for message in later:
        assert not of_run & set(message.changed)
        assert not {"stream/exhausted", "mixture"} & set(message.changed)  # as they were
        assert {"step", "stream/last_position"} <= set(message.changed)
        assert 4 * sum(map(len, message.changed.values())) < size


def test_bad_records_that_come_are_sent_and_those_that_go_are_removed():
    graph, names, steps = large_run(2)
    standing = make_standing(graph, names)
    none = BadRecords()
    some = BadRecords(num_bad=1, verdicts=((0, 3, "crashed"),))
    told = []
    for (plan, state), bad in zip(
        steps, [(none, none), (some, none), (some, none), (none, none)], strict=False
    ):
        standing.planned(plan)
        told.append(standing.after(state, bad)[0].message)
    assert [("bad/0" in each.changed, each.removed) for each in told] == [
        (False, []),
        (True, []),
        (False, []),
        (False, ["bad/0"]),
    ]


def test_the_chain_goes_on_from_a_saved_one():
    graph, names, steps = large_run(2)
    whole, resumed = make_standing(graph, names), make_standing(graph, names)
    for plan, _ in steps[:3]:
        whole.planned(plan)
    resumed = replace(resumed, plan_digest=whole.plan_digest)
    for plan, _ in steps[3:]:
        whole.planned(plan)
        resumed.planned(plan)
    assert whole.plan_digest == resumed.plan_digest
    assert len({whole.plan_digest, make_standing(graph, names).plan_digest}) == 2


def test_states_are_kept_until_their_step_is_released():
    graph, names, steps = large_run(2)
    standing = make_standing(graph, names)
    bad = (BadRecords(),) * len(names)
    for plan, state in steps:
        standing.planned(plan)
        standing.after(state, bad)
    assert standing.release(3) is steps[3][1]
    assert standing.release(5) is steps[5][1]
    with pytest.raises(KeyError):
        standing.release(4)
    assert np.array_equal(standing.release(5).last_position, steps[5][1].last_position)
