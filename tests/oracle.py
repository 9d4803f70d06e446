"""What every step must deliver, as one plain loop: no leases, no ranks, no vectors, no planning code.

It reads whole sources with `SourceReader` (tested on its own), draws one sample at a time in exact fractions,
packs, balances and writes place by place. Slow, and easy to believe.
"""

import contextlib
import itertools
import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from msdata_jax.recipe import Recipe
from msdata_jax.records import IMAGE_TOKEN
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


def oracle_steps(recipe: Recipe, groups: int, context_parts: int = 1, limit: int | None = None) -> list[dict]:
    """The first `limit` global batches."""
    steps = _oracle_steps(recipe, groups, context_parts)
    with contextlib.closing(steps):
        return list(itertools.islice(steps, limit))


def _oracle_steps(recipe: Recipe, groups: int, context_parts: int) -> Iterator[dict[str, np.ndarray]]:
    """Global batches of every step, for `groups` data-parallel groups."""
    streams = [stream(recipe, i) for i in range(len(recipe.source_names))]
    with contextlib.ExitStack() as stack:
        for each in streams:
            stack.enter_context(contextlib.closing(each))
        yield from _merge(recipe, groups, context_parts, streams)


def _merge(recipe: Recipe, groups: int, context_parts: int, streams: list) -> Iterator[dict[str, np.ndarray]]:
    graph, pack = recipe.strategy, recipe.strategy.packing
    names = recipe.source_names
    upcoming = [next(each, None) for each in streams]
    credit = [0] * len(names)
    carry: list[dict] = []
    step = 0
    while True:
        weights = [int(w) for w in graph.mixture.weights_at(step, names)]
        drawn_units, pool, places = [0] * len(names), list(carry), sum(d["length"] for d in carry)
        most = (pack.rows + 1) * pack.max_segments_per_row if pack.max_segments_per_row else math.inf
        while places < (pack.rows + 1) * pack.seq_len and len(pool) < most:
            s = next_source(weights, credit, drawn_units, upcoming, graph.mixture.unit)
            if upcoming[s] is None:
                break
            drawn_units[s] += unit(upcoming[s], graph.mixture.unit)
            length = int(upcoming[s]["info"]["tokens"])
            pool.append({**upcoming[s], "length": length})
            places += length
            upcoming[s] = next(streams[s], None)
        if not pool:
            return
        total = sum(drawn_units)
        credit = [
            c + total * w - WEIGHT_SCALE * u for c, w, u in zip(credit, weights, drawn_units, strict=True)
        ]
        packed, carry = pack_rows(recipe, pool, len(carry))
        rows = [packed[r] for r in sorted(range(pack.rows), key=lambda r: (splitmix64((step << 32) + r), r))]
        order = balance_rows(recipe, rows, groups)
        yield write_rows(recipe, [rows[r] for r in order], context_parts)
        step += 1


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


def pack_rows(recipe: Recipe, pool: list[dict], num_carried: int) -> tuple[list[list[dict]], list[dict]]:
    """Best fit, carried samples first by age, then the longest; rows in order of their first sample."""
    pack = recipe.strategy.packing
    rows: list[list[int]] = [[] for _ in range(pack.rows)]
    waiting = set(range(len(pool)))
    fresh = sorted(range(num_carried, len(pool)), key=lambda i: (-pool[i]["length"], i))
    for i in [*range(num_carried), *fresh]:
        best = None
        for row in rows:
            room = pack.seq_len - sum(pool[j]["length"] for j in row) - pool[i]["length"]
            patches = sum(int(pool[j]["info"]["patches"]) for j in [*row, i])
            full = pack.max_segments_per_row is not None and len(row) >= pack.max_segments_per_row
            if (
                room >= 0
                and patches <= pack.patches_per_row
                and not full
                and (best is None or room < best[0])
            ):
                best = (room, row)
        if best is not None:
            best[1].append(i)
            waiting.discard(i)
    rows = sorted((sorted(row) for row in rows), key=lambda row: row[0] if row else len(pool))
    return [[pool[i] for i in row] for row in rows], [pool[i] for i in sorted(waiting)]


def balance_rows(recipe: Recipe, rows: list[list[dict]], groups: int) -> list[int]:
    """Longest processing time first into groups of equal count; microbatches alike inside each group."""
    graph = recipe.strategy
    costs = []
    for row in rows:
        infos = (
            np.array([d["info"] for d in row])
            if row
            else np.empty(0, dtype=[("tokens", "i8"), ("patches", "i8")])
        )
        parts = [cost for cost in (graph.backbone_cost, graph.encoder_cost) if cost is not None]
        costs.append(int(sum(cost(infos).sum() for cost in parts)) if parts else int(infos["tokens"].sum()))
    order = []
    for group in deal(list(range(len(rows))), costs, groups, graph.balancing):
        for microbatch in deal(group, costs, graph.distribution.microbatches, graph.balancing):
            order += microbatch
    return order


def deal(rows: list[int], costs: list[int], groups: int, method: str) -> list[list[int]]:
    """Deal rows to groups of equal count; keep their order where that is no worse."""
    size = len(rows) // groups
    kept = [rows[g * size : (g + 1) * size] for g in range(groups)]
    if method == "none" or groups == 1:
        return kept
    dealt: list[list[int]] = [[] for _ in range(groups)]
    for rank, row in enumerate(sorted(rows, key=lambda r: (-costs[r], r))):
        if method == "lpt":
            target = min(
                (g for g in dealt if len(g) < size), key=lambda g: (sum(costs[r] for r in g), dealt.index(g))
            )
        else:
            lap, place = divmod(rank, groups)
            target = dealt[place if lap % 2 == 0 else groups - 1 - place]
        target.append(row)
    worst = [max(sum(costs[r] for r in g) for g in choice) for choice in (dealt, kept)]
    return [sorted(g) for g in dealt] if worst[0] <= worst[1] else kept


def write_rows(recipe: Recipe, rows: list[list[dict]], context_parts: int) -> dict[str, np.ndarray]:
    """The fields of a batch, place by place."""
    pack, spread = recipe.strategy.packing, recipe.strategy.distribution
    shape = (pack.rows, pack.seq_len)
    batch = {name: np.zeros(shape, np.int32) for name in ("tokens", "targets", "segment_ids", "positions")}
    batch["loss_mask"] = np.zeros(shape, np.float32)
    if pack.patches_per_row:
        batch["patch_index"] = np.full(shape, -1, np.int32)
        batch["patches"] = np.zeros((pack.rows, pack.patches_per_row, pack.patch_values), np.uint8)
    for r, row in enumerate(rows):
        place = patch = 0
        for segment, drawn in enumerate(row, start=1):
            tokens, shown = drawn["sample"]["tokens"], 0
            for i, token in enumerate(tokens.tolist()):
                batch["segment_ids"][r, place], batch["positions"][r, place] = segment, i
                if token == IMAGE_TOKEN:
                    batch["patch_index"][r, place] = patch + shown
                    batch["patches"][r, patch + shown] = drawn["sample"]["patches"][shown]
                    shown += 1
                else:
                    batch["tokens"][r, place] = token
                if i + 1 < len(tokens) and tokens[i + 1] != IMAGE_TOKEN:
                    batch["targets"][r, place], batch["loss_mask"][r, place] = tokens[i + 1], 1
                place += 1
            patch += int(drawn["info"]["patches"])
    if spread.context_layout == "zigzag" and context_parts > 1:
        chunk = pack.seq_len // (2 * context_parts)
        order = []
        for part in range(context_parts):
            for piece in (part, 2 * context_parts - 1 - part):
                order += range(piece * chunk, (piece + 1) * chunk)
        batch = {name: field if name == "patches" else field[:, order] for name, field in batch.items()}
    return batch
