"""Figures of the steps that a trainer took."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from msdata_jax.roles.messages import Expect

HISTORY_STEPS = 10_000
"""Steps whose own figures are kept; totals and means are over all steps."""


class StepFigures:
    """Collects what every step cost and held, in bounded memory.

    Attributes:
        group_costs: of the last `HISTORY_STEPS` steps, int64 `[groups]` each: cost of each group.
        unbalanced_costs: the same, had the rows not been balanced.
        num_dropped: samples that no row could hold.
        num_cut: segments that showed a part of their sample only.
        num_giants: rows that cost more than a mean group of their step.
    """

    def __init__(self, source_names: Sequence[str]) -> None:
        self._names = tuple(source_names)
        self._samples = np.zeros(len(self._names), dtype=np.int64)
        self._tokens = np.zeros(len(self._names), dtype=np.int64)
        self._num_steps = 0
        self._fill = self._imbalance = self._imbalance_unbalanced = self._dominance = 0.0  # sums over steps
        self._first_wait_seconds = 0.0
        self._wait_seconds: deque[float] = deque(maxlen=HISTORY_STEPS)
        self.group_costs: deque[np.ndarray] = deque(maxlen=HISTORY_STEPS)
        self.unbalanced_costs: deque[np.ndarray] = deque(maxlen=HISTORY_STEPS)
        self.num_dropped = self.num_cut = self.num_giants = 0

    def add(self, expect: Expect, wait_seconds: float) -> None:
        """Count one step that was taken after a wait of `wait_seconds`."""
        if self._num_steps == 0:  # the job's start, not a wait between steps
            self._first_wait_seconds = wait_seconds
        else:
            self._wait_seconds.append(wait_seconds)
        self._num_steps += 1
        self._samples += expect.source_samples
        self._tokens += expect.source_tokens
        self._fill += expect.fill
        self._imbalance += expect.imbalance
        self._imbalance_unbalanced += expect.imbalance_unbalanced
        self.group_costs.append(expect.group_costs)
        self.unbalanced_costs.append(expect.unbalanced_costs)
        self._dominance += expect.dominance
        self.num_dropped += expect.num_dropped
        self.num_cut += expect.num_cut
        self.num_giants += expect.num_giants

    def summary(self) -> dict[str, Any]:
        """Plain values: sources, fill, imbalance (mean over steps of max/mean), data wait.

        `imbalance_least` is what no placement can bring the imbalance below: above 1 where rows are giants.
        """
        if not self._num_steps:
            return {"steps": 0, "sources": []}
        tokens = max(int(self._tokens.sum()), 1)
        samples = max(int(self._samples.sum()), 1)
        waits = 1000 * np.array(self._wait_seconds or [self._first_wait_seconds])
        return {
            "steps": self._num_steps,
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
            "fill": self._fill / self._num_steps,
            "imbalance_balanced": self._imbalance / self._num_steps,
            "imbalance_unbalanced": self._imbalance_unbalanced / self._num_steps,
            "imbalance_least": self._dominance / self._num_steps,
            "data_wait_ms": {
                "p50": round(float(np.percentile(waits, 50)), 3),
                "p95": round(float(np.percentile(waits, 95)), 3),
                "first": round(1000 * self._first_wait_seconds, 1),
            },
            "num_dropped": self.num_dropped,
            "num_cut": self.num_cut,
            "num_giants": self.num_giants,
        }
