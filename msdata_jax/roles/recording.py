"""What the planner tells whoever keeps a log of its decisions. Values only; writing is done elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from msdata_jax.plan import StepPlan
from msdata_jax.planning.graph import StreamState
from msdata_jax.planning.place_tree import MeshLayout
from msdata_jax.roles.streams import SourceStream

KEY_DTYPE = np.dtype([("source", "<i4"), ("part", "<i4"), ("position", "<i8")])


@dataclass(frozen=True, kw_only=True)
class InFlight:
    """Where each source stands right after a step was planned.

    Attributes:
        leased_to: int64 `[sources]`, positions before it are read or being read.
        known_to: int64 `[sources]`, positions before it are read and known to the planner.
        last_drawn: int64 `[sources]`, position of the last sample that the mixture drew; -1 before the first.
        buffered: int64 `[sources]`, samples that are read and not drawn.
        next_buffered: int64 `[sources]`, position of the first of them; -1 for none.
        pending: int64 `[sources]`, segments of later steps whose rows are decided already (`regroup`).
        carried: keys (`KEY_DTYPE`) of samples that were drawn and wait, whole or in part, for a row of a
            later step.
    """

    leased_to: np.ndarray
    known_to: np.ndarray
    last_drawn: np.ndarray
    buffered: np.ndarray
    next_buffered: np.ndarray
    pending: np.ndarray
    carried: np.ndarray


class Recorder(Protocol):
    """What a planner tells, in this order: `start` once, then steps as they are planned and delivered."""

    def start(self, layout: MeshLayout, num_records: Sequence[int], loaders: Sequence[int]) -> None:
        """The job begins.

        Args:
            layout: the trainers' mesh.
            num_records: of each source, in one epoch.
            loaders: ranks of the source loaders.
        """
        ...

    def step(self, plan: StepPlan, owner: np.ndarray, in_flight: InFlight) -> None:
        """A step is planned; `owner` int32 `[segments]` is the loader rank that sends each segment."""
        ...

    def delivered(self, step: int) -> None:
        """Every trainer took the steps up to this one."""
        ...


def in_flight(state: StreamState, streams: Sequence[SourceStream]) -> InFlight:
    """Where the sources stand, from the state before the next step and what is known of each source."""
    known_to = np.array([stream.known_to for stream in streams], dtype=np.int64)
    leased = np.array([stream.num_leased_positions for stream in streams], dtype=np.int64)
    pending = np.zeros(len(streams), dtype=np.int64)
    for plan in (*state.gathered, *state.pending):
        pending += np.bincount(plan.samples["source"], minlength=len(streams))
    carried = np.empty(len(state.carry), dtype=KEY_DTYPE)
    for name in KEY_DTYPE.names or ():
        carried[name] = state.carry.infos[name]
    return InFlight(
        leased_to=known_to + leased,
        known_to=known_to,
        last_drawn=state.last_position.copy(),
        buffered=np.array([len(stream.ahead) for stream in streams], dtype=np.int64),
        next_buffered=np.array(
            [stream.ahead["position"][0] if len(stream.ahead) else -1 for stream in streams], dtype=np.int64
        ),
        pending=pending,
        carried=np.unique(carried),
    )
