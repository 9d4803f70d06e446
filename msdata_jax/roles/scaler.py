"""Shows a policy what the planner knows, and turns what it decides into messages."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from msdata_jax.roles import messages as m
from msdata_jax.roles.demand import Demand
from msdata_jax.roles.effects import Effect
from msdata_jax.roles.leasing import Leasing
from msdata_jax.scaling.decision_log import Round
from msdata_jax.scaling.observation import (
    Decision,
    Limits,
    LoaderView,
    Observation,
    SourceView,
    broken_rule,
)
from msdata_jax.scaling.policy import Memory, ScalingPolicy, Steady

MOST_LOOKED_AT = 16
"""Steps of the schedule that are looked at, evenly over the time that a policy looks ahead."""
MOST_STEPS_AHEAD = 4096


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """How a job is scaled.

    Attributes:
        policy: decides.
        limits: that it keeps to.
        threads: worker threads of each loader by rank at the start; loaders that are left out have one.
        tell_threads: loaders are told so; else they know.
        affinity: ranks of the loaders that each source is leased to at first; None for an even share.
        costs: seconds a sample of each source, as far as they are known before the job; None for none.
        on_round: told of each round that decided something or failed.
    """

    policy: ScalingPolicy = field(default_factory=Steady)
    limits: Limits = field(default_factory=Limits)
    threads: dict[int, int] = field(default_factory=dict)
    tell_threads: bool = False
    affinity: Sequence[Sequence[int]] | None = None
    costs: Sequence[float | None] | None = None
    on_round: Callable[[Round], None] = lambda round_: None


class Scaler:
    """Asks the policy, once an interval, of one session.

    Args:
        scaling: the policy and its limits.
        names: of the sources.

    Attributes:
        lacked_seconds: float64 `[sources]`, how long trainers waited for steps that lacked it last.
    """

    def __init__(self, scaling: Scaling, names: Sequence[str]) -> None:
        self.lacked_seconds = np.zeros(len(names))
        self._scaling, self._names = scaling, names
        self._policy: ScalingPolicy = scaling.policy
        self._memory: Memory = {}
        self._resident: dict[int, int] = {}
        self._waited_for = np.zeros(len(names))
        self._waited: dict[int, float] = {}
        self._asked_at: float | None = None
        self._first_step = 0
        self._rate = 0.0

    def waited(self, rank: int, source: int | None, seconds: float) -> None:
        """A trainer waited for a step; the source that its content lacked last, None where none did."""
        self._waited[rank] = self._waited.get(rank, 0.0) + seconds
        if source is not None:
            self._waited_for[source] += seconds
            self.lacked_seconds[source] += seconds

    def heard(self, rank: int, heartbeat: m.Heartbeat) -> None:
        """A loader is alive, and so large."""
        self._resident[rank] = heartbeat.memory_bytes

    def tick(
        self, seconds: float, step: int, leasing: Leasing, demand: Demand, next_composed: int
    ) -> list[Effect]:
        """Ask the policy, where it is time to.

        Args:
            seconds: since the planner began.
            step: that all trainers come to next.
            leasing: who reads what; it is changed.
            demand: what steps draw.
            next_composed: the step that is composed next.
        """
        if self._asked_at is None:
            self._asked_at, self._first_step = seconds, step
            return []
        interval = seconds - self._asked_at
        if interval < max(self._policy.interval_seconds - 0.1, 0.01):
            return []
        observation = self._observe(seconds, interval, step, leasing, demand, next_composed)
        self._asked_at, self._first_step = seconds, step
        self._waited, self._waited_for = {}, np.zeros(len(self._names))
        return self._ask(observation, leasing)

    def _observe(
        self, seconds: float, interval: float, step: int, leasing: Leasing, demand: Demand, next_composed: int
    ) -> Observation:
        steps = step - self._first_step
        if steps:
            now = steps / interval
            self._rate = now if not self._rate else 0.7 * self._rate + 0.3 * now
        most = demand.most(self._steps_to_look_at(next_composed))
        num_waiting = max(len(self._waited), 1)
        refused: dict[int, list[int]] = {}
        for source, rank in leasing.refused:
            refused.setdefault(source, []).append(rank)
        sources = tuple(
            SourceView(
                name=name,
                loaders=tuple(leasing.loaders_of(source)),
                opening=tuple(leasing.opening(source)),
                refused=tuple(refused.get(source, ())),
                samples_per_step=round(float(demand.mean[source]), 4),
                samples_ahead=round(float(most[source]), 4),
                seconds_per_sample=leasing.rates.seconds_per_sample(source),
                waited_seconds=round(float(self._waited_for[source]) / num_waiting, 4),
            )
            for source, name in enumerate(self._names)
        )
        busy = leasing.rates.take_busy()
        loaders = tuple(
            LoaderView(
                rank=rank,
                threads=(threads := leasing.threads.get(rank, 1)),
                busy=round(busy.get(rank, 0.0) / (threads * interval), 4),
                memory_bytes=self._resident.get(rank, 0),
            )
            for rank in leasing.working_ranks
        )
        return Observation(
            seconds=seconds,
            interval=interval,
            step=step,
            steps=steps,
            waited_seconds=round(max(self._waited.values(), default=0.0), 4),
            sources=sources,
            loaders=loaders,
            limits=self._scaling.limits,
        )

    def _steps_to_look_at(self, first: int) -> list[int]:
        """Steps from `first` on, as far as the policy looks ahead."""
        far = min(int(self._rate * self._policy.lookahead_seconds), MOST_STEPS_AHEAD)
        return sorted({first + round(far * place / MOST_LOOKED_AT) for place in range(MOST_LOOKED_AT + 1)})

    def _ask(self, observation: Observation, leasing: Leasing) -> list[Effect]:
        """Follow what the policy decides; one that fails is not asked again."""
        before, done, note = self._memory, list[Decision](), ""
        effects: list[Effect] = []
        if not observation.loaders:
            return []
        try:
            decisions, memory = self._policy.decide(observation, before)
            self._memory = json.loads(json.dumps(memory))  # so that it can be written down and read again
            for decision in decisions:
                note = broken_rule(decision, observation, done)
                if note:
                    break
                done.append(decision)
                effects += self._follow(decision, leasing)
        except Exception as error:  # noqa: BLE001 - the user's policy; training must go on without it
            note = f"{type(error).__name__}: {error}"
        if note:
            self._policy = Steady()
            note = f"the scaling policy is switched off, all stays as it is: {note}"
        if done or note:
            self._scaling.on_round(
                Round(observation=observation, memory=before, decisions=tuple(done), note=note)
            )
        return effects

    def _follow(self, decision: Decision, leasing: Leasing) -> list[Effect]:
        rank = decision.loader
        if decision.kind == "widen":
            return leasing.widen(decision.source, rank)
        if decision.kind == "narrow":
            return leasing.narrow(decision.source, rank)
        return leasing.set_threads(rank, decision.threads)
