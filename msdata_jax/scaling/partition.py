"""How many loaders a job takes, how many threads each, and which sources each reads: decided beforehand.

OVERLORD (ByteDance, EuroSys 2026) profiles every source as preprocessing time, transfer time and memory,
combines worker threads inside a loader, several loaders for a source and several sources on a loader, and
comes out with tiers of resources. It leaves open how; what follows is ours:

- A source with lock share `f` on a loader of `n` threads yields `n / (1 + f (n - 1))` times as much as on one
  (Amdahl's law): `n` threads are `n` seconds of work a second, of which a sample takes `1 + f (n - 1)` times
  its own. What holds Python's lock hence takes loaders, what releases it takes threads.
- Needs are vectors over moments of the run. A loader must keep up at every moment, not with the sum of each
  source's worst one: sources that swing against each other share a loader well.
- Candidates are packed for a ladder of rates and several numbers of threads and loaders, by list scheduling,
  longest first, with sources that no loader can serve alone cut into equal parts. Budgets never steer the
  packing, they only strike candidates out; so a larger budget never gives a lower rate.
- The cheapest candidate that reaches the rate wins: least memory, then fewest loaders, readers and threads.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

from msdata_jax.errors import RecipeError
from msdata_jax.scaling.needs import SourceNeed
from msdata_jax.scaling.profile import MOST_SECONDS, MOST_SOURCES, MOST_TEXT

Tier: TypeAlias = Literal["shared", "threads", "ranks"]
TIERS: tuple[Tier, ...] = ("shared", "threads", "ranks")

VERSION = 1
HEADROOM = 1.25
MOST_LOADERS = 64
MOST_THREADS = 8
BUFFER_BYTES = 256 << 20
SETTLE = 0.95
"""Where no rate is wanted, or not the one reached, what gives this part of the most possible will do."""
MANY_LOADERS = 8
"""From so many on, a spare one is worth while."""

_THREADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_STEPS_OF_A_DOUBLING = 2
_MOST_RATES = 48
_BEYOND_FIRST = 3
_TINY = 1e-9


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What all loaders of a job may take, and what is asked of them.

    Attributes:
        steps_per_second: the rate wanted; None for the highest.
        cpus: that the data ranks may keep busy.
        memory_bytes: of all loaders and shadows; None for any.
        loaders: exactly so many; None for as many as it takes.
        max_loaders: and then at most so many.
        threads: exactly so many for each loader; None for as many as it takes.
        max_threads: and then at most so many.
        shadows: spare loaders; None for one where there are `MANY_LOADERS` or more.
        headroom: how much more than the mean need is planned for, at least 1.
        process_bytes: of a loader that has nothing open.
        buffer_bytes: that a loader may hold ahead.

    Raises:
        RecipeError: a value that nothing can be planned for.
    """

    steps_per_second: float | None = None
    cpus: float = 1.0
    memory_bytes: int | None = None
    loaders: int | None = None
    max_loaders: int = MOST_LOADERS
    threads: int | None = None
    max_threads: int = MOST_THREADS
    shadows: int | None = None
    headroom: float = HEADROOM
    process_bytes: int = 64 << 20
    buffer_bytes: int = BUFFER_BYTES

    def __post_init__(self) -> None:
        """Refuse what is no budget."""
        for name in ("steps_per_second", "cpus", "memory_bytes", "loaders", "threads"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise RecipeError(f"{name} of a budget is above 0 and finite, got {value}")
        if self.max_loaders < 1 or self.max_threads < 1 or not 1 <= self.headroom < math.inf:
            raise RecipeError(
                f"max_loaders, max_threads and headroom are at least 1, got {self.max_loaders}, "
                f"{self.max_threads} and {self.headroom}"
            )


@dataclass(frozen=True, kw_only=True)
class Partition:
    """Who reads what at the start of a job. It changes nothing of what is delivered.

    Attributes:
        recipe: fingerprint of the recipe; empty where that is not known.
        sources: names, in the recipe's order.
        loaders: loader ranks.
        shadows: spare ones.
        threads: worker threads of each loader.
        affinity: for each source the loaders that read it, numbers from 0, increasing.
        tiers: for each source `shared` (a part of a thread), `threads` (several of one loader) or `ranks`
            (several loaders).
        steps_per_second: the rate that this is for.
        needs: for each source, worker threads that it keeps busy at that rate, over the run.
        worst_needs: the same at the moment at which it is most.
        seconds_per_sample: for each source, time of one worker thread to read and transform a sample, by its
            profile; None where it has none. Empty where nothing is said of it, as in older files.
        cpus: that all loaders keep busy at their busiest moment.
        utilisation: for each loader the part of its threads that is busy at its busiest moment.
        memory_bytes: of each loader.
        shadow_bytes: of all shadows together.
        limits: sentences that say what keeps the rate from being higher, or than was wanted.
        notes: sentences about what this rests on.
    """

    recipe: str = ""
    sources: tuple[str, ...]
    loaders: int
    shadows: int = 0
    threads: tuple[int, ...]
    affinity: tuple[tuple[int, ...], ...]
    tiers: tuple[Tier, ...]
    steps_per_second: float
    needs: tuple[float, ...]
    worst_needs: tuple[float, ...]
    seconds_per_sample: tuple[float | None, ...] = ()
    cpus: float
    utilisation: tuple[float, ...]
    memory_bytes: tuple[int, ...]
    shadow_bytes: int = 0
    limits: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no job could start with."""
        seconds = self.seconds_per_sample or self.sources
        per_source = {*map(len, (self.affinity, self.tiers, self.needs, self.worst_needs, seconds))}
        per_loader = {len(self.threads), len(self.utilisation), len(self.memory_bytes)}
        if per_source != {len(self.sources)} or per_loader != {self.loaders} or self.loaders < 1:
            raise RecipeError(
                f"a partition has one entry for each of its {len(self.sources)} sources and of its "
                f"{self.loaders} loaders; write it again"
            )
        for name, loaders in zip(self.sources, self.affinity, strict=True):
            if not loaders or list(loaders) != sorted({*loaders} & {*range(self.loaders)}):
                raise RecipeError(
                    f"source {name!r} has loaders out of 0 to {self.loaders - 1}, got {list(loaders)[:16]}"
                )
        if min(self.threads) < 1 or self.shadows < 0 or not {*self.tiers} <= {*TIERS}:
            raise RecipeError(
                "a partition has at least one thread a loader, no negative shadows, known tiers"
            )

    def to_json(self) -> dict[str, Any]:
        """As plain values, for `partition_from_json`."""
        return {"version": VERSION, **asdict(self)}

    def readers_of(self, loader: int) -> list[str]:
        """Names of the sources that a loader reads."""
        return [name for name, mine in zip(self.sources, self.affinity, strict=True) if loader in mine]

    def why_not(self, source_names: Sequence[str], num_loaders: int) -> str:
        """Why a job with these sources and loaders cannot use it; empty where it can."""
        if tuple(source_names) != self.sources:
            return f"it is for the sources {', '.join(self.sources)[:200]}"
        if num_loaders != self.loaders:
            return f"it is for {self.loaders} loaders, and the job has {num_loaders}"
        return ""


def partition(needs: Sequence[SourceNeed], budget: Budget, *, recipe: str = "") -> Partition:
    """Loaders, threads and affinities for these needs: the cheapest for the rate wanted, or the highest rate.

    Every source gets a loader and every loader a source, whatever the budget; where it does not suffice,
    `limits` says what is missing.

    Args:
        needs: of each source, in the recipe's order; at least one.
        budget: what may be taken.
        recipe: fingerprint to write down.
    """
    work = _Work(needs, budget)
    found = _Search(work, budget)
    wanted = budget.steps_per_second
    rate = wanted if wanted is not None and found.best >= wanted * (1 - _TINY) else SETTLE * found.best
    chosen = found.cheapest(rate)
    threads = chosen.threads_for(rate)
    shadows = _num_shadows(budget, chosen.num_loaders)
    memory = chosen.memory(threads)
    worst = np.array([need.worst for need in needs]) * rate
    return Partition(
        recipe=recipe,
        sources=tuple(need.name for need in needs),
        loaders=chosen.num_loaders,
        shadows=shadows,
        threads=threads,
        affinity=chosen.affinity,
        tiers=tuple(_tier(*each) for each in zip(chosen.affinity, worst.tolist(), strict=True)),
        steps_per_second=rate,
        needs=tuple(need.mean * rate for need in needs),
        worst_needs=tuple(worst.tolist()),
        seconds_per_sample=tuple(need.seconds_per_sample for need in needs),
        cpus=work.cpu_seconds / budget.headroom * rate,
        utilisation=tuple(chosen.busy(rate / budget.headroom, threads).tolist()),
        memory_bytes=tuple(memory),
        shadow_bytes=work.shadow_bytes(shadows),
        limits=tuple(_limits(needs, budget, work, found)),
    )


def _tier(loaders: Sequence[int], threads: float) -> Tier:
    if len(loaders) > 1:
        return "ranks"
    return "threads" if threads > 1 else "shared"


def _num_shadows(budget: Budget, num_loaders: int) -> int:
    return int(num_loaders >= MANY_LOADERS) if budget.shadows is None else budget.shadows


# --- candidates -------------------------------------------------------------------------------------------


class _Work:
    """The needs as arrays, headroom included."""

    def __init__(self, needs: Sequence[SourceNeed], budget: Budget) -> None:
        if not needs:
            raise RecipeError("a partition needs at least one source")
        self.budget = budget
        self.threads = budget.headroom * np.array([need.threads for need in needs], np.float64)
        self.sends = budget.headroom * np.array([need.sends for need in needs], np.float64)
        lock = np.array([need.lock_share for need in needs])
        self.locked = self.threads * lock[:, None]
        cpus = np.array([need.cpus for need in needs], np.float64)
        self.cpu_seconds = budget.headroom * float(cpus.sum(axis=0).max())
        self.readers = np.array([need.reader_bytes for need in needs], np.int64)
        self.libraries = np.array([need.library_bytes for need in needs], np.int64)
        self.blocks = np.array([need.block_bytes for need in needs], np.int64)
        self.isolated = np.array([need.isolate for need in needs], bool)

    @property
    def num_sources(self) -> int:
        return len(self.threads)

    def sizes(self, num_threads: int) -> np.ndarray:
        """`[sources, moments]`: what part of a loader of so many threads one step a second takes."""
        return np.maximum((self.threads + (num_threads - 1) * self.locked) / num_threads, self.sends)

    def shadow_bytes(self, shadows: int) -> int:
        """Of all shadows: each source is open on one of them."""
        if not shadows:
            return 0
        return shadows * (self.budget.process_bytes + int(self.libraries.max())) + int(self.readers.sum())


@dataclass(frozen=True, eq=False)
class _Candidate:
    """Loaders for each source, and the most threads that a loader may have."""

    work: _Work
    num_loaders: int
    max_threads: int
    affinity: tuple[tuple[int, ...], ...]

    @cached_property
    def parts(self) -> np.ndarray:
        """`[loaders, sources]`: the part of a source's work that a loader does."""
        parts = np.zeros((self.num_loaders, self.work.num_sources))
        for source, loaders in enumerate(self.affinity):
            parts[list(loaders), source] = 1 / len(loaders)
        return parts

    @cached_property
    def most(self) -> float:
        """Steps a second that its slowest loader can keep up with."""
        busy = self.busy(1.0, (self.max_threads,) * self.num_loaders)
        return 1 / max(float(busy.max()), 1e-12)

    def busy(self, rate: float, threads: Sequence[int]) -> np.ndarray:
        """`[loaders]`: the busy part of each at its busiest moment."""
        count = np.array(threads, np.float64)[:, None]
        work = self.parts @ self.work.threads + (count - 1) * (self.parts @ self.work.locked)
        return rate * np.maximum(work / count, self.parts @ self.work.sends).max(axis=1)

    def threads_for(self, rate: float) -> tuple[int, ...]:
        """The fewest threads of each loader with which it keeps up, where `max_threads` do."""
        if self.work.budget.threads is not None:
            return (self.work.budget.threads,) * self.num_loaders
        need, locked = rate * (self.parts @ self.work.threads), rate * (self.parts @ self.work.locked)
        fewest = ((need - locked) / np.maximum(1 - locked, _TINY)).max(axis=1)
        return tuple(np.clip(np.ceil(fewest - 1e-6), 1, self.max_threads).astype(int).tolist())

    def memory(self, threads: Sequence[int]) -> list[int]:
        """Bytes of each loader."""
        work, budget = self.work, self.work.budget
        has = self.parts > 0
        readers = has * work.readers * np.where(work.isolated, np.array(threads)[:, None], 1)
        held = readers.sum(axis=1) + (has * work.libraries).max(axis=1)
        held += np.array(threads) * (has * work.blocks).max(axis=1)
        return (held + budget.process_bytes + budget.buffer_bytes).astype(np.int64).tolist()


def _candidates(work: _Work, budget: Budget, *, wanted_only: bool) -> Iterator[_Candidate]:
    """Ways to share out the work. Of the budget only the bounds of loaders and threads count."""
    fewest = 1 if budget.loaders is None else budget.loaders
    most = budget.max_loaders if budget.loaders is None else budget.loaders
    for num_threads in _thread_numbers(budget):
        sizes = work.sizes(num_threads)
        rates = [budget.steps_per_second] if wanted_only else _rates(sizes, most)
        for rate in rates:
            yield from _for_rate(work, rate * sizes, num_threads, range(fewest, most + 1))


def _thread_numbers(budget: Budget) -> list[int]:
    if budget.threads is not None:
        return [budget.threads]
    return sorted({number for number in _THREADS if number < budget.max_threads} | {budget.max_threads})


def _rates(sizes: np.ndarray, most_loaders: int) -> list[float]:
    """Rates to pack for: from what one loader could reach to what `most_loaders` could."""
    alone = 1 / max(float(sizes.sum(axis=0).max()), 1e-12)
    doublings = min(math.ceil(_STEPS_OF_A_DOUBLING * math.log2(most_loaders)) + 1, _MOST_RATES)
    return [alone * 2 ** (step / _STEPS_OF_A_DOUBLING) for step in range(doublings)]


def _for_rate(work: _Work, sizes: np.ndarray, num_threads: int, numbers: range) -> Iterator[_Candidate]:
    """Packings of work that takes `sizes` `[sources, moments]` of a loader, on more and more loaders."""
    peaks = sizes.max(axis=1)
    bound = max(math.ceil(float(sizes.sum(axis=0).max()) - _TINY), 1)
    left = _BEYOND_FIRST
    for number in numbers:
        if number < min(bound, numbers[-1]):
            continue
        found = [
            _Candidate(work, number, num_threads, _pack(sizes, counts, number))
            for counts in _counts(peaks, number)
        ]
        yield from found
        left -= _keeps_up(found, sizes)
        if not left:
            return


def _keeps_up(found: Sequence[_Candidate], sizes: np.ndarray) -> bool:
    return any(float((each.parts @ sizes).max()) <= 1 + _TINY for each in found)


def _counts(peaks: np.ndarray, number: int) -> list[np.ndarray]:
    """On how many loaders each source may be: as few as can serve it; large ones on all; all on all."""
    fewest = np.clip(np.ceil(peaks - _TINY), 1, number).astype(int)
    while fewest.sum() < number:
        share = np.where(fewest < number, peaks / fewest + _TINY / (1 + fewest), -1)
        fewest[int(share.argmax())] += 1
    everywhere = np.full(len(peaks), number)
    return [fewest, np.where(peaks > 1 / 2, everywhere, fewest), everywhere]


def _pack(sizes: np.ndarray, counts: np.ndarray, number: int) -> tuple[tuple[int, ...], ...]:
    """List scheduling, longest first: each part goes where the fullest moment stays lowest."""
    part = sizes / counts[:, None]
    order = sorted(range(len(sizes)), key=lambda source: (-float(part[source].max()), source))
    load = np.zeros((number, sizes.shape[1]))
    num_parts = np.zeros(number, int)
    affinity: list[tuple[int, ...]] = [()] * len(sizes)
    for source in order:
        level = (load + part[source]).max(axis=1)
        by_level = np.lexsort((np.arange(number), num_parts, level))  # unique keys
        mine = sorted(by_level[: counts[source]].tolist())
        load[mine] += part[source]
        num_parts[mine] += 1
        affinity[source] = tuple(mine)
    return tuple(affinity)


# --- choice -----------------------------------------------------------------------------------------------


class _Search:
    """All candidates, those that the budget allows, and how far it reaches.

    Attributes:
        best: the highest rate within the budget.
        without_cpus, without_memory: the same, if there were CPUs or memory enough.
        fits: whether any candidate has room in the memory budget.
    """

    def __init__(self, work: _Work, budget: Budget) -> None:
        self._work, self._budget = work, budget
        self._found: dict[tuple[object, ...], _Candidate] = {}
        self.cpu_rate = budget.cpus / max(work.cpu_seconds, 1e-12)
        wanted = budget.steps_per_second
        if wanted is not None:
            self._look(wanted_only=True)
        if wanted is None or self.best < wanted * (1 - _TINY) or not self.fits:
            self._look(wanted_only=False)

    def _look(self, *, wanted_only: bool) -> None:
        for each in _candidates(self._work, self._budget, wanted_only=wanted_only):
            self._found.setdefault((each.affinity, each.max_threads, each.num_loaders), each)
        every = list(self._found.values())
        allowed = [each for each in every if self._has_room(each)]
        self.fits = bool(allowed)
        self._allowed = allowed or [min(every, key=lambda each: (self._most_bytes(each), -each.most))]
        self.without_cpus = max(each.most for each in self._allowed)
        self.without_memory = min(max(each.most for each in every), self.cpu_rate)
        self.best = min(self.without_cpus, self.cpu_rate)

    def cheapest(self, rate: float) -> _Candidate:
        """Of those that reach a rate (which one does, at least) the one of least cost."""
        able = [each for each in self._allowed if each.most >= rate * (1 - 1e-6)]
        return min(able, key=lambda each: self._cost(each, rate))

    def _has_room(self, each: _Candidate) -> bool:
        """Whether it has with all its threads: so that what is allowed depends on no rate."""
        return self._budget.memory_bytes is None or self._most_bytes(each) <= self._budget.memory_bytes

    def _most_bytes(self, each: _Candidate) -> int:
        return self._bytes(each, (each.max_threads,) * each.num_loaders)

    def _bytes(self, each: _Candidate, threads: Sequence[int]) -> int:
        shadows = _num_shadows(self._budget, each.num_loaders)
        return sum(each.memory(threads)) + self._work.shadow_bytes(shadows)

    def _cost(self, each: _Candidate, rate: float) -> tuple[object, ...]:
        threads = each.threads_for(rate)
        num_readers = sum(map(len, each.affinity))
        return self._bytes(each, threads), each.num_loaders, num_readers, sum(threads), each.affinity


def _limits(needs: Sequence[SourceNeed], budget: Budget, work: _Work, found: _Search) -> list[str]:
    """What keeps the rate from being higher; nothing where the one wanted is reached."""
    wanted = budget.steps_per_second
    if wanted is not None and found.best >= wanted * (1 - _TINY) and found.fits:
        return []
    sentences = []
    if found.best >= found.cpu_rate * (1 - _TINY):
        sentences.append(_cpu_limit(needs, budget, work, found))
    if not found.fits or found.without_memory > found.best * 1.02:
        sentences.append(_memory_limit(budget, found))
    if found.without_cpus <= found.cpu_rate * (1 - _TINY) and not sentences:
        sentences.append(_loader_limit(needs, budget, work, found))
    return sentences


def _cpu_limit(needs: Sequence[SourceNeed], budget: Budget, work: _Work, found: _Search) -> str:
    moment = int(np.array([need.cpus for need in needs]).sum(axis=0).argmax())
    costs = [need.cpus[moment] for need in needs]
    dearest = max(range(len(needs)), key=lambda i: (costs[i], -i))
    share = 100 * costs[dearest] / max(sum(costs), 1e-12)
    asked = (
        f"{work.cpu_seconds * budget.steps_per_second:.3g} CPUs are needed for {budget.steps_per_second:.3g} "
        "steps/s"
        if budget.steps_per_second
        else f"a step takes {work.cpu_seconds:.3g} CPU-seconds"
    )
    return (
        f"{asked}, with {100 * (budget.headroom - 1):.0f} % headroom, and the CPU budget is "
        f"{budget.cpus:g}: at most {found.best:.3g} steps/s; source {needs[dearest].name!r} takes "
        f"{share:.0f} % of them"
    )


def _memory_limit(budget: Budget, found: _Search) -> str:
    assert budget.memory_bytes is not None
    given = f"the memory budget is {budget.memory_bytes / 1e6:,.0f} MB"
    if not found.fits:
        return f"{given}, and no way to share out the sources has room in it: this is the smallest"
    return (
        f"{given}: at most {found.best:.3g} steps/s where {found.without_memory:.3g} would be possible "
        "otherwise; a smaller buffer_bytes_per_loader leaves room for more loaders"
    )


def _loader_limit(needs: Sequence[SourceNeed], budget: Budget, work: _Work, found: _Search) -> str:
    worst = work.threads.max(axis=1)
    dearest = int(worst.argmax())
    locked = needs[dearest].lock_share
    loaders = f"{budget.loaders} loaders" if budget.loaders else f"{budget.max_loaders} loaders at most"
    threads = f"{budget.threads} threads" if budget.threads else f"up to {budget.max_threads} threads"
    text = (
        f"{loaders} of {threads} give at most {found.best:.3g} steps/s; source {needs[dearest].name!r} takes "
        f"{worst[dearest] / budget.headroom:.3g} thread-seconds of a step"
    )
    if locked > 1 / 2:
        speedup = 2 / (1 + locked)
        text += (
            f", and its threads hinder one another (two do {speedup:.2g} times as much as one): add loaders"
        )
    return text


# --- JSON -------------------------------------------------------------------------------------------------


def partition_from_json(value: Any) -> Partition:
    """The partition that `Partition.to_json` described.

    Raises:
        RecipeError: it is none, or of another version; says why.
    """
    known = {each.name for each in fields(Partition)}
    if isinstance(value, Mapping):
        value = {"seconds_per_sample": (), **value}  # older files lack it
    if not isinstance(value, Mapping) or set(value) != {"version", *known} or value["version"] != VERSION:
        raise RecipeError(
            f"a partition is a table of version {VERSION} with the fields {sorted(known)}; write it again "
            "with `msdata plan --resources --write FILE`"
        )
    rows: dict[str, Any] = {name: tuple(map(_whole, _list(value[name]))) for name in _WHOLES}
    rows |= {name: tuple(map(_real, _list(value[name]))) for name in _REALS}
    rows |= {name: tuple(str(each)[:MOST_TEXT] for each in _list(value[name])) for name in _TEXTS}
    return Partition(
        recipe=str(value["recipe"])[:MOST_TEXT],
        loaders=_whole(value["loaders"]),
        shadows=_whole(value["shadows"]),
        affinity=tuple(tuple(map(_whole, _list(mine))) for mine in _list(value["affinity"])),
        steps_per_second=_real(value["steps_per_second"]),
        seconds_per_sample=tuple(map(_seconds, _list(value["seconds_per_sample"]))),
        cpus=_real(value["cpus"]),
        shadow_bytes=_whole(value["shadow_bytes"]),
        **rows,
    )


_WHOLES = ("threads", "memory_bytes")
_REALS = ("needs", "worst_needs", "utilisation")
_TEXTS = ("sources", "tiers", "limits", "notes")


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple) or len(value) > MOST_SOURCES:
        raise RecipeError(f"a partition has lists of at most {MOST_SOURCES} entries, got {str(value)[:40]!r}")
    return list(value)


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
        raise RecipeError(f"a partition counts in whole numbers from 0 up, got {str(value)[:40]!r}")
    return value


def _real(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e300:
        raise RecipeError(f"a partition has finite numbers from 0 up, got {str(value)[:40]!r}")
    return float(value)


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    seconds = _real(value)
    if seconds > MOST_SECONDS:
        raise RecipeError(
            f"seconds_per_sample of a partition are 0 to {MOST_SECONDS:g} or null, got {seconds:g}"
        )
    return seconds
