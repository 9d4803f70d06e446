"""Items dearer than the mean part: no partition helps, several parts must share one.

A *giant* costs more than the mean of the parts. Context parallelism cuts it along the sequence, so that a
group of parts works on it together.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from msdata_jax.errors import RecipeError
from msdata_jax.planning.partitioning import lower_bound
from msdata_jax.planning.partitioning.list_scheduling import dearest_first, list_schedule

OVERHEAD = Fraction(6, 100)


@dataclass(frozen=True, kw_only=True)
class ContextParallel:
    """How many parts share each item, and which.

    Attributes:
        degree: int64 `[items]`, parts that share the item: a power of two, 1 for most.
        part: int64 `[items]`, the first of these parts, a multiple of `degree`; the others follow it.
        loads: int64 `[num_parts]`, what each part costs, overhead included.
    """

    degree: np.ndarray
    part: np.ndarray
    loads: np.ndarray


def context_degrees(costs: np.ndarray, num_parts: int, overhead: Fraction = OVERHEAD) -> ContextParallel:
    """Choose a degree of context parallelism for each item, and its parts.

    A giant gets the smallest power of two, at most `num_parts`, for which each share costs at most the mean
    part: a share of an item of cost `c` in `2**m` parts costs `c * (1 + overhead)**m / 2**m`, rounded up.
    Giants go to aligned groups of parts, those of the largest degree first, of the same degree the dearest
    first, each to the group whose dearest part is the cheapest; then all others by list scheduling. Parts
    behind the last multiple of a degree take no giant of that degree.

    Args:
        costs: integers `[items]`, each at least 0, with a total below 2**62.
        num_parts: parts (data-parallel ranks, say), at least 1.
        overhead: what every doubling adds to the work, as a share of it; from 0 to less than 1.

    Raises:
        RecipeError: an argument breaks a rule above.
    """
    if not 0 <= overhead < 1:
        raise RecipeError(f"overhead must be from 0 to less than 1, got {overhead}")
    lower_bound(costs, num_parts)  # raises for what is no cost
    costs = costs.astype(np.int64)
    degree, share = np.ones_like(costs), costs.copy()
    for giant in np.flatnonzero(_is_giant(costs, num_parts)).tolist():
        degree[giant], share[giant] = _degree(int(costs[giant]), int(costs.sum()), num_parts, overhead)
    part, loads = np.zeros_like(costs), np.zeros(num_parts, dtype=np.int64)
    shared = np.flatnonzero(degree > 1)
    for item in shared[np.lexsort((shared, -share[shared], -degree[shared]))].tolist():
        size = int(degree[item])
        groups = loads[: num_parts - num_parts % size].reshape(-1, size)  # a view
        chosen = int(groups.max(axis=1).argmin())
        groups[chosen] += share[item]
        part[item] = chosen * size
    alone = np.flatnonzero(degree == 1)
    alone = alone[dearest_first(costs[alone])]
    part[alone] = list_schedule(costs[alone], loads)
    np.add.at(loads, part[alone], costs[alone])
    return ContextParallel(degree=degree, part=part, loads=loads)


def num_giants(costs: np.ndarray, num_parts: int) -> int:
    """Items dearer than the mean part."""
    return int(np.count_nonzero(_is_giant(costs, num_parts)))


def over_mean(costs: np.ndarray) -> float:
    """The dearest over the mean; 1 where all are free."""
    mean = float(costs.mean())
    return float(costs.max()) / mean if mean else 1.0


def dominance(costs: np.ndarray, num_parts: int) -> Fraction:
    """Lower bound of the dearest part over the mean part: 1 where nothing keeps the parts from being even.

    Args:
        costs: int64 `[items]`, each at least 0.
        num_parts: parts, at least 1.

    Raises:
        RecipeError: as `partition`.
    """
    bound = lower_bound(costs, num_parts)
    return Fraction(bound * num_parts, int(costs.sum())) if bound else Fraction(1)


def _is_giant(costs: np.ndarray, num_parts: int) -> np.ndarray:
    return costs > int(costs.sum()) // num_parts


def _degree(cost: int, total: int, num_parts: int, overhead: Fraction) -> tuple[int, int]:
    """The degree of a giant, and what a share of it costs."""
    degree, share = 1, Fraction(cost)
    while share * num_parts > total and 2 * degree <= num_parts:
        degree *= 2
        share *= (1 + overhead) / 2
    return degree, -(-share.numerator // share.denominator)
