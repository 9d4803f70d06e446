"""What the steps that training took were made of. Values only."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from msdata_jax.roles import messages as m
from msdata_jax.roles.effects import Effect, Send

RECENT_STEPS = 50
"""Steps that the figures of the last steps are means over."""


@dataclass(frozen=True)
class _Step:
    samples: np.ndarray
    tokens: np.ndarray
    ratios: np.ndarray


class Tally:
    """Counts steps once every trainer took them.

    Args:
        num_sources: of the recipe.

    Attributes:
        num_steps: that every trainer took.
        samples, tokens: int64 `[sources]`, in these steps.
        sums: float64 `[3]`, over these steps: dearest group's cost over the mean group's; the same, had the
            rows not been balanced; share of the places that are used.
    """

    def __init__(self, num_sources: int) -> None:
        self.num_steps = 0
        self.samples = np.zeros(num_sources, dtype=np.int64)
        self.tokens = np.zeros(num_sources, dtype=np.int64)
        self.sums = np.zeros(3)
        self._announced: dict[int, _Step] = {}
        self._recent: deque[np.ndarray] = deque(maxlen=RECENT_STEPS)

    def announce(self, effects: Iterable[Effect]) -> None:
        """A step is announced; every constructor is told the same figures of it."""
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, m.Expect):
                step = effect.message
                ratios = [step.imbalance, step.imbalance_unbalanced, step.fill]
                self._announced[step.step] = _Step(step.source_samples, step.source_tokens, np.array(ratios))
                return

    def take(self, last: int) -> None:
        """Every trainer took the steps up to `last`."""
        for number in [each for each in self._announced if each <= last]:
            step = self._announced.pop(number)
            self.num_steps += 1
            self.samples += step.samples
            self.tokens += step.tokens
            self.sums += step.ratios
            self._recent.append(step.ratios)

    def recent(self) -> np.ndarray | None:
        """Means of the last steps, as `sums` has them; None where no step was taken."""
        return np.mean(self._recent, axis=0) if self._recent else None
