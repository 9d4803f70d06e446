"""Jobs whose loaders are killed and stopped, by seeds: what training gets, how long it stalls.

Each run is a real job under `msdata launch`: a planner, three loaders, a shadow and a trainer that takes a
step every 20 ms and writes down a digest of every byte. Loaders are killed (one, two at once, one after the
other, in the middle of a message), stopped by SIGSTOP, slowed, or lost after their shadow was. Then the
trainer must have got, step by step, the bytes of a run that nobody troubled. Stalls are the longest time
between two steps, less the usual one; a stopped loader is noticed by its silence (2 s here, 15 s by default),
the others by their guards. Without a shadow another loader takes over, which has to open the source first.
"""

import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.chaos import SCENARIOS, Difference, Outcome, Trouble, compare, run_job
from benchmarks.headline import headline

SCENARIOS_IN_TURN = tuple(islice(cycle(SCENARIOS), 50))
WITHOUT_SHADOW = tuple(islice(cycle(each for each in SCENARIOS if each != "kill the shadow"), 16))
QUICK_SCENARIOS = ("kill", "kill two", "stop")


def run(quick: bool) -> dict[str, Any]:
    """Totals over all runs, and a row for each scenario with a shadow and without."""
    with tempfile.TemporaryDirectory(prefix="msdata_recovery_") as name:
        folder = Path(name)
        peaceful = run_job(folder / "peaceful", Trouble())
        with_shadow = _runs(folder / "shadow", QUICK_SCENARIOS if quick else SCENARIOS_IN_TURN, shadows=1)
        without = _runs(folder / "alone", QUICK_SCENARIOS[:1] if quick else WITHOUT_SHADOW, shadows=0)
    everything = [*with_shadow, *without]
    differences = [compare(peaceful, each) for each in everything]
    return {
        "name": "recovery",
        "runs": len(everything),
        **{
            what: sum(getattr(each, what) for each in differences) for what in Difference.__dataclass_fields__
        },
        "undisturbed_stall_seconds": round(peaceful.stall_seconds, 3),
        "stall_seconds_with_shadow": _stalls(with_shadow),
        "stall_seconds_without_shadow": _stalls(without),
        "shadow_memory_mb": _shadow_memory(peaceful),
        "rows": [
            _row(scenario, kind, [each for each in runs if each.trouble.scenario == scenario])
            for kind, runs in (("yes", with_shadow), ("no", without))
            for scenario in SCENARIOS
            if any(each.trouble.scenario == scenario for each in runs)
        ],
        "notes": [
            f"{len(everything)} jobs of {peaceful.trouble.steps} steps, held against one that was left alone",
            f"its own longest wait was {1000 * peaceful.stall_seconds:.0f} ms over the usual one",
            f"a shadow took {_shadow_memory(peaceful)} MB (PSS)",
        ],
    }


def headlines(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Whether bytes differed, and how long a killed loader was felt."""
    seconds = {
        kind: result[f"stall_seconds_{kind}_shadow"]["killed"]["median"] for kind in ("with", "without")
    }
    return [
        headline(
            f"steps that differ in {result['runs']} jobs that lose loaders", result["differing"], at_most=0
        ),
        headline(
            "seconds of stall, loader killed, shadow",
            seconds["with"],
            beside={"no shadow": seconds["without"]},
        ),
    ]


def _runs(folder: Path, scenarios: Sequence[str], *, shadows: int) -> list[Outcome]:
    outcomes = []
    for number, scenario in enumerate(scenarios):
        print(f"recovery: {folder.name}, run {number + 1} of {len(scenarios)}: {scenario}", file=sys.stderr)
        trouble = Trouble(scenario=scenario, seed=number, shadows=shadows)
        outcomes.append(run_job(folder / str(number), trouble))
    return outcomes


def _stalls(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    """Median and largest: where a death was seen, where only silence told, and where a loader was slow."""
    kinds = {"stop": "stopped", "slow": "slowed"}
    stalls: dict[str, list[float]] = {}
    for each in outcomes:
        stalls.setdefault(kinds.get(each.trouble.scenario, "killed"), []).append(each.stall_seconds)
    return {
        kind: {"median": round(statistics.median(seconds), 3), "max": round(max(seconds), 3)}
        for kind, seconds in stalls.items()
    }


def _shadow_memory(outcome: Outcome) -> float:
    """PSS of the shadow, which is the last of the ranks that read."""
    return outcome.figures["loaders"][-1]["pss_mb"]


def _row(scenario: str, shadow: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    stalls = [each.stall_seconds for each in outcomes]
    return {
        "scenario": scenario,
        "shadow": shadow,
        "runs": len(outcomes),
        "ranks_lost": sum(len(each.figures["lost"]) for each in outcomes),
        "stall_seconds_median": round(statistics.median(stalls), 3),
        "stall_seconds_max": round(max(stalls), 3),
    }
