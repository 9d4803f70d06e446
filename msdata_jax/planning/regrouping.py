"""Rows of several consecutive steps dealt anew, so that dear rows meet their like.

Where one row costs more than the mean rank of its step, no placement evens out that step. Dealing the rows
of a few steps by cost brings the dear ones together in one of them. This changes which step a sample is in.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from msdata_jax.plan import StepPlan

_OF_SEGMENT = ("samples", "offset", "start", "length")
_OF_ROW = ("row_cost", "row_encoder_cost", "row_memory")


def regroup(plans: Sequence[StepPlan]) -> tuple[StepPlan, ...]:
    """Deal the rows of consecutive steps by cost: the dearest to one step, the next to another.

    Which of the steps gets the dearest rows differs from block to block. A pure function of the plans; each
    step keeps its number of rows and its dropped samples. A sample moves by less than `len(plans)` steps.

    Args:
        plans: composed steps of one shape, in order.

    Returns:
        as many plans, of the same step numbers.
    """
    num_rows = plans[0].num_rows
    segments = {name: np.concatenate([getattr(plan, name) for plan in plans]) for name in _OF_SEGMENT}
    rows = {name: np.concatenate([getattr(plan, name) for plan in plans]) for name in _OF_ROW}
    row = np.concatenate([i * num_rows + plan.row.astype(np.int64) for i, plan in enumerate(plans)])
    total = rows["row_cost"] + rows["row_encoder_cost"]
    dearest_first = np.lexsort((np.arange(len(total)), -total)).reshape(len(plans), num_rows)
    turn = (np.arange(len(plans)) + plans[0].step // len(plans)) % len(plans)
    first_segment = np.searchsorted(row, np.arange(len(total) + 1))
    regrouped = []
    for plan, mine in zip(plans, np.sort(dearest_first, axis=1)[turn], strict=True):
        count = first_segment[mine + 1] - first_segment[mine]
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        chosen = np.repeat(first_segment[mine], count) + within
        regrouped.append(
            replace(
                plan,
                row=np.repeat(np.arange(num_rows), count).astype(np.int32),
                **{name: array[chosen] for name, array in segments.items()},
                **{name: array[mine] for name, array in rows.items()},
            )
        )
    return tuple(regrouped)
