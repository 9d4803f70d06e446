"""The encoder's batch spread over the mesh: images to slots, whatever rows their samples are in.

A slot is a stretch of the encoder's batch, one for each part along the encoder's axes. Where rows are
balanced for the backbone, the images of their samples may crowd on a few ranks; dealt to slots on their own,
both are even. The trainer encodes the slots and picks the embedding of each place by `patch_index`, which
sends it back to its row (OrchMLLM, arXiv 2503.23830, balances each phase so).
"""

from dataclasses import replace

import numpy as np

from msdata_jax.errors import RecipeError
from msdata_jax.plan import StepPlan
from msdata_jax.planning.partitioning import lower_bound, partition


def always_enough(num_rows: int, patches_per_row: int, num_slots: int) -> int:
    """Patches in a slot with which every step finds a place for all its images.

    LPT by patches puts an image of `s` patches into the emptiest slot, which holds at most
    `(total - s) / num_slots`.
    """
    return -(-(num_rows - 1) * patches_per_row // num_slots) + patches_per_row


def fill_slots(plan: StepPlan, encoder_costs: np.ndarray, num_slots: int, patches_per_slot: int) -> StepPlan:
    """Deal the images of a step to slots of even cost.

    Args:
        plan: the step.
        encoder_costs: int64 `[segments]`.
        num_slots: slots.
        patches_per_slot: what each holds.

    Raises:
        RecipeError: the images do not fit, or costs are below 0 or sum to 2**62 or more.
    """
    with_images = np.flatnonzero(plan.samples["patches"])
    patches = plan.samples["patches"][with_images].astype(np.int64)
    slot = np.full(len(plan.samples), -1, dtype=np.int32)
    lower_bound(encoder_costs, num_slots)  # raises for what is no cost
    try:
        slot[with_images] = partition(
            encoder_costs[with_images], num_slots, sizes=patches, cap=patches_per_slot
        )
    except RecipeError:  # too tight for even costs: by size, all fit if they can be made to
        slot[with_images] = _by_size(plan.step, patches, num_slots, patches_per_slot)
    return replace(plan, slot=slot, num_slots=num_slots, patches_per_slot=patches_per_slot)


def _by_size(step: int, patches: np.ndarray, num_slots: int, patches_per_slot: int) -> np.ndarray:
    try:
        return partition(patches, num_slots, sizes=patches, cap=patches_per_slot)
    except RecipeError as error:
        raise RecipeError(
            f"step {step}: {len(patches)} images of {int(patches.sum())} patches do not fit "
            f"{num_slots} slots of distribute(patches_per_slot={patches_per_slot}); leave it out for as many "
            "as any step needs"
        ) from error
