"""CPU time of planning a step and evenness of its parts, by size, distribution and method.

Metadata only, as the planner sees it: lengths of published distributions (`msdata_jax.simulate`), costed in
MFLOP as a Llama of 12B and, where there are images, a ViT of 1B or 2B. Times are of one thread, the least of
several rounds. The alternatives measured in the same run on the same costs are `snake` and `none`, and a
Karmarkar-Karp with an object for each set, as public training code has it.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from benchmarks.differencing import object_karmarkar_karp
from benchmarks.headline import headline
from benchmarks.lengths import (
    BACKBONE,
    COLUMNS,
    CONTEXTS,
    ENCODERS,
    SHARES,
    Stream,
    cut_infos,
    make_stream,
    sample_infos,
)
from benchmarks.peers.ours import squared_length
from msdata_jax.plan import StepPlan
from msdata_jax.planning.giants import context_degrees, dominance, num_giants
from msdata_jax.planning.graph import Composed, DGraph, Gathered, initial_state
from msdata_jax.planning.merging import merge_by_due_time
from msdata_jax.planning.partitioning import Method, loads, lower_bound, partition
from msdata_jax.planning.place_tree import MeshLayout
from msdata_jax.roles.announcing import Audience, Client, announce

Result = TypeVar("Result")
Cost = Callable[[np.ndarray], np.ndarray]
Row = dict[str, Any]

SIZES = ((8, 64), (64, 1000), (128, 8000), (512, 8000), (512, 100_000))
"""(data-parallel groups, samples of a step)."""
BESIDE_OBJECTS = ((8, 64), (64, 960), (128, 7936))
GROWTH = (50_000, 100_000, 200_000)
METHODS: dict[str, tuple[Method, bool]] = {
    "lpt": ("lpt", False),
    "lpt refined": ("lpt", True),
    "karmarkar_karp": ("karmarkar_karp", False),
    "snake": ("snake", False),
    "none": ("none", False),
}
"""Method, and whether it is refined."""
TWO_OBJECTIVES = (
    (16, 512, "mix", "vit-2b"),
    (64, 1000, "coyo", "vit-1b"),
    (128, 8000, "mix", "vit-1b"),
    (512, 100_000, "mix", "vit-2b"),
)

CUTS = ((4, 2048), (4, 8192), (4, 32768), (32, 32768))
"""(groups, tokens at which samples are cut)."""
CUT_SEEDS = 3
CUT_SAMPLES = 16
"""Of each group in a step, as in `side_by_side`."""
GIANTS = ((64, 1024, "text_wlb"), (512, 8192, "text_wlb"), (512, 8192, "mix"))
WINDOWS = (2, 4, 8, 16, 32)
"""Steps that are regrouped."""

NOTES = (
    "flat_ms, ratio: one partition of `samples` samples into dp parts by backbone cost, counts free; "
    "ratio and ratio_worst are the dearest part over the lower bound, mean and worst over seeds; "
    "equal_count_ratio is the same for parts of equal counts, over their bound; imbalance_before is the "
    "dearest of equal stretches, as the samples came, over the mean part; dominance is the lower bound "
    "over the mean part, above 1 where no partition can be even",
    "plan_ms: a whole step of four sources in microbatches of one row: compose_ms (of which mix_ms merges "
    "the sources) + place_ms + hash_ms. Where a row of each group holds more than `samples` samples the "
    "step has more: plan_samples. plan_ratio is the step's time with a barrier behind encoder and "
    "backbone over that of even groups; digest begins that of the step's content and placement. "
    "announce_ms, not in plan_ms, makes the messages to a process for each group and to 64 loaders",
    "two objectives: the same time for single samples, with a partition by the backbone alone, by the "
    "sum, by both (vector); decoupled gives each objective a partition of its own, which no common one "
    "can have",
    "giants: one sample a row, as many rows in each group; dearest group over mean group of equal counts "
    "(lpt); with a degree of context parallelism for each sample, counts free (context_degrees); and with "
    "the rows of so many steps regrouped, sums over the steps",
    "cuts: the same of lengths as in side_by_side (8 of 10 log-normal of mean 665, the others 256), cut at "
    "so many tokens, which cost their square; as_they_come deals samples in turn. Means over seeds",
    "object_karmarkar_karp is the algorithm of public training code, rewritten from its description, on "
    "the same costs: makespan_ratio is our dearest part over its, flat_share and plan_share are our times "
    "over its",
)


def run(quick: bool) -> dict[str, Any]:
    """Tables of rows: every size, distribution and method; two objectives; beside objects; growth."""
    rows: list[Row] = []
    contents: list[Row] = []
    for num_parts, num_samples in SIZES:
        for distribution in ("text_pile", "mix") if quick and num_samples > 8000 else CONTEXTS:
            _say(f"{num_samples} samples of {distribution} over {num_parts} groups")
            of_methods, content = _measure(num_parts, num_samples, distribution, rounds=2 if quick else 5)
            rows += of_methods
            contents.append(content)
    rows += contents
    rows += [_two_objectives(*each, num_seeds=1 if quick else 4) for each in TWO_OBJECTIVES]
    for each in GIANTS[: 1 if quick else 3]:
        _say(f"giants, {each[1]} samples of {each[2]} over {each[0]} groups")
        rows.append(_giants(*each, WINDOWS[: 2 if quick else 5]))
    rows += [_cut(*each) for each in CUTS[: 3 if quick else 4]]
    for num_parts, num_samples in BESIDE_OBJECTS[: 2 if quick else 3]:
        for distribution in ("coyo", "mix"):
            _say(f"{num_samples} samples over {num_parts} groups beside objects")
            rows.append(_beside_objects(num_parts, num_samples, distribution))
    growth = [_growth(num_samples, rounds=2 if quick else 5) for num_samples in GROWTH]
    return {"name": "planner", "rows": rows + growth, "notes": [*NOTES, _exponents(growth)]}


def headlines(result: Mapping[str, Any]) -> list[Row]:
    """Time and evenness of the largest step that all methods planned."""
    rows = [row for row in result["rows"] if "digest" in row]
    dp, samples, mixture = (rows[-1][name] for name in ("dp", "samples", "distribution"))
    mine = {
        row["method"]: row
        for row in rows
        if (row["dp"], row["samples"], row["distribution"]) == (dp, samples, mixture)
    }
    found = []
    for figure, column in (("ms to plan a step", "plan_ms"), ("dearest part over the bound", "ratio")):
        values = {method: row[column] for method, row in mine.items()}
        ours = values.pop("lpt refined")
        found.append(headline(f"{figure}, {samples} samples, {dp} groups", ours, beside=values))
    return [*found, *(_of_cut(row) for row in result["rows"] if "cut" in row)]


def _of_cut(row: Row) -> Row:
    """What a degree of context parallelism for each sample makes of it, beside windows and single steps."""
    windows = {f"{name.split('_')[1]} steps": row[name] for name in row if name.startswith("regroup_")}
    figure = f"max over mean of squared lengths, cut at {row['cut']}, {row['dp']} groups, a degree for each"
    beside = {"as they come": row["as_they_come"], "single steps": row["lpt"], **windows}
    return headline(figure, row["context_degrees"], beside=beside, at_most=1.1)


def _say(what: str) -> None:
    print(f"planner: {what}", file=sys.stderr)


# --- every method -------------------------------------------------------------------------------------------


def _measure(num_parts: int, num_samples: int, distribution: str, rounds: int) -> tuple[list[Row], Row]:
    """A row for each method, and one of what all methods share: the content of the step."""
    which = {"dp": num_parts, "samples": num_samples, "distribution": distribution}
    stream = make_stream(distribution, num_parts, num_samples)
    compose_ms, composed = _best(stream.compose, rounds + 2)
    mix_ms, _ = _best(lambda: _mix(stream), rounds)
    costs = [BACKBONE(sample_infos(distribution, num_samples, seed)) for seed in range(rounds)]
    rows, digest_ms = [], math.inf
    for name, (method, refined) in METHODS.items():
        place_ms, hash_ms, placed = _place(stream, composed, method, refined, rounds)
        digest_ms = min(digest_ms, hash_ms)
        flat = _flat(costs, num_parts, method, refined)
        rows.append(
            {
                **which,
                "method": name,
                "flat_ms": flat.pop("flat_ms"),
                "plan_ms": round(compose_ms + place_ms + hash_ms, 2),
                **flat,
                "place_ms": round(place_ms, 2),
                "plan_ratio": _round(_barrier_time(placed)),
                "digest": placed.digest[:12],
            }
        )
    content = {
        **which,
        "plan_samples": len(composed.plan.samples),
        "rows": composed.plan.num_rows,
        "microbatches": stream.graph.distribution.microbatches,
        "fill": round(composed.plan.fill, 4),
        "mix_ms": round(mix_ms, 2),
        "compose_ms": round(compose_ms, 2),
        "hash_ms": round(digest_ms, 2),
        "announce_ms": round(_announce_ms(stream, placed, rounds), 2),
        "dominance": _round(np.mean([float(dominance(each, num_parts)) for each in costs])),
    }
    return rows, content


def _announce_ms(stream: Stream, placed: StepPlan, rounds: int) -> float:
    """Milliseconds of the messages that tell each group, a process each, and 64 loaders of a step."""
    processes = range(placed.num_groups)
    clients = [
        Client(rank=p, process=p, relay_to=[], is_leader=True, is_fed=False, needs_data=True)
        for p in processes
    ]
    audience = Audience(
        tree=stream.tree, clients=clients, row_axes=("dp",), encoder_axes=(), num_sources=len(SHARES)
    )
    is_last = np.ones(len(placed.samples), dtype=bool)
    owners = lambda infos: infos["position"] % 64  # noqa: E731

    def tell() -> list:
        effects, wanted = announce(placed, is_last, audience)
        return [*effects, *wanted.orders(owners(wanted.infos))]

    return _best(tell, rounds)[0]


def _barrier_time(plan: StepPlan) -> float:
    """The dearest group in the backbone and the dearest in the encoder, over the mean group of both."""
    work = np.stack([plan.row_cost, plan.row_encoder_cost])[:, plan.order]
    groups = work.reshape(2, plan.num_groups, -1).sum(axis=2)
    return float(groups.max(axis=1).sum() / (groups.sum() / plan.num_groups))


def _mix(stream: Stream) -> None:
    """The merge of the sources, as far as a step looks."""
    mixture, pack = stream.graph.mixture, stream.graph.packing
    assert mixture is not None
    assert pack is not None
    merge_by_due_time(
        mixture.weights_at(0, tuple(SHARES)),
        stream.state.credit,
        [infos["tokens"] for infos in stream.ahead],
        [False] * len(SHARES),
        limit_units=5 * (pack.shapes[0].rows + 1) * pack.seq_len // 4,
    )


def _flat(costs: Sequence[np.ndarray], num_parts: int, method: Method, refined: bool) -> Row:
    """Time of a partition, and ratios to the bounds over the seeds: counts free, and equal."""
    milliseconds, ratios, equal_ratios = [], [], []
    for each in costs:
        taken, part = _timed(lambda each=each: partition(each, num_parts, method, refine=refined))
        milliseconds.append(taken)
        ratios.append(_makespan(each, part, num_parts) / lower_bound(each, num_parts))
        even = each[: len(each) // num_parts * num_parts]
        part = partition(even, num_parts, method, refine=refined, equal_counts=True)
        equal_ratios.append(_makespan(even, part, num_parts) / _equal_count_bound(even, num_parts))
    return {
        "flat_ms": round(min(milliseconds), 3),
        "ratio": _round(np.mean(ratios)),
        "ratio_worst": _round(max(ratios)),
        "equal_count_ratio": _round(np.mean(equal_ratios)),
        "imbalance_before": _round(np.mean([_imbalance(each, num_parts) for each in costs])),
    }


def _place(
    stream: Stream, composed: Composed, method: Method, refined: bool, rounds: int
) -> tuple[float, float, StepPlan]:
    """Milliseconds of placing and of the digest, and the placed plan."""
    graph = stream.graph.balance(method, refine=refined)
    place_ms, placed = _timed(lambda: graph.place(composed.plan, stream.tree))
    hash_ms, _ = _timed(lambda: placed.digest)
    for _ in range(rounds):
        taken, placed = _timed(lambda: graph.place(composed.plan, stream.tree))
        hash_taken, _ = _timed(lambda placed=placed: placed.digest)
        place_ms, hash_ms = min(place_ms, taken), min(hash_ms, hash_taken)
    return place_ms, hash_ms, placed


# --- two objectives, objects, growth ------------------------------------------------------------------------


def _two_objectives(num_parts: int, num_samples: int, distribution: str, encoder: str, num_seeds: int) -> Row:
    """Barrier times, means over seeds; each in units of the mean part's."""
    times: dict[str, list[float]] = {}
    taken = math.inf
    for seed in range(num_seeds):
        infos = sample_infos(distribution, num_samples, seed)
        costs = np.stack([BACKBONE(infos), ENCODERS[encoder](infos)])
        mean = costs.sum() / num_parts

        def of(part: np.ndarray, costs: np.ndarray = costs, mean: float = mean) -> float:
            return float(loads(costs, part, num_parts).max(axis=1).sum() / mean)

        milliseconds, part = _timed(lambda costs=costs: partition(costs, num_parts, "lpt"))
        taken = min(taken, milliseconds)
        alone = [partition(each, num_parts, "lpt") for each in costs]
        together = sum(_makespan(each, part, num_parts) for each, part in zip(costs, alone, strict=True))
        for name, value in (
            ("none", of(partition(costs, num_parts, "none"))),
            ("backbone_lpt", of(alone[0])),
            ("sum_lpt", of(partition(costs.sum(axis=0), num_parts, "lpt"))),
            ("vector_lpt", of(part)),
            ("decoupled", together / mean),
        ):
            times.setdefault(name, []).append(value)
    worst = max(a / b for a, b in zip(times["vector_lpt"], times["decoupled"], strict=True))
    return {
        "dp": num_parts,
        "samples": num_samples,
        "distribution": distribution,
        "encoder": encoder,
        "vector_ms": round(taken, 2),
        **{name: _round(np.mean(values)) for name, values in times.items()},
        "vector_over_decoupled_worst": _round(worst),
    }


def _giants(num_parts: int, num_samples: int, distribution: str, windows: Sequence[int]) -> Row:
    infos = sample_infos(distribution, num_samples * windows[-1], seed=0)
    first = BACKBONE(infos[:num_samples])
    return {
        "dp": num_parts,
        "samples": num_samples,
        "distribution": distribution,
        "giants": num_giants(first, num_parts),
        "largest_degree": int(context_degrees(first, num_parts).degree.max()),
        **_tamed(infos, BACKBONE, num_parts, num_samples, windows),
    }


def _cut(num_parts: int, cut: int) -> Row:
    """Means over seeds of what `side_by_side` measures of running jobs, for longer samples."""
    num_samples = CUT_SAMPLES * num_parts
    found = []
    for seed in range(CUT_SEEDS):
        infos = cut_infos(cut, num_samples * WINDOWS[-1], seed)
        steps = squared_length(infos).reshape(-1, CUT_SAMPLES, num_parts).sum(axis=1)
        in_turn = steps.max(axis=1).sum() / steps.mean(axis=1).sum()
        tamed = _tamed(infos, squared_length, num_parts, num_samples, WINDOWS)
        found.append({"as_they_come": in_turn, **tamed})
    means = {name: _round(np.mean([each[name] for each in found])) for name in found[0]}
    return {"dp": num_parts, "samples": num_samples, "cut": cut, **means}


def _tamed(
    infos: np.ndarray, cost: Cost, num_parts: int, num_samples: int, windows: Sequence[int]
) -> dict[str, float]:
    """Dearest groups over mean groups, by what is done about giants; sums over the steps of `infos`."""
    steps = [cost(infos[at : at + num_samples]) for at in range(0, len(infos), num_samples)]
    means = [step.sum() / num_parts for step in steps]
    shared = [context_degrees(step, num_parts).loads.max() for step in steps]
    return {
        "dominance": _round(np.dot([dominance(step, num_parts) for step in steps], means) / np.sum(means)),
        "lpt": _round(_regrouped(infos, cost, num_parts, num_samples, 1)),
        "context_degrees": _round(np.sum(shared) / np.sum(means)),
        **{f"regroup_{k}": _round(_regrouped(infos, cost, num_parts, num_samples, k)) for k in windows},
    }


def _regrouped(infos: np.ndarray, cost: Cost, num_parts: int, num_samples: int, window: int) -> float:
    """Dearest groups over mean groups, sums over all steps of one sample a row; windows of them regrouped."""
    longest, num_steps = int(infos["tokens"].max()), len(infos) // num_samples
    patches = int(infos["patches"].max())
    graph = DGraph().mix({"one": 1}).pad(seq_len=longest, rows=num_samples, patches_per_row=patches)
    graph = graph.cost(backbone=cost).regroup(steps=window).distribute("dp").balance("lpt")
    layout = MeshLayout(axis_names=("dp",), axis_sizes=(num_parts,), process_of_device=(0,) * num_parts)
    state, costs = initial_state(1, COLUMNS), []
    while len(costs) < num_steps:
        composed = graph.compose(state, ("one",), [infos], [True])
        if not isinstance(composed, Composed | Gathered):
            raise RuntimeError(f"a step could not be composed: {composed}")
        infos, state = infos[composed.drawn[0] :], composed.state
        if isinstance(composed, Composed):
            costs.append(graph.place(composed.plan, graph.place_tree(layout)).group_costs())
    return float(np.max(costs, axis=1).sum() / np.mean(costs, axis=1).sum())


def _beside_objects(num_parts: int, num_samples: int, distribution: str) -> Row:
    costs = BACKBONE(sample_infos(distribution, num_samples, seed=0))
    objects_ms, parts = _timed(lambda: object_karmarkar_karp(costs.tolist(), num_parts))
    theirs = max(int(costs[items].sum()) for items in parts)
    flat_ms, part = _best(lambda: partition(costs, num_parts, "lpt", refine=True), 5)
    stream = make_stream(distribution, num_parts, num_samples)
    compose_ms, composed = _best(stream.compose, 5)
    place_ms, hash_ms, _ = _place(stream, composed, "lpt", True, 5)
    plan_ms = compose_ms + place_ms + hash_ms
    ours = _makespan(costs, part, num_parts)
    return {
        "dp": num_parts,
        "samples": num_samples,
        "distribution": distribution,
        "method": "lpt refined",
        "alternative": "object_karmarkar_karp",
        "makespan_ratio": _round(ours / theirs),
        "ratio": _round(ours / lower_bound(costs, num_parts)),
        "alternative_ratio": _round(theirs / lower_bound(costs, num_parts)),
        "flat_ms": round(flat_ms, 3),
        "plan_ms": round(plan_ms, 2),
        "alternative_ms": round(objects_ms, 1),
        "flat_share": _round(flat_ms / objects_ms),
        "plan_share": _round(plan_ms / objects_ms),
    }


def _growth(num_samples: int, rounds: int) -> Row:
    num_parts, distribution = 512, "mix"
    _say(f"growth, {num_samples} samples of {distribution} over {num_parts} groups")
    costs = BACKBONE(sample_infos(distribution, num_samples, seed=0))
    flat_ms, _ = _best(lambda: partition(costs, num_parts, "lpt"), rounds)
    stream = make_stream(distribution, num_parts, num_samples)
    compose_ms, composed = _best(stream.compose, rounds)
    place_ms, hash_ms, placed = _place(stream, composed, "lpt", False, rounds)
    return {
        "dp": num_parts,
        "samples": num_samples,
        "distribution": distribution,
        "method": "lpt",
        "growth_flat_ms": round(flat_ms, 2),
        "growth_plan_ms": round(compose_ms + place_ms + hash_ms, 2),
        "compose_ms": round(compose_ms, 2),
        "place_ms": round(place_ms, 2),
        "hash_ms": round(hash_ms, 2),
        "plan_samples": len(placed.samples),
    }


def _exponents(growth: Sequence[Row]) -> str:
    """The slopes of log time over log samples, by least squares."""
    samples = np.log([row["samples"] for row in growth])
    flat, plan = (
        float(np.polyfit(samples, np.log([row[name] for row in growth]), 1)[0])
        for name in ("growth_flat_ms", "growth_plan_ms")
    )
    return f"growth from {GROWTH[0]} to {GROWTH[-1]} samples: flat like n^{flat:.2f}, plan like n^{plan:.2f}"


# --- figures ------------------------------------------------------------------------------------------------


def _makespan(costs: np.ndarray, part: np.ndarray, num_parts: int) -> int:
    return int(loads(costs, part, num_parts).max())


def _imbalance(costs: np.ndarray, num_parts: int) -> float:
    part = partition(costs, num_parts, "none")
    return _makespan(costs, part, num_parts) / (int(costs.sum()) / num_parts)


def _equal_count_bound(costs: np.ndarray, num_parts: int) -> int:
    """The mean, or the dearest item beside the cheapest ones that fill its part."""
    rising = np.sort(costs)
    return max(
        -(-int(costs.sum()) // num_parts), int(rising[-1] + rising[: len(rising) // num_parts - 1].sum())
    )


def _round(value: float | np.floating) -> float:
    return round(float(value), 6)


def _best(call: Callable[[], Result], rounds: int) -> tuple[float, Result]:
    """The least milliseconds of several calls, and what the last one returned."""
    taken, result = _timed(call)
    for _ in range(rounds - 1):
        again, result = _timed(call)
        taken = min(taken, again)
    return taken, result


def _timed(call: Callable[[], Result]) -> tuple[float, Result]:
    """Milliseconds of this thread that a call takes, and what it returns."""
    begin = time.thread_time()
    result = call()
    return 1000 * (time.thread_time() - begin), result
