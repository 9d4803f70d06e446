"""Laws of whole steps, composed and placed, over strategies and meshes of every kind.

Under `HYPOTHESIS_PROFILE=slow` the search goes on for a hundred thousand steps at least.
"""

import faulthandler
import os
from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import placed_stories

from msdata_jax.batching.assembly import RowFormat, Segments
from msdata_jax.batching.context import place_order
from msdata_jax.plan import StepPlan
from msdata_jax.planning.balancing import Balance, objective_value
from msdata_jax.planning.graph import Composed, EndOfData, NeedMore, initial_state

SLOW = os.environ.get("HYPOTHESIS_PROFILE") == "slow"
LEAST_STEPS, EXAMPLES = (100_000, 17_000) if SLOW else (100, settings().max_examples)
STEPS_OF_A_STORY = 8


def run(graph, names, streams, ended, know):
    """Steps of a story until it ends, and what ended it.

    Args:
        graph, names: the strategy.
        streams: all samples of each source.
        ended: whether they are the last.
        know: returns how many more samples of each source become known, whenever one is missing.
    """
    state, taken, known = initial_state(len(names)), [0] * len(names), [0] * len(names)
    steps, gathered = [], 0
    while len(steps) < STEPS_OF_A_STORY:
        ahead = [stream[t:k] for stream, t, k in zip(streams, taken, known, strict=True)]
        last = [ended and k == len(stream) for stream, k in zip(streams, known, strict=True)]
        composed = graph.compose(state, names, ahead, last)
        if isinstance(composed, NeedMore):
            if known[composed.source] == len(streams[composed.source]):
                return steps, composed
            more = know()
            more[composed.source] = max(more[composed.source], 1)
            known = [min(k + n, len(stream)) for k, n, stream in zip(known, more, streams, strict=True)]
        elif isinstance(composed, EndOfData):
            return steps, composed
        else:
            state, gathered = composed.state, gathered + composed.drawn
            taken = [t + n for t, n in zip(taken, composed.drawn.tolist(), strict=True)]
            if isinstance(composed, Composed):
                steps.append(replace(composed, drawn=gathered))
                gathered = 0
    return steps, None


def places_used(pack, infos):
    """Each sample's key and the places that are to be delivered, or dropped with it."""
    most = pack.seq_len if pack.oversize == "truncate" else infos["tokens"].max(initial=0)
    used = np.minimum(infos["tokens"], most).tolist()
    return Counter(dict(zip(infos[["source", "position", "part"]].tolist(), used, strict=True)))


def places_of_stretches(infos, start, length):
    """How many places of each sample the stretches show; they must not overlap."""
    shown = Counter()
    stretches = sorted(
        zip(infos[["source", "position", "part"]].tolist(), start.tolist(), length.tolist(), strict=True)
    )
    behind = [*stretches[1:], (None, 0, 0)]
    for (key, begin, count), (next_key, next_begin, _) in zip(stretches, behind, strict=True):
        assert key != next_key or begin + count <= next_begin
        shown[key] += count
    return shown


def check_conservation(graph, streams, steps):
    """What was drawn is delivered, dropped, carried, or waits in a step composed already; all once."""
    drawn = sum((composed.drawn for composed in steps), np.zeros(len(streams), dtype=np.int64))
    expected = Counter()
    for stream, count in zip(streams, drawn.tolist(), strict=True):
        expected += places_used(graph.packing, stream[:count])
    state = steps[-1].state
    plans = [*(composed.plan for composed in steps), *state.pending]
    found = Counter()
    for plan in plans:
        found += places_used(graph.packing, plan.dropped)
    stretches = [(plan.samples, plan.start, plan.length) for plan in plans]
    stretches.append((state.carry.infos, state.carry.start, state.carry.length))
    found += places_of_stretches(*(np.concatenate(column) for column in zip(*stretches, strict=True)))
    assert found == expected


def check_caps(graph, plan):
    plan.check()
    assert (plan.num_rows, plan.seq_len) in [(shape.rows, shape.seq_len) for shape in graph.packing.shapes]
    segments = np.bincount(plan.row, minlength=plan.num_rows)
    assert segments.max() <= (graph.packing.segments_per_row or plan.seq_len)


def check_groups(graph, tree, plan, placed):
    spread = graph.distribution
    assert placed.content_digest == plan.content_digest
    assert placed.num_groups == tree.axis_size("dp")
    assert placed.num_microbatches == spread.microbatches
    microbatches = placed.order.reshape(placed.num_groups, placed.num_microbatches, -1)
    assert sorted(microbatches.reshape(-1).tolist()) == list(range(plan.num_rows))
    assert placed.group_costs().sum() == plan.row_cost.sum() + plan.row_encoder_cost.sum()
    assert placed.balanced_by in (graph.balancing.method, "none")


def check_never_worse(graph, tree, plan, placed):
    spread = graph.distribution
    rules = Balance(
        objective=graph.balancing.objective,
        microbatches=spread.microbatches,
        group_size=spread.group_size,
        pipeline_stages=tree.axis_size(spread.pipeline_axis),
    )
    costs = np.stack([plan.row_cost, plan.row_encoder_cost])
    balanced, kept = (
        objective_value(costs, order, placed.num_groups, rules)
        for order in (placed.order, np.arange(plan.num_rows))
    )
    assert balanced <= kept


def check_digests(graph, tree, plan, placed):
    again = graph.place(plan, tree)
    assert again.digest == placed.digest
    read = StepPlan.from_bytes(placed.to_bytes())
    assert (read.content_digest, read.digest) == (placed.content_digest, placed.digest)


def check_windows(graph, tree, placed):
    """Devices that differ along dp and cp hold the places of the batch once; the others hold the same."""
    rows, seq_len = placed.num_rows, placed.seq_len
    batch = np.arange(rows * seq_len).reshape(rows, seq_len)
    form = RowFormat(
        seq_len=seq_len,
        context_parts=tree.axis_size("cp"),
        context_layout=graph.distribution.context_layout,
    )
    segments = Segments(
        row=placed.row,
        offset=placed.offset,
        length=placed.length,
        num_patches=np.zeros(len(placed.row), dtype=np.int64),
    )
    places = place_order(form, segments, rows)
    if places is not None:
        batch = np.take_along_axis(batch, np.broadcast_to(places, batch.shape), axis=1)
    emitted = batch[placed.order]
    shown = {}
    windows = tree.windows(("dp", "cp"), emitted.shape)
    for dp, cp, window in zip(
        tree.part_of_devices("dp").tolist(), tree.part_of_devices("cp").tolist(), windows, strict=True
    ):
        mine = emitted[window]
        assert mine.shape == (rows // placed.num_groups, seq_len // form.context_parts)
        assert np.array_equal(shown.setdefault((dp, cp), mine), mine)
        group = placed.order.reshape(placed.num_groups, -1)[dp]
        assert np.array_equal(mine // seq_len, np.broadcast_to(group[:, None], mine.shape))
    assert len(shown) == placed.num_groups * form.context_parts
    every = np.concatenate([each.reshape(-1) for each in shown.values()])
    assert np.array_equal(np.sort(every), np.arange(rows * seq_len))


def test_whole_steps_keep_the_laws():
    faulthandler.cancel_dump_traceback_later()  # the long search takes longer than a test should
    count = 0

    @settings(max_examples=EXAMPLES)
    @given(placed_stories(), st.booleans(), st.integers(0, 2**32 - 1), st.sampled_from([3, 12, 60]))
    def keeps_the_laws(story, ended, seed, chunk):
        nonlocal count
        graph, names, streams, tree = story
        graph.check_mesh(tree)
        steps, end = run(graph, names, streams, ended, lambda: [10**6] * len(names))
        rng = np.random.default_rng(seed)
        piecewise, same_end = run(
            graph, names, streams, ended, lambda: rng.integers(0, chunk + 1, len(names)).tolist()
        )
        assert [each.plan.digest for each in piecewise] == [each.plan.digest for each in steps]
        assert isinstance(end, NeedMore) or same_end == end
        if steps:
            check_conservation(graph, streams, steps)
        for composed in steps:
            assert isinstance(composed, Composed)
            plan = composed.plan
            placed = graph.place(plan, tree)
            check_caps(graph, placed)
            check_groups(graph, tree, plan, placed)
            check_never_worse(graph, tree, plan, placed)
            check_digests(graph, tree, plan, placed)
            check_windows(graph, tree, placed)
        count += len(steps)

    keeps_the_laws()
    print(f"{count} steps")
    assert count >= LEAST_STEPS
