import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import trees

from msdata_jax.errors import RecipeError
from msdata_jax.planning.place_diff import fetch_diff
from msdata_jax.planning.place_tree import ClientPlaceTree, MeshLayout


def tree(names, sizes, processes, **options):
    layout = MeshLayout(axis_names=names, axis_sizes=sizes, process_of_device=processes)
    return ClientPlaceTree(layout, **options)


def held_rows(tree, axes, num_rows):
    """For each process with data the rows of its devices, device by device."""
    rows_per_part = num_rows // tree.axis_size(axes)
    held = {process: set() for process in tree.processes}
    for part, process in zip(tree.part_of_devices(axes).tolist(), tree.layout.process_of_device, strict=True):
        if tree.needs_data(process):
            held[process] |= set(range(part * rows_per_part, (part + 1) * rows_per_part))
    return held


@st.composite
def changes(draw):
    """Two trees, the axes that cut their rows, and rows that divide by both."""
    both = [draw(trees()), draw(trees())]
    cuts = []
    for each in both:
        free = [axis for axis in each.layout.axis_names if axis != each.pipeline_axis]
        cuts.append(tuple(draw(st.lists(st.sampled_from(free), unique=True, max_size=2)) if free else ()))
    sizes = [each.axis_size(axes) for each, axes in zip(both, cuts, strict=True)]
    return *both, *cuts, int(np.lcm(*sizes)) * draw(st.integers(1, 2))


@given(changes())
def test_equals_the_plain_loop(case):
    before, after, axes_before, axes_after, num_rows = case
    diffs = fetch_diff(before, after, axes_before, axes_after, num_rows)
    held, needed = held_rows(before, axes_before, num_rows), held_rows(after, axes_after, num_rows)
    assert [diff.process for diff in diffs] == sorted({*held, *needed})
    for diff in diffs:
        had, wants = held.get(diff.process, set()), needed.get(diff.process, set())
        assert diff.kept.tolist() == sorted(had & wants)
        assert diff.fetched.tolist() == sorted(wants - had)
        assert diff.dropped.tolist() == sorted(had - wants)
        assert diff.holders == tuple(
            tuple(sorted(p for p, rows in held.items() if row in rows)) for row in diff.fetched.tolist()
        )
        if before.pipeline_axis is None:
            assert all(diff.holders)


@given(changes())
def test_the_same_mesh_fetches_nothing(case):
    before, _, axes, _, num_rows = case
    for diff in fetch_diff(before, before, axes, axes, num_rows):
        assert not len(diff.fetched)
        assert not len(diff.dropped)


def test_by_hand():
    # Four groups of two processes become two groups of three; processes 6 and 7 leave.
    before = tree(("dp", "tp"), (4, 2), tuple(range(8)))
    after = tree(("dp", "tp"), (2, 3), tuple(range(6)))
    diffs = fetch_diff(before, after, "dp", "dp", 8)
    assert [diff.describe() for diff in diffs] == [
        "process 0: keeps 2 rows (0-1), fetches 2 rows (2-3) from 2-3, drops 0 rows",
        "process 1: keeps 2 rows (0-1), fetches 2 rows (2-3) from 2-3, drops 0 rows",
        "process 2: keeps 2 rows (2-3), fetches 2 rows (0-1) from 0-1, drops 0 rows",
        "process 3: keeps 0 rows, fetches 4 rows (4-7) from 4-7, drops 2 rows (2-3)",
        "process 4: keeps 2 rows (4-5), fetches 2 rows (6-7) from 6-7, drops 0 rows",
        "process 5: keeps 2 rows (4-5), fetches 2 rows (6-7) from 6-7, drops 0 rows",
        "process 6: keeps 0 rows, fetches 0 rows, drops 2 rows (6-7)",
        "process 7: keeps 0 rows, fetches 0 rows, drops 2 rows (6-7)",
    ]
    assert diffs[3].holders == ((4, 5), (4, 5), (6, 7), (6, 7))


def test_rows_that_do_not_divide_are_refused():
    four, three = tree(("dp",), (4,), (0, 1, 2, 3)), tree(("dp",), (3,), (0, 1, 2))
    with pytest.raises(RecipeError, match="8 rows do not divide by 3 parts along 'dp'; give a number"):
        fetch_diff(four, three, "dp", "dp", 8)
    with pytest.raises(RecipeError, match="no axis 'tp'"):
        fetch_diff(four, three, "tp", "dp", 12)
