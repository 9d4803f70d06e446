"""Figures of the steps that a trainer took."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from msdata_jax.roles.messages import Expect


class StepFigures:
    """Collects what every step cost and held; constant memory a step."""

    def __init__(self, source_names: Sequence[str]) -> None:
        self._names = tuple(source_names)
        self._samples = np.zeros(len(self._names), dtype=np.int64)
        self._tokens = np.zeros(len(self._names), dtype=np.int64)
        self._fill: list[float] = []
        self._wait_seconds: list[float] = []
        self.group_costs: list[np.ndarray] = []
        self.unbalanced_costs: list[np.ndarray] = []
        self.num_dropped = 0

    def add(self, expect: Expect, wait_seconds: float) -> None:
        """Count one step that was taken after a wait of `wait_seconds`."""
        self._samples += expect.source_samples
        self._tokens += expect.source_tokens
        self._fill.append(expect.fill)
        self._wait_seconds.append(wait_seconds)
        self.group_costs.append(expect.group_costs)
        self.unbalanced_costs.append(expect.unbalanced_costs)
        self.num_dropped += expect.num_dropped

    def summary(self) -> dict[str, Any]:
        """Plain values: sources, fill, imbalance (mean over steps of max/mean), data wait."""
        if not self._fill:
            return {"steps": 0, "sources": []}
        tokens = max(int(self._tokens.sum()), 1)
        samples = max(int(self._samples.sum()), 1)
        # The first wait is the job's start, not a wait between steps.
        waits = 1000 * np.array(self._wait_seconds[1:] or self._wait_seconds)
        return {
            "steps": len(self._fill),
            "sources": [
                {
                    "name": name,
                    "samples": int(count),
                    "tokens": int(places),
                    "share_of_samples": int(count) / samples,
                    "share_of_tokens": int(places) / tokens,
                }
                for name, count, places in zip(self._names, self._samples, self._tokens, strict=True)
            ],
            "fill": float(np.mean(self._fill)),
            "imbalance_balanced": mean_imbalance(self.group_costs),
            "imbalance_unbalanced": mean_imbalance(self.unbalanced_costs),
            "data_wait_ms": {
                "p50": round(float(np.percentile(waits, 50)), 3),
                "p95": round(float(np.percentile(waits, 95)), 3),
                "first": round(1000 * self._wait_seconds[0], 1),
            },
            "num_dropped": self.num_dropped,
        }


def mean_imbalance(costs: Sequence[np.ndarray] | Mapping[int, np.ndarray]) -> float:
    """Mean over steps of the dearest group's cost over the mean group's."""
    stacked = np.array(costs, dtype=np.float64)
    mean = stacked.mean(axis=1)
    return float(np.mean(np.where(mean > 0, stacked.max(axis=1) / np.maximum(mean, 1e-9), 1.0)))
