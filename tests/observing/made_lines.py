"""Lines of jobs that never ran, second by second: healthy ones, and ones with a fault of one's choice.

`test_report.py` holds a line against one of a real job, so that they cannot drift apart.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msdata_jax.observing.files import to_line
from msdata_jax.observing.metrics import Metrics

BUDGET = 1 << 20
READ_SECONDS, TRANSFORM_SECONDS = 0.01, 0.05  # of each source and second, where nothing else is said
STEPS = 10


class MadeJob:
    """A job of ten steps a second: a planner, then loaders, then trainers; sources go round loaders."""

    def __init__(self, sources: Sequence[str] = ("a", "b"), loaders: int = 2, trainers: int = 2) -> None:
        self.sources = tuple(sources)
        self.loaders = tuple(range(1, loaders + 1))
        self.trainers = tuple(range(loaders + 1, loaders + trainers + 1))
        self.ranks = (0, *self.loaders, *self.trainers)
        self.seconds = 0
        self.waited = 0.0
        self.metrics = {rank: Metrics() for rank in self.ranks}
        self.read = dict.fromkeys(self.sources, 0.0)
        self.transform = dict.fromkeys(self.sources, 0.0)
        self.source_waited = dict.fromkeys(self.sources, 0.0)
        self.bad = dict.fromkeys(self.sources, 0)
        self.busy = dict.fromkeys(self.loaders, 0.0)
        self.lost: list[dict[str, Any]] = []
        self.ended = False

    def role(self, rank: int) -> str:
        """Of a rank, as lines say it."""
        return "planner" if rank == 0 else "loader" if rank in self.loaders else "constructor"

    def loader_of(self, source: str) -> int:
        """The one loader of a source."""
        return self.loaders[self.sources.index(source) % len(self.loaders)]

    def second(
        self,
        *,
        wait: float = 0.0,
        lacking: str | None = None,
        read: Mapping[str, float] | None = None,
        transform: Mapping[str, float] | None = None,
        held: int = 1000,
        spent: Mapping[int, Mapping[str, Sequence[float]]] | None = None,
    ) -> dict[str, Any]:
        """The line of one second more.

        Args:
            wait: share of it, as of the ten seconds before, that trainers waited for steps.
            lacking: the source that these steps lacked.
            read, transform: seconds of reading by source, where other than usual.
            held: bytes of each loader.
            spent: by rank and histogram, durations beside the usual ones.
        """
        self.seconds += 1
        self.waited += wait
        for source in self.sources:
            own_read = (read or {}).get(source, READ_SECONDS)
            own_transform = (transform or {}).get(source, TRANSFORM_SECONDS)
            loader = self.loader_of(source)
            self.read[source] += own_read
            self.transform[source] += own_transform
            self.busy[loader] += own_read + own_transform
            self.metrics[loader].time("read", own_read)
            self.metrics[loader].time("transform", own_transform)
        if lacking is not None:
            self.source_waited[lacking] += wait
        self._time_steps(wait, spent or {})
        return self.line(wait, lacking, held)

    def _time_steps(self, wait: float, spent: Mapping[int, Mapping[str, Sequence[float]]]) -> None:
        usual: dict[int, dict[str, Sequence[float]]] = {
            0: {"plan": (0.001,) * STEPS, "handle": (0.002,) * STEPS, "send": (0.0001,) * STEPS},
            **{rank: {"handle": (0.001,), "send": (0.002,)} for rank in self.loaders},
            **{
                rank: {
                    "handle": (0.01,),
                    "wait": (wait / STEPS,) * STEPS,
                    "step": ((1 - wait) / STEPS,) * STEPS,
                }
                for rank in self.trainers
            },
        }
        for rank in self.ranks:
            for name, durations in {**usual[rank], **spent.get(rank, {})}.items():
                for duration in durations:
                    self.metrics[rank].time(name, duration)
            self.metrics[rank].count("bytes_out", 1e6)
            self.metrics[rank].count("bytes_in", 1e6)

    def line(self, wait: float, lacking: str | None, held: int = 1000) -> dict[str, Any]:
        """What is known now."""
        count, steps = len(self.sources), STEPS * self.seconds
        named = {"imbalance": 1.02, "imbalance_unbalanced": 1.4, "fill": 0.97}
        status = {
            "step": steps, "ready": steps + 2, "num_steps": 10_000, "began": True, "ended": self.ended,
            "stopping": False, "trainers_to_come": 0, "sources_to_open": 0, "seconds": float(self.seconds),
            "steps_per_second": float(STEPS), "data_wait": wait, "slowest_source": lacking, "recent": named,
            "buffers": held / BUDGET, "held_bytes": {str(rank): held for rank in self.loaders},
            "budget_bytes": BUDGET,
            "lacking": {"source": lacking, "share": 0.9, "all": 0.9, "loaders": [self.loader_of(lacking)]}
            if lacking is not None else None,
            "loaders": {
                str(rank): {"threads": 1, "busy_seconds": self.busy[rank]} for rank in self.loaders
            },
            "lost": self.lost,
            "totals": {
                "steps": steps, "steps_per_second": float(STEPS), "waited_seconds": self.waited,
                "stepping_seconds": float(self.seconds), **named,
            },
            "wait_ms": {"p50": 1.0, "p95": 2.0},
            "sources": {
                "name": list(self.sources), "known": [8] * count, "leased": [8] * count,
                "known_bytes": [800] * count, "bad": list(self.bad.values()), "samples": [steps] * count,
                "tokens": [100 * steps] * count, "waited_seconds": list(self.source_waited.values()),
            },
        }  # fmt: skip
        columns = {
            "blocks": [steps // 8] * count, "samples": [steps] * count, "tokens": [100 * steps] * count,
            "bytes": [400 * steps] * count, "bad": list(self.bad.values()),
            "read_seconds": list(self.read.values()), "transform_seconds": list(self.transform.values()),
        }  # fmt: skip
        ranks = {str(rank): self._rank(rank) for rank in self.ranks}
        return {
            "seconds": float(self.seconds), "time": 1.8e9 + self.seconds, "status": status,
            "sources": columns, "ranks": ranks,
        }  # fmt: skip

    def _rank(self, rank: int) -> dict[str, Any]:
        return {
            "role": self.role(rank), "host": "node1", "pid": 100 + rank, **self.metrics[rank].plain(),
            "gauges": {"inbox": 0, "waiting": 0},
            "peers": {str(to): [self.seconds, 1e6 * self.seconds, 0.001] for to in self.ranks if to != rank},
            "memory_mb": 100.0 + self.seconds, "pss_mb": 80.0, "cpu_seconds": 0.1 * self.seconds,
        }  # fmt: skip

    def about(self) -> dict[str, Any]:
        """What `about.json` holds."""
        return {
            "format": "msdata record", "version": 1, "msdata_jax": "0.6.0", "python": "3.12.0", "time": 1.8e9,
            "clock": {"monotonic": 1.0, "time": 1.8e9, "boot": "boot"}, "recipe": "abc", "seed": 1,
            "strategy": "DGraph()",
            "sources": [
                {"name": name, "data": "data", "transforms": [], "block_size": 8} for name in self.sources
            ],
            "ranks": {str(rank): {"role": self.role(rank), "host": "node1"} for rank in self.ranks},
        }  # fmt: skip


def write_record(
    folder: Path,
    job: MadeJob,
    lines: Iterable[Mapping[str, Any]],
    **others: Iterable[Mapping[str, Any]],
) -> Path:
    """A folder as `msdata launch --record` leaves it; `others` are `decisions` and `alarms`."""
    folder.mkdir(parents=True)
    (folder / "about.json").write_text(json.dumps(job.about()))
    for name, values in {"metrics": lines, **others}.items():
        (folder / f"{name}.jsonl").write_bytes(b"".join(map(to_line, values)))
    return folder
