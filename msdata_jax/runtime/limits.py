"""How long the ranks of a job wait for one another."""

from dataclasses import dataclass

from msdata_jax.roles.planner import START_SECONDS
from msdata_jax.roles.watching import HEARTBEAT_SECONDS, READ_SECONDS


@dataclass(frozen=True, kw_only=True)
class TimeLimits:
    """In seconds.

    Attributes:
        start_seconds: for every rank to come, and then to build its DataLoader.
        heartbeat_seconds: a loader that is silent for so long counts as lost.
        read_seconds: so does one that reads a single block for so long.
    """

    start_seconds: float = START_SECONDS
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    read_seconds: float = READ_SECONDS
