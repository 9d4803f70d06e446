"""How many samples of each source the coming steps draw. Values only."""

from collections.abc import Iterable, Sequence

import numpy as np

from msdata_jax.errors import RecipeError
from msdata_jax.planning.merging import in_order_of_first_draw
from msdata_jax.planning.mixing import Mixture
from msdata_jax.scaling.needs import samples_per_step

_DECAY = 0.75
"""What the demand of a step loses with each step that draws less."""
_SMOOTHING = 0.2
"""Weight of the newest step or block in moving averages."""
_MOST = 2.0
"""A step draws at most so many times what its weights say, or what steps drew."""
_MARGIN = 1.25
"""By how much the first draws of a source are over-estimated."""


class Demand:
    """What steps drew, and what follows for steps to come from the scheduled mixture.

    Args:
        mixture: of the strategy.
        names: of the sources.

    Attributes:
        per_step: float64 `[sources]`, samples that a step draws at most, of late.
        mean: the same, a moving average.
        in_turn: int64 `[sources]`, all of them, those first that the first steps draw first; exact where the
            mixture counts samples.
    """

    def __init__(self, mixture: Mixture, names: tuple[str, ...]) -> None:
        self._mixture, self._names = mixture, names
        self.per_step = np.zeros(len(names))
        self.mean = np.zeros(len(names))
        self.in_turn = np.arange(len(names))
        self._has_mean = False
        self._step = 0  # whose weights `per_step` goes with
        self._ahead: tuple[int, int, np.ndarray, np.ndarray] | None = None
        self._tokens_per_step = 0.0
        self._tokens = np.full(len(names), np.nan)  # of a sample, by source
        self._units = np.full(len(names), np.nan)  # of what the mixture counts

    def begin(self, step: int, credit: np.ndarray) -> None:
        """`step` is the first one that is composed; `credit` is as in `StreamState`."""
        for weights in self._weights([step]):
            self.in_turn = in_order_of_first_draw(weights, credit)

    def composed(self, step: int, drawn: np.ndarray) -> None:
        """A step drew int64 `[sources]` samples."""
        self.per_step = np.maximum(_DECAY * self.per_step, drawn)
        self._step, self._ahead = step, None
        weight = _SMOOTHING if self._has_mean else 1.0
        self.mean += weight * (drawn - self.mean)
        tokens = float((drawn * _filled(self._tokens)).sum())
        self._tokens_per_step += weight * (tokens - self._tokens_per_step)
        self._has_mean = True

    def at_least(self, source: int, samples: float) -> None:
        """Steps are larger than was thought."""
        if samples > self.per_step[source]:
            self.per_step[source], self._ahead = samples, None

    def read(self, source: int, infos: np.ndarray) -> None:
        """SampleInfo records of a source."""
        if not len(infos):
            return
        unit = self._mixture.unit
        units = 1.0 if unit == "samples" else float(np.maximum(infos[unit], 1).mean())
        for means, value in ((self._tokens, float(infos["tokens"].mean())), (self._units, units)):
            known = not np.isnan(means[source])
            means[source] = means[source] + _SMOOTHING * (value - means[source]) if known else value

    def ahead(self, step: int, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
        """What `num_steps` steps from `step` on are likely to draw.

        They are fewer from a step on to which a function gives no proper weights: composing it says so.

        Returns:
            bool `[sources]`, those with a weight in any of them; float64 `[steps, sources]`, samples that
            they draw up to each.
        """
        if self._ahead is not None and self._ahead[:2] == (step, num_steps):
            return self._ahead[2:]
        weights = self._weights(range(step, step + num_steps))
        draws = np.where(weights > 0, self._scaled(self._here(), self._expected(weights)), 0.0)
        has_weight = np.logical_or.reduce(weights > 0, axis=0)
        cumulated = np.cumsum(draws, axis=0)
        self._ahead = step, num_steps, has_weight, cumulated
        return has_weight, cumulated

    def _scaled(self, before: np.ndarray, there: np.ndarray) -> np.ndarray:
        """What a step draws at most, from what one with other weights does."""
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = np.where(
                before > 0, self.per_step * there / before, np.maximum(self.per_step, _MARGIN * there)
            )
        # A source that has drawn one sample by a tiny weight says little of what a large one draws.
        return np.minimum(scaled, np.maximum(self.per_step, _MOST * there))

    def most(self, steps: Sequence[int]) -> np.ndarray:
        """float64 `[sources]`, what the one of these steps that draws most of a source is likely to draw."""
        weights, here = self._weights(steps), self._here()
        there = self._expected(weights)
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = np.where((here > 0) & (self.mean > 0), self.mean * there / here, there)
        scaled = np.minimum(scaled, np.maximum(self.mean, _MOST * there))
        return np.where(weights > 0, scaled, 0.0).max(axis=0, initial=0.0)

    def _weights(self, steps: Iterable[int]) -> np.ndarray:
        """int64 `[steps, sources]`; fewer from a step on to which a function gives no proper weights."""
        rows: list[np.ndarray] = []
        for step in steps:
            try:
                rows.append(self._mixture.weights_at(step, self._names))
            except RecipeError:
                break
        return np.array(rows, dtype=np.int64).reshape(len(rows), len(self._names))

    def _here(self) -> np.ndarray:
        """float64 `[sources]`, samples of the step that was composed last, by its weights."""
        return self._expected(self._weights([self._step])).sum(axis=0)

    def _expected(self, weights: np.ndarray) -> np.ndarray:
        """Samples of steps with these weights, so many that their tokens are as many as of late."""
        return samples_per_step(
            weights,
            _filled(self._units),
            _filled(self._tokens),
            places=self._tokens_per_step,
            most_samples=np.inf,
        )


def _filled(means: np.ndarray) -> np.ndarray:
    """Means of sources, those that are not known like the others; 1 where none is known."""
    known = means[~np.isnan(means)]
    filled = np.where(np.isnan(means), known.mean() if len(known) else 1.0, means)
    return np.maximum(filled, 1e-9)
