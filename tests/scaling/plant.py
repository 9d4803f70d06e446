"""A job as a few formulas, to close the loop around a policy: what it decides changes what it sees next."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msdata_jax.scaling.decision_log import Round
from msdata_jax.scaling.loads import spread
from msdata_jax.scaling.observation import Decision, Limits, LoaderView, Observation, SourceView, broken_rule
from msdata_jax.scaling.policy import ScalingPolicy


@dataclass(kw_only=True)
class Plant:
    """Loaders that keep up as long as none is busier than it can be, else steps come slower.

    Attributes:
        costs: seconds a sample of each source.
        samples: of each source, by the second at which they are drawn.
        rate: steps a second that the trainer would take.
        loaders: of each source at first.
        threads: of each loader at first.
        limits: as in `Observation`.
        noise: by how much measured values are off, as a part of them.
        memory: resident bytes of each loader by the sources that it has open.
        lookahead: seconds ahead that a schedule is seen.
    """

    costs: Sequence[float]
    samples: Callable[[float], Sequence[float]]
    rate: float
    loaders: list[list[int]]
    threads: dict[int, int]
    limits: Limits = field(default_factory=Limits)
    noise: float = 0.0
    memory: Callable[[int], int] = lambda open_sources: 0
    lookahead: float = 30.0
    seed: int = 0

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._opening: list[list[int]] = [[] for _ in self.costs]
        self.now = 0.0
        self.rounds: list[Round] = []
        self.levels: list[float] = []

    def _off(self, value: float) -> float:
        return value * (1 + self.noise * self._rng.uniform(-1, 1))

    def busiest(self) -> float:
        """How busy the busiest loader would be at the trainer's own rate."""
        needs = [
            self.rate * count * cost for count, cost in zip(self.samples(self.now), self.costs, strict=True)
        ]
        return max(spread(needs, self.loaders, self.threads)[0].values())

    def observe(self) -> Observation:
        level = self.busiest()
        self.levels.append(level)
        slowdown = max(level, 1.0)
        waited = 1 - 1 / slowdown
        ahead = [self.samples(self.now + second) for second in range(int(self.lookahead) + 1)]
        dearest = max(range(len(self.costs)), key=lambda i: self.samples(self.now)[i] * self.costs[i])
        return Observation(
            seconds=self.now,
            interval=1.0,
            step=round(self.rate * self.now),
            steps=max(round(self._off(self.rate / slowdown)), 0),
            waited_seconds=waited,
            sources=tuple(
                SourceView(
                    name=f"source {i}",
                    loaders=tuple(self.loaders[i]),
                    opening=tuple(self._opening[i]),
                    samples_per_step=self._off(self.samples(self.now)[i]),
                    samples_ahead=max(each[i] for each in ahead),
                    seconds_per_sample=self._off(cost),
                    waited_seconds=waited if i == dearest else 0.0,
                )
                for i, cost in enumerate(self.costs)
            ),
            loaders=tuple(
                LoaderView(
                    rank=rank,
                    threads=count,
                    memory_bytes=self.memory(sum(rank in each for each in self.loaders)),
                )
                for rank, count in self.threads.items()
            ),
            limits=self.limits,
        )

    def run(self, policy: ScalingPolicy, seconds: int) -> list[tuple[float, Decision]]:
        """Ask a policy once a second; what it decided, and when. A source opens within a second."""
        memory, decided = {}, []
        for _ in range(seconds):
            observation = self.observe()
            decisions, after = policy.decide(observation, memory)
            done: list[Decision] = []
            for number, ranks in enumerate(self._opening):
                self.loaders[number] += ranks
                ranks.clear()
            for decision in decisions:
                assert not broken_rule(decision, observation, done)
                done.append(decision)
                self._follow(decision)
            self.rounds.append(Round(observation=observation, memory=memory, decisions=tuple(done)))
            memory = after
            decided += [(self.now, each) for each in done]
            self.now += 1
        return decided

    def _follow(self, decision: Decision) -> None:
        if decision.kind == "threads":
            self.threads[decision.loader] = decision.threads
        elif decision.kind == "widen":
            self._opening[decision.source].append(decision.loader)
        else:
            self.loaders[decision.source].remove(decision.loader)
