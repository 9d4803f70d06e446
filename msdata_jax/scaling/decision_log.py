"""A round of a policy as plain values for a log, and what the policy decides when it is asked again."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msdata_jax.errors import PlanError
from msdata_jax.scaling.observation import Decision, Observation
from msdata_jax.scaling.policy import Memory, ScalingPolicy


@dataclass(frozen=True, kw_only=True)
class Round:
    """What a policy was shown, what it remembered, and what it decided.

    Attributes:
        observation: the job.
        memory: of the rounds before.
        decisions: that were followed, in order.
        note: why the policy was switched off in this round; else empty.
    """

    observation: Observation
    memory: Memory
    decisions: tuple[Decision, ...]
    note: str = ""

    def to_plain(self) -> dict[str, Any]:
        """As values that JSON has."""
        return {
            "seconds": round(self.observation.seconds, 3),
            "step": self.observation.step,
            "decisions": [each.to_plain() for each in self.decisions],
            "note": self.note,
            "memory": dict(self.memory),
            "observation": self.observation.to_plain(),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Round":
        """The round that `to_plain` wrote.

        Raises:
            PlanError: these are no values of a round.
        """
        try:
            return cls(
                observation=Observation.from_plain(plain["observation"]),
                memory=dict(plain["memory"]),
                decisions=tuple(Decision(**each) for each in plain["decisions"]),
                note=str(plain["note"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise PlanError(
                f"these are no decisions of a scaling policy: {type(error).__name__}: {error}"
            ) from error


def replay(rounds: Iterable[Round], policy: ScalingPolicy) -> Iterator[tuple[Round, Sequence[Decision]]]:
    """Each round, and what `policy` decides on what was seen and remembered then."""
    for each in rounds:
        yield each, policy.decide(each.observation, each.memory)[0]
