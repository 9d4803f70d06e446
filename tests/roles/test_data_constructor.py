from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roles.played import make_join, make_placement, make_recipe
from strategies import make_infos

from msdata_jax.batching.assembly import RowFormat
from msdata_jax.errors import BadSampleError, JobFailed, MSDataError
from msdata_jax.roles import messages as m
from msdata_jax.roles.data_constructor import DataConstructor
from msdata_jax.roles.effects import Deliver, EndStream, Finish, Send


def constructor(forms=None, loss_factors=None):
    forms = forms or {4: RowFormat(seq_len=4)}
    return DataConstructor(
        make_placement(), forms, make_join(make_recipe()), lambda: {"pss_mb": 1}, loss_factors, ["a", "b"]
    )


def ints(*values):
    return np.array(values, dtype=np.int32)


def expect(step, lengths=((2, 1), (4,)), relay_to=(), seq_len=4):
    """Rows with segments of `lengths`."""
    flat = [(r, sum(row[:i]), n) for r, row in enumerate(lengths) for i, n in enumerate(row)]
    row, offset, length = np.array(flat, dtype=np.int32).reshape(-1, 3).T
    return m.Expect(
        step=step,
        digest="d",
        content_digest="c",
        seq_len=seq_len,
        rows=np.arange(len(lengths)),
        infos=make_infos(0, length),
        row=row,
        offset=offset,
        start=np.zeros_like(offset),
        length=length,
        global_row=np.arange(len(lengths), dtype=np.int32),
        relay_to=list(relay_to),
        source_samples=np.array([1]),
        source_tokens=np.array([1]),
        group_costs=np.array([1]),
        unbalanced_costs=np.array([1]),
        fill=1.0,
        num_dropped=0,
        num_cut=0,
        dominance=1.0,
        num_giants=0,
        note="",
        num_slots=0,
        patches_per_slot=0,
        first_patch=ints(),
        slot=ints(),
        slot_first=ints(),
        slot_patches=ints(),
    )


def samples(step, *index, lengths=(2, 1, 4)):
    """Segments of a step, all their tokens 10 * step + index."""
    tokens = [np.full(lengths[i], 10 * step + i, np.int32) for i in index]
    return m.Samples(
        step=step,
        index=ints(*index),
        for_slots=False,
        tokens=np.concatenate(tokens),
        num_patches=ints(*[0] * len(index)),
        patches=np.empty((0, 0), np.uint8),
    )


def delivered(effects):
    return [effect.expect.step for effect in effects if isinstance(effect, Deliver)]


def rows_of(step):
    a, b, c = 10 * step, 10 * step + 1, 10 * step + 2
    return [[a, a, b, 0], [c, c, c, c]]


def test_joins_first():
    role = constructor()
    assert role.start() == [Send(rank=0, message=make_join(make_recipe()))]
    assert role.tick(10**6) == []


def test_delivers_a_step_when_its_last_sample_came():
    role = constructor()
    assert role.handle(0, expect(0)) == []
    assert role.handle(1, samples(0, 2)) == []
    (deliver,) = role.handle(2, samples(0, 1, 0))
    assert deliver.expect.step == 0
    assert deliver.fields["tokens"].tolist() == rows_of(0)
    assert deliver.fields["segment_ids"].tolist() == [[1, 1, 2, 0], [1, 1, 1, 1]]


def test_a_step_has_the_shape_of_its_bucket():
    role = constructor({2: RowFormat(seq_len=2), 4: RowFormat(seq_len=4)})
    role.handle(0, expect(0, lengths=((2,), (1,), (2,)), seq_len=2))
    role.handle(0, expect(1))
    (short,) = role.handle(1, samples(0, 0, 1, 2, lengths=(2, 1, 2)))
    assert short.fields["tokens"].tolist() == [[0, 0], [1, 0], [2, 2]]
    (longer,) = role.handle(1, samples(1, 0, 1, 2))
    assert longer.fields["tokens"].tolist() == [[10, 10, 11, 0], [12, 12, 12, 12]]


def test_loss_weights_are_multiplied_by_the_factor_of_the_source():
    role = constructor(loss_factors=[0.25, 3])
    role.handle(0, replace(expect(0), infos=np.concatenate([make_infos(0, [2, 1]), make_infos(1, [4])])))
    (step,) = role.handle(1, samples(0, 0, 1, 2))
    assert step.fields["loss_mask"].tolist() == [[0.25, 0, 0, 0], [3, 3, 3, 0]]


def test_rows_that_nobody_fills_are_delivered_empty():
    role = constructor()
    nothing = {name: ints() for name in ("row", "offset", "start", "length")}
    (step,) = role.handle(0, replace(expect(0), infos=make_infos(0, []), **nothing))
    assert step.fields["tokens"].tolist() == [[0] * 4] * 2


@given(st.data())
@settings(max_examples=40)
def test_any_order_of_arrival_gives_the_same_steps_in_order(data):
    role = constructor()
    messages = [expect(step) for step in range(3)]
    messages += [samples(step, index) for step in range(3) for index in range(3)]
    messages.append(m.EndOfData(step=3, error=""))
    effects = []
    for message in data.draw(st.permutations(messages)):
        effects += role.handle(0, message)
    assert delivered(effects) == [0, 1, 2]
    assert [effect.fields["tokens"].tolist() for effect in effects[:3]] == [
        rows_of(step) for step in range(3)
    ]
    assert effects[3:] == [EndStream(error=None)]
    assert not role._early
    assert not role._assembly


def test_a_step_without_samples_of_this_process_is_delivered_at_once():
    role = constructor()
    (deliver,) = role.handle(0, expect(0, lengths=((), ())))
    assert not deliver.fields["tokens"].any()


def test_a_leader_passes_samples_on_as_they_come():
    role = constructor()
    early = samples(1, 0)
    assert role.handle(1, early) == []  # whom it feeds is not known yet
    assert role.handle(0, expect(0, relay_to=[8, 9])) == []
    first = samples(0, 0, 2)
    assert role.handle(1, first) == [Send(rank=8, message=first), Send(rank=9, message=first)]
    assert role.handle(0, expect(1, relay_to=[9])) == [Send(rank=9, message=early)]


def test_a_leader_that_left_still_feeds_its_peers_but_delivers_nothing():
    role = constructor()
    role.handle(0, expect(0, relay_to=[8]))
    (said,) = role.handle(3, m.Leave())
    assert said == Send(rank=0, message=m.Leave(figures={"pss_mb": 1}))
    rest, late = samples(0, 0, 1, 2), samples(1, 0, 1, 2)
    assert role.handle(1, rest) == [Send(rank=8, message=rest)]
    assert role.handle(1, late) == []
    assert role.handle(0, expect(1, relay_to=[8])) == [Send(rank=8, message=late)]
    assert role.handle(0, m.EndOfData(step=2, error="")) == []


def test_the_end_comes_after_the_last_step_with_its_error():
    role = constructor()
    role.handle(0, expect(0))
    assert role.handle(0, m.EndOfData(step=1, error="position 9 cannot be read")) == []
    deliver, end = role.handle(1, samples(0, 0, 1, 2))
    assert isinstance(deliver, Deliver)
    assert isinstance(end.error, BadSampleError)
    assert str(end.error) == "position 9 cannot be read"
    assert constructor().handle(0, m.EndOfData(step=0, error="")) == [EndStream(error=None)]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            samples(5, 0, lengths=(3,)),
            r"step 5, sources a: segments of 2 places in all came with",
        ),
        (samples(5, 1, 1), "step 5, .*twice"),
        (replace(samples(5, 1), patches=np.zeros((1, 2), np.uint8)), "1 in all"),
    ],
)
def test_sizes_that_differ_name_step_and_source(wrong, says):
    role = constructor()
    role._next_step = 5
    role.handle(0, expect(5))
    with pytest.raises(MSDataError, match=says):
        role.handle(1, wrong)


def test_samples_of_a_step_that_was_handed_over_are_an_error():
    role = constructor()
    role.handle(0, expect(0))
    role.handle(1, samples(0, 0, 1, 2))
    with pytest.raises(MSDataError, match="samples of step 0 came after the step was handed over"):
        role.handle(1, samples(0, 1))


def test_passes_on_what_the_trainer_says():
    role = constructor()
    for message in (m.Delivered(step=3), m.Failed(message="no")):
        assert role.handle(3, message) == [Send(rank=0, message=message)]


def test_ends_with_the_summary_or_an_abort():
    assert constructor().handle(0, m.Summary(figures={"steps": 1})) == [Finish(figures={"steps": 1})]
    (finish,) = constructor().handle(0, m.Abort(rank=1, message="gone"))
    assert isinstance(finish.error, JobFailed)
    with pytest.raises(MSDataError, match="constructor got Stop from rank 0"):
        constructor().handle(0, m.Stop())
