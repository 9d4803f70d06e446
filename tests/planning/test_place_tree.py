import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import layouts, specs, trees

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


@given(layouts())
def test_world_is_every_axis(layout):
    tree = ClientPlaceTree(layout)
    assert tree.axes("world") == tree.axes(("world",)) == layout.axis_names
    assert tree.axis_size("world") == len(layout.process_of_device)
    assert tree.part_of_devices("world").tolist() == list(range(len(layout.process_of_device)))
    for axis in layout.axis_names:
        assert tree.axes(axis) == (axis,)
    assert tree.axes(None) == ()


def plain_peers(layout, broadcast, pipeline_axis):
    """For each process its peers, and whether it needs data; place by place, process by process."""
    kept = [i for i, axis in enumerate(layout.axis_names) if axis not in broadcast]
    column = layout.axis_names.index(pipeline_axis) if pipeline_axis else None
    held, needs = {}, {}
    for place, process in zip(
        itertools.product(*map(range, layout.axis_sizes)), layout.process_of_device, strict=True
    ):
        held.setdefault(process, set()).add(tuple(place[i] for i in kept))
        ends = column is None or place[column] in (0, layout.axis_sizes[column] - 1)
        needs[process] = needs.get(process, False) or ends
    peers = {}
    for process, places in held.items():
        fed = [p for p, theirs in held.items() if needs[p] and theirs == places]
        peers[process] = sorted(fed) if needs[process] else [process]
    return peers, needs


@given(trees())
def test_peers_hold_the_same_places_and_one_leads(tree):
    peers, needs = plain_peers(tree.layout, tree.broadcast_axes, tree.pipeline_axis)
    assert tree.processes == tuple(sorted(peers))
    for process, expected in peers.items():
        assert tree.needs_data(process) == needs[process]
        assert tree.peers_of_process(process) == expected
        assert tree.leader_of_process(process) == expected[0]


@given(trees())
def test_stages_are_those_of_the_devices(tree):
    stage_of = tree.part_of_devices(tree.pipeline_axis).tolist()
    for process in tree.processes:
        held = {s for s, p in zip(stage_of, tree.layout.process_of_device, strict=True) if p == process}
        assert tree.stages_of_process(process).tolist() == sorted(held)


@given(trees())
def test_one_device_sends_to_those_that_differ_along_broadcast_axes(tree):
    sends = tree.sending_devices().tolist()
    columns = [i for i, axis in enumerate(tree.layout.axis_names) if axis not in tree.broadcast_axes]
    lines = {}
    for device, place in enumerate(itertools.product(*map(range, tree.layout.axis_sizes))):
        lines.setdefault(tuple(place[i] for i in columns), []).append(device)
    for devices in lines.values():
        owners = [tree.layout.process_of_device[device] for device in devices]
        fed = [p for p in owners if tree.needs_data(p) and tree.leader_of_process(p) == p]
        senders = [device for device in devices if sends[device]]
        assert senders == ([] if not fed else [devices[owners.index(fed[0])]])
        if tree.pipeline_axis is None:
            assert len(senders) == 1  # everything is sent once
    assert sum(sends) <= len(lines)


@given(layouts())
def test_an_axis_spans_processes_where_a_line_of_devices_does(layout):
    tree = ClientPlaceTree(layout)
    places = list(itertools.product(*map(range, layout.axis_sizes)))
    owner = dict(zip(places, layout.process_of_device, strict=True))
    for column, axis in enumerate(layout.axis_names):
        spans = any(owner[place] != owner[(*place[:column], 0, *place[column + 1 :])] for place in places)
        assert tree.spans_processes(axis) == spans


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
    assert tree.rows_of_process(0, "world", 4).tolist() == [0, 2]
    assert tree.rows_of_process(7, "dp", 6).tolist() == []


def test_middle_stages_need_shapes_only():
    # Four stages of two devices; tp spans the processes of each stage.
    stages = layout(("pp", "tp"), (4, 2), tuple(range(8)))
    tree = ClientPlaceTree(stages, ("tp",), pipeline_axis="pp")
    assert [tree.stages_of_process(p).tolist() for p in range(8)] == [[s] for s in (0, 0, 1, 1, 2, 2, 3, 3)]
    assert [tree.needs_data(p) for p in range(8)] == [True, True, *[False] * 4, True, True]
    assert [tree.peers_of_process(p) for p in range(8)] == [
        [0, 1],
        [0, 1],
        [2],
        [3],
        [4],
        [5],
        [6, 7],
        [6, 7],
    ]
    assert tree.sending_devices().tolist() == [True, False, *[False] * 4, True, False]
    # Broadcast along the pipeline: one process feeds the ends, and nobody feeds the middle.
    everyone = ClientPlaceTree(stages, ("world",), pipeline_axis="pp")
    assert [everyone.leader_of_process(p) for p in range(8)] == [0, 0, 2, 3, 4, 5, 0, 0]
    assert everyone.peers_of_process(7) == [0, 1, 6, 7]
    # A process with stages 0 and 1 needs the data for stage 0; tp is inside.
    halves = ClientPlaceTree(layout(("pp", "tp"), (4, 2), (0, 0, 0, 0, 1, 1, 1, 1)), (), "pp")
    assert [halves.stages_of_process(p).tolist() for p in range(2)] == [[0, 1], [2, 3]]
    assert halves.needs_data(0)
    assert halves.needs_data(1)


def test_a_mesh_of_4096_devices():
    # 512 x 8: hosts of 8 devices, then one process a device.
    hosts = ClientPlaceTree(layout(("dp", "tp"), (512, 8), tuple(d // 8 for d in range(4096))), ("tp",))
    assert all(hosts.peers_of_process(p) == [p] for p in hosts.processes)
    rows = [hosts.rows_of_process(p, "dp", 8192) for p in hosts.processes]
    assert np.array_equal(np.concatenate(rows), np.arange(8192))
    alone = ClientPlaceTree(layout(("dp", "tp"), (512, 8), tuple(range(4096))), ("tp",))
    assert [alone.leader_of_process(p) for p in alone.processes] == [p // 8 * 8 for p in range(4096)]
    assert np.flatnonzero(alone.sending_devices()).tolist() == list(range(0, 4096, 8))
    windows = alone.windows(("dp", "tp"), (8192, 4096))
    assert windows[4095] == (slice(8176, 8192), slice(3584, 4096))
    assert len(set(map(repr, windows))) == 4096


def test_the_tree_as_text():
    stages = layout(("pp", "dp", "cp", "tp"), (2, 16, 2, 4), tuple(d // 8 for d in range(256)))
    tree = ClientPlaceTree(stages, ("tp",), "pp")
    assert tree.describe(("dp", "cp")).splitlines() == [
        "256 devices of 32 processes",
        "  pp  2   replicates, pipeline stages  across processes",
        "  dp  16  cuts rows                    across processes",
        "  cp  2   cuts places                  inside a process",
        "  tp  4   replicates, broadcast        inside a process",
    ]
    assert str(tree).splitlines()[1:3] == [
        "  pp  2   pipeline stages  across processes",
        "  dp  16                   across processes",
    ]
    assert str(ClientPlaceTree(layout((), (), (3,)))) == "1 devices of 1 processes"


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
        (
            lambda t: ClientPlaceTree(t.layout, pipeline_axis="pp"),
            "no axis 'pp': name one of them, or 'world'",
        ),
        (lambda t: ClientPlaceTree(t.layout, ("tp", "world")), r"\('tp', 'world'\) uses an axis twice"),
        (lambda t: t.axis_size(("dp", "dp")), "uses an axis twice"),
        (lambda t: t.describe(("cp",)), "no axis 'cp'"),
        (lambda t: t.peers_of_process(1), r"process 1 has no devices in the mesh; its processes are \(0,\)"),
        (lambda t: layout(("dp",), (0,), ()), r"at least 1 device, got \(0,\)"),
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
