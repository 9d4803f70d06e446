"""The planner: decides, from metadata alone, what each step delivers, and who reads and sends what."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from msdata_jax.errors import BadSampleError, JobFailed, LaunchError, MSDataError, RecipeError
from msdata_jax.plan import StepPlan
from msdata_jax.planning.graph import Composed, DGraph, EndOfData, Gathered, NeedMore, initial_state
from msdata_jax.recipe import Recipe
from msdata_jax.roles import messages as m
from msdata_jax.roles.announcing import Audience, Wanted, announce
from msdata_jax.roles.beginning import begin
from msdata_jax.roles.demand import Demand
from msdata_jax.roles.effects import Effect, Finish, Forget, Send
from msdata_jax.roles.holdings import NOBODY
from msdata_jax.roles.leasing import Leasing
from msdata_jax.roles.placement import Placement
from msdata_jax.roles.progress import Progress
from msdata_jax.roles.recording import Recorder, in_flight
from msdata_jax.roles.saving import BlockSaving
from msdata_jax.roles.scaler import Scaler, Scaling
from msdata_jax.roles.standing import Standing
from msdata_jax.roles.tally import Tally
from msdata_jax.roles.watching import Watch

MOST_LEASES = 1024
"""Blocks of a source that are leased at once; more follow when some of them are read."""
START_SECONDS = 600.0
"""Time for every rank to come and every source to open."""


class Planner:
    """State machine of the planner, for one session; see `roles.messages` for who says what.

    Args:
        recipe: what to deliver.
        placement: the job's ranks.
        start_seconds: time for every rank to come and every source to open.
        process_figures: what to add to the figures of this process.
        recorder: told of every decision.
        watch: when a loader counts as lost; None watches none.
        scaling: which loaders read what at first, and how that changes; None leaves it as it is.
        lost: loaders and shadows that sessions before this one have lost, by rank, and why. None in the first
            session; later ones wait for a DataLoader without a deadline, and end where all trainers do.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - each with a default
        self,
        recipe: Recipe,
        placement: Placement,
        start_seconds: float = START_SECONDS,
        process_figures: Callable[[], Mapping[str, Any]] = dict,
        recorder: Recorder | None = None,
        watch: Watch | None = None,
        lost: Mapping[int, str] | None = None,
        scaling: Scaling | None = None,
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
        self._scaling = scaling or Scaling()
        self._scaler = Scaler(self._scaling, self._names)
        self._leasing = self._new_leasing(lost or {})
        self._may_idle = lost is not None
        self._idle_seconds = 0.0
        self._gone: set[int] = set()  # trainers that said goodbye
        self._watch = watch or Watch(())
        self._state = initial_state(len(self._names), recipe.columns)
        self._built: set[int] = set()
        self._joins: dict[int, m.Join] = {}
        self._audience: Audience | None = None
        self._standing: Standing | None = None
        self._skip_to = -1
        self._wanted_of: dict[int, tuple[Wanted, np.ndarray]] = {}  # by step, with who was told to send it
        self._progress = Progress(placement.constructors)
        self._tally = Tally(len(self._names))
        self._num_steps: int | None = None
        self._stop_asked = self._stopped = False
        self._again = True  # whether all that left may come back
        self._ended = False
        self._end_step = -1
        self._demand = Demand(self._graph.mixture, self._names)  # pyright: ignore[reportArgumentType]
        self._lacking: int | None = None  # the source that the step which is composed next lacked last
        self._lacked: dict[int, int] = {}  # the same of the steps that are planned
        self._wanted: int | None = None
        self._wanted_ahead = 0
        self._saving = BlockSaving()
        self._farewells: dict[int, Any] = {}

    def _new_leasing(self, lost: Mapping[int, str]) -> Leasing:
        leasing = Leasing(
            self._recipe, self._placement, lost, affinity=self._scaling.affinity, costs=self._scaling.costs
        )
        leasing.threads |= self._scaling.threads
        return leasing

    def learnt(self) -> Scaling:
        """How a next session is to begin: who reads what now, on how many threads, and what samples cost."""
        leasing, num_sources = self._leasing, len(self._names)
        return replace(
            self._scaling,
            threads={rank: leasing.threads[rank] for rank in leasing.readers if rank in leasing.threads},
            tell_threads=self._scaling.tell_threads or leasing.threads != self._scaling.threads,
            affinity=[list(leasing.loaders_of(source)) for source in range(num_sources)],
            costs=[leasing.rates.seconds_per_sample(source) for source in range(num_sources)],
        )

    # --- start ------------------------------------------------------------------------------------------

    def start(self) -> Sequence[Effect]:
        """Ask for every source to be opened; in a later session when a DataLoader is built."""
        return [] if self._is_idle else self._open_first()

    def _open_first(self) -> list[Effect]:
        threads = self._scaling.threads if self._scaling.tell_threads else {}
        told = [each for rank, count in threads.items() for each in self._leasing.set_threads(rank, count)]
        return [*told, *self._leasing.open_first()]

    @property
    def _is_idle(self) -> bool:
        """Whether nobody needs anything, and maybe never will."""
        return self._may_idle and not self._built

    @property
    def has_begun(self) -> bool:
        """Whether a DataLoader was fed in this session."""
        return self._audience is not None

    def tick(self, elapsed_seconds: float, *, caught_up: bool = True) -> Sequence[Effect]:
        """Refuse to wait for ever: for a loader that is silent, or for the start.

        Raises:
            LaunchError: somebody did not come in time.
        """
        silent_ranks = self._watch.tick() if caught_up else ()
        effects = [effect for rank, why in silent_ranks for effect in self._lose(rank, why)]
        if effects:
            return effects
        if self._is_idle:
            self._idle_seconds = elapsed_seconds
        if self._audience and not self._ended and not self._progress.left:
            return self._scale(elapsed_seconds)
        if elapsed_seconds - self._idle_seconds < self._start_seconds:
            return []
        silent = sorted(set(self._placement.constructors) - self._built)
        unopened = [f"{self._names[s]!r} on rank {loader}" for s, loader in self._leasing.unopened()]
        if self._audience or not (silent or unopened):
            return []
        waiting = [f"constructor ranks {silent} to build their DataLoader"] if silent else []
        waiting += [f"sources to open: {', '.join(unopened)}"] if unopened else []
        raise LaunchError(
            f"the job did not start within {self._start_seconds:g} s (--start-seconds); waiting for "
            f"{'; for '.join(waiting)}",
        )

    def _scale(self, elapsed_seconds: float) -> Sequence[Effect]:
        """Ask the policy who is to read what from now on."""
        step, composed = self._progress.slowest + 1, self._state.next_composed
        return self._scaler.tick(elapsed_seconds, step, self._leasing, self._demand, composed)

    def handle(self, sender: int, message: m.RoleMessage) -> Sequence[Effect]:
        """React to one message; see the table in `roles.messages`."""
        if sender in self._leasing.lost:
            return []  # it may have been slow only, but its leases are others' now
        self._watch.heard(sender, message)
        if isinstance(message, m.Failed):
            return self._abort(sender, message.message)
        if isinstance(message, m.Lost):
            return self._lose(message.rank, message.why)
        if sender in self._placement.readers:
            return self._handle_reader(sender, message)
        return self._handle_trainer(sender, message)

    def _handle_reader(self, sender: int, message: m.RoleMessage) -> Sequence[Effect]:
        match message:
            case m.SourceOpened():
                return [*self._leasing.opened(sender, message), *self._begin()]
            case m.BlockReady():
                return self._take_block(sender, message)
            case m.BlocksSaved():
                return self._saving.collect(sender, message)
            case m.Farewell():
                self._farewells[sender] = message.figures
                return self._finish_when_all_closed()
            case m.Heartbeat():
                self._scaler.heard(sender, message)
                return []
            case _:
                raise _unexpected(sender, message)

    def _handle_trainer(self, sender: int, message: m.RoleMessage) -> Sequence[Effect]:
        match message:
            case m.Built():
                return self._take_built(sender)
            case m.Join():
                self._joins[sender] = message
                return self._begin()
            case m.Complete():
                self._progress.complete(sender, message.step)
                return self._show()
            case m.Delivered():
                self._progress.deliver(sender, message.step, message.wait_seconds)
                if message.step > self._progress.first:
                    self._scaler.waited(sender, self._lacked.get(message.step), message.wait_seconds)
                return [*self._release(), *self._advance()]
            case m.PinBlocks() | m.SaveBlocks():
                return self._saving.ask(sender, message, self._leasing.readers)
            case _:
                return self._handle_end(sender, message)

    def _handle_end(self, sender: int, message: m.RoleMessage) -> Sequence[Effect]:
        match message:
            case m.AskToStop():
                self._stop_asked = True
                return self._advance()
            case m.Leave():
                self._progress.left[sender] = message.figures
                self._again &= message.again
                ending = [] if self._ended else self._end(self._state.step, "")
                return [*ending, *self._show(), *self._stop_when_all_left()]
            case m.Goodbye():
                return self._take_goodbye(sender)
            case _:
                raise _unexpected(sender, message)

    def _take_built(self, sender: int) -> Sequence[Effect]:
        was_idle = self._is_idle
        self._built.add(sender)
        self._check_goodbyes()
        if not self._leasing.readers:
            return self._without_loaders()
        return self._open_first() if was_idle else []

    def _begin(self) -> Sequence[Effect]:
        """Build the place tree and the streams once everybody is there."""
        all_joined = len(self._joins) == len(self._placement.constructors)
        if self._audience or not all_joined or not self._leasing.all_open:
            return []
        facts = self._leasing.facts()
        beginning = begin(self._recipe, self._placement, self._joins, facts)
        join, self._audience, self._state = beginning.join, beginning.audience, beginning.state
        self._num_steps = None if join.num_steps < 0 else join.num_steps
        self._steps_ahead, self._buffer_bytes = join.steps_ahead, join.buffer_bytes_per_loader
        self._skip_to = beginning.skip_to
        repeat = self._graph.mixture.on_exhausted == "repeat"  # pyright: ignore[reportOptionalMemberAccess]
        self._leasing.begin(self._state, beginning.bad, repeat=repeat, blocks=join.blocks)
        if self._recorder:
            self._recorder.start(join.layout, [each.num_records for each in facts], self._placement.loaders)
        self._standing = Standing(
            recipe=self._recipe,
            facts=facts,
            layout=join.layout,
            keeper=beginning.keeper,
            plan_digest=beginning.plan_digest,
            notes=beginning.notes,
        )
        self._progress.begin(self._state.step)
        self._demand.begin(self._state.next_composed, self._state.credit)
        if self._is_skipping():
            return self._advance()
        effects = self._standing.after(self._state, self._leasing.bad_records(self._state))
        return [*effects, *self._leasing.lease_unkept(self._state.composed_ahead()), *self._advance()]

    def _is_skipping(self) -> bool:
        return self._state.step < self._skip_to

    # --- planning ---------------------------------------------------------------------------------------

    def _needed(self) -> list[np.ndarray]:
        """SampleInfo records of all samples that loaders may still be asked for."""
        planned = [wanted.infos for wanted, _ in self._wanted_of.values()]
        ahead = [stream.ahead for stream in self._leasing.streams]
        return [*planned, *self._state.composed_ahead(), *ahead]

    def _take_block(self, sender: int, block: m.BlockReady) -> Sequence[Effect]:
        self._demand.read(block.source, block.infos)
        effects = self._leasing.take_block(sender, block, self._needed, self._state.step - 1)
        if not self._is_skipping() and self._leasing.holdings.owner(block.source, block.start) == NOBODY:
            effects += self._leasing.lease_unkept(self._needed())  # it was read to be skipped
        if self._leasing.broken:
            effects += self._end_early(self._leasing.broken)
        return [*effects, *(self._lease() if self._waits_for_more() else self._advance())]

    def _advance(self) -> Sequence[Effect]:
        """Plan as many steps as credit and known samples allow, then lease what comes next."""
        effects: list[Effect] = []
        self._wanted = None
        if self._stop_asked and self._audience and not self._ended:
            self._stopped = self._num_steps is None or self._state.step < self._num_steps
            effects += self._end(self._state.step, "")
        while self._audience and not self._ended and not self._progress.left and self._has_credit():
            step = self._state.step
            if self._num_steps is not None and step >= self._num_steps:
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
        stream = self._leasing.streams[self._wanted]
        known = len(stream.ahead) >= self._wanted_ahead or stream.ended or stream.failure is not None
        return not known and stream.num_leased_positions > 0

    def _has_credit(self) -> bool:
        return self._is_skipping() or self._state.step <= self._progress.slowest + self._steps_ahead

    def _plan_step(self) -> Sequence[Effect] | None:
        """Compose and place the next step, or get nearer to it; None while samples are missing."""
        try:
            composed = self._graph.compose(
                self._state,
                self._names,
                [stream.ahead for stream in self._leasing.streams],
                [stream.ended for stream in self._leasing.streams],
            )
            return self._take_composed(composed)
        except (BadSampleError, RecipeError) as error:
            return self._end(self._state.step, str(error))

    def _take_composed(self, composed: Composed | Gathered | NeedMore | EndOfData) -> Sequence[Effect] | None:
        step = self._state.step
        if isinstance(composed, NeedMore):
            stream = self._leasing.streams[composed.source]
            if stream.failure is not None:
                return self._end(step, f"step {step}: {stream.failure}")
            self._wanted, self._wanted_ahead = composed.source, 1 + len(stream.ahead) * 9 // 8
            self._lacking = composed.source
            # Steps are larger than was thought: lease twice what is known, so that a first step starts soon.
            steps = max(self._num_steps_to_read_for(), 1)
            self._demand.at_least(composed.source, 2 * len(stream.ahead) / steps)
            return None
        if isinstance(composed, EndOfData):
            return self._end(step, "")
        assert self._audience is not None
        skipped = self._is_skipping()
        plan = None if isinstance(composed, Gathered) else composed.plan
        if plan is not None and not skipped:
            plan = self._graph.place(plan, self._audience.tree)
        for stream, count in zip(self._leasing.streams, composed.drawn.tolist(), strict=True):
            stream.drop(count)
        if composed.drawn.any():  # else it is a step of a window, drawn for before
            self._demand.composed(self._state.next_composed, composed.drawn)
        self._state = composed.state
        if plan is None:
            return []
        return self._skip_step(plan) if skipped else self._send_step(plan)

    def _skip_step(self, plan: StepPlan) -> Sequence[Effect]:
        """Nobody gets this step. Behind the last one, what waits for later steps is read for good."""
        assert self._standing is not None
        self._standing.planned(plan)
        self._leasing.forget(self._state)
        if self._is_skipping():
            return []
        self._progress.begin(self._state.step)
        effects = self._standing.after(self._state, self._leasing.bad_records(self._state))
        return [*effects, *self._leasing.lease_unkept(self._needed())]

    def _send_step(self, plan: StepPlan) -> Sequence[Effect]:
        assert self._audience is not None
        assert self._standing is not None
        is_last, is_first = self._finished(plan)
        holdings = self._leasing.holdings
        holdings.plan_step(plan.step, np.concatenate([plan.samples[is_last & is_first], plan.dropped]))
        self._standing.planned(plan)
        # Before the step is announced: it may be complete, samples and all, as soon as it is expected.
        effects = self._standing.after(self._state, self._leasing.bad_records(self._state))
        announced, wanted = announce(plan, is_last, self._audience)
        self._tally.announce(announced)
        self._wanted_of[plan.step] = wanted, holdings.owners(wanted.infos)
        if self._lacking is not None:
            self._lacked[plan.step], self._lacking = self._lacking, None
        effects += [*announced, *wanted.orders(self._wanted_of[plan.step][1])]
        if self._recorder:
            owner = holdings.owners(plan.samples).astype(np.int32)
            self._recorder.step(plan, owner, in_flight(self._state, self._leasing.streams))
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

    def _end_early(self, error: str) -> list[Effect]:
        """The data end behind the last step that all have, also where they were to end at a later one."""
        step = self._progress.visible + 1
        if self._ended and self._end_step <= step:
            return []
        is_over = self._num_steps is not None and step >= self._num_steps  # nothing is missed
        return [*self._end(step, "" if is_over else error)]

    def _end(self, step: int, error: str) -> Sequence[Effect]:
        self._ended, self._end_step = True, step
        end = m.EndOfData(step=step, error=error, stopped=self._stopped)
        return [Send(rank=rank, message=end) for rank in self._placement.constructors]

    # --- leases -----------------------------------------------------------------------------------------

    def _lease(self) -> Sequence[Effect]:
        """Lease blocks so that each source is known `steps_ahead` steps of its demand ahead."""
        if self._ended or self._progress.left or not self._leasing.streams:
            return []
        effects: list[Effect] = []
        # A full loader gets more only where no step is under way whose release would make room.
        nothing_to_release = self._state.step <= self._progress.slowest + 1
        has_weight, draws = self._demand.ahead(self._state.next_composed, self._num_steps_to_read_for())
        draws_in_all = draws[-1].tolist() if len(draws) else []
        in_turn = self._demand.in_turn
        for source in in_turn[has_weight[in_turn]].tolist():
            stream, is_wanted = self._leasing.streams[source], source == self._wanted
            needed = max(1.0, draws_in_all[source], self._wanted_ahead if is_wanted else 0)
            for _ in range(MOST_LEASES):
                urgent = nothing_to_release and is_wanted and stream.num_leased_positions == 0
                known = stream.num_coming
                if not urgent and known >= needed:
                    break
                loader = self._loader_for(source, urgent=urgent)
                if loader is None:
                    break
                due = self._state.next_composed
                due += 0 if is_wanted else int(np.searchsorted(draws[:, source], known, side="right"))
                leased = self._leasing.lease_next(source, loader, keep=not self._is_skipping(), due=due)
                if not leased:
                    break
                effects += leased
        return effects

    def _num_steps_to_read_for(self) -> int:
        """Steps from the one that is composed next on: so many as may be under way, none beyond the last."""
        most = 1 + self._steps_ahead
        if self._num_steps is None:
            return most
        return min(max(self._num_steps - self._state.next_composed, int(bool(self._state.gathered))), most)

    def _loader_for(self, source: int, *, urgent: bool) -> int | None:
        """Who is to read a block of `source`; None when all its loaders are full and nothing waits for it."""
        loader = self._leasing.least_loaded(source, self._buffer_bytes)
        return self._leasing.least_loaded(source) if loader is None and urgent else loader

    def _lose(self, rank: int, why: str) -> Sequence[Effect]:
        """A rank is gone. A loader's work goes to others; without any other rank the job is over."""
        if rank in self._placement.constructors and self._is_idle:
            return self._take_goodbye(rank)
        if rank not in self._placement.readers:
            raise JobFailed(rank, f"lost contact: {why}")
        if rank not in self._leasing.readers:
            return []
        if self._is_idle:
            self._leasing = self._new_leasing({**self._leasing.lost, rank: why})
            self._farewells.pop(rank, None)
            return [Forget(rank=rank, why=why), *self._finish_when_all_closed()]
        lost = m.Lost(rank=rank, why=why)
        effects: list[Effect] = [Send(rank=each, message=lost) for each in self._placement.constructors]
        effects += [Forget(rank=rank, why=why)]
        again = self._leasing.lose(rank, why)
        self._farewells.pop(rank, None)
        effects += self._saving.lose(rank)
        if self._progress.all_left:
            return [*effects, *self._finish_when_all_closed()]  # the others were told to stop
        return [*effects, *again, *self._go_on_without(rank)]

    def _go_on_without(self, lost: int) -> Sequence[Effect]:
        """What the lost loader had goes to those that are left, and what it was to send is ordered again."""
        if not self._leasing.readers:
            return self._without_loaders()
        if not self._audience:
            return self._begin()
        effects = (
            self._leasing.lease_unread()
            if self._is_skipping()
            else self._leasing.lease_unkept(self._needed())
        )
        for step in sorted(self._wanted_of):
            effects += self._order_again(step, lost)
        return [*effects, *self._advance()]

    def _order_again(self, step: int, lost: int) -> Sequence[Effect]:
        """Orders for what the lost loader was to send; constructors that have the step get nothing twice."""
        wanted, owner = self._wanted_of[step]
        its = owner == lost
        owner = np.where(its, self._leasing.holdings.owners(wanted.infos), owner)
        self._wanted_of[step] = wanted, owner
        return wanted.without(self._progress.having(step)).orders(owner, its)

    def _without_loaders(self) -> Sequence[Effect]:
        """Nobody can read any more: the data end behind the last step that all have."""
        gone = "; ".join(f"rank {rank}: {why}" for rank, why in self._leasing.lost.items())
        message = (
            f"no source loader is left ({gone}); start the job with more loaders or with shadows "
            "(msdata launch --loaders, --shadows), and resume from the last checkpoint"
        )
        if not self._audience:
            raise LaunchError(message)
        return self._end_early(message)

    # --- what it looks like ------------------------------------------------------------------------------

    @property
    def waits_for(self) -> int | None:
        """The source without which no further step can be planned; None where all that are wanted are."""
        return None if self._ended else self._wanted

    def status(self) -> Mapping[str, Any]:
        """What it knows just now, for people who watch the job; `runtime.status` says what to make of it."""
        progress = self._progress
        return {
            "step": progress.slowest + 1,
            "ready": progress.visible + 1,
            "num_steps": self._num_steps,
            "began": self._audience is not None,
            "ended": self._ended,
            "stopping": self._stop_asked,
            "trainers_to_come": len(self._placement.constructors) - len(self._joins),
            "waited_seconds": dict(progress.waited_seconds),
            "waits": progress.waits,
            "budget_bytes": self._buffer_bytes,
            "tally": self._tally,
            "lacked_seconds": self._scaler.lacked_seconds.copy(),
            **self._leasing.status(),
        }

    # --- end --------------------------------------------------------------------------------------------

    def _show(self) -> Sequence[Effect]:
        """Let the trainers have what is complete everywhere."""
        step = self._progress.show()
        if step is None:
            return []
        return [Send(rank=rank, message=m.Visible(step=step)) for rank in self._placement.constructors]

    def _release(self) -> Sequence[Effect]:
        """Forget what all trainers took."""
        step = self._progress.release()
        if step is None:
            return []
        assert self._standing is not None
        self._tally.take(step)
        self._leasing.holdings.release(step)
        self._leasing.forget(self._standing.release(step))
        self._wanted_of = {later: wanted for later, wanted in self._wanted_of.items() if later > step}
        self._lacked = {later: source for later, source in self._lacked.items() if later > step}
        if self._recorder:
            self._recorder.delivered(step)
        return [Send(rank=rank, message=m.Release(step=step)) for rank in self._leasing.readers]

    def _take_goodbye(self, sender: int) -> Sequence[Effect]:
        """A training process has ended, behind an earlier session; when all have, the job is over."""
        if sender in self._gone:
            return []
        self._gone.add(sender)
        self._check_goodbyes()
        self._progress.left[sender] = {}
        self._again = False
        return self._stop_when_all_left()

    def _check_goodbyes(self) -> None:
        """Raise LaunchError where some training processes have ended and others build a DataLoader."""
        if self._gone and self._built:
            raise LaunchError(
                f"training ranks {sorted(self._built)} build another DataLoader, and ranks "
                f"{sorted(self._gone)} have ended: all training processes build as many"
            )

    def _stop_when_all_left(self) -> Sequence[Effect]:
        if not self._progress.all_left:
            return []
        stop = m.Stop(lost=list(self._leasing.lost), again=self._again)
        stops = [Send(rank=rank, message=stop) for rank in self._leasing.readers]
        return [*stops, *self._finish_when_all_closed()]

    def _finish_when_all_closed(self) -> Sequence[Effect]:
        closed = all(rank in self._farewells for rank in self._leasing.readers)
        if not closed or not self._progress.all_left:
            return []
        figures = {
            "steps": self._state.step,
            "stopped": self._stopped,
            "planner": dict(self._process_figures()),
            "sources": {
                name: self._source_figures(index) for index, name in enumerate(self._names)
            } if self._leasing.streams else {},
            "loaders": [self._farewells[rank] for rank in self._leasing.readers],
            "constructors": [self._progress.left[rank] for rank in self._placement.constructors],
            "lost": [
                {"rank": rank, "role": self._placement.role_of(rank), "why": why}
                for rank, why in self._leasing.lost.items()
            ],
        }  # fmt: skip
        summary = [
            Send(rank=rank, message=m.Summary(figures=figures))
            for rank in self._placement.constructors
            if rank not in self._gone
        ]
        return [*summary, Finish(figures=figures, again=self._again)]

    def _source_figures(self, index: int) -> dict[str, Any]:
        stream = self._leasing.streams[index]
        listed = [[each.position // stream.num_records, each.position, each.reason] for each in stream.bad]
        return {"bad_samples": stream.num_bad, "bad": listed}

    def _abort(self, rank: int, message: str) -> Sequence[Effect]:
        others = (*self._placement.constructors, *self._leasing.readers)
        abort = m.Abort(rank=rank, message=message)
        return [*(Send(rank=r, message=abort) for r in others), Finish(error=JobFailed(rank, message))]


def _unexpected(sender: int, message: m.RoleMessage) -> MSDataError:
    return MSDataError(f"planner got {type(message).__name__} from rank {sender}")


def _keys(infos: np.ndarray) -> list[tuple[int, int, int]]:
    names = ("source", "position", "part")
    return list(zip(*(infos[name].tolist() for name in names), strict=True))
