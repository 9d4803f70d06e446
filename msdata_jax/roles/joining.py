"""Whether the training processes that joined belong together."""

from collections.abc import Mapping
from dataclasses import fields

from msdata_jax.errors import LaunchError
from msdata_jax.roles.messages import Join
from msdata_jax.roles.placement import Placement

OF_ONE = ("process", "state")
"""What training processes need not agree in; the state comes from the first one, its digest from all."""


def check_joins(joins: Mapping[int, Join], placement: Placement, recipe: str) -> Join:
    """Compare what every constructor rank said with the first one, with the mesh and with our recipe.

    Args:
        joins: by rank, one of each constructor.
        placement: the job's ranks.
        recipe: fingerprint of the recipe that the data ranks built.

    Returns:
        what they all said.

    Raises:
        LaunchError: they differ, from one another or from the data ranks, or the mesh is not over them all.
    """
    ranks = placement.constructors
    first = joins[ranks[0]]
    if first.recipe != recipe:
        raise LaunchError(
            "the trainers' recipe and the data ranks' recipe differ; give `msdata launch` (or `serve`) "
            "the same recipe file that the training script imports"
        )
    for rank in ranks:
        for name in (each.name for each in fields(Join) if each.name not in OF_ONE):
            ours, theirs = getattr(first, name), getattr(joins[rank], name)
            if ours != theirs:
                raise LaunchError(
                    f"all training processes build their DataLoader alike; {name} is {ours} on rank "
                    f"{ranks[0]} and {theirs} on rank {rank}"
                )
    if first.layout.num_processes != len(ranks):
        raise LaunchError(
            f"the mesh spans {first.layout.num_processes} processes; the job has {len(ranks)} training "
            f"ranks: initialise JAX over all of them"
        )
    processes = [joins[rank].process for rank in ranks]
    if sorted(processes) != sorted(set(first.process_of_device)):
        raise LaunchError(
            f"the training ranks {list(ranks)} joined as processes {processes}; "
            f"the mesh has each of {sorted(set(first.process_of_device))} once"
        )
    return first
