"""The planner: decides, from metadata alone, what each step delivers, and who reads and sends what."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from msdata_jax.errors import BadSampleError, JobFailed, LaunchError, MSDataError, RecipeError
from msdata_jax.plan import StepPlan
from msdata_jax.planning.graph import Composed, DGraph, EndOfData, Gathered, NeedMore, initial_state
from msdata_jax.planning.place_tree import axes_tuple
from msdata_jax.recipe import Recipe
from msdata_jax.records import BadSample, info_dtype
from msdata_jax.roles import messages as m
from msdata_jax.roles.announcing import Audience, announce, build_clients
from msdata_jax.roles.effects import Effect, Finish, Send
from msdata_jax.roles.holdings import Holdings
from msdata_jax.roles.joining import check_joins
from msdata_jax.roles.placement import Placement
from msdata_jax.roles.recording import Recorder, in_flight
from msdata_jax.roles.streams import SourceStream

START_SECONDS = 600.0
"""Time for every rank to come and every source to open."""


class Planner:
    """State machine of the planner; see `roles.messages` for who says what."""

    def __init__(
        self,
        recipe: Recipe,
        placement: Placement,
        start_seconds: float = START_SECONDS,
        process_figures: Callable[[], Mapping[str, Any]] = dict,
        recorder: Recorder | None = None,
    ) -> None:
        if not isinstance(recipe.strategy, DGraph):
            raise RecipeError(f"strategy is a DGraph, got {type(recipe.strategy).__name__}")
        self._recipe, self._placement = recipe, placement
        self._graph = recipe.strategy
        self._start_seconds = start_seconds
        self._steps_ahead = 1
        self._buffer_bytes = 0
        self._process_figures = process_figures
        self._recorder = recorder
        self._names = recipe.source_names
        self._affinity = placement.affinity(len(self._names))
        self._state = initial_state(len(self._names), recipe.columns)
        self._joins: dict[int, m.Join] = {}
        self._opened: dict[tuple[int, int], m.SourceOpened] = {}
        self._audience: Audience | None = None
        self._streams: list[SourceStream] = []
        self._delivered = dict.fromkeys(placement.constructors, -1)
        self._released = -1
        self._num_steps: int | None = None
        self._ended = False
        self._holdings = Holdings([source.block_size for source in recipe.sources.values()])
        self._demand = np.zeros(len(self._names))
        self._wanted: int | None = None
        self._wanted_ahead = 0
        self._left: dict[int, Any] = {}
        self._farewells: dict[int, Any] = {}

    # --- start ------------------------------------------------------------------------------------------

    def start(self) -> Sequence[Effect]:
        """Ask the first loader of each source to open it; the others follow when it could."""
        return [
            Send(rank=loaders[0], message=m.OpenSource(source=source))
            for source, loaders in enumerate(self._affinity)
        ]

    def tick(self, elapsed_seconds: float) -> Sequence[Effect]:
        """Refuse to wait for ever. Raises LaunchError where somebody did not come in time."""
        if self._audience or elapsed_seconds < self._start_seconds:
            return []
        silent = sorted(set(self._placement.constructors) - set(self._joins))
        unopened = [
            f"{self._names[s]!r} on rank {loader}"
            for s, loader in self._opening()
            if (s, loader) not in self._opened
        ]
        waiting = [f"constructor ranks {silent} to build their DataLoader"] if silent else []
        waiting += [f"sources to open: {', '.join(unopened)}"] if unopened else []
        raise LaunchError(
            f"the job did not start within {self._start_seconds:g} s (--start-seconds); waiting for "
            f"{'; for '.join(waiting)}",
        )

    def handle(self, sender: int, message: m.RoleMessage) -> Sequence[Effect]:
        """React to one message; see the table in `roles.messages`."""
        match message:
            case m.Failed():
                return self._abort(sender, message.message)
            case m.SourceOpened():
                self._opened[message.source, sender] = message
                return [*self._open_on_others(sender, message.source), *self._begin()]
            case m.Join():
                self._joins[sender] = message
                return self._begin()
            case m.BlockReady():
                self._take_block(message)
                return self._lease() if self._waits_for_more() else self._advance()
            case m.Delivered():
                self._delivered[sender] = message.step
                return [*self._release(), *self._advance()]
            case m.Leave():
                self._left[sender] = message.figures
                ending = [] if self._ended else self._end(self._state.step, "")
                return [*ending, *self._stop_when_all_left()]
            case m.Farewell():
                self._farewells[sender] = message.figures
                return self._finish_when_all_closed()
            case _:
                raise MSDataError(f"planner got {type(message).__name__} from rank {sender}")

    def _opening(self) -> list[tuple[int, int]]:
        return [(source, loader) for source, loaders in enumerate(self._affinity) for loader in loaders]

    def _open_on_others(self, opened_on: int, source: int) -> Sequence[Effect]:
        """So a source that cannot be opened fails once, not once for every loader of it."""
        first, *others = self._affinity[source]
        message = m.OpenSource(source=source)
        return [Send(rank=rank, message=message) for rank in others] if opened_on == first else []

    def _begin(self) -> Sequence[Effect]:
        """Build the place tree and the streams once everybody is there."""
        if len(self._joins) < len(self._placement.constructors) or len(self._opened) < len(self._opening()):
            return []
        join = check_joins(self._joins, self._placement, self._recipe.fingerprint())
        tree = self._graph.place_tree(join.layout)
        self._graph.check_mesh(tree)
        self._num_steps = None if join.num_steps < 0 else join.num_steps
        self._steps_ahead, self._buffer_bytes = join.steps_ahead, join.buffer_bytes_per_loader
        by_host = self._graph.broadcast.via == "host"
        self._audience = Audience(
            tree=tree,
            clients=build_clients(tree, self._joins, self._placement.constructors, by_host=by_host),
            row_axes=tuple(join.row_axes),
            encoder_axes=axes_tuple(tree.axes(self._graph.distribution.encoder_axis)),
            num_sources=len(self._names),
        )
        self._streams = [self._build_stream(source) for source in range(len(self._names))]
        if self._recorder:
            num_records = [
                self._opened[s, loaders[0]].num_records for s, loaders in enumerate(self._affinity)
            ]
            self._recorder.start(join.layout, num_records, self._placement.loaders)
        return self._advance()

    def _build_stream(self, source: int) -> SourceStream:
        reports = [self._opened[source, loader] for loader in self._affinity[source]]
        if len({(r.num_records, r.fingerprint) for r in reports}) > 1:
            found = ", ".join(
                f"{r.num_records} records, fingerprint {r.fingerprint} on rank {loader}"
                for loader, r in zip(self._affinity[source], reports, strict=True)
            )
            raise LaunchError(f"source {self._names[source]!r} is not the same on all its loaders: {found}")
        return SourceStream(
            self._names[source],
            self._recipe.sources[self._names[source]],
            num_records=reports[0].num_records,
            repeat=self._graph.mixture.on_exhausted == "repeat",  # pyright: ignore[reportOptionalMemberAccess]
            dtype=info_dtype(self._recipe.columns),
        )

    # --- planning ---------------------------------------------------------------------------------------

    def _take_block(self, block: m.BlockReady) -> None:
        bad = [
            BadSample(position=position, reason=reason)
            for position, reason in zip(block.bad_positions, block.bad_reasons, strict=True)
        ]
        self._holdings.report(block.source, block.start, int(block.infos["num_bytes"].sum()))
        self._streams[block.source].add_block(block.start, block.stop, block.infos, bad)

    def _advance(self) -> Sequence[Effect]:
        """Plan as many steps as credit and known samples allow, then lease what comes next."""
        effects: list[Effect] = []
        self._wanted = None
        while self._audience and not self._ended and not self._left and self._has_credit():
            step = self._state.step
            if step == self._num_steps:
                effects += self._end(step, "")
                break
            planned = self._plan_step()
            if planned is None:
                break
            effects += planned
        return [*effects, *self._lease()]

    def _waits_for_more(self) -> bool:
        """Whether composing again would be in vain, or likely so while more of that source is under way."""
        if self._wanted is None:
            return False
        stream = self._streams[self._wanted]
        known = len(stream.ahead) >= self._wanted_ahead or stream.ended or stream.failure is not None
        return not known and stream.num_leased_positions > 0

    def _has_credit(self) -> bool:
        return self._state.step <= min(self._delivered.values()) + self._steps_ahead

    def _plan_step(self) -> Sequence[Effect] | None:
        """Compose and place the next step, or get nearer to it; None while samples are missing."""
        try:
            composed = self._graph.compose(
                self._state,
                self._names,
                [stream.ahead for stream in self._streams],
                [stream.ended for stream in self._streams],
            )
            return self._take_composed(composed)
        except (BadSampleError, RecipeError) as error:
            return self._end(self._state.step, str(error))

    def _take_composed(self, composed: Composed | Gathered | NeedMore | EndOfData) -> Sequence[Effect] | None:
        step = self._state.step
        if isinstance(composed, NeedMore):
            failure = self._streams[composed.source].failure
            if failure is not None:
                return self._end(step, f"step {step}: {failure}")
            stream = self._streams[composed.source]
            self._wanted, self._wanted_ahead = composed.source, 1 + len(stream.ahead) * 9 // 8
            # Steps are larger than was thought: lease twice what is known, so that a first step starts soon.
            least = 2 * len(stream.ahead) / (1 + self._steps_ahead)
            self._demand[composed.source] = max(self._demand[composed.source], least)
            return None
        if isinstance(composed, EndOfData):
            return self._end(step, "")
        assert self._audience is not None
        plan = (
            None if isinstance(composed, Gathered) else self._graph.place(composed.plan, self._audience.tree)
        )
        for stream, count in zip(self._streams, composed.drawn.tolist(), strict=True):
            stream.drop(count)
        self._state = composed.state
        if composed.drawn.any():  # else it is a step of a window, drawn for before
            self._demand = np.maximum(0.75 * self._demand, composed.drawn)
        return [] if plan is None else self._send_step(plan)

    def _send_step(self, plan: StepPlan) -> Sequence[Effect]:
        assert self._audience is not None
        is_last, is_first = self._finished(plan)
        self._holdings.plan_step(plan.step, np.concatenate([plan.samples[is_last & is_first], plan.dropped]))
        effects = announce(plan, is_last, self._audience, self._holdings.owners)
        if self._recorder:
            owner = self._holdings.owners(plan.samples).astype(np.int32)
            self._recorder.step(plan, owner, in_flight(self._state, self._streams))
        self._forget_blocks()
        return effects

    def _finished(self, plan: StepPlan) -> tuple[np.ndarray, np.ndarray]:
        """Bool `[segments]` each: nothing of the sample comes in a later step; nothing of it came before."""
        is_last, is_first = (np.ones(len(plan.samples), dtype=bool) for _ in range(2))
        pieces = np.flatnonzero(plan.length < plan.samples["tokens"])
        if self._graph.packing.oversize == "split" and len(pieces):  # pyright: ignore[reportOptionalMemberAccess]
            later = {key for infos in self._state.composed_ahead() for key in _keys(infos)}
            seen: set[tuple[int, int, int]] = set()
            for piece, key in zip(pieces.tolist(), _keys(plan.samples[pieces]), strict=True):
                is_last[piece], is_first[piece] = key not in later, key not in seen
                seen.add(key)
        return is_last, is_first

    def _end(self, step: int, error: str) -> Sequence[Effect]:
        self._ended = True
        end = m.EndOfData(step=step, error=error)
        return [Send(rank=rank, message=end) for rank in self._placement.constructors]

    def _forget_blocks(self) -> None:
        """Forget who holds the blocks from which nothing can be asked any more."""
        self._holdings.forget_before(self._state.last_position, self._state.composed_ahead())

    def _lease(self) -> Sequence[Effect]:
        """Lease blocks so that each source is known `steps_ahead` steps of its demand ahead."""
        if self._ended or self._left or not self._streams:
            return []
        effects: list[Effect] = []
        # A full loader gets more only where no step is under way whose release would make room.
        nothing_to_release = self._state.step <= min(self._delivered.values()) + 1
        for source in self._sources_to_read():
            stream = self._streams[source]
            needed = max(1.0, (1 + self._steps_ahead) * float(self._demand[source]))
            while True:
                urgent = nothing_to_release and source == self._wanted and stream.num_leased_positions == 0
                if not urgent and len(stream.ahead) + stream.num_leased_positions >= needed:
                    break
                loader = self._loader_for(source, urgent=urgent)
                lease = None if loader is None else stream.next_lease()
                if loader is None or lease is None:
                    break
                self._holdings.lease(loader, source, lease[0])
                effects.append(
                    Send(rank=loader, message=m.Lease(source=source, start=lease[0], stop=lease[1]))
                )
        return effects

    def _sources_to_read(self) -> list[int]:
        """Those with a share of the step that is composed next.

        None where all steps that are wanted are composed, or where a function gives that step no proper
        weights: `compose` says so when it comes to it.
        """
        step = self._state.next_composed
        if self._num_steps is not None and step >= self._num_steps and not self._state.gathered:
            return []
        try:
            weights = self._graph.mixture.weights_at(step, self._names)  # pyright: ignore[reportOptionalMemberAccess]
        except RecipeError:
            return []
        return np.flatnonzero(weights).tolist()

    def _loader_for(self, source: int, *, urgent: bool) -> int | None:
        """The loader of `source` that holds least; None when all are full and nothing waits for it."""
        loader = min(self._affinity[source], key=lambda rank: (self._holdings.num_bytes(rank), rank))
        full = self._holdings.num_bytes(loader) >= self._buffer_bytes
        return None if full and not urgent else loader

    # --- end --------------------------------------------------------------------------------------------

    def _release(self) -> Sequence[Effect]:
        everywhere = min(self._delivered.values())
        if everywhere <= self._released:
            return []
        self._released = everywhere
        self._holdings.release(everywhere)
        if self._recorder:
            self._recorder.delivered(everywhere)
        return [Send(rank=loader, message=m.Release(step=everywhere)) for loader in self._placement.loaders]

    def _stop_when_all_left(self) -> Sequence[Effect]:
        if len(self._left) < len(self._placement.constructors):
            return []
        return [Send(rank=loader, message=m.Stop()) for loader in self._placement.loaders]

    def _finish_when_all_closed(self) -> Sequence[Effect]:
        if len(self._farewells) < len(self._placement.loaders):
            return []
        figures = {
            "steps": self._state.step,
            "planner": dict(self._process_figures()),
            "sources": {
                name: {"bad_samples": s.num_bad, "bad": [[b.position, b.reason] for b in s.bad[:10]]}
                for name, s in zip(self._names, self._streams, strict=False)
            },
            "loaders": [self._farewells[rank] for rank in self._placement.loaders],
            "constructors": [self._left[rank] for rank in self._placement.constructors],
        }
        summary = [
            Send(rank=rank, message=m.Summary(figures=figures)) for rank in self._placement.constructors
        ]
        return [*summary, Finish(figures=figures)]

    def _abort(self, rank: int, message: str) -> Sequence[Effect]:
        others = (*self._placement.constructors, *self._placement.loaders)
        abort = m.Abort(rank=rank, message=message)
        return [*(Send(rank=r, message=abort) for r in others), Finish(error=JobFailed(rank, message))]


def _keys(infos: np.ndarray) -> list[tuple[int, int, int]]:
    names = ("source", "position", "part")
    return list(zip(*(infos[name].tolist() for name in names), strict=True))
