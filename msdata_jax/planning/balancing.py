"""Rows to data-parallel groups of equal size and even cost.

Sort keys are unique and integer (cost, then place), so that every machine finds the same order: numpy's
default argsort breaks ties differently from processor to processor.
"""

import heapq
from typing import Literal

import numpy as np

Method = Literal["lpt", "snake", "none"]
METHODS: tuple[Method, ...] = ("lpt", "snake", "none")


def balance(costs: np.ndarray, num_groups: int, method: Method) -> np.ndarray:
    """Deal rows to groups of equal count.

    `lpt` gives the dearest remaining row to the cheapest group that is not full (Graham 1969, with a count
    limit); `snake` deals in order of cost, to and fro; `none` keeps the order. The result is never worse
    than `none`: where it would be, the rows stay as they are.

    Args:
        costs: int64 `[rows]`; the rows divide by `num_groups`.
        num_groups: groups.
        method: one of `METHODS`.

    Returns:
        int64 `[num_groups, rows / num_groups]`: the rows of each group, in increasing order.
    """
    size = len(costs) // num_groups
    unbalanced = np.arange(len(costs), dtype=np.int64).reshape(num_groups, size)
    if method == "none" or num_groups == 1:
        return unbalanced
    dearest_first = np.lexsort((np.arange(len(costs)), -costs))
    balanced = (_lpt if method == "lpt" else _snake)(costs, dearest_first, num_groups)
    balanced.sort(axis=1)
    if makespan(costs, balanced) > makespan(costs, unbalanced):
        return unbalanced
    return balanced


def makespan(costs: np.ndarray, groups: np.ndarray) -> int:
    """Cost of the dearest group."""
    return int(costs[groups].sum(axis=1).max())


def _lpt(costs: np.ndarray, dearest_first: np.ndarray, num_groups: int) -> np.ndarray:
    size = len(costs) // num_groups
    members: list[list[int]] = [[] for _ in range(num_groups)]
    open_groups = [(0, group) for group in range(num_groups)]
    for row in dearest_first.tolist():
        total, group = heapq.heappop(open_groups)
        members[group].append(row)
        if len(members[group]) < size:
            heapq.heappush(open_groups, (total + int(costs[row]), group))
    return np.array(members, dtype=np.int64)


def _snake(costs: np.ndarray, dearest_first: np.ndarray, num_groups: int) -> np.ndarray:
    dealt = dearest_first.reshape(-1, num_groups).copy()
    dealt[1::2] = dealt[1::2, ::-1]
    return np.ascontiguousarray(dealt.T)
