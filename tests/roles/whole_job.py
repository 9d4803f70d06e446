"""All roles of a job, the real ones, without threads: a test says whose turn it is.

Messages of one rank to another keep their order; all else may happen in any order: that is what a transport
promises. What runs on worker threads is done when its turn comes. A loader may be killed between any two
turns: of what it has sent, some is lost.
"""

import random
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from roles.played import make_join

from msdata_jax.data_state import change_leaves, leaves_digest, pack_leaves
from msdata_jax.recipe import Recipe
from msdata_jax.roles import messages as m
from msdata_jax.roles.data_constructor import DataConstructor
from msdata_jax.roles.effects import Deliver, EndStream, Finish, Forget, Run, Send, Show
from msdata_jax.roles.placement import Placement
from msdata_jax.roles.planner import Planner
from msdata_jax.roles.scaler import Scaling
from msdata_jax.roles.source_loader import SourceLoader
from msdata_jax.runtime.fields import row_formats
from msdata_jax.scaling.decision_log import Round
from msdata_jax.scaling.observation import Limits
from msdata_jax.scaling.policy import ScalingPolicy, Steady
from msdata_jax.sources.reader import SourceReader

MOST_TURNS = 100_000


@dataclass
class Trainer:
    """What a training process got so far."""

    ready: deque = field(default_factory=deque)  # delivered and not shown
    shown: deque = field(default_factory=deque)  # shown and not taken; the end too
    taken: list[Deliver] = field(default_factory=list)
    leaves: Mapping[str, bytes] = field(default_factory=dict)
    leaves_after: dict[int, Mapping[str, bytes]] = field(default_factory=dict)
    end: EndStream | None = None
    has_left: bool = False

    def take(self) -> Deliver | None:
        """The next step; None where the data end."""
        step = self.shown.popleft()
        if isinstance(step, EndStream):
            self.end = step
            return None
        for state in step.states:
            change_leaves(self.leaves, state.changed, state.removed)
        self.leaves_after[step.expect.step] = dict(self.leaves)
        self.taken.append(step)
        return step


class Readers:
    """The open sources of a loader."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self.opened: dict[int, SourceReader] = {}

    def open(self, source: int, isolate: bool) -> SourceReader:
        if isolate or source not in self.opened:
            name, recipe = self._recipe.source_names[source], self._recipe
            reader = SourceReader(
                name, source, recipe.sources[name], seed=recipe.seed, columns=recipe.columns
            )
            if isolate:
                return reader
            self.opened[source] = reader
        return self.opened[source]

    def close(self, source: int) -> None:
        if source in self.opened:
            self.opened.pop(source).close()


class WholeJob:
    """A planner, loaders, shadows and constructors.

    Args:
        recipe: sources in memory.
        placement: the ranks.
        rng: whose turn it is.
        state: leaves to go on from.
        policy: moves work between loaders; asked at any moment.
        joining: fields of `Join`.
    """

    def __init__(
        self,
        recipe: Recipe,
        placement: Placement,
        rng: random.Random,
        state: Mapping[str, bytes] | None = None,
        policy: ScalingPolicy | None = None,
        **joining: Any,
    ) -> None:
        self.recipe, self.placement, self.rng = recipe, placement, rng
        processes = len(placement.constructors)
        self.trainers = {rank: Trainer() for rank in placement.constructors}
        self.ticks = 0 if policy else None
        self.rounds: list[Round] = []
        scaling = Scaling(
            policy=policy or Steady(), limits=Limits(max_threads=3), on_round=self.rounds.append
        )
        self.planner = Planner(recipe, placement, scaling=scaling)
        self.roles: dict[int, Any] = {placement.planner: self.planner}
        self.readers = {rank: Readers(recipe) for rank in placement.readers}
        self.roles |= {
            rank: SourceLoader(placement, self.readers[rank], source_names=recipe.source_names)
            for rank in placement.readers
        }
        joins = {
            rank: make_join(recipe, process, processes=processes, **joining)
            for process, rank in enumerate(placement.constructors)
        }
        tree = recipe.strategy.place_tree(joins[placement.constructors[0]].layout)
        for rank in placement.constructors:
            self.roles[rank] = DataConstructor(
                placement, row_formats(recipe.strategy, tree), source_names=recipe.source_names
            )
        self.channels: dict[tuple[int, int], deque] = defaultdict(deque)
        self.work: dict[int, deque] = defaultdict(deque)
        self.forgets: set[tuple[int, int]] = set()  # (who, whom)
        self.dead: set[int] = set()
        self.finished: dict[int, Finish] = {}
        for rank, role in self.roles.items():
            self._perform(rank, role.start())
        for rank, join in joins.items():
            if state is not None:
                packed = np.frombuffer(pack_leaves(state), np.uint8)
                is_first = join.process == 0
                join = replace(
                    join, state=packed if is_first else join.state, state_digest=leaves_digest(state)
                )
            self._perform(rank, self.roles[rank].handle(rank, join))

    # --- turns ----------------------------------------------------------------------------------------------

    def _turns(self) -> list[tuple[str, Any]]:
        carried = [
            ("carry", pair) for pair, queue in self.channels.items() if queue and pair[1] not in self.finished
        ]
        worked = [("work", rank) for rank, queue in self.work.items() if queue and rank not in self.finished]
        took = [
            ("take", rank)
            for rank, each in self.trainers.items()
            if each.shown and not each.end and not each.has_left
        ]
        return sorted(carried + worked + took)

    def turn(self) -> bool:
        """One thing happens; False where nothing can."""
        turns = self._turns()
        if not turns:
            return False
        if self.ticks is not None and self.rng.random() < 0.2:
            self.ticks += 1
            self._perform(self.placement.planner, self.planner.tick(0.02 * self.ticks))
        kind, who = self.rng.choice(turns)
        if kind == "carry":
            sender, rank = who
            message = self.channels[who].popleft()
            self._perform(
                rank, self.roles[rank].handle(rank if isinstance(message, m.Lost) else sender, message)
            )
        elif kind == "work":
            queue = self.work[who]
            queue.rotate(self.rng.randrange(len(queue)))
            self.channels[who, who].append(queue.popleft().call())
        else:
            step = self.trainers[who].take()
            if step is not None:
                self._perform(who, self.roles[who].handle(who, m.Delivered(step=step.expect.step)))
        return True

    def run(self, kills: Mapping[int, int] = {}) -> None:
        """Until nothing can happen any more; `kills` are ranks by the turn before which they die."""
        for number in range(MOST_TURNS):
            if number in kills:
                self.kill(kills[number])
            if not self.turn() and number >= max(kills, default=0):
                return
        raise AssertionError("turns without end")

    def tell(self, rank: int, message: m.RoleMessage) -> None:
        """A role gets a message from its own rank."""
        self._perform(rank, self.roles[rank].handle(rank, message))

    def leave(self) -> None:
        """All trainers leave, and the job ends."""
        for rank, trainer in self.trainers.items():
            trainer.has_left = True
            self._perform(rank, self.roles[rank].handle(rank, m.Leave()))
        self.run()

    def kill(self, rank: int) -> None:
        """A loader dies; the planner notices, and constructors may."""
        if rank in self.finished or rank in self.dead:
            return
        self.dead.add(rank)
        self.finished[rank] = Finish()
        for (sender, receiver), queue in list(self.channels.items()):
            if sender == rank:
                for _ in range(self.rng.randint(0, len(queue))):
                    queue.pop()  # what it sent last is lost
            if receiver == rank:
                queue.clear()
        for receiver in (self.placement.planner, *self.placement.constructors):
            notices = receiver == self.placement.planner or self.rng.random() < 0.5
            if notices and (receiver, rank) not in self.forgets:
                self.channels[rank, receiver].append(m.Lost(rank=rank, why="it was killed"))

    def _perform(self, rank: int, effects: Any) -> None:
        for effect in effects:
            trainer = self.trainers.get(rank)
            match effect:
                case Send(rank=receiver, message=message):
                    if receiver not in self.dead and (rank, receiver) not in self.forgets:
                        self.channels[rank, receiver].append(message)
                case Run():
                    self.work[rank].append(effect)
                case Forget(rank=lost):
                    self.forgets.add((rank, lost))
                    self.channels[lost, rank].clear()
                case Finish():
                    self.finished[rank] = effect
                case Deliver():
                    trainer.ready.append(effect)
                case Show(step=step):
                    while trainer.ready and trainer.ready[0].expect.step <= step:
                        trainer.shown.append(trainer.ready.popleft())
                case EndStream():
                    trainer.shown.append(effect)

    # --- what came of it ------------------------------------------------------------------------------------

    def steps(self, rank: int | None = None) -> list[tuple]:
        """Step, digest and rows of what a training process took, by default the first."""
        trainer = self.trainers[self.placement.constructors[0] if rank is None else rank]
        return [
            (
                each.expect.step,
                each.expect.digest,
                {name: value.tobytes() for name, value in each.fields.items()},
            )
            for each in trainer.taken
        ]

    def held(self) -> dict[int, tuple[int, int]]:
        """Of each loader: bytes of the samples that it has, and what the planner thinks."""
        holdings = self.planner._leasing.holdings
        return {
            rank: (
                sum(
                    value.nbytes for sample in self.roles[rank]._samples.values() for value in sample.values()
                ),
                holdings.num_bytes(rank),
            )
            for rank in self.placement.readers
            if rank not in self.dead
        }

    def open_in_vain(self) -> set[tuple[int, int]]:
        """(loader, source) of sources that are open where the planner has no use for them."""
        asked = self.planner._leasing._asked
        return {
            (rank, source)
            for rank, readers in self.readers.items()
            if rank not in self.dead
            for source in readers.opened
            if (source, rank) not in asked
        }

    def unneeded(self) -> set[tuple[int, tuple[int, int, int]]]:
        """(loader, sample) of what loaders have and nobody will ask for."""
        needed = {
            tuple(key)
            for infos in self.planner._needed()
            for key in infos[["source", "position", "part"]].tolist()
        }
        behind = {source: each.known_to for source, each in enumerate(self.planner._leasing.streams)}
        return {
            (rank, key)
            for rank in self.placement.readers
            if rank not in self.dead
            for key in self.roles[rank]._samples
            if key not in needed and key[1] < behind[key[0]]
        }
