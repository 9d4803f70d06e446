"""What every step must deliver, as one plain loop: no leases, no ranks, no vectors.

It reads whole sources with `SourceReader` and orders rows with `balance` (each tested on its own), draws one
sample at a time in exact fractions, packs (`plain_packing`) and writes place by place. Slow, easy to believe.
"""

import contextlib
import itertools
import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from plain_packing import plain_rows

from msdata_jax.planning.balancing import Balance, balance
from msdata_jax.planning.encoder_slots import always_enough
from msdata_jax.planning.graph import DGraph
from msdata_jax.planning.packing import Pack, Shape
from msdata_jax.planning.partitioning import partition
from msdata_jax.recipe import Recipe
from msdata_jax.records import IMAGE_TOKEN, info_dtype
from msdata_jax.sources.reader import SourceReader

WEIGHT_SCALE = 1 << 24


def stream(recipe: Recipe, index: int) -> Iterator[dict]:
    """The samples of a source, for ever, as (source, position, part, sample)."""
    name = recipe.source_names[index]
    reader = SourceReader(name, index, recipe.sources[name], seed=recipe.seed, columns=recipe.columns)
    stops = recipe.strategy.mixture.on_exhausted == "stop"
    with contextlib.closing(reader):
        for position in range(reader.num_records) if stops else itertools.count():
            block = reader.read_block(position, position + 1)
            for info, sample in zip(block.infos, block.samples, strict=True):
                yield {"info": info, "sample": sample}


def oracle_steps(
    recipe: Recipe, groups: int, context_parts: int = 1, limit: int | None = None, num_slots: int = 0
) -> list[dict]:
    """The first `limit` global batches."""
    steps = _oracle_steps(recipe, groups, context_parts, num_slots)
    with contextlib.closing(steps):
        return list(itertools.islice(steps, limit))


def _oracle_steps(
    recipe: Recipe, groups: int, context_parts: int, num_slots: int
) -> Iterator[dict[str, np.ndarray]]:
    """Global batches of every step, for `groups` data-parallel groups."""
    streams = [stream(recipe, i) for i in range(len(recipe.source_names))]
    with contextlib.ExitStack() as stack:
        for each in streams:
            stack.enter_context(contextlib.closing(each))
        yield from _merge(recipe, groups, context_parts, num_slots, streams)


def _merge(
    recipe: Recipe, groups: int, context_parts: int, num_slots: int, streams: list
) -> Iterator[dict[str, np.ndarray]]:
    graph, pack = recipe.strategy, recipe.strategy.packing
    names = recipe.source_names
    upcoming = [next(each, None) for each in streams]
    credit = [0] * len(names)
    carry: list[dict] = []
    step, ended = 0, False
    while True:
        weights = [int(w) for w in graph.mixture.weights_at(step, names)]
        drawn_units, pool = [0] * len(names), list(carry)
        while (bucket := full_bucket(pack, pool)) is None and not ended:
            s = next_source(weights, credit, drawn_units, upcoming, graph.mixture.unit)
            if upcoming[s] is None:
                ended = True
                break
            drawn_units[s] += unit(upcoming[s], graph.mixture.unit)
            pool += pieces(pack, upcoming[s])
            upcoming[s] = next(streams[s], None)
        if not pool:
            return
        total = sum(drawn_units)
        credit = [
            c + total * w - WEIGHT_SCALE * u for c, w, u in zip(credit, weights, drawn_units, strict=True)
        ]
        shape = pack.shapes[fullest_bucket(pack, pool) if bucket is None else bucket]
        packed, carry = pack_rows(recipe, shape, pool, len(carry))
        numbers = sorted(range(shape.rows), key=lambda r: (splitmix64((step << 32) + r), r))
        rows = [packed[r] for r in numbers]
        order = place_rows(recipe, rows, groups)
        slots = spread_images(recipe, rows, num_slots) if num_slots else None
        yield write_rows(recipe, shape.seq_len, [rows[r] for r in order], context_parts, slots)
        step += 1


def pieces(pack: Pack, sample: dict) -> list[dict]:
    """What of a sample is packed, and how it is cut."""
    tokens, patches = int(sample["info"]["tokens"]), int(sample["info"]["patches"])
    if tokens == 0 or (pack.oversize == "drop" and (tokens > pack.seq_len or patches > pack.patches_per_row)):
        return []
    if pack.oversize != "split":
        return [{**sample, "start": 0, "length": min(tokens, pack.seq_len)}]
    starts = range(0, tokens, pack.seq_len)
    return [{**sample, "start": start, "length": min(tokens - start, pack.seq_len)} for start in starts]


def in_bucket(pack: Pack, pool: list[dict], bucket: int) -> list[dict]:
    """What goes into rows of one shape: all that is too long for the one before."""
    shortest = pack.shapes[bucket - 1].seq_len if bucket else 0
    return [d for d in pool if shortest < d["length"] <= pack.shapes[bucket].seq_len]


def full_bucket(pack: Pack, pool: list[dict]) -> int | None:
    """The shape of which the pool has enough for a step."""
    for bucket, shape in enumerate(pack.shapes):
        mine = in_bucket(pack, pool, bucket)
        most, places = pack.max_segments_per_row or math.inf, sum(d["length"] for d in mine)
        enough = len(mine) >= (shape.rows + 1) * most or places >= (shape.rows + 1) * shape.seq_len
        if len(mine) >= shape.rows if pack.method == "pad" else enough:
            return bucket
    return None


def fullest_bucket(pack: Pack, pool: list[dict]) -> int:
    """The shape to make the last steps of."""

    def share(bucket: int) -> Fraction:
        shape, mine = pack.shapes[bucket], in_bucket(pack, pool, bucket)
        return Fraction(sum(d["length"] for d in mine), shape.rows * shape.seq_len)

    return max(range(len(pack.shapes)), key=share)


def next_source(
    weights: list[int], credit: list[int], drawn: list[int], upcoming: list, unit_name: str
) -> int:
    """Whose turn it is: streams are paired two at a time, the lightest first, and the one due first goes on.

    A pair is due by its own weight, credit and units drawn, like a single stream.
    """
    # (weight, lowest source in it, next source, next sample's units, units drawn, credit)
    nodes = [
        (weight, s, s, 1 if upcoming[s] is None else unit(upcoming[s], unit_name), drawn[s], credit[s])
        for s, weight in enumerate(weights)
        if weight
    ]
    while len(nodes) > 1:
        first, second, *nodes = sorted(nodes, key=lambda node: node[:2])
        ahead = second if due_tick(second) < due_tick(first) else first
        together = (first[0] + second[0], min(first[1], second[1]), ahead[2], ahead[3])
        nodes.append((*together, first[4] + second[4], first[5] + second[5]))
    return nodes[0][2]


def due_tick(node: tuple) -> int:
    """When half of the next sample's units are earned, rounded up."""
    weight, _, _, size, drawn, credit = node
    return math.ceil((WEIGHT_SCALE * (drawn + Fraction(size, 2)) - credit) / weight)


def unit(sample: dict, name: str) -> int:
    """Units of one draw."""
    return 1 if name == "samples" else max(int(sample["info"][name]), 1)


def splitmix64(value: int) -> int:
    """The finaliser of splitmix64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = (value ^ (value >> shift)) * factor % 2**64
    return value ^ (value >> 31)


def pack_rows(
    recipe: Recipe, shape: Shape, pool: list[dict], num_carried: int
) -> tuple[list[list[dict]], list[dict]]:
    """Rows filled by `plain_packing`, and what waits."""
    pack, graph = recipe.strategy.packing, recipe.strategy
    mine = in_bucket(pack, pool, pack.shapes.index(shape))
    num_carried = len(in_bucket(pack, pool[:num_carried], pack.shapes.index(shape)))
    units = [
        {
            "length": d["length"],
            "patches": int(d["info"]["patches"]),
            "segments": 1,
            "cost": sum(costs_of(graph, [d])),
        }
        for d in mine
    ]
    rows: list[list[dict]] = [[] for _ in range(shape.rows)]
    for d, row in zip(mine, plain_rows(pack, shape, units, num_carried), strict=True):
        if row is not None:
            rows[row].append(d)
    placed = {id(d) for row in rows for d in row}
    return rows, [d for d in pool if id(d) not in placed]


def costs_of(graph: DGraph, row: list[dict]) -> tuple[int, int]:
    """Backbone and encoder cost of a row; places, where there is no formula."""
    infos = (
        np.array([d["info"] for d in row], dtype=row[0]["info"].dtype) if row else np.empty(0, info_dtype())
    )
    infos["tokens"] = [d["length"] for d in row]
    if graph.backbone_cost is None and graph.encoder_cost is None:
        return int(infos["tokens"].sum()), 0
    backbone, encoder = (
        int(cost(infos).sum()) if cost is not None and row else 0
        for cost in (graph.backbone_cost, graph.encoder_cost)
    )
    return backbone, encoder


def place_rows(recipe: Recipe, rows: list[list[dict]], groups: int) -> list[int]:
    """Order of the rows on the mesh, by `planning.balancing`, which is tested on its own."""
    graph = recipe.strategy
    costs = np.array([costs_of(graph, row) for row in rows], dtype=np.int64).T
    rules = Balance(
        method=graph.balancing.method,
        objective=graph.balancing.objective,
        refine=graph.balancing.refine,
        microbatches=graph.distribution.microbatches,
        group_size=graph.distribution.group_size,
    )
    both = costs[1].any() and graph.distribution.encoder_axis is None
    return balance(costs if both else costs[0], groups, rules).order.tolist()


def spread_images(recipe: Recipe, rows: list[list[dict]], num_slots: int) -> list[list[dict]]:
    """The samples whose images each slot shows, dealt by `partition`, which is tested on its own."""
    graph, pack = recipe.strategy, recipe.strategy.packing
    with_images = [d for row in rows for d in row if d["info"]["patches"]]
    sizes = np.array([d["info"]["patches"] for d in with_images], dtype=np.int64)
    costs = np.array([costs_of(graph, [d])[1] for d in with_images], dtype=np.int64)
    cap = always_enough(len(rows), pack.patches_per_row, num_slots)
    slots: list[list[dict]] = [[] for _ in range(num_slots)]
    for d, slot in zip(with_images, partition(costs, num_slots, sizes=sizes, cap=cap).tolist(), strict=True):
        slots[slot].append(d)
    return slots


def write_slots(recipe: Recipe, slots: list[list[dict]], num_rows: int, batch: dict[str, np.ndarray]) -> dict:
    """Fill the fields that are over slots; where the first patch of each sample is, by `id`."""
    pack = recipe.strategy.packing
    cap = always_enough(num_rows, pack.patches_per_row, len(slots))
    batch["patches"] = np.zeros((len(slots), cap, pack.patch_values), np.uint8)
    batch["patch_segment_ids"] = np.zeros((len(slots), cap), np.int32)
    first_patch = {}
    for s, slot in enumerate(slots):
        place = 0
        for number, d in enumerate(slot, start=1):
            first_patch[id(d)] = s * cap + place
            for patch in d["sample"]["patches"]:
                batch["patches"][s, place], batch["patch_segment_ids"][s, place] = patch, number
                place += 1
    return first_patch


def write_rows(
    recipe: Recipe,
    seq_len: int,
    rows: list[list[dict]],
    context_parts: int,
    slots: list[list[dict]] | None = None,
) -> dict[str, np.ndarray]:
    """The fields of a batch, place by place."""
    pack, spread, loss = recipe.strategy.packing, recipe.strategy.distribution, recipe.strategy.losses
    shape = (len(rows), seq_len)
    batch = {name: np.zeros(shape, np.int32) for name in ("tokens", "targets", "segment_ids", "positions")}
    batch["loss_mask"] = np.zeros(shape, np.float32)
    if pack.patches_per_row:
        batch["patch_index"] = np.full(shape, -1, np.int32)
        batch["patches"] = np.zeros((len(rows), pack.patches_per_row, pack.patch_values), np.uint8)
    first_patch = None if slots is None else write_slots(recipe, slots, len(rows), batch)
    for r, row in enumerate(rows):
        place = patch = 0
        for segment, drawn in enumerate(row, start=1):
            tokens, shown = drawn["sample"]["tokens"], 0
            tokens = tokens[drawn["start"] : drawn["start"] + drawn["length"]]
            factor = loss.sources.get(recipe.source_names[drawn["info"]["source"]], 1.0)
            num_targets = sum(token != IMAGE_TOKEN for token in tokens[1:].tolist())
            weight = np.float32(1 / np.float32(num_targets or 1) if loss.per == "segments" else 1)
            weight *= np.float32(factor)
            for i, token in enumerate(tokens.tolist()):
                batch["segment_ids"][r, place], batch["positions"][r, place] = segment, i
                if token == IMAGE_TOKEN and first_patch is not None:
                    batch["patch_index"][r, place] = first_patch[id(drawn)] + shown
                    shown += 1
                elif token == IMAGE_TOKEN:
                    batch["patch_index"][r, place] = patch + shown
                    batch["patches"][r, patch + shown] = drawn["sample"]["patches"][shown]
                    shown += 1
                else:
                    batch["tokens"][r, place] = token
                if i + 1 < len(tokens) and tokens[i + 1] != IMAGE_TOKEN:
                    batch["targets"][r, place], batch["loss_mask"][r, place] = tokens[i + 1], weight
                place += 1
            patch += int(drawn["info"]["patches"])
    if spread.context_layout == "contiguous" or context_parts == 1:
        return batch
    orders = [
        context_order(spread.context_layout, segments, context_parts) for segments in batch["segment_ids"]
    ]
    return {
        name: field
        if name.startswith("patch") and name != "patch_index"
        else np.stack([row[order] for row, order in zip(field, orders, strict=True)])
        for name, field in batch.items()
    }


def context_order(layout: str, segment_ids: np.ndarray, parts: int) -> list[int]:
    """Places of a row, part by part."""
    places = list(range(len(segment_ids)))
    shown: list[list[int]] = [[] for _ in range(parts)]
    stretches = [places]
    if layout == "zigzag_document":
        ids = segment_ids.tolist()
        stretches = [[p for p in places if ids[p] == each] for each in range(1, max(ids) + 1)]
    left = set(places)
    for stretch in stretches:
        chunk = len(stretch) // (2 * parts)
        for part in range(parts):
            for piece in (part, 2 * parts - 1 - part):
                mine = stretch[piece * chunk : (piece + 1) * chunk]
                shown[part] += mine
                left -= set(mine)
    for turn, place in enumerate(sorted(left)):
        shown[turn % parts].append(place)
    return [place for part in shown for place in (sorted(part) if layout == "zigzag_document" else part)]
