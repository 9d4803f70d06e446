"""An endpoint for Prometheus, on the planner's host: `http://HOST:PORT/metrics`.

Figures are summed over ranks by role, and sources beyond `MOST_SOURCES` are left to `(others)`, so that the
number of series does not grow with the job.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msdata_jax.observing import by_role
from msdata_jax.observing.metrics import BOUNDS, Histogram
from msdata_jax.observing.monitor import Line
from msdata_jax.sources.protocol import require

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

MOST_SOURCES = 200
"""Sources with series of their own, the first ones of the recipe."""
OTHERS = "(others)"
BUCKET_STEP = 4
"""Buckets of ours in one of Prometheus's: a factor of 4 in seconds."""

_GAUGES = (
    ("step", "step that every trainer comes to next"),
    ("steps_per_second", "steps a second, of about the last 10 s"),
    ("data_wait", "share of that time that the trainer which waited most has waited for steps"),
    ("buffers", "how full the fullest loader is, as a share of its budget"),
)
_BY_SOURCE = (
    ("samples", "delivered"),
    ("tokens", "delivered"),
    ("waited_seconds", "that planning waited for the source"),
    ("bad", "samples that could not be read"),
)


class Exporter:
    """Serves the newest line.

    Args:
        port: to listen at; 0 takes one that is free.
        host: address to listen at.

    Raises:
        OSError: the port is taken, or the address is none of this host.
        SourceError: prometheus_client is not installed.
    """

    def __init__(self, port: int, host: str) -> None:
        client = require("prometheus_client", "prometheus")
        self._line: Line | None = None
        registry = client.CollectorRegistry()
        registry.register(self)
        self._server, self._thread = client.start_http_server(port, host, registry)

    @property
    def port(self) -> int:
        """That it listens at."""
        return self._server.server_port

    def write(self, line: Line) -> None:
        """Serve this line from now on."""
        self._line = line

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def describe(self) -> Sequence["Metric"]:
        """Nothing is known before it is asked for."""
        return []

    def collect(self) -> Iterator["Metric"]:
        """What the newest line says; called on the server's threads."""
        line = self._line
        if line is not None:
            yield from _of_job(line["status"])
            yield from _of_sources(line["status"], line["sources"])
            yield from _of_roles(by_role.group(line["ranks"]))


def _of_job(status: Mapping[str, Any]) -> Iterator["Metric"]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for name, meaning in _GAUGES:
        if status[name] is not None:
            yield GaugeMetricFamily(f"msdata_{name}", meaning, value=status[name])
    recent = status["recent"] or {}
    for name in ("imbalance", "imbalance_unbalanced", "fill"):
        if recent.get(name) is not None:
            yield GaugeMetricFamily(f"msdata_{name}", "mean of the last 50 steps", value=recent[name])
    totals = status["totals"]
    yield CounterMetricFamily("msdata_steps", "steps that every trainer took", value=totals["steps"])
    waited = totals["waited_seconds"]
    yield CounterMetricFamily("msdata_waited_seconds", "of the trainer that waited most", value=waited)
    yield GaugeMetricFamily("msdata_lost_ranks", "ranks that the job does without", value=len(status["lost"]))


def _of_sources(status: Mapping[str, Any], read: Mapping[str, Sequence[float]]) -> Iterator["Metric"]:
    from prometheus_client.core import CounterMetricFamily

    columns = [(name, meaning, status["sources"][name]) for name, meaning in _BY_SOURCE]
    columns += [
        (name, "of loaders' worker threads", read[name]) for name in ("read_seconds", "transform_seconds")
    ]
    names = status["sources"]["name"]
    for column, meaning, values in columns:
        family = CounterMetricFamily(f"msdata_source_{column}", meaning, labels=["source"])
        for name, value in zip(names[:MOST_SOURCES], values, strict=False):
            family.add_metric([name], value)
        if len(values) > MOST_SOURCES:
            family.add_metric([OTHERS], sum(values[MOST_SOURCES:]))
        yield family


def _of_roles(roles: Mapping[str, list[Mapping[str, Any]]]) -> Iterator["Metric"]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    ranks = GaugeMetricFamily("msdata_ranks", "ranks that told figures", labels=["role"])
    memory = GaugeMetricFamily("msdata_memory_bytes", "of all ranks of the role (PSS)", labels=["role"])
    cpu = CounterMetricFamily("msdata_cpu_seconds", "of all ranks of the role", labels=["role"])
    counts = CounterMetricFamily("msdata_events", "counters of the role's ranks", labels=["role", "name"])
    times = HistogramMetricFamily("msdata_seconds", "how long it took", labels=["role", "name"])
    for role, figures in roles.items():
        ranks.add_metric([role], len(figures))
        memory.add_metric([role], by_role.memory_mb(figures) * 2**20)
        cpu.add_metric([role], by_role.cpu_seconds(figures))
        for name, value in by_role.counters(figures).items():
            counts.add_metric([role, name], value)
        for name, histogram in by_role.histograms(figures).items():
            times.add_metric([role, name], cumulative(histogram), sum_value=histogram.sum)
    yield from (ranks, memory, cpu, counts, times)


def cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    """Upper bounds, as text, and how many took at most so long."""
    found: list[tuple[str, float]] = []
    below = 0
    for index, count in enumerate(histogram.buckets[: len(BOUNDS)]):
        below += count
        if index % BUCKET_STEP == 0:
            found.append((repr(BOUNDS[index]), below))
    return [*found, ("+Inf", histogram.count)]
