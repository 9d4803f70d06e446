"""How a job is scaled, from what was asked for on the command line and what the recipe says."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from msdata_jax.recipe import Recipe
from msdata_jax.roles.placement import Placement
from msdata_jax.roles.scaler import Scaling
from msdata_jax.scaling.decision_log import Round
from msdata_jax.scaling.observation import Limits
from msdata_jax.scaling.partition import Partition
from msdata_jax.scaling.policy import Hysteresis, ScalingPolicy, Shuffled, Steady

PolicyName = Literal["auto", "off", "shuffled"]
POLICIES: tuple[PolicyName, ...] = ("auto", "off", "shuffled")


@dataclass(frozen=True, kw_only=True)
class ScaleOptions:
    """What may be said of scaling.

    Attributes:
        policy: `auto` is `Recipe.scaling`, or `Hysteresis`; `off` leaves all as it begins; `shuffled` draws
            decisions by chance, to see that steps stay what they are.
        threads: worker threads of a loader at first.
        max_threads: at most; None for as many as the planner has cores, and `threads` at least.
        loader_memory: bytes that a loader's process should stay under; 0 for no limit.
        partition: who reads what at first, and what samples cost, made ahead of the job; None for an even
            share, and costs that are known once something was read.
    """

    policy: PolicyName = "off"
    threads: int = 1
    max_threads: int | None = None
    loader_memory: int = 0
    partition: Partition | None = None

    @property
    def arguments(self) -> list[str]:
        """The same for `msdata serve`, but for threads and partition."""
        most = [] if self.max_threads is None else ["--max-threads", str(self.max_threads)]
        return ["--scaling", self.policy, *most, "--loader-memory", str(self.loader_memory)]


def make_scaling(
    options: ScaleOptions, recipe: Recipe, placement: Placement, on_round: Callable[[Round], None]
) -> Scaling:
    """What the planner is to be given.

    Args:
        options: what was said.
        recipe: what is delivered.
        placement: the job's ranks.
        on_round: told of each round that decided something.
    """
    threads = dict.fromkeys(placement.readers, options.threads)
    affinity: Sequence[Sequence[int]] | None = None
    partition = options.partition
    if partition is not None:
        threads |= dict(zip(placement.loaders, partition.threads, strict=False))
        affinity = [
            [placement.loaders[index] for index in loaders if index < len(placement.loaders)]
            for loaders in partition.affinity
        ]
    most = options.max_threads or max(options.threads, len(os.sched_getaffinity(0)))
    most = max(most, *threads.values())
    return Scaling(
        policy=_policy(options.policy, recipe),
        limits=Limits(
            max_threads=most, total_threads=most * len(placement.readers), memory_bytes=options.loader_memory
        ),
        threads=threads,
        tell_threads=partition is not None,
        affinity=affinity,
        costs=None if partition is None else partition.seconds_per_sample,
        on_round=on_round,
    )


def _policy(name: PolicyName, recipe: Recipe) -> ScalingPolicy:
    if name == "shuffled":
        return Shuffled(seed=recipe.seed)
    if name == "off":
        return Steady()
    return recipe.scaling or Hysteresis()
