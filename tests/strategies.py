"""All Hypothesis strategies, and the small builders that they share."""

from dataclasses import dataclass, fields
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from msdata_jax.batching.assembly import RowFormat, Segments
from msdata_jax.planning.graph import DGraph
from msdata_jax.planning.mixing import scale_weights
from msdata_jax.planning.packing import Pack
from msdata_jax.planning.place_tree import MeshLayout, Spec
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
def packs(draw, max_seq_len=64, max_rows=6, oversize=("raise",), images=True):
    """Shapes of rows, with all caps."""
    return Pack(
        seq_len=draw(st.integers(1, max_seq_len)),
        rows=draw(st.integers(1, max_rows)),
        patches_per_row=draw(st.integers(0, 12)) if images else 0,
        max_segments_per_row=draw(st.none() | st.integers(1, 5)),
        method=draw(st.sampled_from(["best_fit", "balanced"])),
        oversize=draw(st.sampled_from(oversize)),
    )


@st.composite
def pools(draw, pack, max_samples=40):
    """(lengths, patches, costs, num_carried) of samples that each fit a row."""
    count = draw(st.integers(0, max_samples))
    lengths = draw(st.lists(st.integers(1, pack.seq_len), min_size=count, max_size=count))
    patches = draw(st.lists(st.integers(0, pack.patches_per_row), min_size=count, max_size=count))
    costs = draw(st.lists(st.integers(0, 100), min_size=count, max_size=count))
    arrays = [np.array(each, dtype=np.int64) for each in (lengths, patches, costs)]
    return *arrays, draw(st.integers(0, count))


@st.composite
def rows_to_balance(draw, max_groups=6, max_size=6, max_cost=1000):
    """(costs, number of groups) with equal counts."""
    groups, size = draw(st.integers(1, max_groups)), draw(st.integers(1, max_size))
    cost = st.integers(0, max_cost) | st.sampled_from([0, 7, max_cost])
    costs = draw(st.lists(cost, min_size=groups * size, max_size=groups * size))
    return np.array(costs, dtype=np.int64), groups


AXES = ("dp", "fsdp", "tp", "cp")


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
def stories(draw, on_exhausted=("repeat", "stop"), oversize=("drop", "truncate")):
    """A strategy and the whole streams of its sources, longer than the steps that tests take need.

    Returns:
        (graph, source names, streams): positions have gaps (filtered) and several parts (split).
    """
    num_sources = draw(st.integers(1, 4))
    names = tuple(f"s{i}" for i in range(num_sources))
    pack = draw(packs(max_seq_len=32, max_rows=4, oversize=oversize))
    some_weights = st.lists(st.integers(0, 9), min_size=num_sources, max_size=num_sources).filter(any)
    steps = sorted({0, *draw(st.lists(st.integers(1, 6), max_size=2))})
    knots = [(step, dict(zip(names, draw(some_weights), strict=True))) for step in steps]
    graph = DGraph(packing=pack).mix(
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
        part = np.zeros(count, dtype=np.int64)
        positions = np.sort(rng.integers(0, 200, count))
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


def _record_arrays(max_samples=4):
    count = st.integers(0, max_samples)
    return count.map(lambda n: make_infos(n, np.arange(n), columns=("frames",) if n % 2 else ()))


_FIELDS = {
    "figures": st.dictionaries(st.text(max_size=8), st.integers(0, 9) | st.text(max_size=8), max_size=3),
    "infos": _record_arrays(),
    "bad_reasons": st.lists(st.text(max_size=20), max_size=3),
    "axis_names": st.lists(st.sampled_from(AXES), unique=True),
    "row_axes": st.lists(st.sampled_from(AXES), unique=True),
    "patches": arrays(np.uint8, 2, 3) | arrays(np.uint8, 0, 0),
    "tokens": arrays(np.int32, 5),
    "rows": arrays(np.int64, 3),
    **dict.fromkeys(
        ("source_samples", "source_tokens", "group_costs", "unbalanced_costs"), arrays(np.int64, 2)
    ),
}
_KINDS = {
    "int": st.integers(-1, 2**62),
    "float": st.floats(0, 1e9),
    "str": st.text(max_size=20),
    "list[int]": st.lists(st.integers(0, 2**40), max_size=4),
    "ndarray": arrays(np.int32, 4) | arrays(np.int32, 0),
}


def role_messages(kind):
    """Messages of one class from `roles.messages`."""
    values = {}
    for each in fields(kind):
        annotation = each.type.__name__ if isinstance(each.type, type) else str(each.type)
        values[each.name] = _FIELDS[each.name] if each.name in _FIELDS else _KINDS[annotation]
    return st.builds(kind, **values)
