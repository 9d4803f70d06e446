from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roles.played import make_join, make_placement, make_recipe
from strategies import batches, make_infos

from msdata_jax.batching.assembly import RowFormat, join_samples
from msdata_jax.errors import BadSampleError, JobFailed, MSDataError
from msdata_jax.records import IMAGE_TOKEN
from msdata_jax.roles import messages as m
from msdata_jax.roles.data_constructor import DataConstructor
from msdata_jax.roles.effects import Deliver, EndStream, Finish, Forget, Send, Show


def constructor(forms=None, loss_factors=None, num_constructors=1):
    forms = forms or {4: RowFormat(seq_len=4)}
    placement = make_placement(num_constructors=num_constructors)
    return DataConstructor(placement, forms, lambda: {"pss_mb": 1}, loss_factors, ["a", "b"])


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
        imbalance=1.0,
        imbalance_unbalanced=1.0,
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


def shown(effects):
    """Steps up to which the trainer may have them."""
    return [effect.step for effect in effects if isinstance(effect, Show)]


def test_says_that_it_is_built_and_joins_when_the_trainer_does():
    role = constructor()
    assert role.start() == [Send(rank=0, message=m.Built())]
    assert role.tick(10**6) == []
    join = make_join(make_recipe())
    assert role.handle(3, join) == [Send(rank=0, message=join)]


def test_delivers_a_step_when_its_last_sample_came():
    role = constructor()
    assert role.handle(0, expect(0)) == []
    assert role.handle(1, samples(0, 2)) == []
    deliver, show = role.handle(2, samples(0, 1, 0))
    assert deliver.expect.step == 0
    assert show == Show(step=0)  # nobody else need have it
    assert deliver.fields["tokens"].tolist() == rows_of(0)
    assert deliver.fields["segment_ids"].tolist() == [[1, 1, 2, 0], [1, 1, 1, 1]]


def test_a_step_has_the_shape_of_its_bucket():
    role = constructor({2: RowFormat(seq_len=2), 4: RowFormat(seq_len=4)})
    role.handle(0, expect(0, lengths=((2,), (1,), (2,)), seq_len=2))
    role.handle(0, expect(1))
    short, _ = role.handle(1, samples(0, 0, 1, 2, lengths=(2, 1, 2)))
    assert short.fields["tokens"].tolist() == [[0, 0], [1, 0], [2, 2]]
    longer, _ = role.handle(1, samples(1, 0, 1, 2))
    assert longer.fields["tokens"].tolist() == [[10, 10, 11, 0], [12, 12, 12, 12]]


def test_loss_weights_are_multiplied_by_the_factor_of_the_source():
    role = constructor(loss_factors=[0.25, 3])
    role.handle(0, replace(expect(0), infos=np.concatenate([make_infos(0, [2, 1]), make_infos(1, [4])])))
    step, _ = role.handle(1, samples(0, 0, 1, 2))
    assert step.fields["loss_mask"].tolist() == [[0.25, 0, 0, 0], [3, 3, 3, 0]]


def test_rows_that_nobody_fills_are_delivered_empty():
    role = constructor()
    nothing = {name: ints() for name in ("row", "offset", "start", "length")}
    step, _ = role.handle(0, replace(expect(0), infos=make_infos(0, []), **nothing))
    assert step.fields["tokens"].tolist() == [[0] * 4] * 2


@given(st.data())
@settings(max_examples=40)
def test_any_order_of_arrival_gives_the_same_steps_in_order(data):
    """Samples come before or after they are expected; what the planner says comes in its order."""
    role = constructor()
    from_planner = [expect(0), expect(1), expect(2), m.EndOfData(step=3, error="")]
    messages = [samples(step, index) for step in range(3) for index in range(3)]
    turns = data.draw(st.permutations([None] * len(from_planner) + messages))
    effects = []
    for message in turns:
        effects += role.handle(0, message or from_planner.pop(0))
    assert delivered(effects) == [0, 1, 2]
    fields = [each.fields["tokens"].tolist() for each in effects if isinstance(each, Deliver)]
    assert fields == [rows_of(step) for step in range(3)]
    assert effects[-1] == EndStream(error=None)
    assert max(shown(effects)) == 2
    for place, effect in enumerate(effects):  # nothing is shown before it is there
        assert not isinstance(effect, Show) or effect.step in delivered(effects[:place])
    assert not role._early
    assert not role._assembly


def test_a_step_without_samples_of_this_process_is_delivered_at_once():
    role = constructor()
    deliver, _ = role.handle(0, expect(0, lengths=((), ())))
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
    assert said == Send(rank=0, message=m.Leave(figures={"pss_mb": 1, "repeated_segments": 0}))
    rest, late = samples(0, 0, 1, 2), samples(1, 0, 1, 2)
    assert role.handle(1, rest) == [Send(rank=8, message=rest)]
    assert role.handle(1, late) == []
    assert role.handle(0, expect(1, relay_to=[8])) == [Send(rank=8, message=late)]
    assert role.handle(0, m.EndOfData(step=2, error="")) == []


def test_the_end_comes_after_the_last_step_with_its_error():
    role = constructor()
    role.handle(0, expect(0))
    assert role.handle(0, m.EndOfData(step=1, error="position 9 cannot be read")) == []
    deliver, show, end = role.handle(1, samples(0, 0, 1, 2))
    assert isinstance(deliver, Deliver)
    assert show == Show(step=0)
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
    role.handle(0, expect(5))
    with pytest.raises(MSDataError, match=says):
        role.handle(1, wrong)


# --- samples that come again --------------------------------------------------------------------------------


def left(role):
    """The figures with which a constructor leaves."""
    (said,) = role.handle(3, m.Leave())
    return said.message.figures


def test_samples_that_came_already_are_dropped_and_counted():
    role = constructor()
    role.handle(0, expect(0))
    assert role.handle(1, samples(0, 0, 2)) == []
    assert role.handle(2, samples(0, 2, 0)) == []  # all of it again, in another order
    deliver, _ = role.handle(2, samples(0, 0, 1))  # a part of it again
    assert deliver.fields["tokens"].tolist() == rows_of(0)
    assert role.handle(2, samples(0, 1)) == []  # of a step that is complete
    assert left(role)["repeated_segments"] == 4


def test_other_bytes_in_a_repeated_sample_change_nothing():
    role = constructor()
    role.handle(0, expect(0))
    role.handle(1, samples(0, 2))
    again = samples(0, 2, 1)
    deliver, _ = [*role.handle(2, replace(again, tokens=again.tokens + 50)), *role.handle(1, samples(0, 0))]
    assert deliver.fields["tokens"].tolist() == [[0, 0, 51, 0], [2, 2, 2, 2]]


def test_a_leader_passes_repeated_samples_on_while_its_peers_may_lack_them():
    role = constructor(num_constructors=2)
    role.handle(0, expect(0, relay_to=[4]))
    first, again, rest = samples(0, 0, 2), samples(0, 2), samples(0, 1)
    assert role.handle(1, first) == [Send(rank=4, message=first)]
    assert role.handle(2, again) == [Send(rank=4, message=again)]
    relay, *_ = role.handle(2, rest)
    assert relay == Send(rank=4, message=rest)
    assert role.handle(2, again) == []  # the peers were sent all of this step


def expect_batch(batch, step):
    """What brings a process the rows of a batch."""
    infos = make_infos(0, [len(sample["tokens"]) for sample in batch.samples], batch.segments.num_patches)
    columns = {name: getattr(batch.segments, name) for name in ("row", "offset", "length")}
    plain = expect(step, lengths=[()] * batch.num_rows, seq_len=batch.form.seq_len)
    return replace(plain, infos=infos, start=batch.start.astype(np.int32), **columns)


def samples_of(batch, step, group):
    index = np.array(group, dtype=np.int64)
    joined = join_samples([batch.samples[i] for i in group], batch.start[index], batch.segments.length[index])
    return m.Samples(
        step=step,
        index=index.astype(np.int32),
        for_slots=False,
        tokens=joined.tokens,
        num_patches=joined.num_patches,
        patches=joined.patches,
    )


@given(batches(), st.data())
@settings(max_examples=100)
def test_rows_are_the_same_however_often_their_samples_come(batch, data):
    """As several loaders send them that are lost, one after another: any parts of it, in any order."""
    count = len(batch.samples)
    forms = {batch.form.seq_len: batch.form}
    plain, role = constructor(forms), constructor(forms)
    effects = plain.handle(0, expect_batch(batch, 0))
    if count:
        effects = plain.handle(1, samples_of(batch, 0, range(count)))
    (expected, _), repeated, missing = effects, 0, set(range(count))
    got = list(role.handle(0, expect_batch(batch, 0)))
    some = st.lists(st.integers(0, count - 1), unique=True, min_size=1) if count else st.nothing()
    while missing:
        group = data.draw(some | st.just(sorted(missing)))
        got += role.handle(1, samples_of(batch, 0, group))
        repeated += len(group) - len(missing & set(group))
        missing -= set(group)
    (deliver, _) = got
    for name, field in expected.fields.items():
        assert np.array_equal(deliver.fields[name], field), name
    assert left(role)["repeated_segments"] == repeated


def test_images_of_slots_that_came_already_are_dropped_and_counted():
    form = RowFormat(seq_len=4, patches_per_row=4, patch_values=2)
    role = constructor({4: form})
    two = replace(
        expect(0, lengths=((2,), (2,))),
        infos=make_infos(0, [2, 2], [1, 2]),
        num_slots=1,
        patches_per_slot=4,
        first_patch=np.array([0, 1]),
        slot=ints(0, 0),
        slot_first=ints(0, 1),
        slot_patches=ints(1, 2),
    )

    def images(*index):
        patches = np.concatenate([np.full((1 + i, 2), 7 + i, np.uint8) for i in index])
        return m.Samples(
            step=0,
            index=ints(*index),
            for_slots=True,
            tokens=ints(),
            num_patches=ints(*(1 + i for i in index)),
            patches=patches,
        )

    def texts(*index):
        tokens = {0: [IMAGE_TOKEN, 5], 1: [IMAGE_TOKEN, IMAGE_TOKEN]}
        return m.Samples(
            step=0,
            index=ints(*index),
            for_slots=False,
            tokens=np.concatenate([ints(*tokens[i]) for i in index]),
            num_patches=ints(*(1 + i for i in index)),
            patches=np.empty((0, 0), np.uint8),
        )

    role.handle(0, two)
    assert role.handle(1, images(1)) == []
    assert role.handle(1, texts(1)) == []
    assert role.handle(2, images(1, 0)) == []
    assert role.handle(2, images(0)) == []
    deliver, _ = role.handle(2, texts(0, 1))
    assert deliver.fields["patches"][0].tolist() == [[7, 7], [8, 8], [8, 8], [0, 0]]
    assert deliver.fields["patch_index"].tolist() == [[0, -1, -1, -1], [1, 2, -1, -1]]
    assert left(role)["repeated_segments"] == 3


# --- several training processes -----------------------------------------------------------------------------


def test_nothing_is_shown_before_all_processes_have_it():
    role = constructor(num_constructors=2)
    role.handle(0, expect(0))
    deliver, said = role.handle(1, samples(0, 0, 1, 2))
    assert (deliver.expect.step, said) == (0, Send(rank=0, message=m.Complete(step=0)))
    assert role.handle(1, samples(2, 0, 1, 2)) == []
    assert role.handle(0, expect(2)) == []  # it is complete, but the one before it is not
    role.handle(0, expect(1))
    *steps, said = role.handle(1, samples(1, 0, 1, 2))
    assert delivered(steps) == [1, 2]
    assert said == Send(rank=0, message=m.Complete(step=2))  # of all of them, once
    assert role.handle(0, m.Visible(step=1)) == [Show(step=1)]
    assert role.handle(0, m.Visible(step=2)) == [Show(step=2)]


def test_the_end_waits_until_the_steps_before_it_are_shown():
    role = constructor(num_constructors=2)
    role.handle(0, expect(0))
    assert role.handle(0, m.EndOfData(step=1, error="")) == []
    deliver, said = role.handle(1, samples(0, 0, 1, 2))
    assert (delivered([deliver]), said.message) == ([0], m.Complete(step=0))
    assert role.handle(0, m.Visible(step=0)) == [Show(step=0), EndStream(error=None)]


def test_data_may_end_before_a_step_that_is_complete_here_alone():
    role = constructor(num_constructors=2)
    for step in range(3):
        role.handle(0, expect(step))
        role.handle(1, samples(step, 0, 1, 2))
    assert role.handle(0, m.Visible(step=0)) == [Show(step=0)]
    (end,) = role.handle(0, m.EndOfData(step=1, error="no source loader is left"))
    assert str(end.error) == "no source loader is left"


def test_an_end_that_comes_sooner_than_was_said_counts():
    role = constructor(num_constructors=2)
    role.handle(0, expect(0))
    role.handle(0, expect(1))
    assert role.handle(0, m.EndOfData(step=2, error="")) == []
    role.handle(1, samples(0, 0, 1, 2))
    role.handle(0, m.Visible(step=0))
    (end,) = role.handle(0, m.EndOfData(step=1, error="no source loader is left"))
    assert str(end.error) == "no source loader is left"


def test_goes_on_without_a_loader_but_without_nobody_else():
    role = constructor(num_constructors=2)
    assert role.handle(0, m.Lost(rank=1, why="killed")) == [Forget(rank=1, why="killed")]
    noticed = m.Lost(rank=2, why="killed")  # by this rank: the planner has others send what was under way
    assert role.handle(3, noticed) == [Forget(rank=2, why="killed"), Send(rank=0, message=noticed)]
    for rank in (0, 4):
        with pytest.raises(JobFailed, match="lost contact: killed") as failed:
            role.handle(3, m.Lost(rank=rank, why="killed"))
        assert failed.value.rank == rank


# --- the state to go on with --------------------------------------------------------------------------------


def state_after(step):
    return m.StateAfter(step=step, changed={"step": b"%d" % step}, removed=[])


@given(st.integers(0, 9), st.data())
@settings(max_examples=40)
def test_each_step_brings_the_state_behind_it(first, data):
    """The first one also what stood before it. What the planner says comes in its order."""
    role = constructor(num_constructors=data.draw(st.integers(1, 2)))
    steps = range(first, first + 3)
    from_planner = [state_after(first - 1)]
    for step in steps:
        some = data.draw(st.sampled_from([((2, 1), (4,)), ((), ())]))  # some have nothing for this process
        from_planner += [state_after(step), expect(step, lengths=some)]
    wanted = [each.step for each in from_planner if isinstance(each, m.Expect) and len(each.infos)]
    messages = [samples(step, index) for step in wanted for index in range(3)]
    turns = data.draw(st.permutations([None] * len(from_planner) + messages))
    effects = []
    for message in turns:
        effects += role.handle(0, message or from_planner.pop(0))
    brought = [[state.step for state in each.states] for each in effects if isinstance(each, Deliver)]
    assert brought == [[first - 1, first], [first + 1], [first + 2]]


def test_passes_on_what_the_trainer_says():
    role = constructor()
    for message in (m.Delivered(step=3), m.Failed(message="no")):
        assert role.handle(3, message) == [Send(rank=0, message=message)]


def test_ends_with_the_summary_or_an_abort():
    assert constructor().handle(0, m.Summary(figures={"steps": 1})) == [Finish(figures={"steps": 1})]
    (finish,) = constructor().handle(0, m.Abort(rank=1, message="gone"))
    assert isinstance(finish.error, JobFailed)
    with pytest.raises(MSDataError, match="constructor got Stop from rank 0"):
        constructor().handle(0, m.Stop(lost=[]))
