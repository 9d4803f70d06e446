from dataclasses import replace

import numpy as np
import pytest
from roles.test_data_constructor import expect

from msdata_jax.runtime import report
from msdata_jax.runtime.report import StepFigures


def test_figures_are_over_all_steps_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "HISTORY_STEPS", 3)
    figures = StepFigures(["a"])
    assert figures.summary() == {"steps": 0, "sources": []}
    for step in range(10):
        costs = np.array([1, 1 + step])
        figures.add(
            replace(
                expect(step),
                group_costs=costs,
                unbalanced_costs=2 * costs,
                imbalance=1 + step,
                imbalance_unbalanced=2 + step,
                fill=step / 10,
                dominance=1 + step / 10,
                num_giants=step % 2,
                num_cut=2,
            ),
            wait_seconds=100.0 if step == 0 else 0.001 * step,
        )
    summary = figures.summary()
    assert summary["steps"] == 10
    assert summary["fill"] == pytest.approx(0.45)
    assert summary["imbalance_least"] == pytest.approx(1.45)
    assert (summary["num_giants"], summary["num_cut"]) == (5, 20)
    assert (summary["imbalance_balanced"], summary["imbalance_unbalanced"]) == (5.5, 6.5)
    assert summary["data_wait_ms"] == {"p50": 8.0, "p95": 8.9, "first": 100_000.0}
    assert [costs[1] for costs in figures.group_costs] == [8, 9, 10]
