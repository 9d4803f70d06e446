"""All Hypothesis strategies, and the small builders that they share."""

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from msdata_jax.batching.assembly import RowFormat, Segments
from msdata_jax.planning import partitioning
from msdata_jax.planning.balancing import OBJECTIVES, Balance
from msdata_jax.planning.graph import DGraph
from msdata_jax.planning.mixing import scale_weights
from msdata_jax.planning.packing import METHODS, Pack, Shape, Units
from msdata_jax.planning.place_tree import ClientPlaceTree, MeshLayout, Spec
from msdata_jax.records import IMAGE_TOKEN, info_dtype


def make_infos(source, tokens, patches=None, positions=None, parts=None, columns=()):
    """SampleInfo records of one source, one sample a position unless told otherwise."""
    infos = np.zeros(len(tokens), dtype=info_dtype(columns))
    infos["source"] = source
    infos["position"] = np.arange(len(tokens)) if positions is None else positions
    infos["part"] = 0 if parts is None else parts
    infos["tokens"] = tokens
    infos["patches"] = 0 if patches is None else patches
    infos["num_bytes"] = 4 * infos["tokens"] + 3 * infos["patches"]
    return infos


@st.composite
def source_weights(draw, max_sources=8):
    """int64 weights that sum to WEIGHT_SCALE; some may be zero, some tiny."""
    some = st.integers(0, 20) | st.sampled_from([1, 1000, 10**6])
    weights = draw(st.lists(some, min_size=1, max_size=max_sources).filter(any))
    return scale_weights([Fraction(w) for w in weights])


@st.composite
def known_streams(draw, num_sources, max_samples=30, max_units=50):
    """Units of the known samples of each source, and whether they are its last."""
    one = st.lists(st.integers(1, max_units), max_size=max_samples)
    units = [np.array(draw(one), dtype=np.int64) for _ in range(num_sources)]
    return units, [draw(st.booleans()) for _ in range(num_sources)]


def credits_that_sum_to_zero(num_sources, scale):
    """int64 credits, as earlier steps leave them."""
    some = st.lists(st.integers(-2 * scale, 2 * scale), min_size=num_sources - 1, max_size=num_sources - 1)
    return some.map(lambda rest: np.array([*rest, -sum(rest)], dtype=np.int64))


@st.composite
def packs(draw, *, max_seq_len=64, max_rows=20, oversize=("raise",), images=True, methods=METHODS, shapes=1):
    """Shapes of rows, with all caps."""
    lengths = draw(st.lists(st.integers(1, max_seq_len), min_size=1, max_size=shapes, unique=True))
    method = draw(st.sampled_from(methods))
    return Pack(
        shapes=tuple(Shape(seq_len=n, rows=draw(st.integers(1, max_rows))) for n in sorted(lengths)),
        patches_per_row=draw(st.integers(0, 12)) if images else 0,
        max_segments_per_row=draw(st.none() | st.integers(1, 5)) if method != "pad" else None,
        method=method,
        oversize=draw(st.sampled_from(oversize)),
    )


@st.composite
def pools(draw, pack, max_units=60):
    """Units that each fit a row, and how many are carried; some are several samples that stay together."""
    count = draw(st.integers(0, max_units))
    most = pack.segments_per_row or pack.seq_len

    def column(*range_of_values):
        values = draw(st.lists(st.integers(*range_of_values), min_size=count, max_size=count))
        return np.array(values, dtype=np.int64)

    several = draw(st.booleans()) and pack.method != "pad"
    length = column(1, pack.seq_len)
    units = Units(
        length=length,
        patches=column(0, pack.patches_per_row),
        segments=np.minimum(column(1, min(most, 3)), length) if several else np.ones(count, dtype=np.int64),
        cost=column(0, 100),
    )
    return units, draw(st.integers(0, count))


@st.composite
def rows_to_balance(draw, max_groups=6, max_size=6, max_cost=1000):
    """(costs, number of groups) with equal counts."""
    groups, size = draw(st.integers(1, max_groups)), draw(st.integers(1, max_size))
    cost = st.integers(0, max_cost) | st.sampled_from([0, 7, max_cost])
    costs = draw(st.lists(cost, min_size=groups * size, max_size=groups * size))
    return np.array(costs, dtype=np.int64), groups


AXES = ("dp", "fsdp", "tp", "cp")


def make_tree(**sizes):
    """The place tree of a mesh on one process, from axis sizes."""
    owner = (0,) * int(np.prod(list(sizes.values())))
    layout = MeshLayout(axis_names=tuple(sizes), axis_sizes=tuple(sizes.values()), process_of_device=owner)
    return ClientPlaceTree(layout)


@st.composite
def layouts(draw, max_axes=3, max_size=4):
    """Meshes whose devices belong to processes in runs, in turn, or any how."""
    names = draw(st.permutations(AXES))[: draw(st.integers(0, max_axes))]
    sizes = tuple(draw(st.integers(1, max_size)) for _ in names)
    devices = int(np.prod(sizes))
    processes = draw(st.integers(1, min(devices, 4)))
    owner = draw(
        st.sampled_from(
            [
                [d * processes // devices for d in range(devices)],
                [d % processes for d in range(devices)],
            ]
        )
        | st.lists(st.integers(0, processes - 1), min_size=devices, max_size=devices)
    )
    return MeshLayout(axis_names=tuple(names), axis_sizes=sizes, process_of_device=tuple(owner))


@st.composite
def specs(draw, layout: MeshLayout, max_dims=3):
    """(spec, shape) that divides: each axis is used at most once, alone or merged with others."""
    dims = draw(st.integers(1, max_dims))
    places = [draw(st.integers(-1, dims - 1)) for _ in layout.axis_names]
    spec: list = []
    shape = []
    for dim in range(dims):
        axes = draw(st.permutations([a for a, p in zip(layout.axis_names, places, strict=True) if p == dim]))
        parts = int(np.prod([layout.axis_sizes[layout.axis_names.index(a)] for a in axes], dtype=int))
        spec.append(None if not axes else axes[0] if len(axes) == 1 else tuple(axes))
        shape.append(parts * draw(st.integers(1, 3)))
    last_cut = max((dim + 1 for dim, axes in enumerate(spec) if axes), default=0)
    plain: Spec = tuple(spec[: draw(st.integers(last_cut, dims))])  # trailing Nones may be left out
    return plain, tuple(shape)


@st.composite
def stories(draw, on_exhausted=("repeat", "stop", "renormalize"), oversize=("drop", "truncate", "split")):
    """A strategy and the whole streams of its sources, longer than the steps that tests take need.

    Returns:
        (graph, source names, streams): positions have gaps (filtered) and several parts (split).
    """
    num_sources = draw(st.integers(1, 4))
    names = tuple(f"s{i}" for i in range(num_sources))
    pack = draw(packs(max_seq_len=32, max_rows=4, oversize=oversize, shapes=3))
    one_shape = len(pack.shapes) == 1
    may_stay_together = one_shape and pack.seq_len > 1 and pack.oversize != "split" and pack.method != "pad"
    if may_stay_together and draw(st.booleans()):
        pack = replace(pack, together="position", max_segments_per_row=None)
    some_weights = st.lists(st.integers(0, 9), min_size=num_sources, max_size=num_sources).filter(any)
    steps = sorted({0, *draw(st.lists(st.integers(1, 6), max_size=2))})
    knots = [(step, dict(zip(names, draw(some_weights), strict=True))) for step in steps]
    regrouped_steps = draw(st.sampled_from([1, 1, 2, 3])) if one_shape else 1
    graph = DGraph(packing=pack, regrouped_steps=regrouped_steps).mix(
        knots,
        unit=draw(st.sampled_from(["samples", "tokens", "patches"])),
        interpolation=draw(st.sampled_from(["step", "linear"])),
        on_exhausted=draw(st.sampled_from(on_exhausted)),
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    streams = []
    for source in range(num_sources):
        count = int(rng.integers(0, 120))
        tokens = rng.integers(1, pack.seq_len + 8, count)
        patches = np.minimum(rng.integers(0, pack.patches_per_row + 2, count), tokens)
        if pack.oversize == "truncate":
            patches = np.minimum(patches, pack.patches_per_row)
        if pack.oversize == "split":
            patches[:] = 0
        part = np.zeros(count, dtype=np.int64)
        positions = np.sort(rng.integers(0, 200, count))
        if pack.together:  # two to a position, which fit a row
            positions, patches = np.arange(count) // 2, np.zeros(count, dtype=np.int64)
            tokens = np.minimum(tokens, pack.seq_len // 2)
        for i in range(1, count):
            part[i] = part[i - 1] + 1 if positions[i] == positions[i - 1] else 0
        streams.append(make_infos(source, tokens, patches, positions, part))
    return graph, names, streams


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Samples with their places in the rows of a process."""

    form: RowFormat
    num_rows: int
    samples: list
    start: np.ndarray
    segments: Segments


@st.composite
def batches(draw, max_rows=3, max_seq_len=24, patch_values=3):
    """Rows of text and image samples, some cut, some rows empty."""
    seq_len, num_rows = draw(st.integers(1, max_seq_len)), draw(st.integers(1, max_rows))
    patches_per_row = draw(st.sampled_from([0, 6]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    samples, columns = [], []
    for row in range(num_rows):
        offset, patches_left = 0, patches_per_row
        for length in draw(st.lists(st.integers(1, seq_len), max_size=4)):
            if offset + length > seq_len:
                break
            start, rest = draw(st.integers(0, 3)), draw(st.integers(0, 3))
            tokens = rng.integers(0, 1000, start + length + rest).astype(np.int32)
            num_patches = draw(st.integers(0, min(patches_left, len(tokens))))
            tokens[rng.choice(len(tokens), num_patches, replace=False)] = IMAGE_TOKEN
            sample = {"tokens": tokens}
            if num_patches or draw(st.booleans()):
                sample["patches"] = rng.integers(0, 256, (num_patches, patch_values)).astype(np.uint8)
            samples.append(sample)
            columns.append((row, offset, length, num_patches, start))
            offset, patches_left = offset + length, patches_left - num_patches
    row, offset, length, num_patches, start = np.array(columns, dtype=np.int64).reshape(-1, 5).T
    return Batch(
        form=RowFormat(seq_len=seq_len, patches_per_row=patches_per_row, patch_values=patch_values),
        num_rows=num_rows,
        samples=samples,
        start=start,
        segments=Segments(
            row=row.astype(np.int32),
            offset=offset.astype(np.int32),
            length=length.astype(np.int32),
            num_patches=num_patches,
        ),
    )


def arrays(dtype, *shape):
    """Any values of a dtype."""
    count = int(np.prod(shape))
    info = np.iinfo(dtype)
    values = st.lists(st.integers(int(info.min), int(info.max)), min_size=count, max_size=count)
    return values.map(lambda each: np.array(each, dtype=dtype).reshape(shape))


# --- meshes, rows of documents ------------------------------------------------------------------------------


@st.composite
def packed_rows(draw, max_rows=3):
    """(seq_len, num_parts, segments, num_rows): documents that tile the front of their rows."""
    num_parts = draw(st.integers(1, 5))
    seq_len, num_rows = num_parts * draw(st.integers(1, 20)), draw(st.integers(1, max_rows))
    columns = []
    for row in range(num_rows):
        offset = 0
        for length in draw(st.lists(st.integers(1, seq_len), max_size=5)):
            if offset + length <= seq_len:
                columns.append((row, offset, length))
                offset += length
    row, offset, length = np.array(columns, dtype=np.int32).reshape(-1, 3).T
    no_patches = np.zeros(len(row), dtype=np.int64)
    segments = Segments(row=row, offset=offset, length=length, num_patches=no_patches)
    return seq_len, num_parts, segments, num_rows


@st.composite
def trees(draw):
    """Place trees with any broadcast axes; one of the other axes may be a pipeline."""
    layout = draw(layouts())
    if not layout.axis_names:
        return ClientPlaceTree(layout)
    axes = st.sampled_from(layout.axis_names)
    return ClientPlaceTree(layout, tuple(draw(st.lists(axes, unique=True))), draw(st.none() | axes))


# --- costs


@st.composite
def decoders(draw):
    """Arguments of `costs.moe`, and of `costs.transformer` without its experts; any that fit together."""
    kv_heads, layers, experts = draw(st.integers(1, 8)), draw(st.integers(1, 120)), draw(st.integers(1, 64))
    heads = kv_heads * draw(st.integers(1, 8))
    head_dim = draw(st.none() | st.integers(1, 256))
    width = draw(st.integers(1, 16384))
    window = draw(st.none() | st.integers(1, 100_000))
    return {
        "num_layers": layers,
        "d_model": width if head_dim else heads * (1 + width // heads),
        "d_ff": draw(st.integers(1, 60_000)),
        "vocab_size": draw(st.integers(0, 300_000)),
        "causal": draw(st.booleans()),
        "num_heads": heads,
        "num_kv_heads": draw(st.sampled_from([None, kv_heads])),
        "head_dim": head_dim,
        "window": window,
        "full_layers": draw(st.integers(0, layers)) if window else 0,
        "num_experts": experts,
        "experts_per_token": draw(st.integers(1, experts)),
        "shared_d_ff": draw(st.integers(0, 60_000)),
    }


@st.composite
def measurements(draw, max_length=10**6):
    """(length, seconds) in order of length, of two lengths at least, some measured several times."""
    lengths = draw(st.lists(st.integers(1, max_length), min_size=2, max_size=12))
    lengths += draw(st.lists(st.sampled_from(lengths), max_size=6))
    if len(set(lengths)) == 1:
        lengths.append(lengths[0] + 1)
    seconds = st.floats(0, 10, allow_subnormal=False) | st.sampled_from([0.0, 1e-9, 0.5])
    return [(length, draw(seconds)) for length in sorted(lengths)]


# --- simulation -------------------------------------------------------------------------------------------


@st.composite
def pipeline_times(draw):
    """Whole seconds of forward and backward passes, two float64 `[stages, microbatches, ranks]`."""
    shape = draw(st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(1, 3)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    longest = draw(st.integers(0, 20))
    forward, backward = rng.integers(0, longest + 1, (2, *shape)).astype(float)
    return forward, backward


# --- mixtures: weights, groups and schedules ----------------------------------------------------------------


@st.composite
def merges(draw, max_units=50):
    """(weights, credit, units ahead, ended) of a step, any that earlier steps may leave."""
    weights = draw(source_weights())
    units, ended = draw(known_streams(len(weights), max_units=max_units))
    credit = draw(credits_that_sum_to_zero(len(weights), (1 << 24) * draw(st.sampled_from([1, max_units]))))
    return weights, credit, units, ended


@st.composite
def mixtures(draw, max_sources=6):
    """(knots, groups, interpolation, source names): groups nest, and hold their own weights."""
    names = [f"s{i}" for i in range(draw(st.integers(1, max_sources)))]
    numbers = st.integers(0, 9) | st.floats(0, 2, allow_subnormal=False)

    def weights_of(members):
        values = st.lists(numbers, min_size=len(members), max_size=len(members)).filter(any)
        return dict(zip(members, draw(values), strict=True))

    outer, groups = list(draw(st.permutations(names))), {}
    for number in range(draw(st.integers(0, 3))):
        size = draw(st.integers(1, len(outer)))
        groups[f"g{number}"] = weights_of(outer[:size])
        outer = list(draw(st.permutations([*outer[size:], f"g{number}"])))
    steps = sorted({0, *draw(st.lists(st.integers(1, 6), max_size=2))})
    knots = [(step, weights_of(outer)) for step in steps]
    return knots, groups, draw(st.sampled_from(["step", "linear"])), names


# --- partitions -------------------------------------------------------------------------------------------


@st.composite
def items_to_divide(draw, max_items=40, max_parts=7, objectives=1, equal_counts=False):
    """(costs, number of parts): few or many equal costs, none, giants; `[items]` or `[objectives, items]`."""
    num_parts = draw(st.integers(1, max_parts))
    count = draw(st.integers(0, max_items))
    if equal_counts:
        count = num_parts * draw(st.integers(0, max_items // max_parts))
    largest = draw(st.sampled_from([0, 3, 100, 10**6, 2**50]))
    cost = st.integers(0, largest) | st.sampled_from([0, 1, largest])
    costs = draw(st.lists(cost, min_size=count * objectives, max_size=count * objectives))
    table = np.array(costs, dtype=np.int64).reshape(objectives, count)
    return (table if objectives > 1 else table[0]), num_parts


@st.composite
def sized_items(draw, max_items=30, max_parts=6):
    """(costs, sizes, number of parts, cap) for which the sizes can be placed."""
    num_parts, cap = draw(st.integers(1, max_parts)), draw(st.integers(1, 60))
    sizes = []
    for _ in range(num_parts):
        room = cap
        for size in draw(st.lists(st.integers(0, cap), max_size=max_items // num_parts)):
            sizes += [size] if size <= room else []
            room -= size if size <= room else 0
    sizes = draw(st.permutations(sizes))
    costs = draw(st.lists(st.integers(0, 100), min_size=len(sizes), max_size=len(sizes)))
    return np.array(costs, dtype=np.int64), np.array(sizes, dtype=np.int64), num_parts, cap


# --- balancing ------------------------------------------------------------------------------------------


@st.composite
def rows_to_deal(draw, methods=partitioning.METHODS, objectives=OBJECTIVES, phases=(1, 2), max_cost=1000):
    """(row costs, number of groups, rules) that divide; costs `[rows]` of one phase, `[2, rows]` of two."""
    group_size = draw(st.none() | st.integers(1, 3))
    num_groups = draw(st.integers(1, 4)) * (group_size or 1)
    rules = Balance(
        method=draw(st.sampled_from(methods)),
        objective=draw(st.sampled_from(objectives)),
        microbatches=draw(st.integers(1, 5)),
        group_size=group_size,
        pipeline_stages=draw(st.integers(1, 6)),
        refine=draw(st.booleans()),
    )
    num_rows = num_groups * rules.microbatches * draw(st.integers(1, 3))
    cost = st.integers(0, max_cost) | st.sampled_from([0, 7, max_cost])
    num_phases = draw(st.sampled_from(phases))
    costs = draw(st.lists(cost, min_size=num_phases * num_rows, max_size=num_phases * num_rows))
    table = np.array(costs, dtype=np.int64).reshape(num_phases, num_rows)
    return (table[0] if num_phases == 1 else table), num_groups, rules


# --- whole steps --------------------------------------------------------------------------------------------


def square_of_tokens(infos):
    return infos["tokens"] ** 2


def five_a_patch(infos):
    return 5 * infos["patches"]


@st.composite
def placed_stories(draw):
    """A story with costs, a balance and a mesh that its rows and places divide over.

    Returns:
        (graph, source names, streams, place tree).
    """
    graph, names, streams = draw(stories())
    sizes = {axis: draw(st.integers(1, most)) for axis, most in (("dp", 4), ("cp", 3), ("pp", 3), ("tp", 2))}
    axes = tuple(draw(st.permutations(sorted(sizes))))
    devices = int(np.prod(list(sizes.values())))
    microbatches = draw(st.integers(1, 3))
    shapes = tuple(
        Shape(
            seq_len=shape.seq_len * 2 * sizes["cp"], rows=draw(st.integers(1, 2)) * sizes["dp"] * microbatches
        )
        for shape in graph.packing.shapes
    )
    graph = (
        replace(graph, packing=replace(graph.packing, shapes=shapes))
        .cost(
            backbone=draw(st.sampled_from([None, square_of_tokens])),
            encoder=draw(st.sampled_from([None, five_a_patch])),
        )
        .distribute(
            "dp",
            group_size=draw(st.sampled_from([None, *(n for n in (1, 2, 3, 4) if sizes["dp"] % n == 0)])),
            microbatches=microbatches,
            context_axis="cp",
            context_layout=draw(st.sampled_from(["contiguous", "zigzag", "zigzag_document"])),
            pipeline_axis="pp",
        )
        .balance(
            draw(st.sampled_from(partitioning.METHODS)),
            objective=draw(st.sampled_from(OBJECTIVES)),
            refine=draw(st.booleans()),
        )
    )
    layout = MeshLayout(
        axis_names=axes,
        axis_sizes=tuple(sizes[axis] for axis in axes),
        process_of_device=tuple(range(devices)),
    )
    return graph, names, streams, graph.place_tree(layout)
