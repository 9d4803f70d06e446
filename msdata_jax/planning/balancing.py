"""Rows to data-parallel groups and their microbatches, in equal numbers and of even cost.

A step is as slow as the group that the others wait for. When they wait depends on the trainer, so the rules
name what is minimised. With `t[g, m]` the cost of microbatch `m` of group `g`:

- `step`: `max_g sum_m t[g, m]`. Groups meet once a step, to exchange gradients (data parallelism, ZeRO-1).
- `pipeline`: `max_g (sum_m t[g, m] + (stages - 1) max_m t[g, m])`. Each group is a pipeline of that many
  stages, filled and drained once a step (1F1B), and groups meet once a step.
- `microbatch`: `sum_m max_g t[g, m]`. Groups meet in every microbatch (expert parallelism, ZeRO-3).

Rows have one shape, so every group and every microbatch holds the same number of them. Sorts are stable and
sums are integer, so that every machine finds the same order.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from msdata_jax.errors import RecipeError
from msdata_jax.planning.partitioning import METHODS, Method, partition
from msdata_jax.planning.partitioning.list_scheduling import dearest_first
from msdata_jax.planning.partitioning.vector_scheduling import falling_order

Objective = Literal["step", "pipeline", "microbatch"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)

REFINE_SEARCHES = 256
"""Enough where rows are few; where they are many, LPT alone is within half a percent of the bound."""


@dataclass(frozen=True, kw_only=True)
class Balance:
    """How the rows of a step are balanced.

    Attributes:
        method: how `partitioning.partition` deals rows to groups (for `microbatch`, slots to larger groups);
            `none` keeps the rows as they are. Microbatches of a group are always dealt by LPT.
        objective: what is minimised; see the head of this file.
        microbatches: per group, at least 1.
        group_size: so many consecutive groups form a larger group, whose members meet more often with one
            another than with the rest: a node, an expert-parallel group. Rows are dealt to the larger groups
            first. Under `microbatch` the members alone meet in every microbatch, and the larger groups once
            a step. None: there are no larger groups.
        pipeline_stages: of every group, at least 1; counts under `pipeline` only.
        refine: exchange rows between groups afterwards while that lowers the dearest one, as far as
            `REFINE_SEARCHES` looks at a pair of groups bring it.
    """

    method: Method = "lpt"
    objective: Objective = "step"
    microbatches: int = 1
    group_size: int | None = None
    pipeline_stages: int = 1
    refine: bool = True

    def __post_init__(self) -> None:
        """Refuse names and numbers that mean nothing."""
        if self.method not in METHODS:
            raise RecipeError(f"balance(method=...) is one of {METHODS}, got {self.method!r}")
        if self.objective not in OBJECTIVES:
            raise RecipeError(f"balance(objective=...) is one of {OBJECTIVES}, got {self.objective!r}")
        for name in ("microbatches", "group_size", "pipeline_stages"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RecipeError(f"balance({name}=...) is at least 1, got {value}")


@dataclass(frozen=True, kw_only=True)
class Balanced:
    """The order of a step's rows.

    Attributes:
        order: int64 `[rows]`: row numbers group by group, in a group microbatch by microbatch, and in a
            microbatch in increasing order.
        method: the one used; `none` after a fall back to the rows as they are.
        note: why it fell back, with both values of the objective; else empty.
    """

    order: np.ndarray
    method: Method
    note: str


def balance(row_costs: np.ndarray, num_groups: int, rules: Balance) -> Balanced:
    """Deal rows to groups and microbatches so that the rules' objective is low.

    Never worse than the rows as they are: where it would be, they stay so, and `note` says it.

    `step` and `pipeline` deal rows to groups, then each group's rows to microbatches: the dearest row left
    to the cheapest microbatch with room (LPT, Graham 1969). `pipeline` lets a row that stands out weigh as
    much as the bubble that it opens, so that its group gets less besides it. `microbatch` cuts the rows,
    sorted by cost, into slots that all groups take at once; in a slot the dearest share goes to the group
    that has least so far. Microbatches come in the order of a pyramid, cheap at both ends: so a pipeline
    takes no longer than the objective says, while in another order it can.

    Args:
        row_costs: int64 `[rows]`, at least 0, their sum times `pipeline_stages` below 2**62; or `[2, rows]`:
            work of the backbone and of the encoder. Under `step` those are two phases with a barrier after
            each, so the sum of both dearest groups counts (`karmarkar_karp`, which knows one cost, evens
            their sum). In a pipeline, or between the barriers of a microbatch, one follows the other: their
            sum counts.
        num_groups: data-parallel groups, at least 1.
        rules: what to minimise, and how.

    Raises:
        RecipeError: rows do not divide by `num_groups * microbatches`, or groups by `group_size`.
    """
    costs = _phases(row_costs, rules)
    if rules.objective == "pipeline" and int(costs.sum()) * rules.pipeline_stages >= 2**62:
        raise RecipeError(
            f"costs of {int(costs.sum())} in all times {rules.pipeline_stages} stages leave int64; "
            "count them in a larger unit"
        )
    kept = np.arange(costs.shape[1], dtype=np.int64)
    _check_counts(len(kept), num_groups, rules)
    if rules.method == "none":
        return Balanced(order=kept, method="none", note="")
    deal = _deal_by_slot if rules.objective == "microbatch" else _deal_by_group
    order = np.sort(deal(costs, num_groups, rules), axis=2).reshape(-1)
    before, after = (objective_value(row_costs, each, num_groups, rules) for each in (kept, order))
    if after > before:
        note = f"{rules.method} reaches {after}, the rows as they are {before} ({rules.objective}): they stay"
        return Balanced(order=kept, method="none", note=note)
    return Balanced(order=order, method=rules.method, note="")


def objective_value(row_costs: np.ndarray, order: np.ndarray, num_groups: int, rules: Balance) -> int:
    """What the rules minimise, for any order of the rows, in the unit of the costs.

    Args:
        row_costs: as in `balance`.
        order: int64 `[rows]`: row numbers group by group, microbatch by microbatch.
        num_groups: data-parallel groups.
        rules: the objective; its `method` and `refine` do not matter.
    """
    costs = _phases(row_costs, rules)
    # [phases, groups, microbatches, rows of one] -> [phases, groups, microbatches]
    work = costs[:, order].reshape(len(costs), num_groups, rules.microbatches, -1).sum(axis=3)
    if rules.objective == "step":
        return int(work.sum(axis=2).max(axis=1).sum())
    if rules.objective == "pipeline":
        return int((work[0].sum(axis=1) + (rules.pipeline_stages - 1) * work[0].max(axis=1)).max())
    # [larger groups, groups of one, microbatches]
    slots = work[0].reshape(-1, rules.group_size or num_groups, rules.microbatches)
    return int(slots.max(axis=1).sum(axis=1).max())


def _phases(row_costs: np.ndarray, rules: Balance) -> np.ndarray:
    """int64 `[phases, rows]`: one line of costs for each phase of the step that ends with a barrier."""
    costs = np.atleast_2d(row_costs)
    if rules.objective != "step" or not costs.any():
        return costs.sum(axis=0, keepdims=True)
    return costs[costs.any(axis=1)]


def _check_counts(num_rows: int, num_groups: int, rules: Balance) -> None:
    if num_rows % (num_groups * rules.microbatches):
        raise RecipeError(
            f"microbatches are equal in rows: {num_rows} rows do not divide by {num_groups} groups x "
            f"{rules.microbatches} microbatches; choose a number of rows that does"
        )
    if rules.group_size and num_groups % rules.group_size:
        raise RecipeError(
            f"larger groups are equal in size: {num_groups} groups do not divide by "
            f"group_size={rules.group_size}; choose a divisor, or None"
        )


def _deal_by_group(costs: np.ndarray, num_groups: int, rules: Balance) -> np.ndarray:
    """Rows to groups, then to microbatches; int64 `[groups, microbatches, rows of one]`."""
    groups = _deal_to_groups(_weights(costs, num_groups, rules), num_groups, rules)
    total = costs.sum(axis=0)
    group = np.arange(num_groups)[:, None, None]
    dealt = groups[group, _deal_lines(total[groups], rules.microbatches)]
    return _in_pyramid(dealt, total[dealt].sum(axis=2))


def _weights(costs: np.ndarray, num_groups: int, rules: Balance) -> np.ndarray:
    """What a row adds to its group's time, int64 `[phases, rows]`.

    In a pipeline this is its cost and, for the dearest row of a group, `stages - 1` times what it stands out
    above a mean microbatch. Groups take one each of the `num_groups` dearest rows.
    """
    if rules.objective != "pipeline":
        return costs
    dearest = dearest_first(costs[0])[:num_groups]
    mean = costs.sum() // (num_groups * rules.microbatches)
    weights = costs.copy()
    weights[0, dearest] += (rules.pipeline_stages - 1) * np.maximum(costs[0, dearest] - mean, 0)
    return weights


def _deal_to_groups(weights: np.ndarray, num_groups: int, rules: Balance) -> np.ndarray:
    """int64 `[groups, rows of one]`, through the larger groups where there are any."""
    size = rules.group_size or 1
    larger = _deal(weights, num_groups // size, rules)
    if size == 1:
        return larger
    return np.concatenate([rows[_deal(weights[:, rows], size, rules)] for rows in larger])


def _deal(weights: np.ndarray, num_parts: int, rules: Balance) -> np.ndarray:
    """int64 `[parts, items of one]`: items of weights `[phases, items]`, each part's in increasing order.

    In falling order the items' own stretches are the worst parts, so that `partition` never keeps those, and
    the order of the rows decides nothing but ties; `balance` compares with the rows as they came.
    """
    if rules.method == "karmarkar_karp":  # differencing knows one cost
        weights = weights.sum(axis=0, keepdims=True)
    falling = falling_order(weights)
    part = partition(
        weights[:, falling],
        num_parts,
        rules.method,
        equal_counts=True,
        refine=rules.refine,
        searches=REFINE_SEARCHES,
    )
    return np.sort(falling[np.argsort(part, kind="stable")].reshape(num_parts, -1), axis=1)


def _deal_by_slot(costs: np.ndarray, num_groups: int, rules: Balance) -> np.ndarray:
    """Rows to slots of like cost, those to larger groups; int64 `[groups, microbatches, rows of one]`."""
    size = rules.group_size or num_groups
    num_larger = num_groups // size
    total = costs[0]
    slots = dearest_first(total).reshape(num_larger * rules.microbatches, -1)
    slot = np.arange(len(slots))[:, None, None]
    shares = slots[slot, _deal_lines(total[slots], size)]  # [slots, shares, rows of one]
    work = total[shares].sum(axis=2)
    chosen = _deal(work.max(axis=1)[None], num_larger, rules)  # [larger groups, microbatches]
    dealt = _deal_shares(shares[chosen], work[chosen])
    dealt = _in_pyramid(dealt, work[chosen].max(axis=2))
    # [larger groups, microbatches, groups of one, rows] -> [groups, microbatches, rows]
    return dealt.swapaxes(1, 2).reshape(num_groups, rules.microbatches, -1)


def _deal_shares(shares: np.ndarray, work: np.ndarray) -> np.ndarray:
    """Slot by slot, give the dearest share to the group that has least so far.

    Args:
        shares: int64 `[larger groups, slots, groups of one, rows]`.
        work: int64 `[larger groups, slots, groups of one]`, the cost of each share.

    Returns:
        As `shares`, each slot's in the order of the groups.
    """
    dealt = np.empty_like(shares)
    larger = np.arange(len(shares))[:, None]
    so_far = np.zeros_like(work[:, 0])
    for slot in range(shares.shape[1]):
        falling = np.argsort(-work[:, slot], axis=1, kind="stable")
        rising = np.argsort(so_far, axis=1, kind="stable")
        dealt[larger, slot, rising] = shares[larger, slot, falling]
        so_far[larger, rising] += work[larger, slot, falling]
    return dealt


def _deal_lines(costs: np.ndarray, num_bins: int) -> np.ndarray:
    """Deal the items of every line to its own bins by LPT with equal counts, all lines at once.

    Args:
        costs: int64 `[lines, items]`.
        num_bins: bins of a line.

    Returns:
        int64 `[lines, bins, items / bins]`: columns of `costs`.
    """
    falling = np.argsort(-costs, axis=1, kind="stable")
    num_lines, num_items = costs.shape
    room = num_items // num_bins
    if room == 1:
        return falling[:, :, None]
    dealt = np.empty((num_lines, num_bins, room), dtype=np.int64)
    held = np.zeros((num_lines, num_bins), dtype=np.int64)
    load = np.zeros((num_lines, num_bins), dtype=np.int64)
    full = np.iinfo(np.int64).max
    line = np.arange(num_lines)
    for item in falling.T:
        cheapest = np.where(held < room, load, full).argmin(axis=1)
        dealt[line, cheapest, held[line, cheapest]] = item
        held[line, cheapest] += 1
        load[line, cheapest] += costs[line, item]
    return dealt


def _in_pyramid(dealt: np.ndarray, work: np.ndarray) -> np.ndarray:
    """Order microbatches by cost, cheap at both ends.

    Args:
        dealt: `[lines, microbatches, ...]`.
        work: int64 `[lines, microbatches]`, their costs.
    """
    cheapest_first = np.argsort(work, axis=1, kind="stable")
    rising_then_falling = np.concatenate([cheapest_first[:, 0::2], cheapest_first[:, 1::2][:, ::-1]], axis=1)
    return dealt[np.arange(len(dealt))[:, None], rising_then_falling]
