import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import batches

from msdata_jax.batching.assembly import (
    RowAssembly,
    RowFormat,
    Segments,
    Slots,
    field_shapes,
    join_samples,
)
from msdata_jax.batching.context import place_order
from msdata_jax.records import IMAGE_TOKEN


def assemble(batch, order, form=None):
    """The batch, its segments written in `order`, a list of groups of indices."""
    assembly = RowAssembly(form or batch.form, batch.num_rows, batch.segments)
    for group in order:
        assert not assembly.complete
        index = np.array(group)
        joined = join_samples(
            [batch.samples[i] for i in group], batch.start[index], batch.segments.length[index]
        )
        assembly.write(index, joined.tokens, joined.num_patches, joined.patches)
    assert assembly.complete
    return assembly.finish()


def plain_fields(batch):
    """Place by place."""
    form, segments = batch.form, batch.segments
    fields = {
        name: np.zeros(shape, dtype) for name, (shape, dtype) in field_shapes(form, batch.num_rows).items()
    }
    if form.patches_per_row:
        fields["patch_index"][:] = -1
    number, next_patch = {}, {}
    for i, sample in enumerate(batch.samples):
        row, first = int(segments.row[i]), int(segments.offset[i])
        number[row] = number.get(row, 0) + 1
        start, length = int(batch.start[i]), int(segments.length[i])
        skipped = sum(int(t == IMAGE_TOKEN) for t in sample["tokens"][:start])
        shown = next_patch.get(row, 0)
        for k in range(length):
            token, place = int(sample["tokens"][start + k]), first + k
            fields["segment_ids"][row, place] = number[row]
            fields["positions"][row, place] = k
            if token == IMAGE_TOKEN:
                fields["patch_index"][row, place] = shown
                fields["patches"][row, shown] = sample["patches"][skipped]
                shown, skipped = shown + 1, skipped + 1
            else:
                fields["tokens"][row, place] = token
            following = int(sample["tokens"][start + k + 1]) if k + 1 < length else IMAGE_TOKEN
            if following != IMAGE_TOKEN:
                fields["targets"][row, place], fields["loss_mask"][row, place] = following, 1
        next_patch[row] = next_patch.get(row, 0) + int(segments.num_patches[i])
    return fields


def shuffled_groups(count, data):
    order = data.draw(st.permutations(range(count)))
    cuts = sorted({0, count, *data.draw(st.lists(st.integers(0, count), max_size=4))})
    return [list(order[a:b]) for a, b in itertools.pairwise(cuts)]


@given(batches(), st.data())
def test_equals_the_plain_loop_in_any_order_of_arrival(batch, data):
    fields = assemble(batch, shuffled_groups(len(batch.samples), data))
    expected = plain_fields(batch)
    assert set(fields) == set(expected)
    for name, field in fields.items():
        assert field.dtype == expected[name].dtype
        assert np.array_equal(field, expected[name]), name


@given(batches())
def test_unpack_gives_the_samples_back(batch):
    fields = assemble(batch, [list(range(len(batch.samples)))] if batch.samples else [])
    segments = batch.segments
    first_of_row = np.searchsorted(segments.row, segments.row)
    for i, sample in enumerate(batch.samples):
        row = int(segments.row[i])
        places = fields["segment_ids"][row] == i - first_of_row[i] + 1
        tokens = fields["tokens"][row, places]
        used = slice(int(batch.start[i]), int(batch.start[i] + segments.length[i]))
        if batch.form.patches_per_row:
            shown = fields["patch_index"][row, places]
            tokens = np.where(shown >= 0, IMAGE_TOKEN, tokens)
            is_image = sample["tokens"] == IMAGE_TOKEN
            patches = sample.get("patches", np.empty((0, batch.form.patch_values), np.uint8))
            expected = patches[is_image[: used.start].sum() :][: is_image[used].sum()]
            assert np.array_equal(fields["patches"][row, shown[shown >= 0]], expected)
        assert np.array_equal(tokens, sample["tokens"][used])
        assert np.array_equal(fields["positions"][row, places], np.arange(segments.length[i]))
    num_places = int(segments.length.sum())
    assert (fields["segment_ids"] > 0).sum() == num_places  # no token lost or doubled


@given(batches(), st.sampled_from([1, 2, 4]), st.sampled_from(["zigzag", "zigzag_document"]))
def test_context_layouts_only_move_places(batch, num_parts, layout):
    seq_len = 8 * (-(-batch.form.seq_len // 8))
    form = replace(batch.form, seq_len=seq_len)
    everything = [list(range(len(batch.samples)))] if batch.samples else []
    plain = assemble(batch, everything, form)
    moving = replace(form, context_parts=num_parts, context_layout=layout)
    moved = assemble(batch, everything, moving)
    order = place_order(moving, batch.segments, batch.num_rows)
    assert (order is None) == (num_parts == 1)
    for name, field in moved.items():
        back = field
        if order is not None and name != "patches":
            back = np.empty_like(field)
            for row in range(batch.num_rows):
                back[row, order if order.ndim == 1 else order[row]] = field[row]
        assert np.array_equal(back, plain[name]), name


@given(batches(), st.sampled_from(["tokens", "segments"]), st.data())
def test_loss_weights_equal_the_plain_loop(batch, loss, data):
    count = len(batch.samples)
    factors = data.draw(
        st.none() | st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.1]), min_size=count, max_size=count)
    )
    factor = None if factors is None else np.array(factors, dtype=np.float32)
    weighed = replace(
        batch, form=replace(batch.form, loss=loss), segments=replace(batch.segments, factor=factor)
    )
    fields = assemble(weighed, [list(range(count))] if count else [])
    expected = plain_fields(batch)
    for i in range(count):
        row, first = int(batch.segments.row[i]), int(batch.segments.offset[i])
        places = slice(first, first + int(batch.segments.length[i]))
        num_targets = int(expected["loss_mask"][row, places].sum())
        weight = np.float32(1) if factor is None else factor[i]
        if loss == "segments" and num_targets:
            weight = np.float32(1) / np.float32(num_targets) * weight
        expected["loss_mask"][row, places] *= weight
    for name, field in fields.items():
        assert field.dtype == expected[name].dtype
        assert np.array_equal(field, expected[name]), name


# --- by hand ------------------------------------------------------------------------------------------------


def segments(*, row, offset, length, num_patches):
    i32 = [np.array(each, dtype=np.int32) for each in (row, offset, length)]
    return Segments(
        row=i32[0], offset=i32[1], length=i32[2], num_patches=np.array(num_patches, dtype=np.int64)
    )


def two_rows():
    form = RowFormat(seq_len=6, patches_per_row=3, patch_values=2)
    return RowAssembly(
        form, 2, segments(row=[0, 0, 1], offset=[0, 4, 0], length=[4, 2, 3], num_patches=[2, 0, 1])
    )


NO_PATCHES = np.empty((0, 0), np.uint8)


def ints(*values):
    return np.array(values, dtype=np.int32)


def test_a_batch_by_hand():
    assembly = two_rows()
    assembly.write(ints(1), ints(8, 9), ints(0), NO_PATCHES)
    patches = np.array([[1, 2], [3, 4], [5, 6]], dtype=np.uint8)
    assembly.write(ints(2, 0), ints(IMAGE_TOKEN, 1, 2, 5, IMAGE_TOKEN, IMAGE_TOKEN, 7), ints(1, 2), patches)
    fields = assembly.finish()
    assert fields["tokens"].tolist() == [[5, 0, 0, 7, 8, 9], [0, 1, 2, 0, 0, 0]]
    assert fields["targets"].tolist() == [[0, 0, 7, 0, 9, 0], [1, 2, 0, 0, 0, 0]]
    assert fields["loss_mask"].tolist() == [[0, 0, 1, 0, 1, 0], [1, 1, 0, 0, 0, 0]]
    assert fields["segment_ids"].tolist() == [[1, 1, 1, 1, 2, 2], [1, 1, 1, 0, 0, 0]]
    assert fields["positions"].tolist() == [[0, 1, 2, 3, 0, 1], [0, 1, 2, 0, 0, 0]]
    assert fields["patch_index"].tolist() == [[-1, 0, 1, -1, -1, -1], [0, -1, -1, -1, -1, -1]]
    assert fields["patches"].tolist() == [[[3, 4], [5, 6], [0, 0]], [[1, 2], [0, 0], [0, 0]]]


def test_each_segment_weighs_one_by_hand():
    form = RowFormat(seq_len=6, loss="segments")
    # Three, one and no targets: the last segment has no token to predict.
    where = segments(row=[0, 0, 1], offset=[0, 4, 0], length=[4, 2, 1], num_patches=[0, 0, 0])
    factor = np.array([1, 2, 5], dtype=np.float32)
    third = np.float32(1) / np.float32(3)
    for each, expected in (
        (where, [[third, third, third, 0, 1, 0], [0] * 6]),
        (replace(where, factor=factor), [[third, third, third, 0, 2, 0], [0] * 6]),
    ):
        assembly = RowAssembly(form, 2, each)
        assembly.write(ints(0, 1, 2), ints(1, 2, 3, 4, 5, 6, 7), ints(0, 0, 0), NO_PATCHES)
        mask = assembly.finish()["loss_mask"]
        assert mask.dtype == np.float32
        assert mask.tolist() == expected


def test_a_factor_weighs_the_tokens_of_its_segment():
    where = segments(row=[0, 0], offset=[0, 2], length=[2, 2], num_patches=[0, 0])
    factor = np.array([0.5, 0], dtype=np.float32)
    assembly = RowAssembly(RowFormat(seq_len=5), 1, replace(where, factor=factor))
    assembly.write(ints(0, 1), ints(1, 2, 3, 4), ints(0, 0), NO_PATCHES)
    fields = assembly.finish()
    assert fields["loss_mask"].tolist() == [[0.5, 0, 0, 0, 0]]
    assert fields["targets"].tolist() == [[2, 0, 4, 0, 0]]


def test_rows_without_segments_are_complete_padding():
    form = RowFormat(seq_len=4)
    assembly = RowAssembly(form, 2, segments(row=[], offset=[], length=[], num_patches=[]))
    assert assembly.complete
    fields = assembly.finish()
    assert set(fields) == {"tokens", "targets", "segment_ids", "positions", "loss_mask"}
    assert all(not field.any() and field.shape == (2, 4) for field in fields.values())


ONE_PATCH = np.zeros((1, 2), np.uint8)
IMAGE = IMAGE_TOKEN


@pytest.mark.parametrize(
    ("write", "says"),
    [
        ((ints(1), ints(1, 2, 3), ints(0), NO_PATCHES), "2 places in all came with 3 tokens"),
        ((ints(1, 2), ints(1, 2), ints(0, 0), NO_PATCHES), "5 places in all came with 2 tokens"),
        ((ints(1, 1), ints(1, 2, 1, 2), ints(0, 0), NO_PATCHES), "written twice"),
        ((ints(2), ints(1, 2, 3), ints(), NO_PATCHES), "patch counts of 0"),
        (
            (ints(2), ints(IMAGE, IMAGE, 3), ints(2), np.zeros((2, 2), np.uint8)),
            r"\[1\] patches announced came with \[2\]",
        ),
        ((ints(2), ints(IMAGE, 2, 3), ints(1), NO_PATCHES), r"came with \[1\], 0 in all"),
        ((ints(2), ints(IMAGE, 2, 3), ints(1), np.zeros((1, 3), np.uint8)), r"patches have \(3,\) values"),
        ((ints(2), ints(IMAGE, 2, 3), ints(0), NO_PATCHES), "1 places show a patch and 0 patches came"),
        ((ints(2), ints(1, 2, 3), ints(1), ONE_PATCH), "0 places show a patch and 1 patches came"),
    ],
)
def test_sizes_that_the_plan_did_not_announce_are_refused(write, says):
    with pytest.raises(ValueError, match=says):
        two_rows().write(*write)


def test_a_segment_that_comes_twice_is_refused():
    assembly = two_rows()
    assembly.write(ints(1), ints(1, 2), ints(0), NO_PATCHES)
    with pytest.raises(ValueError, match="twice"):
        assembly.write(ints(1), ints(1, 2), ints(0), NO_PATCHES)


# --- join_samples -------------------------------------------------------------------------------------------


def test_join_cuts_tokens_with_the_patches_they_show():
    patches = np.arange(8, dtype=np.uint8).reshape(4, 2)
    image = {"tokens": ints(IMAGE, 1, IMAGE, IMAGE, 2, IMAGE), "patches": patches}
    text = {"tokens": ints(5, 6, 7)}
    joined = join_samples([image, text, image, image], ints(1, 0, 0, 4), ints(3, 3, 6, 1))
    assert joined.tokens.tolist() == [1, IMAGE, IMAGE, 5, 6, 7, IMAGE, 1, IMAGE, IMAGE, 2, IMAGE, 2]
    assert joined.num_patches.tolist() == [2, 0, 4, 0]
    assert joined.patches.tolist() == [*patches[1:3].tolist(), *patches.tolist()]


def test_join_of_nothing_and_of_text():
    nothing = join_samples([], ints(), ints())
    assert (len(nothing.tokens), len(nothing.num_patches), len(nothing.patches)) == (0, 0, 0)
    text = join_samples([{"tokens": ints(1, 2)}], ints(0), ints(1))
    assert (text.tokens.tolist(), text.num_patches.tolist(), len(text.patches)) == ([1], [0], 0)


def test_join_refuses_patches_of_different_sizes():
    samples = [{"tokens": ints(IMAGE), "patches": np.zeros((1, values), np.uint8)} for values in (12, 27)]
    with pytest.raises(ValueError, match=r"patches have \[12, 27\] values; all sources"):
        join_samples(samples, ints(0, 0), ints(1, 1))


# --- slots of the encoder's batch ---------------------------------------------------------------------------


def spread(batch, num_slots):
    """The segments and slots of a batch whose images are dealt to slots in turn."""
    counts = np.array([len(sample.get("patches", ())) for sample in batch.samples], dtype=np.int64)
    images = np.flatnonzero(counts)
    slot = np.full(len(counts), -1)
    slot[images] = np.arange(len(images)) % num_slots
    first = np.zeros(len(counts), dtype=np.int64)
    for each in range(num_slots):
        mine = slot == each
        first[mine] = np.cumsum(counts[mine]) - counts[mine]
    capacity = int(counts.sum()) + 1
    images = images[np.argsort(slot[images], kind="stable")]
    slots = Slots(
        num_slots=num_slots,
        patches_per_slot=capacity,
        slot=slot[images].astype(np.int32),
        first=first[images].astype(np.int32),
        num_patches=counts[images].astype(np.int32),
    )
    return replace(batch.segments, first_patch=slot * capacity + first), slots, images


@given(batches(), st.integers(1, 3), st.data())
def test_places_find_their_patches_in_the_slots(batch, num_slots, data):
    expected = plain_fields(batch)
    segments, slots, images = spread(batch, num_slots)
    assembly = RowAssembly(batch.form, batch.num_rows, segments, slots)
    for group in shuffled_groups(len(batch.samples), data):
        index = np.array(group)
        samples, cut = [batch.samples[i] for i in group], (batch.start[index], segments.length[index])
        joined = join_samples(samples, *cut, "tokens")
        assert not len(joined.patches)
        assembly.write(index, joined.tokens, joined.num_patches, joined.patches)
    assert assembly.complete == (not len(images))
    for group in shuffled_groups(len(images), data):
        mine = images[group]
        samples, cut = [batch.samples[i] for i in mine], (batch.start[mine], segments.length[mine])
        joined = join_samples(samples, *cut, "patches")
        assert not len(joined.tokens)
        assembly.write_patches(np.array(group), joined.num_patches, joined.patches)
    assert assembly.complete
    fields = assembly.finish()
    for name, field in expected.items():
        if not name.startswith("patch"):
            assert np.array_equal(fields[name], field), name
    if not batch.form.patches_per_row:
        return
    shown = expected["patch_index"] >= 0
    assert np.array_equal(fields["patch_index"] >= 0, shown)
    rows, places = np.nonzero(shown)
    flat = fields["patches"].reshape(-1, batch.form.patch_values)
    wanted = expected["patches"][rows, expected["patch_index"][rows, places]]
    assert np.array_equal(flat[fields["patch_index"][rows, places]], wanted)
    # Patches of one sample have one number, those of another in the same slot another, and padding none.
    numbers = fields["patch_segment_ids"].reshape(-1)[fields["patch_index"][rows, places]]
    slot = fields["patch_index"][rows, places] // slots.patches_per_slot
    segment = expected["segment_ids"][rows, places]
    pairs = {(int(s), int(n)): set() for s, n in zip(slot, numbers, strict=True)}
    for s, n, row, each in zip(slot, numbers, rows, segment, strict=True):
        pairs[int(s), int(n)].add((int(row), int(each)))
    assert all(len(samples) == 1 for samples in pairs.values())
    assert np.count_nonzero(fields["patch_segment_ids"]) == shown.sum()


def test_images_that_come_twice_or_have_no_slot_are_refused():
    segments = Segments(
        row=np.zeros(1, np.int32),
        offset=np.zeros(1, np.int32),
        length=np.ones(1, np.int32),
        num_patches=np.ones(1, np.int64),
        first_patch=np.zeros(1, np.int64),
    )
    form = RowFormat(seq_len=2, patches_per_row=1, patch_values=3)
    one, zero = np.ones(1, np.int32), np.zeros(1, np.int32)
    slots = Slots(num_slots=1, patches_per_slot=2, slot=zero, first=zero, num_patches=one)
    patches = np.full((1, 3), 7, np.uint8)
    assembly = RowAssembly(form, 1, segments, slots)
    with pytest.raises(ValueError, match=r"\[1\] patches announced came with \[2\], 2 in all"):
        assembly.write_patches(zero, one * 2, np.repeat(patches, 2, axis=0))
    with pytest.raises(ValueError, match="patch_values=3"):
        assembly.write_patches(zero, one, patches[:, :2])
    assembly.write_patches(zero, one, patches)
    with pytest.raises(ValueError, match="twice"):
        assembly.write_patches(zero, one, patches)
    with pytest.raises(ValueError, match="no slot"):
        RowAssembly(form, 1, segments).write_patches(zero, one, patches)
