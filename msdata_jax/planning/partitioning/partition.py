"""Items with costs into parts, so that the dearest part costs as little as can be.

Decisions are made in integers, so that every machine finds the same parts.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from msdata_jax.errors import RecipeError
from msdata_jax.planning.arrays import numbered_by_first
from msdata_jax.planning.partitioning.capped_scheduling import capped_schedule
from msdata_jax.planning.partitioning.differencing import balanced_differencing, largest_differencing
from msdata_jax.planning.partitioning.list_scheduling import (
    NEVER,
    dearest_first,
    equal_count_schedule,
    list_schedule,
    sums,
)
from msdata_jax.planning.partitioning.refinement import SEARCHES
from msdata_jax.planning.partitioning.refinement import refine as refine_one
from msdata_jax.planning.partitioning.vector_refinement import refine_two
from msdata_jax.planning.partitioning.vector_scheduling import falling_order, shares, vector_schedule

Method = Literal["lpt", "karmarkar_karp", "snake", "none"]
METHODS: tuple[Method, ...] = ("lpt", "karmarkar_karp", "snake", "none")

EIGHTHS = (8, 7, 0)
"""What shares of all objectives but the heaviest count, in turn, until the parts are nearly even."""


def partition(  # noqa: PLR0913
    costs: np.ndarray,
    num_parts: int,
    method: Method = "lpt",
    *,
    equal_counts: bool = False,
    refine: bool = False,
    searches: int = SEARCHES,
    sizes: np.ndarray | None = None,
    cap: int | None = None,
    together: np.ndarray | None = None,
) -> np.ndarray:
    """Choose a part for each item so that the dearest part is cheap.

    `lpt` gives the dearest item left to the cheapest part (Graham 1969): at most `4/3 - 1/(3 num_parts)` of
    the best when counts are free. `karmarkar_karp` is the largest differencing method: a little better than
    plain `lpt` with few items a part, far worse with equal counts and a heavy tail. `snake` deals in falling
    cost, to and fro. `none` cuts the items as they come into stretches of even count. Items of no cost are
    dealt in turn where counts are free.

    Several objectives are phases with a barrier after each, in one unit: what counts is the sum of each
    objective's dearest part. `lpt` keeps the largest of a part's shares of the totals small. Where not all
    objectives can be even at once, a percent of the heaviest costs the most: so, until the parts are nearly
    even, `lpt` is tried again with shares of the others that count less, at last nothing (`EIGHTHS`).

    No result is dearer than that of `none`, which is returned where it would be (and keeps the cap).

    The order of the items decides nothing but which of several equal items goes where: under any permutation
    the parts' costs are the same numbers (of several objectives, up to the rounding of shares to 2**-40),
    except where `none` is asked for or returned.

    Args:
        costs: integers `[items]`, or `[objectives, items]`, each at least 0; each total below 2**62.
        num_parts: parts, at least 1.
        method: one of `METHODS`.
        equal_counts: every part gets the same number of items, which must divide.
        refine: exchange items afterwards while that lowers the dearest part, or the sum of the dearest parts
            of two objectives; not with more.
        searches: bound of that work: pairs of parts to look at one after the other.
        sizes: integers `[items]`, each at least 0, with `cap`; for `lpt` and `none`, counts free.
        cap: the total size of a part stays at most this.
        together: integers `[items]`; items of equal number stay in one part. Counts free.

    Returns:
        int64 `[items]`: part of each item, from 0. Where counts are free, parts may be empty.

    Raises:
        RecipeError: an argument breaks a rule above, or no way is found to keep the cap.
    """
    table = _checked_costs(costs, num_parts)
    if method not in METHODS:
        raise RecipeError(f"method must be one of {METHODS}, got {method!r}")
    items = _Items(
        costs=table,
        num_parts=num_parts,
        equal_counts=equal_counts,
        sizes=None if sizes is None else _checked_per_item("sizes", sizes, table.shape[1]),
        cap=cap,
    )
    for broken in (*_refused(items, method, refine, together is not None), *_broken_caps(items)):
        raise RecipeError(broken)
    if together is None:
        return _partition(items, method, refine, searches)
    merged, group = _merged(items, np.asarray(together))
    for broken in _broken_caps(merged):
        raise RecipeError(f"items that stay together count as one: {broken}")
    return _partition(merged, method, refine, searches)[group]


def loads(costs: np.ndarray, part: np.ndarray, num_parts: int) -> np.ndarray:
    """What each part costs.

    Args:
        costs: int64 `[items]` or `[objectives, items]`.
        part: int64 `[items]`, part of each item.
        num_parts: parts.

    Returns:
        int64 `[num_parts]` or `[objectives, num_parts]`.
    """
    if costs.ndim == 1:
        return sums(costs, part, num_parts)
    return np.stack([sums(values, part, num_parts) for values in costs])


def lower_bound(costs: np.ndarray, num_parts: int) -> int:
    """A cost that the dearest part has at least, whatever the partition.

    The largest of: the mean; the dearest item; and, as some part holds `j + 1` of the `j * num_parts + 1`
    dearest items, the `j + 1` cheapest of those.

    Args:
        costs: int64 `[items]`, each at least 0.
        num_parts: parts, at least 1.

    Raises:
        RecipeError: as `partition`.
    """
    values, *others = _checked_costs(costs, num_parts)
    if others:
        raise RecipeError(f"a bound is of one objective, got {len(costs)}; ask for each")
    if not len(values):
        return 0
    dearest = np.concatenate([[0], np.cumsum(np.sort(values)[::-1])])
    j = np.arange(0, (len(values) - 1) // num_parts + 1)
    pigeonhole = dearest[j * num_parts + 1] - dearest[j * num_parts - j]  # j = 0: the dearest item
    return max(-(-int(dearest[-1]) // num_parts), int(pigeonhole.max()))


@dataclass(frozen=True, kw_only=True)
class _Items:
    """What is to be divided, and what a result must keep. `costs` is int64 `[objectives, items]`."""

    costs: np.ndarray
    num_parts: int
    equal_counts: bool
    sizes: np.ndarray | None
    cap: int | None

    @property
    def count(self) -> int:
        return self.costs.shape[1]

    @property
    def in_stretches(self) -> np.ndarray:
        """Method `none`."""
        return np.arange(self.count) * self.num_parts // max(1, self.count)

    def keeps_cap(self, part: np.ndarray) -> bool:
        if self.sizes is None or self.cap is None:
            return True
        return int(sums(self.sizes, part, self.num_parts).max()) <= self.cap

    def makespan(self, part: np.ndarray) -> int:
        """Each objective's dearest part, summed."""
        return sum(loads(self.costs, part, self.num_parts).max(axis=1).tolist())

    @property
    def even(self) -> int:
        """A makespan that no partition is below: each objective's mean part, or its dearest item."""
        dearest, totals = self.costs.max(axis=1, initial=0).tolist(), self.costs.sum(axis=1).tolist()
        return sum(max(d, -(-t // self.num_parts)) for d, t in zip(dearest, totals, strict=True))


def _partition(items: _Items, method: Method, refine: bool, searches: int) -> np.ndarray:
    stretches = items.in_stretches
    part = stretches if method == "none" else _scheduled(items, method)
    if not items.keeps_cap(part):
        raise RecipeError(
            f"method 'none' leaves the items as they come, which breaks cap={items.cap} in {items.num_parts} "
            f"parts; choose method 'lpt', or a larger cap"
        )
    if refine:
        part = _refined(items, part, searches)
    worse = items.makespan(part) > items.makespan(stretches)
    return stretches if worse and items.keeps_cap(stretches) else part


def _refined(items: _Items, part: np.ndarray, searches: int) -> np.ndarray:
    one = len(items.costs) == 1
    return (refine_one if one else refine_two)(
        items.costs[0] if one else items.costs,
        part,
        items.num_parts,
        move=not items.equal_counts,
        sizes=np.zeros(items.count, dtype=np.int64) if items.sizes is None else items.sizes,
        cap=items.cap or 0,
        searches=searches,
    )


def _scheduled(items: _Items, method: Method) -> np.ndarray:
    if len(items.costs) > 1:
        return _of_several(items, method)
    costs, sizes = items.costs, items.sizes
    order = dearest_first(costs[0]) if sizes is None else falling_order(costs, sizes)
    return _by_order(items, method, costs, order)


def _of_several(items: _Items, method: Method) -> np.ndarray:
    """The best of several weights of all objectives but the heaviest; under a cap, of the plain ones."""
    comparable = shares(items.costs)
    falling = falling_order(comparable, items.sizes)
    lighter = np.arange(len(comparable)) != items.costs.sum(axis=1).argmax()
    best, least = np.empty(0, dtype=np.int64), -1
    for eighths in EIGHTHS if items.sizes is None else EIGHTHS[:1]:
        weighted = np.where(lighter[:, None], comparable * eighths >> 3, comparable)
        order = falling[np.argsort(-weighted[:, falling].sum(axis=0), kind="stable")]
        part = _by_order(items, method, weighted, order)
        makespan = items.makespan(part)
        if least < 0 or makespan < least:
            best, least = part, makespan
        if least <= items.even + (items.even >> 7):
            break
    return best


def _by_order(items: _Items, method: Method, comparable: np.ndarray, order: np.ndarray) -> np.ndarray:
    part = np.empty(items.count, dtype=np.int64)
    part[order] = _in_order(items, method, comparable[:, order], order)
    return part


def _in_order(items: _Items, method: Method, costs: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Parts of the items in falling order."""
    num_parts = items.num_parts
    if len(costs) > 1:  # an objective of no cost has no say
        costs = costs[costs.any(axis=1)] if costs.any() else costs[:1]
    if items.sizes is not None:
        part = capped_schedule(costs, num_parts, items.sizes[order], items.cap or 0)
        if part is None:
            raise RecipeError(
                f"found no way to keep cap={items.cap} in {num_parts} parts: the items take "
                f"{int(items.sizes.sum())} of {num_parts * (items.cap or 0)}; raise cap, or take more parts"
            )
        return part
    if method == "snake":
        turn, place = np.divmod(np.arange(items.count), num_parts)
        return np.where(turn % 2, num_parts - 1 - place, place)
    if items.equal_counts:
        return _equal_counts(costs, num_parts, method)
    paid = int(np.count_nonzero(costs.any(axis=0)))
    in_turn = np.arange(items.count - paid) % num_parts
    return np.concatenate([_free_counts(costs[:, :paid], num_parts, method), in_turn])


def _free_counts(costs: np.ndarray, num_parts: int, method: Method) -> np.ndarray:
    if method == "karmarkar_karp":
        return largest_differencing(costs[0], num_parts)
    if len(costs) > 1:
        return vector_schedule(costs, num_parts)
    return list_schedule(costs[0], np.zeros(num_parts, dtype=np.int64))


def _equal_counts(costs: np.ndarray, num_parts: int, method: Method) -> np.ndarray:
    if method == "karmarkar_karp":
        return balanced_differencing(costs[0], num_parts)
    if len(costs) > 1:
        return vector_schedule(costs, num_parts, costs.shape[1] // num_parts)
    return equal_count_schedule(costs[0], num_parts)


def _merged(items: _Items, together: np.ndarray) -> tuple[_Items, np.ndarray]:
    """One item for each group, in order of the groups' first items; and the group of each item."""
    ids = _checked_per_item("together", together, items.count, least=None)
    group = numbered_by_first(ids)
    num_groups = int(group.max(initial=-1)) + 1
    sizes = None if items.sizes is None else sums(items.sizes, group, num_groups)
    return replace(items, costs=loads(items.costs, group, num_groups), sizes=sizes), group


def _checked_costs(costs: np.ndarray, num_parts: int) -> np.ndarray:
    """int64 `[objectives, items]`."""
    if num_parts < 1:
        raise RecipeError(f"num_parts must be at least 1, got {num_parts}")
    if costs.dtype.kind not in "iu" or costs.ndim not in (1, 2) or (costs.ndim == 2 and not len(costs)):
        raise RecipeError(
            f"costs must be integers [items] or [objectives, items], got {costs.dtype} {list(costs.shape)}; "
            f"round them first, since sums of floats depend on their order"
        )
    table = np.atleast_2d(costs)
    if table.size and int(table.min()) < 0:
        raise RecipeError(f"costs must be at least 0, got {int(table.min())}")
    largest = int(table.max(initial=0))
    total = largest * table.shape[1]
    if total >= NEVER:
        total = max(sum(values) for values in table.tolist())
    if total >= NEVER:
        raise RecipeError(f"costs must sum to less than 2**62, got {total}; count them in a larger unit")
    return table.astype(np.int64)


def _checked_per_item(name: str, values: np.ndarray, count: int, least: int | None = 0) -> np.ndarray:
    if values.dtype.kind not in "iu" or values.shape != (count,):
        raise RecipeError(
            f"{name} must be integers, one for each of {count} items, got {values.dtype} {list(values.shape)}"
        )
    if count and least is not None and int(values.min()) < least:
        raise RecipeError(f"{name} must be at least {least}, got {int(values.min())}")
    return values.astype(np.int64)


def _refused(items: _Items, method: Method, refine: bool, together: bool) -> Iterator[str]:
    """Arguments that do not go together."""
    if (items.sizes is None) != (items.cap is None):
        yield "sizes and cap belong together, got one without the other; give both or none"
    if items.equal_counts and items.count % items.num_parts:
        yield f"equal_counts: {items.count} items do not divide by {items.num_parts} parts; drop equal_counts"
    if items.equal_counts and (together or items.sizes is not None):
        yield "equal_counts does not go with together, sizes and cap; drop the one or the others"
    if items.sizes is not None and method not in ("lpt", "none"):
        yield f"method {method!r} cannot keep a cap; choose 'lpt'"
    if len(items.costs) > 1 and method == "karmarkar_karp":
        yield f"method {method!r} knows one objective, got {len(items.costs)}; choose 'lpt', or add them up"
    if len(items.costs) > 2 and refine:
        yield f"refine knows one objective or two, got {len(items.costs)}; drop refine, or add some up"


def _broken_caps(items: _Items) -> Iterator[str]:
    if items.sizes is None or items.cap is None or not items.count:
        return
    largest, total, space = int(items.sizes.max()), int(items.sizes.sum()), items.num_parts * items.cap
    if largest > items.cap:
        yield f"an item has size {largest}, more than cap={items.cap}; split it, or raise the cap"
    if total > space:
        yield (
            f"the items have {total} in size, more than the {space} of {items.num_parts} parts with "
            f"cap={items.cap}; raise the cap, or take more parts"
        )
