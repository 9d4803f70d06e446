import contextlib
from dataclasses import fields, replace

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import make_infos

from msdata_jax.plan import PlanError, StepPlan


def make_plan(**changes):
    """Two rows: segments of 3 and 2 places, and one of 4; a third row stays empty."""

    def i32(*values):
        return np.array(values, dtype=np.int32)

    plan = StepPlan(
        step=7,
        samples=make_infos(0, [3, 2, 9], patches=[1, 0, 2]),
        row=i32(0, 0, 1),
        offset=i32(0, 3, 0),
        start=i32(0, 0, 5),
        length=i32(3, 2, 4),
        num_rows=4,
        seq_len=5,
        patches_per_row=2,
        row_cost=np.array([4, 4, 0, 0]),
        row_encoder_cost=np.array([1, 0, 0, 0]),
        row_memory=np.array([50, 40, 0, 0]),
        order=i32(1, 2, 0, 3),
        num_groups=2,
        num_microbatches=2,
        dropped=make_infos(0, []),
    )
    return replace(plan, **{name: i32(*v) if isinstance(v, list) else v for name, v in changes.items()})


def test_a_good_plan_passes_and_an_empty_one_too():
    make_plan().check()
    nothing = np.empty(0, dtype=np.int32)
    fields = dict.fromkeys(("row", "offset", "start", "length"), nothing)
    make_plan(samples=make_infos(0, []), **fields).check()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"samples": make_infos(0, [3, 2, 9], positions=[1, 1, 2])}, "placed twice"),
        ({"order": [1, 2, 0, 0]}, "order is no permutation of 4 rows"),
        ({"num_microbatches": 3}, "4 rows do not divide by 2 groups x 3 microbatches"),
        ({"row": [0, 1, 0], "offset": [0, 0, 0]}, "rows are not in order"),
        ({"row": [1, 1, 4]}, "rows are not in order from 0 to 3"),
        ({"row": [-1, -1, 0]}, "rows are not in order"),
        ({"offset": [0, 2, 0]}, "do not tile"),
        ({"offset": [0, 4, 0]}, "do not tile"),
        ({"offset": [1, 4, 0]}, "do not tile"),
        ({"offset": [0, 3, 1]}, "do not tile"),
        ({"length": [3, 0, 4]}, "empty or ends behind place 5"),
        ({"seq_len": 4}, "empty or ends behind place 4"),
        ({"start": [0, 0, 6]}, "more tokens than its sample has"),
        ({"start": [-1, 0, 5]}, "more tokens than its sample has"),
        ({"patches_per_row": 1}, "a row has more than 1 patches"),
    ],
)
def test_a_broken_law_is_named(changes, says):
    with pytest.raises(PlanError, match=f"step 7: .*{says}"):
        make_plan(**changes).check()


def test_parts_of_one_sample_are_no_repetition():
    samples = make_infos(0, [9, 9, 9], positions=[4, 4, 5])
    make_plan(samples=samples, start=[0, 3, 0], patches_per_row=0).check()


def test_figures_by_hand():
    plan = make_plan()
    assert plan.fill == 9 / 20
    assert plan.group_costs().tolist() == [4, 5]
    assert plan.group_costs(np.arange(4)).tolist() == [9, 0]


def test_digests_cover_content_and_placement():
    plan = make_plan()
    assert len(plan.digest) == 32
    assert plan.digest == make_plan().digest != plan.content_digest
    moved = make_plan(order=[0, 1, 2, 3])
    assert moved.content_digest == plan.content_digest
    assert moved.digest != plan.digest
    for changes in (
        {"step": 8},
        {"samples": make_infos(1, [3, 2, 9])},
        {"samples": make_infos(0, [3, 2, 9], parts=[0, 0, 1])},
        {"row": [0, 1, 1]},
        {"offset": [0, 2, 0]},
        {"start": [0, 0, 4]},
        {"length": [3, 2, 3]},
        {"num_rows": 5},
        {"seq_len": 6},
        {"patches_per_row": 3},
    ):
        assert make_plan(**changes).content_digest != plan.content_digest, changes
    assert make_plan(num_groups=1).digest != plan.digest
    assert make_plan(num_microbatches=1).digest != plan.digest


def test_digest_is_pinned():
    # Changes only with PLAN_VERSION: states and logs of older versions are compared by it.
    assert make_plan().digest == "f51b4eceb3f7ed68004b4c70fb3b4164"


# --- bytes --------------------------------------------------------------------------------------------------


def plans_with_columns():
    samples = make_infos(0, [3, 2, 9], patches=[1, 0, 2], columns=("frames", "quality"))
    samples["frames"] = [7, 8, 9]
    dropped = make_infos(1, [99], columns=("frames", "quality"))
    return make_plan(samples=samples, dropped=dropped, balanced_by="lpt", note="row 3 is – empty")


@pytest.mark.parametrize("make", [make_plan, plans_with_columns])
def test_bytes_bring_the_plan_back(make):
    plan = make()
    back = StepPlan.from_bytes(plan.to_bytes())
    for each in fields(StepPlan):
        ours, theirs = getattr(plan, each.name), getattr(back, each.name)
        assert np.array_equal(ours, theirs), each.name
        assert type(ours) is type(theirs)
    assert back.digest == plan.digest
    back.samples["tokens"] = 1  # arrays of its own
    assert back.to_bytes() != plan.to_bytes()


def test_bytes_that_are_no_plan_are_refused():
    good = make_plan().to_bytes()
    for cut in range(len(good)):
        with pytest.raises(PlanError):
            StepPlan.from_bytes(good[:cut])
    with pytest.raises(PlanError, match="cut off"):
        StepPlan.from_bytes(good + b"1")


@given(st.integers(0, 200), st.integers(0, 255))
def test_a_flipped_byte_of_the_header_breaks_nothing_else(place, value):
    good = make_plan().to_bytes()
    bad = bytearray(good)
    bad[place] = value
    with contextlib.suppress(PlanError):
        StepPlan.from_bytes(bytes(bad))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": 1}, "of version 1; this msdata_jax reads 2"),
        ({"num_segments": 2**40}, "lacks fields"),
        ({"num_segments": 10**6}, "it is cut off"),
        ({"num_rows": -1}, "lacks fields"),
        ({"columns": ["frames", 3]}, "lacks fields"),
        ({"columns": ["tokens"]}, "names of columns"),
        ({"note": b"x"}, "lacks fields"),
    ],
)
def test_headers_are_checked(changes, says):
    good = make_plan().to_bytes()
    size = int.from_bytes(good[:4], "little")
    head = msgpack.packb({**msgpack.unpackb(good[4 : 4 + size]), **changes})
    with pytest.raises(PlanError, match=says):
        StepPlan.from_bytes(len(head).to_bytes(4, "little") + head + good[4 + size :])
