"""Policies: from what the planner sees to what changes. Pure: no clock, no randomness but a seed's."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msdata_jax.errors import RecipeError
from msdata_jax.scaling.loads import spread
from msdata_jax.scaling.observation import Decision, LoaderView, Observation, SourceView, broken_rule

MOST_TRIED = 16
"""Sources of a loader that is too busy, those with the largest needs, that are looked at."""
Memory = Mapping[str, Any]
"""What a policy remembers from one observation to the next: plain values that JSON has."""


class ScalingPolicy(Protocol):
    """Decides who reads what, and on how many threads, while a job runs.

    What steps deliver never depends on it. A policy that raises, or decides what breaks a rule, is switched
    off, and the job goes on as it stands.
    """

    @property
    def interval_seconds(self) -> float:
        """How often it is asked, at most once a second."""
        ...

    @property
    def lookahead_seconds(self) -> float:
        """How far ahead it is told of a scheduled mixture (`SourceView.samples_ahead`)."""
        ...

    def decide(self, observation: Observation, memory: Memory) -> tuple[Sequence[Decision], Memory]:
        """What to change now, in order, and what to remember; a function of its arguments alone.

        Args:
            observation: the job.
            memory: what the call before returned; empty at first.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Steady:
    """Changes nothing: sources stay where they were put."""

    interval_seconds: float = 3600.0
    lookahead_seconds: float = 0.0

    def decide(self, observation: Observation, memory: Memory) -> tuple[Sequence[Decision], Memory]:
        """Nothing."""
        return (), memory


@dataclass(frozen=True, kw_only=True)
class Hysteresis:
    """Widens where loaders would be too busy, narrows where they would idle; each only when that lasts.

    A source keeps `rate x samples a step x seconds a sample` worker threads busy, where the rate is that of a
    trainer which never waits, and the samples are the most that a step in sight draws: a scheduled change of
    the mixture counts `lookahead_seconds` before it comes. `loads.spread` gives each loader's share.

    Where a loader is busier than `high` for `patience` observations in a row, it gets another thread if the
    limits allow, else its largest source another loader: one at work already that has room for it, else one
    that stands by. Where a source would do with fewer loaders, and they stay below `low` then, for
    `idle_patience` observations in a row, it is narrowed; threads shrink alike. The gap between `low` and
    `high`, the runs of observations, and `cooldown` after each change keep noise from moving anything to and
    fro. A loader short of memory gives sources away first.

    The paper (MegaScale-Data, section on its AutoScaler) has the moving average, threshold, consecutive
    intervals and the look at the schedule; the load model and the numbers are ours.

    Attributes:
        interval_seconds, lookahead_seconds: as in `ScalingPolicy`.
        high, low: shares of a loader's threads that are busy.
        patience, idle_patience, cooldown: observations.
        smoothing: weight of the newest observation in moving averages, above 0 and at most 1.
        wait_share: share of an interval that trainers may wait for a source without its need being raised.
        most_changes: decisions of one observation at most.
    """

    interval_seconds: float = 1.0
    lookahead_seconds: float = 30.0
    high: float = 0.75
    low: float = 0.5
    patience: int = 2
    idle_patience: int = 10
    cooldown: int = 15
    smoothing: float = 0.3
    wait_share: float = 0.02
    most_changes: int = 4

    def __post_init__(self) -> None:
        """Refuse numbers that would oscillate or never act."""
        if not (0 < self.low < self.high <= 1 and 0 < self.smoothing <= 1):
            raise RecipeError(
                f"Hysteresis needs 0 < low < high <= 1 and 0 < smoothing <= 1, got low={self.low}, "
                f"high={self.high}, smoothing={self.smoothing}"
            )
        if min(self.patience, self.idle_patience, self.most_changes) < 1 or self.cooldown < 0:
            raise RecipeError(
                "Hysteresis needs patience, idle_patience and most_changes of at least 1 and cooldown of at "
                f"least 0, got {self.patience}, {self.idle_patience}, {self.most_changes}, {self.cooldown}"
            )

    def decide(self, observation: Observation, memory: Memory) -> tuple[Sequence[Decision], Memory]:
        """As the class says."""
        round_ = _Round(self, observation, memory)
        round_.relieve_memory()
        round_.widen()
        round_.narrow()
        round_.shrink_threads()
        return round_.done, round_.memory()


class _Round:
    """One observation of `Hysteresis`; counts by name of source and rank of loader, as JSON keeps them."""

    def __init__(self, policy: Hysteresis, observation: Observation, memory: Memory) -> None:
        self._policy, self._seen = policy, observation
        self._round = int(memory.get("round", 0)) + 1
        self._over = dict(memory.get("over", {}))
        self._under = dict(memory.get("under", {}))
        self._changed = dict(memory.get("changed", {}))  # round of the last change, by what was changed
        self._boost = dict(memory.get("boost", {}))
        self._rate = self._moving_rate(memory.get("rate"))
        self.done: list[Decision] = []
        self._threads = {each.rank: each.threads for each in observation.loaders}
        self._loaders = [self._open_on(source) for source in observation.sources]
        self._needs = [self._need(source) for source in observation.sources]
        self._levels = self._spread()
        self._raise_where_waited()

    # --- what is needed -----------------------------------------------------------------------------------

    def _moving_rate(self, before: float | None) -> float | None:
        """Steps a second of trainers that never wait; None while none was taken."""
        seen = self._seen
        if not seen.steps or seen.interval <= 0:
            return before
        # A trainer that waited nearly all the time says little of how fast it would be.
        working = max(seen.interval - seen.waited_seconds, seen.interval / 4)
        now = seen.steps / working
        return now if before is None else before + self._policy.smoothing * (now - before)

    def _open_on(self, source: SourceView) -> list[int]:
        return [rank for rank in (*source.loaders, *source.opening) if rank in self._threads]

    def _need(self, source: SourceView) -> float:
        """Worker threads that a source keeps busy."""
        samples = max(source.samples_per_step, source.samples_ahead)
        need = (self._rate or 0.0) * samples * (source.seconds_per_sample or 0.0)
        return need * float(self._boost.get(source.name, 1.0))

    def _raise_where_waited(self) -> None:
        """Trainers that wait for a source say that its need is larger than it looks."""
        policy, seen = self._policy, self._seen
        for number, source in enumerate(seen.sources):
            boost = float(self._boost.get(source.name, 1.0))
            waits = source.waited_seconds > policy.wait_share * seen.interval
            is_busy = min(self._levels_of(number), default=1.0) > policy.high
            new = min(boost * 1.25, 4.0) if waits and not is_busy else max(boost * 0.98, 1.0)
            if new > 1.0:
                self._boost[source.name] = new
            else:
                self._boost.pop(source.name, None)
            self._needs[number] *= new / boost
        self._levels = self._spread()

    def _spread(self) -> dict[int, float]:
        """How busy each loader is; keeps what each source has of it."""
        with_loaders = [number for number, each in enumerate(self._loaders) if each]
        needs = [self._needs[number] for number in with_loaders]
        levels, parts = spread(needs, [self._loaders[number] for number in with_loaders], self._threads)
        self._parts = dict(zip(with_loaders, parts, strict=True))
        return levels

    def _levels_of(self, number: int) -> list[float]:
        return [self._levels[rank] for rank in self._loaders[number]]

    # --- decisions ----------------------------------------------------------------------------------------

    def _decide(self, decision: Decision) -> bool:
        """Take a decision into account, where there is room for one and it breaks no rule."""
        if self._is_full or broken_rule(decision, self._seen, self.done):
            return False
        self.done.append(decision)
        what = f"rank {decision.loader}"
        if decision.kind == "threads":
            self._threads[decision.loader] = decision.threads
        else:
            what = self._source_key(decision.source)
            loaders = self._loaders[decision.source]
            (loaders.append if decision.kind == "widen" else loaders.remove)(decision.loader)
        self._changed[what] = self._round
        self._levels = self._spread()
        return True

    def _rests(self, what: str) -> bool:
        """Whether something was changed so lately that it stays as it is."""
        return self._round - self._changed.get(what, -(1 << 30)) <= self._policy.cooldown

    def _source_key(self, number: int) -> str:
        return f"source {self._seen.sources[number].name}"

    def _is_short(self, loader: LoaderView, share: float) -> bool:
        limit = self._seen.limits.memory_bytes
        return limit > 0 and loader.memory_bytes > share * limit

    @property
    def _is_full(self) -> bool:
        return len(self.done) >= self._policy.most_changes

    def widen(self) -> None:
        """More threads for loaders that are too busy, or more loaders for their sources."""
        over = [rank for rank, level in self._levels.items() if level > self._policy.high]
        self._over = {f"rank {rank}": self._over.get(f"rank {rank}", 0) + 1 for rank in over}
        for rank in sorted(over, key=lambda rank: (-self._levels[rank], rank)):
            if self._over[f"rank {rank}"] >= self._policy.patience:
                self._relieve(rank)

    def _relieve(self, rank: int) -> None:
        """Until a loader is not too busy, or nothing more can be done for it."""
        here = [number for number, parts in self._parts.items() if parts.get(rank, 0.0) > 0]
        here.sort(key=lambda number: (-self._needs[number], number))
        for number in here[:MOST_TRIED]:
            while not self._is_full and self._levels[rank] > self._policy.high:
                opening = self._seen.sources[number].opening
                if opening or not (self._add_thread(rank, number) or self._add_loader(number)):
                    break

    def _add_thread(self, rank: int, number: int) -> bool:
        largest = self._seen.sources[number].name
        why = f"it is {100 * self._levels[rank]:.0f} % busy, most with source {largest!r}"
        return self._decide(Decision(kind="threads", loader=rank, threads=self._threads[rank] + 1, why=why))

    def _add_loader(self, number: int) -> bool:
        """One that works already and has room, else one that stands by, else the emptiest by far."""
        at_work = {rank for each in self._loaders for rank in each}
        level = min(self._levels_of(number))
        emptier = [
            each
            for each in self._seen.loaders
            if each.rank not in self._loaders[number]
            and not self._is_short(each, 0.8)
            and self._levels[each.rank] <= level - 0.2
        ]
        if self._is_full or not emptier:
            return False

        def preference(loader: LoaderView) -> tuple[bool, bool, float, int]:
            rank = loader.rank
            has_room = self._level_over([*self._loaders[number], rank]) <= self._policy.high
            return (not has_room, rank not in at_work, self._levels[rank], rank)

        source = self._seen.sources[number]
        ahead = source.samples_ahead > 1.2 * source.samples_per_step
        why = (
            f"it keeps {self._needs[number]:.2f} threads busy{' soon' if ahead else ''}, its loaders are "
            f"{100 * level:.0f} % busy"
        )
        best = min(emptier, key=preference)
        return self._decide(Decision(kind="widen", loader=best.rank, source=number, why=why))

    def _level_over(self, ranks: Sequence[int], more: float = 0.0) -> float:
        """How busy loaders are if all that they do, and some more, is evenly shared among them."""
        load = sum(self._levels[rank] * self._threads[rank] for rank in ranks) + more
        return load / sum(self._threads[rank] for rank in ranks)

    def narrow(self) -> None:
        """Fewer loaders for sources that have long done with fewer."""
        self._num_read = Counter(rank for each in self._loaders for rank in each)
        for number, source in enumerate(self._seen.sources):
            spare = self._spare_loader(number)
            if spare is None or self._rests(self._source_key(number)):
                self._under.pop(source.name, None)
                continue
            self._under[source.name] = self._under.get(source.name, 0) + 1
            if self._under[source.name] < self._policy.idle_patience or self._is_full:
                continue
            self._under.pop(source.name)
            why = f"it keeps {self._needs[number]:.2f} threads busy, fewer loaders are enough"
            while spare is not None and self._decide(
                Decision(kind="narrow", loader=spare, source=number, why=why)
            ):
                spare = self._spare_loader(number)

    def _spare_loader(self, number: int) -> int | None:
        """The loader that a source can do without while none of its others gets busier than `low`.

        One that has nothing else to read, so that it is free then, else the busiest.
        """
        loaders = self._loaders[number]
        if len(loaders) < 2 or self._seen.sources[number].opening or self._rate is None:
            return None
        rank = max(loaders, key=lambda rank: (self._num_read[rank] == 1, self._levels[rank], rank))
        others = [each for each in loaders if each != rank]
        moved = self._parts[number].get(rank, 0.0)
        level = max(self._level_over(others, moved), *(self._levels[each] for each in others))
        return rank if level < self._policy.low else None

    def shrink_threads(self) -> None:
        """One thread less where the others stay below `low` then."""
        for loader in self._seen.loaders:
            what = f"rank {loader.rank}"
            threads = self._threads[loader.rank]
            level = self._levels[loader.rank] * threads / max(threads - 1, 1)
            if threads == 1 or level >= self._policy.low or self._rests(what) or self._rate is None:
                self._under.pop(what, None)
                continue
            self._under[what] = self._under.get(what, 0) + 1
            if self._under[what] >= self._policy.idle_patience:
                self._under.pop(what)
                why = f"its {threads} threads are {100 * self._levels[loader.rank]:.0f} % busy"
                self._decide(Decision(kind="threads", loader=loader.rank, threads=threads - 1, why=why))

    def relieve_memory(self) -> None:
        """A loader short of memory gives a source to its other loaders, or finds it one."""
        for loader in self._seen.loaders:
            if not self._is_short(loader, 0.95) or self._rests(f"memory of rank {loader.rank}"):
                continue
            why = (
                f"rank {loader.rank} has {loader.memory_bytes / 1e6:.0f} MB resident, its limit is "
                f"{self._seen.limits.memory_bytes / 1e6:.0f} MB"
            )
            here = [number for number, each in enumerate(self._loaders) if loader.rank in each]
            leaves = [Decision(kind="narrow", loader=loader.rank, source=number, why=why) for number in here]
            goes = [
                Decision(kind="widen", loader=other.rank, source=number, why=why)
                for number in here
                if (other := self._emptiest_other(number)) is not None
            ]
            if any(self._decide(each) for each in (*leaves, *goes)):
                self._changed[f"memory of rank {loader.rank}"] = self._round

    def _emptiest_other(self, number: int) -> LoaderView | None:
        """The loader with most memory to spare that a source is not on."""
        others = [
            each
            for each in self._seen.loaders
            if each.rank not in self._loaders[number] and not self._is_short(each, 0.8)
        ]
        return min(others, key=lambda each: (each.memory_bytes, each.rank), default=None)

    def memory(self) -> dict[str, Any]:
        """What to remember."""
        keep = self._round - self._policy.cooldown
        return {
            "round": self._round,
            "rate": self._rate,
            "over": self._over,
            "under": self._under,
            "changed": {what: at for what, at in self._changed.items() if at >= keep},
            "boost": self._boost,
        }


@dataclass(frozen=True, kw_only=True)
class Shuffled:
    """Any decisions that break no rule, drawn by a seed: to see that steps stay the same whatever is decided.

    Attributes:
        seed: of the draws.
        changes: decisions of each observation, at most.
        interval_seconds, lookahead_seconds: as in `ScalingPolicy`.
    """

    seed: int = 0
    changes: int = 4
    interval_seconds: float = 0.0
    lookahead_seconds: float = 10.0

    def decide(self, observation: Observation, memory: Memory) -> tuple[Sequence[Decision], Memory]:
        """Some decisions, other ones each time."""
        number = int(memory.get("round", 0))
        done: list[Decision] = []
        for change in range(self.changes):
            key = f"{self.seed}/{number}/{change}".encode()
            drawn = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest())
            decision = _drawn(drawn, observation)
            if decision is not None and not broken_rule(decision, observation, done):
                done.append(decision)
        return done, {"round": number + 1}


def _drawn(number: int, observation: Observation) -> Decision | None:
    """A decision that a number stands for; None where there is none of its kind."""
    number, kind = divmod(number, 3)
    ranks = [each.rank for each in observation.loaders]
    if kind == 0:
        number, place = divmod(number, len(ranks))
        threads = 1 + number % observation.limits.max_threads
        return Decision(kind="threads", loader=ranks[place], threads=threads, why="drawn")
    changes = [
        (source, rank)
        for source, each in enumerate(observation.sources)
        for rank in (each.loaders if kind == 1 else ranks)
        if kind == 2 or len(each.loaders) > 1
    ]
    if not changes:
        return None
    source, rank = changes[number % len(changes)]
    return Decision(kind="narrow" if kind == 1 else "widen", loader=rank, source=source, why="drawn")
