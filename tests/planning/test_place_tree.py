import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import layouts, specs

from msdata_jax.errors import RecipeError
from msdata_jax.planning.place_tree import ClientPlaceTree, MeshLayout, single_process_layout

PROGRAM = Path(__file__).with_name("windows_program.py")


def layout_and_spec():
    return layouts().flatmap(lambda layout: st.tuples(st.just(layout), specs(layout)))


def plain_windows(layout, spec, shape):
    """Device by device: the first axis of an entry is the outermost."""
    found = []
    for place in itertools.product(*map(range, layout.axis_sizes)):
        at = dict(zip(layout.axis_names, zip(place, layout.axis_sizes, strict=True), strict=True))
        window = []
        for dim, size in enumerate(shape):
            axes = spec[dim] if dim < len(spec) else None
            part, parts = 0, 1
            for axis in (axes,) if isinstance(axes, str) else axes or ():
                part, parts = part * at[axis][1] + at[axis][0], parts * at[axis][1]
            window.append(slice(part * size // parts, (part + 1) * size // parts))
        found.append(tuple(window))
    return found


@given(layout_and_spec())
def test_windows_equal_the_plain_loop(case):
    layout, (spec, shape) = case
    assert ClientPlaceTree(layout).windows(spec, shape) == plain_windows(layout, spec, shape)


@given(layout_and_spec())
def test_windows_tile_the_array_and_replicas_are_equal(case):
    layout, (spec, shape) = case
    seen = np.zeros(shape, dtype=int)
    for window in ClientPlaceTree(layout).windows(spec, shape):
        seen[window] += 1
    assert len(np.unique(seen)) == 1  # every element on equally many devices
    windows = {tuple((s.start, s.stop) for s in w) for w in ClientPlaceTree(layout).windows(spec, shape)}
    sizes = [np.prod([stop - start for start, stop in window]) for window in windows]
    assert sum(sizes) == np.prod(shape)  # distinct ones do not overlap


@given(layout_and_spec())
def test_rows_of_process_are_those_of_its_windows(case):
    layout, (spec, shape) = case
    tree = ClientPlaceTree(layout)
    axes = spec[0] if spec else None
    windows = tree.windows(spec, shape)
    for process in range(max(layout.process_of_device) + 1):
        owned = [w for w, p in zip(windows, layout.process_of_device, strict=True) if p == process]
        expected = sorted({row for window in owned for row in range(shape[0])[window[0]]})
        assert tree.rows_of_process(process, axes, shape[0]).tolist() == expected


@given(layouts(), st.data())
def test_peers_hold_the_same_places_and_one_leads(layout, data):
    chosen = data.draw(st.lists(st.sampled_from(layout.axis_names), unique=True)) if layout.axis_names else []
    tree = ClientPlaceTree(layout, tuple(chosen))
    kept = [axis for axis in layout.axis_names if axis not in chosen]
    places = {}
    for process in set(layout.process_of_device):
        mine = np.array(layout.process_of_device) == process
        places[process] = set(
            zip(*(tree.part_of_devices(axis)[mine].tolist() for axis in kept), strict=True) if kept else [()]
        )
    for process, held in places.items():
        peers = tree.peers_of_process(process)
        assert peers == sorted(p for p, theirs in places.items() if theirs == held)
        assert tree.leader_of_process(process) == peers[0]
        assert all(tree.peers_of_process(peer) == peers for peer in peers)


def layout(names, sizes, processes):
    return MeshLayout(axis_names=names, axis_sizes=sizes, process_of_device=processes)


def test_leaders_by_hand():
    # dp 2 x tp 4 over 4 processes of 2 devices: tp spans two processes.
    spanning = layout(("dp", "tp"), (2, 4), (0, 0, 1, 1, 2, 2, 3, 3))
    tree = ClientPlaceTree(spanning, ("tp",))
    assert [tree.leader_of_process(p) for p in range(4)] == [0, 0, 2, 2]
    assert [tree.peers_of_process(p) for p in range(4)] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert [ClientPlaceTree(spanning).leader_of_process(p) for p in range(4)] == [0, 1, 2, 3]
    # tp inside one process: nobody to relay to.
    inside = ClientPlaceTree(layout(("dp", "tp"), (2, 2), (0, 0, 1, 1)), ("tp",))
    assert [inside.peers_of_process(p) for p in range(2)] == [[0], [1]]
    # The same mesh with tp outermost: processes alternate.
    turned = ClientPlaceTree(layout(("tp", "dp"), (2, 2), (0, 1, 2, 3)), ("tp",))
    assert [turned.peers_of_process(p) for p in range(4)] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    everyone = ClientPlaceTree(spanning, ("dp", "tp"))
    assert everyone.peers_of_process(3) == [0, 1, 2, 3]


def test_rows_by_hand():
    tree = ClientPlaceTree(layout(("tp", "dp"), (2, 2), (0, 1, 0, 1)))
    assert tree.rows_of_process(0, "dp", 6).tolist() == [0, 1, 2]
    assert tree.rows_of_process(1, "dp", 6).tolist() == [3, 4, 5]
    assert tree.rows_of_process(1, None, 3).tolist() == [0, 1, 2]
    assert tree.rows_of_process(0, ("dp", "tp"), 8).tolist() == [0, 1, 2, 3]
    assert tree.rows_of_process(0, ("tp", "dp"), 8).tolist() == [0, 1, 4, 5]
    assert tree.rows_of_process(7, "dp", 6).tolist() == []


def test_a_mesh_without_axes_is_one_device():
    tree = ClientPlaceTree(layout((), (), (0,)))
    assert tree.windows((None,), (4,)) == [(slice(0, 4),)]
    assert tree.rows_of_process(0, None, 2).tolist() == [0, 1]
    assert tree.peers_of_process(0) == [0]
    assert single_process_layout(["dp", "tp"]).axis_sizes == (1, 1)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda t: t.axis_size("pp"), r"axes \('dp', 'tp'\); it has no axis 'pp'"),
        (lambda t: t.windows(("dp",), (3,)), "dim 0 of size 3 along 'dp' into 2 equal parts"),
        (lambda t: t.windows((None, ("dp", "tp")), (1, 12)), r"dim 1 of size 12 along \('dp', 'tp'\) into 8"),
        (lambda t: t.check_spec("tokens", ("dp", "tp"), (4,)), r"specs\['tokens'\] .* more entries"),
        (lambda t: t.check_spec("tokens", ("dp", ("tp", "dp")), (8, 8)), "an axis twice"),
        (lambda t: ClientPlaceTree(t.layout, ("ep",)), "no axis 'ep'"),
        (lambda t: layout(("dp",), (2, 2), (0,) * 4), "one size for each"),
        (lambda t: layout(("dp", "dp"), (2, 2), (0,) * 4), "distinct axes"),
        (lambda t: layout(("dp",), (4,), (0, 0)), r"a mesh of \(4,\) has 4 devices, got 2"),
    ],
)
def test_errors_name_the_axis_and_the_sizes(call, says):
    tree = ClientPlaceTree(layout(("dp", "tp"), (2, 4), (0,) * 8))
    with pytest.raises(RecipeError, match=says):
        call(tree)


def test_windows_equal_those_of_jax():
    """In a process of its own, with 8 CPU devices: Auto and Explicit meshes, all specs."""
    result = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["compared"] > 500
