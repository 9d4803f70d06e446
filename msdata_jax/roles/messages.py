"""What the roles say to each other. Plain values and numpy arrays; `runtime.wire` carries them.

    who          to whom       message         meaning
    -----------  ------------  --------------  ------------------------------------------------------------
    planner      loader        OpenSource      open this source, or fail before training starts
    loader       planner       SourceOpened    it has so many records and this fingerprint
    constructor  planner       Built           my trainer has built its DataLoader
    constructor  planner       Join            my process, my mesh, my recipe, the step to begin with
    planner      loader        Lease           read and transform these positions, keep the samples
    loader       planner       BlockReady      they yielded these samples (metadata only)
    loader       planner       Heartbeat       I am alive, and this is what I have been reading for long
    planner      loader        SetThreads      read on so many worker threads from now on
    planner      loader        CloseSource     close this source when you have read what you are reading of it
    planner      constructor   Expect          what step t brings you, and the step's figures
    planner      constructor   StateAfter      what to go on with behind step t; to the first process only
    planner      loader        Order           send these samples of step t to these constructors
    loader       constructor   Samples         the samples themselves; a leader relays them to its peers
    constructor  planner       Complete        all that step t brings me is here
    planner      constructor   Visible         steps up to t are complete everywhere: show them
    constructor  planner       Delivered       the trainer took step t
    planner      loader        Release         steps up to t are delivered everywhere: forget their samples
    constructor  planner       PinBlocks       let loaders hold what they have, for a checkpoint; passed on
    constructor  planner       SaveBlocks      let them write it to a folder; passed on to all
    loader       planner       BlocksSaved     done; summed up, passed on to the constructor that asked
    planner      constructor   EndOfData       there is no step t; with a reason where data failed
    constructor  planner       AskToStop       let the data end soon, at one step for all
    constructor  planner       Leave           the trainer needs no more
    planner      loader        Stop            everybody left: forget what you hold
    loader       planner       Farewell        done; my figures
    planner      constructor   Summary         everybody's figures; the session is over
    constructor  planner       Goodbye         my process ends: no session follows
    any          planner       Measured        what my loop has seen; for who records it, not for the role
    planner      constructor   Lost            loader r is gone: take nothing from it any more
    any          planner       Failed          I cannot go on
    planner      everybody     Abort           rank r cannot go on; its message

A rank also hands results of its own background work to itself: `BlockRead` and `Opened` on a loader. Whoever
notices that a peer is gone says `Lost` to its own role, which on a constructor tells the planner as well; who
is told to end early says `AskToStop`.

All this is one *session*, the life of one DataLoader on every training process. The same ranks may hold one
after another, with fresh roles each; `runtime.wire` marks each message with its session.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from msdata_jax.planning.place_tree import MeshLayout
from msdata_jax.records import Block


@dataclass(frozen=True, kw_only=True)
class OpenSource:
    """Planner to loader: open source number `source`.

    With `may_fail` a source that does not open is told in `SourceOpened`, and ends nothing.
    """

    source: int
    may_fail: bool = False


@dataclass(frozen=True, kw_only=True)
class SourceOpened:
    """Loader to planner; fields as in `data_state.SourceFacts`. `error`: why it is not open; else empty."""

    source: int
    num_records: int
    fingerprint: str
    files: Mapping[str, str]
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Built:
    """Constructor to planner: a DataLoader is built; `Join` follows when it is to begin."""


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
        state: uint8, the packed leaves (`pack_leaves`) of the state to go on from; empty for none, and on all
            processes but the first.
        state_digest: of that state, the same on every process; empty for none.
        accept_changes: go on although sources are not what they were.
        skip_to: begin with this step; -1 for where the state is, or step 0.
        blocks: folder of blocks that were saved with the state, `@` and its step; empty for none.
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
    state: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))
    state_digest: str = ""
    accept_changes: bool = False
    skip_to: int = -1
    blocks: str = ""

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
    """Planner to loader: positions `start <= p < stop` of a source are yours.

    Attributes:
        source, start, stop: the positions.
        keep: keep the samples; else only their metadata are wanted.
        isolate: read in a child process: these positions were being read when a loader was lost.
        verdicts: (position, reason) of those that count as bad whatever they are.
        blocks: where the block may lie ready: a folder, `@`, and the step that it was pinned for.
        due: the step that is likely to need it first; what is due earlier is read first.
    """

    source: int
    start: int
    stop: int
    keep: bool
    isolate: bool
    verdicts: list[tuple[int, str]]
    blocks: str = ""
    due: int = 0


@dataclass(frozen=True, kw_only=True)
class BlockReady:
    """Loader to planner.

    Attributes:
        source, start, stop: the lease.
        infos: SampleInfo records.
        bad: (position, reason, by luck) of those that could not be read.
        verdicts: (position, reason) of all that time-outs and crashes found bad, now or before.
        digest: of the block, metadata and samples.
        seconds: time that reading and transforming took.
    """

    source: int
    start: int
    stop: int
    infos: np.ndarray
    bad: list[tuple[int, str, bool]]
    verdicts: list[tuple[int, str]]
    digest: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """Loader to planner, about once a second.

    Attributes:
        source, start: the block that it has been reading longest; -1 when it reads none.
        seconds: for how long.
        memory_bytes: resident memory of the process; 0 where it is not known.
    """

    source: int
    start: int
    seconds: float
    memory_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class SetThreads:
    """Planner to loader: have so many worker threads, at least 1."""

    num_threads: int


@dataclass(frozen=True, kw_only=True)
class CloseSource:
    """Planner to loader: no leases of this source come any more; close it behind those under way."""

    source: int


@dataclass(frozen=True, kw_only=True)
class StateAfter:
    """Planner to the first training process: what changed in the state to go on with behind step `step`.

    Attributes:
        step: the step; one below the first step for the state before it.
        changed: leaves (`data_state.DataState.to_leaves`) that are new or other than before.
        removed: names of leaves that are gone.
        notes: sentences for people, on what changed since the state that the job goes on from.
    """

    step: int
    changed: Mapping[str, bytes]
    removed: list[str]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Complete:
    """Constructor to planner: steps up to `step` are complete here."""

    step: int


@dataclass(frozen=True, kw_only=True)
class Visible:
    """Planner to constructor: steps up to `step` are complete on every training process."""

    step: int


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
        imbalance, imbalance_unbalanced: of these, the dearest group's over the mean group's; 1 where nothing
            costs anything.
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
    imbalance: float
    imbalance_unbalanced: float
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
    """Constructor to planner: the trainer took step `step`, after waiting for it so long."""

    step: int
    wait_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Release:
    """Planner to loader: steps up to `step` are delivered everywhere."""

    step: int


@dataclass(frozen=True, kw_only=True)
class PinBlocks:
    """To the planner, and from it to all loaders, behind the release of the steps before `step`.

    They hold the samples that they have of sources with `Source.snapshot` until `SaveBlocks`, or another pin.
    """

    step: int


@dataclass(frozen=True, kw_only=True)
class SaveBlocks:
    """To the planner, and from it to all loaders: write what was pinned for `step` to a folder."""

    step: int
    folder: str


@dataclass(frozen=True, kw_only=True)
class BlocksSaved:
    """From a loader to the planner, and from it, summed up, to the constructor that asked.

    Attributes:
        folder: as in `SaveBlocks`.
        num_blocks, num_bytes: that were written.
        error: why not; empty when all went well.
    """

    folder: str
    num_blocks: int
    num_bytes: int
    error: str


@dataclass(frozen=True, kw_only=True)
class EndOfData:
    """Planner to constructor: there is no step `step`.

    Attributes:
        step: the step.
        error: why, where data failed; empty where they simply ended.
        stopped: somebody asked for it.
    """

    step: int
    error: str
    stopped: bool = False


@dataclass(frozen=True, kw_only=True)
class AskToStop:
    """To the planner: let the data end behind the steps that are planned."""


@dataclass(frozen=True, kw_only=True)
class Leave:
    """Constructor to planner: no more steps are wanted; with `again` another session may follow."""

    figures: Mapping[str, Any] = field(default_factory=dict)
    again: bool = False


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Planner to loader: the session is over.

    Attributes:
        lost: the ranks that nobody may wait for when leaving.
        again: another session may follow.
    """

    lost: list[int]
    again: bool = False


@dataclass(frozen=True, kw_only=True)
class Goodbye:
    """Constructor to planner, behind a session: the training process ends."""


@dataclass(frozen=True, kw_only=True)
class Farewell:
    """Loader to planner: its session is over."""

    figures: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Planner to constructor: figures of all roles."""

    figures: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """From a loop to the planner's loop, about once a second, where a job is observed.

    Attributes:
        figures: of the sender's rank since it began, as `runtime.observing.Observer.figures` gives them.
    """

    figures: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Lost:
    """Rank `rank` is gone: to its own role and the planner, from whoever noticed; then to constructors."""

    rank: int
    why: str


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
    files: Mapping[str, str]
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class BlockRead:
    """On a loader, from its background work."""

    lease: Lease
    block: Block
    digest: int
    seconds: float


WIRE_MESSAGES: tuple[type, ...] = (
    OpenSource, SourceOpened, Built, Join, Lease, BlockReady, Heartbeat, SetThreads, CloseSource,
    Expect, StateAfter, Order, Samples, Complete, Visible, Delivered, Release,
    PinBlocks, SaveBlocks, BlocksSaved, EndOfData, AskToStop,
    Leave, Stop, Farewell, Summary, Goodbye, Measured, Lost, Failed, Abort,
)  # fmt: skip

RoleMessage: TypeAlias = Any
"""One of the classes above."""
