"""What the roles say to each other. Plain values and numpy arrays; `runtime.wire` carries them.

    who          to whom       message         meaning
    -----------  ------------  --------------  ------------------------------------------------------------
    planner      loader        OpenSource      open this source, or fail before training starts
    loader       planner       SourceOpened    it has so many records and this fingerprint
    constructor  planner       Join            my process, my mesh, my recipe
    planner      loader        Lease           read and transform these positions, keep the samples
    loader       planner       BlockReady      they yielded these samples (metadata only)
    planner      constructor   Expect          what step t brings you, and the step's figures
    planner      loader        Order           send these samples of step t to these constructors
    loader       constructor   Samples         the samples themselves; a leader relays them to its peers
    constructor  planner       Delivered       the trainer took step t
    planner      loader        Release         steps up to t are delivered everywhere: forget their samples
    planner      constructor   EndOfData       there is no step t; with a reason where data failed
    constructor  planner       Leave           the trainer needs no more
    planner      loader        Stop            everybody left: close your sources
    loader       planner       Farewell        closed; my figures
    planner      constructor   Summary         everybody's figures; the job is over
    any          planner       Failed          I cannot go on
    planner      everybody     Abort           rank r cannot go on; its message

A rank also hands results of its own background work to itself: `BlockRead` and `Opened` on a loader.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from msdata_jax.planning.place_tree import MeshLayout
from msdata_jax.records import Block


@dataclass(frozen=True, kw_only=True)
class OpenSource:
    """Planner to loader: open source number `source`."""

    source: int


@dataclass(frozen=True, kw_only=True)
class SourceOpened:
    """Loader to planner."""

    source: int
    num_records: int
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class Join:
    """Constructor to planner.

    Attributes:
        process: process index of the constructor in the mesh.
        axis_names, axis_sizes, process_of_device: its `MeshLayout`.
        row_axes: mesh axes that cut the rows of every field; empty for none.
        recipe: fingerprint of the recipe that the trainer built.
        num_steps: steps after which the data ends; -1 for no limit.
        steps_ahead: steps that may be under way before the trainers took them, at least 1.
        buffer_bytes_per_loader: transformed samples that a loader may hold ahead.
    """

    process: int
    axis_names: list[str]
    axis_sizes: list[int]
    process_of_device: list[int]
    row_axes: list[str]
    recipe: str
    num_steps: int
    steps_ahead: int
    buffer_bytes_per_loader: int

    @property
    def layout(self) -> MeshLayout:
        """The mesh."""
        return MeshLayout(
            axis_names=tuple(self.axis_names),
            axis_sizes=tuple(self.axis_sizes),
            process_of_device=tuple(self.process_of_device),
        )


@dataclass(frozen=True, kw_only=True)
class Lease:
    """Planner to loader: positions `start <= p < stop` of a source are yours."""

    source: int
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class BlockReady:
    """Loader to planner.

    Attributes:
        source, start, stop: the lease.
        infos: SampleInfo records.
        bad_positions: positions that could not be read.
        bad_reasons: why, in the same order.
        seconds: time that reading and transforming took.
    """

    source: int
    start: int
    stop: int
    infos: np.ndarray
    bad_positions: list[int]
    bad_reasons: list[str]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Expect:
    """Planner to constructor: a step, cut to the rows that this process holds.

    Attributes:
        step: from 0.
        digest: of the whole plan.
        content_digest: of what the step delivers, equal on every mesh.
        seq_len: places in each of the step's rows.
        rows: int64 `[process rows]`, indices in the global batch, increasing.
        infos: SampleInfo records of the segments in those rows; none where another process, or nobody, fills
            them.
        row, offset, start, length: int32 `[segments]`; `row` counts the process's rows.
        global_row: int32 `[rows of the step]`, content row that each global batch row shows.
        relay_to: ranks that want the same samples from this constructor.
        source_samples, source_tokens: int64 `[sources]`, of the whole step.
        group_costs: int64 `[groups]`, cost of each data-parallel group.
        unbalanced_costs: the same, had the rows not been balanced.
        fill: share of the step's places that are used.
        num_dropped: samples dropped since the step before.
        num_cut: segments that show a part of their sample only.
        dominance: what no placement can bring the dearest group below, over the mean group; 1 is even.
        num_giants: rows that cost more than a mean group.
        note: what is worth saying about the placement; else empty.
        num_slots: slots of the encoder's batch that this process holds; 0 where patches stay with their rows.
        patches_per_slot: patches in each.
        first_patch: int64 `[segments]`, as in `batching.rows.Segments`; empty where patches stay.
        slot, slot_first, slot_patches: int32 `[images]`, as in `batching.rows.Slots`.
    """

    step: int
    digest: str
    content_digest: str
    seq_len: int
    rows: np.ndarray
    infos: np.ndarray
    row: np.ndarray
    offset: np.ndarray
    start: np.ndarray
    length: np.ndarray
    global_row: np.ndarray
    relay_to: list[int]
    source_samples: np.ndarray
    source_tokens: np.ndarray
    group_costs: np.ndarray
    unbalanced_costs: np.ndarray
    fill: float
    num_dropped: int
    num_cut: int
    dominance: float
    num_giants: int
    note: str
    num_slots: int
    patches_per_slot: int
    first_patch: np.ndarray
    slot: np.ndarray
    slot_first: np.ndarray
    slot_patches: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Order:
    """Planner to loader: send samples of a step.

    Attributes:
        step: the step.
        constructor: int32 `[k]`, rank that wants it; -1 for samples that nobody will ask for.
        index: int32 `[k]`, its place among the constructor's segments.
        source, position, part: the samples' keys.
        start, length: int32 `[k]`, tokens to send.
        is_last: bool `[k]`, whether nothing of the sample is asked for in a later step.
        is_image: bool `[k]`, patches alone, for a slot of the encoder's batch; `index` counts images then.
        without_patches: send the others without patches, which go to slots.
    """

    step: int
    constructor: np.ndarray
    index: np.ndarray
    source: np.ndarray
    position: np.ndarray
    part: np.ndarray
    start: np.ndarray
    length: np.ndarray
    is_last: np.ndarray
    is_image: np.ndarray
    without_patches: bool


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Loader to constructor: see `batching.SampleBytes`; `index` as in `Order`.

    `for_slots`: patches alone, for slots of the encoder's batch; leaders do not relay them.
    """

    step: int
    index: np.ndarray
    for_slots: bool
    tokens: np.ndarray
    num_patches: np.ndarray
    patches: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """Constructor to planner: the trainer took step `step`."""

    step: int


@dataclass(frozen=True, kw_only=True)
class Release:
    """Planner to loader: steps up to `step` are delivered everywhere."""

    step: int


@dataclass(frozen=True, kw_only=True)
class EndOfData:
    """Planner to constructor: there is no step `step`; `error` says why unless the data simply ended."""

    step: int
    error: str


@dataclass(frozen=True, kw_only=True)
class Leave:
    """Constructor to planner: no more steps are wanted."""

    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Planner to loader: close."""


@dataclass(frozen=True, kw_only=True)
class Farewell:
    """Loader to planner: closed."""

    figures: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Planner to constructor: figures of all roles."""

    figures: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Failed:
    """To the planner: the sender cannot go on."""

    message: str


@dataclass(frozen=True, kw_only=True)
class Abort:
    """Planner to everybody: `rank` cannot go on."""

    rank: int
    message: str


@dataclass(frozen=True, kw_only=True)
class Opened:
    """On a loader, from its background work."""

    source: int
    num_records: int
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class BlockRead:
    """On a loader, from its background work."""

    source: int
    block: Block
    seconds: float


WIRE_MESSAGES: tuple[type, ...] = (
    OpenSource, SourceOpened, Join, Lease, BlockReady, Expect, Order, Samples, Delivered, Release,
    EndOfData, Leave, Stop, Farewell, Summary, Failed, Abort,
)  # fmt: skip

RoleMessage: TypeAlias = Any
"""One of the classes above."""
