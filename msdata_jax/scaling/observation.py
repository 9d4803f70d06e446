"""What a scaling policy is shown, and what it may decide. Plain values that JSON has."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["widen", "narrow", "threads"]
KINDS: tuple[Kind, ...] = ("widen", "narrow", "threads")


@dataclass(frozen=True, kw_only=True)
class SourceView:
    """What is known of one source.

    Attributes:
        name: of the source.
        loaders: ranks that it is leased to.
        opening: ranks that were told to open it and have not answered.
        refused: ranks that could not open it.
        samples_per_step: that steps have drawn of late, a moving average.
        samples_ahead: most that a step in sight will draw, by the scheduled mixture.
        seconds_per_sample: time of one worker thread to read and transform a sample, a moving average; where
            none was read yet, by the source's profile, None without one.
        waited_seconds: how long trainers have waited for it since the observation before.
    """

    name: str
    loaders: tuple[int, ...]
    opening: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    samples_per_step: float = 0.0
    samples_ahead: float = 0.0
    seconds_per_sample: float | None = None
    waited_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LoaderView:
    """What is known of one loader.

    Attributes:
        rank: of the loader.
        threads: its worker threads.
        busy: share of their time that they read and transformed since the observation before.
        memory_bytes: resident memory of its process; 0 where it is not known.
    """

    rank: int
    threads: int
    busy: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a policy must keep to.

    Attributes:
        max_threads: worker threads of one loader at most.
        total_threads: of all loaders together at most.
        memory_bytes: resident memory of one loader's process that it should stay under; 0 for no limit.
    """

    max_threads: int = 1
    total_threads: int = 1 << 20
    memory_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A job as the planner sees it.

    Attributes:
        seconds: since the planner began.
        interval: seconds since the observation before.
        step: that all trainers come to next.
        steps: that all trainers took in the interval.
        waited_seconds: of the trainer that waited most for steps in the interval.
        sources: in the recipe's order.
        loaders: by rank.
        limits: what decisions must keep to.
    """

    seconds: float
    interval: float
    step: int
    steps: int
    waited_seconds: float
    sources: tuple[SourceView, ...]
    loaders: tuple[LoaderView, ...]
    limits: Limits

    def to_plain(self) -> dict[str, Any]:
        """As values that JSON has."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Observation":
        """The observation that `to_plain` wrote. Raises TypeError or KeyError where it is none."""
        tuples = ("loaders", "opening", "refused")
        sources = [{**each, **{name: tuple(each[name]) for name in tuples}} for each in plain["sources"]]
        parts = {
            "sources": tuple(SourceView(**each) for each in sources),
            "loaders": tuple(LoaderView(**each) for each in plain["loaders"]),
            "limits": Limits(**plain["limits"]),
        }
        return cls(**{**plain, **parts})


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One change. It moves work between loaders and never changes what a step delivers.

    Attributes:
        kind: `widen` leases a source to one more loader, `narrow` to one less, `threads` sets how many worker
            threads a loader has.
        loader: rank of the loader.
        source: number of the source, for `widen` and `narrow`.
        threads: for `threads`.
        why: for people.
    """

    kind: Kind
    loader: int
    source: int = -1
    threads: int = 0
    why: str = ""

    def to_plain(self) -> dict[str, Any]:
        """As values that JSON has."""
        return asdict(self)


def broken_rule(decision: Decision, observation: Observation, done: Sequence[Decision] = ()) -> str:
    """Why a decision cannot be followed; empty where it can.

    Args:
        decision: to be looked at.
        observation: what it was decided on.
        done: decisions before it in the same round.
    """
    threads = {each.rank: each.threads for each in observation.loaders}
    threads |= {each.loader: each.threads for each in done if each.kind == "threads"}
    if decision.kind not in KINDS or not _are_whole(decision):
        return f"a decision is of kind {KINDS} and of whole numbers, got {decision!r}"
    if decision.loader not in threads:
        return f"rank {decision.loader} is no loader of this job: {sorted(threads)}"
    if decision.kind == "threads":
        return _broken_threads(decision, threads, observation.limits)
    if not 0 <= decision.source < len(observation.sources):
        return f"there is no source number {decision.source}; there are {len(observation.sources)}"
    return _broken_affinity(decision, observation.sources[decision.source], done)


def _are_whole(decision: Decision) -> bool:
    return all(type(each) is int for each in (decision.loader, decision.source, decision.threads))


def _broken_affinity(decision: Decision, source: SourceView, done: Sequence[Decision]) -> str:
    rank = decision.loader
    mine = [each for each in done if each.source == decision.source]
    loaders = set(source.loaders) - {each.loader for each in mine if each.kind == "narrow"}
    opening = {*source.opening, *(each.loader for each in mine if each.kind == "widen")}
    if decision.kind == "widen" and rank in {*source.loaders, *opening, *source.refused}:
        return f"source {source.name!r} is leased to rank {rank}, is being opened, or was refused there"
    if decision.kind == "narrow" and (rank not in loaders or len(loaders) == 1):
        return f"source {source.name!r} is leased to {sorted(loaders)}, rank {rank} cannot leave it"
    return ""


def _broken_threads(decision: Decision, threads: Mapping[int, int], limits: Limits) -> str:
    total = sum({**threads, decision.loader: decision.threads}.values())
    grows = decision.threads > threads[decision.loader]
    if decision.threads < 1 or (
        grows and (decision.threads > limits.max_threads or total > limits.total_threads)
    ):
        return (
            f"a loader has 1 to {limits.max_threads} worker threads, all together at most "
            f"{limits.total_threads}; got {decision.threads} for rank {decision.loader}, {total} in all"
        )
    return ""
