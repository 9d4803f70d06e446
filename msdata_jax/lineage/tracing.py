"""From a row back to its samples, and from a sample to the rows that show it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from msdata_jax.errors import PlanError
from msdata_jax.lineage.plan_log import LoggedStep, PlanLog
from msdata_jax.plan import StepPlan
from msdata_jax.roles.messages import Expect

State = Literal[
    "unleased", "leased", "buffered", "carried", "pending", "planned", "delivered", "dropped", "absent"
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where one segment of a row comes from.

    Attributes:
        offset, length: its places in the row.
        source: name of the source.
        position: of the sample in the endless stream of its source.
        part: which of the samples that this position yields.
        start: first token of the sample that is shown.
        tokens: of the whole sample.
        epoch: `position` over the records of an epoch; None where these are not known.
        loader: rank that sent it; None where that is not known.
    """

    offset: int
    length: int
    source: str
    position: int
    part: int
    start: int
    tokens: int
    epoch: int | None = None
    loader: int | None = None


def origins(expect: Expect, source_names: Sequence[str], row: int) -> list[Origin]:
    """Where each segment of a local row comes from, while training.

    Args:
        expect: `loader.last_step`.
        source_names: `recipe.source_names`.
        row: among the rows of this process, from 0; `expect.rows[row]` is its place in the global batch.

    Raises:
        PlanError: there is no such row.
    """
    if not 0 <= row < len(expect.rows):
        raise PlanError(f"step {expect.step} has the local rows 0 to {len(expect.rows) - 1}, got {row}")
    mine = np.flatnonzero(expect.row == row)
    return [_origin(expect, expect.infos[i], i, source_names) for i in mine.tolist()]


def row_segments(plan: StepPlan, row: int) -> range:
    """The segments of a row of the global batch, as indices in the plan.

    Args:
        plan: the step.
        row: in the global batch, as the trainers see it.

    Raises:
        PlanError: there is no such row.
    """
    if not 0 <= row < plan.num_rows:
        raise PlanError(f"step {plan.step} has the rows 0 to {plan.num_rows - 1}, got {row}")
    return range(*np.searchsorted(plan.row, (plan.order[row], plan.order[row] + 1)).tolist())


def segment_origin(log: PlanLog, logged: LoggedStep, segment: int) -> Origin:
    """Where a segment of a step comes from."""
    info, owner = logged.plan.samples[segment], int(logged.owner[segment])
    epoch = int(info["position"]) // log.header.sources[int(info["source"])].num_records
    loader = None if owner < 0 else owner
    return _origin(logged.plan, info, segment, log.header.source_names, epoch, loader)


def _origin(
    of: StepPlan | Expect,
    info: Any,
    segment: int,
    source_names: Sequence[str],
    epoch: int | None = None,
    loader: int | None = None,
) -> Origin:
    return Origin(
        offset=int(of.offset[segment]),
        length=int(of.length[segment]),
        source=source_names[int(info["source"])],
        position=int(info["position"]),
        part=int(info["part"]),
        start=int(of.start[segment]),
        tokens=int(info["tokens"]),
        epoch=epoch,
        loader=loader,
    )


# --- from a sample ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Place:
    """A segment of a sample: in which step and row.

    Attributes:
        step: the step; the row is in the global batch.
        row: the row.
        state: `delivered`, or `planned` where some trainer had not taken the step yet.
        origin: the segment.
    """

    step: int
    row: int
    state: State
    origin: Origin


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What a plan log knows of the samples that one position of a source yields.

    Attributes:
        source, position: which.
        places: where their segments are, in order of step.
        dropped: steps that left one of them out, since no row can hold it.
        states: all that is true of them at the end of the log: `delivered`, `planned`, `dropped`; `carried`
            (drawn, waits for a row of a later step), `pending` (drawn; its step is decided but not planned
            yet), `buffered` (read, not drawn), `leased` (a loader reads it), `unleased` (not asked for yet);
            `absent` (passed by without a sample: it was bad or filtered out, or came before the log began).
        text: the states in words.
    """

    source: str
    position: int
    places: list[Place]
    dropped: list[int]
    states: list[State]
    text: str


def trace(log: PlanLog, source: str, position: int) -> Trace:
    """Find the samples of a position: reads the whole log.

    Raises:
        PlanError: no such source or position, or a step is damaged.
    """
    names = log.header.source_names
    if source not in names:
        raise PlanError(f"the log has no source {source!r}; it has {', '.join(names)}")
    if position < 0:
        raise PlanError(f"positions of a source count from 0, got {position}")
    index = names.index(source)
    places: list[Place] = []
    dropped: list[int] = []
    last = None
    for last in log:
        places += _places(log, last, index, position)
        if _is_sample(last.plan.dropped, index, position).any():
            dropped.append(last.plan.step)
    states: list[State] = list(dict.fromkeys(place.state for place in places))
    if dropped:
        states.append("dropped")
    states += [] if last is None else _waiting(last, index, position, found=bool(states))
    texts = [_TEXTS[state] for state in states] or ["the log has no steps yet"]
    if not log.header.loaders:
        texts = [text.replace(_TEXTS["planned"], "planned, in a dry run") for text in texts]
    return Trace(
        source=source,
        position=position,
        places=places,
        dropped=dropped,
        states=states,
        text="; ".join(texts),
    )


_TEXTS: dict[State, str] = {
    "unleased": "not read yet: no loader has been asked for it",
    "leased": "being read: a loader was asked for it and had not answered",
    "buffered": "read and not drawn yet (or it yields no sample)",
    "carried": "drawn, and waits for a row of a later step",
    "pending": "drawn for a later step that is decided already, or read and left out",
    "planned": "in a planned step that not every trainer had taken when the log ended",
    "delivered": "delivered to every trainer",
    "dropped": "drawn and dropped, since no row can hold it",
    "absent": "passed by without a sample: bad, filtered out, without tokens, or before the first step here",
}


def _places(log: PlanLog, logged: LoggedStep, source: int, position: int) -> Iterator[Place]:
    plan = logged.plan
    segments = np.flatnonzero(_is_sample(plan.samples, source, position)).tolist()
    if not segments:
        return
    row_of_content = np.argsort(plan.order, kind="stable")
    for segment in segments:
        yield Place(
            step=plan.step,
            row=int(row_of_content[plan.row[segment]]),
            state="delivered" if plan.step <= log.delivered else "planned",
            origin=segment_origin(log, logged, segment),
        )


def _is_sample(infos: np.ndarray, source: int, position: int) -> np.ndarray:
    return (infos["source"] == source) & (infos["position"] == position)


def _waiting(last: LoggedStep, source: int, position: int, *, found: bool) -> list[State]:
    """What is true of a position besides the places that were found, after the last step."""
    flight = last.in_flight
    states: list[State] = []
    if _is_sample(flight.carried, source, position).any():
        states.append("carried")
    if position == flight.next_buffered[source]:  # some of its parts may be drawn already
        states.append("buffered")
    if found or states:
        return states
    bounds: tuple[tuple[State, int], ...] = (
        ("unleased", flight.leased_to[source]),
        ("leased", flight.known_to[source]),
        ("buffered", flight.last_drawn[source] + 1),
    )
    for state, first in bounds:
        if position >= first:
            return [state]
    return ["pending" if flight.pending[source] else "absent"]
