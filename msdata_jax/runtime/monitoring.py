"""Starts whatever watches a job: observers of its ranks, and on the planner's who takes their figures."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msdata_jax.errors import JobFailed
from msdata_jax.observing import record as records
from msdata_jax.observing.alarm_log import AlarmLog
from msdata_jax.observing.alarms import Alarm
from msdata_jax.observing.files import Ring, ThinnedLog
from msdata_jax.observing.monitor import Monitor, Sink
from msdata_jax.recipe import Recipe
from msdata_jax.roles.placement import Placement
from msdata_jax.runtime.observing import NoObserver, Observer, OnMeasured, clock_anchor
from msdata_jax.scaling.decision_log import Round

RECORD_VARIABLE = "MSDATA_RECORD"
"""Names the folder of the record to a training process; set by `msdata launch` and `msdata serve`."""
MEASURE_VARIABLE = "MSDATA_MEASURE"
"""Set where a training process is to tell its figures, without a folder."""
QUIET_VARIABLE = "MSDATA_QUIET"
"""Set where the planner is to show no alarms; by `msdata launch --quiet`."""


@dataclass(frozen=True, kw_only=True)
class Watching:
    """How a job is watched; by default not at all.

    Attributes:
        folder: of the record.
        metrics_port: of the Prometheus endpoint on the planner's host.
        metrics_host: address that it listens at.
        tensorboard: folder of scalars for TensorBoard.
        measure: tell figures in any case.
    """

    folder: Path | None = None
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    tensorboard: Path | None = None
    measure: bool = False

    @property
    def is_wanted(self) -> bool:
        """Whether ranks are to tell their figures."""
        options = (self.folder, self.metrics_port, self.tensorboard)
        return self.measure or any(option is not None for option in options)

    @property
    def environment(self) -> dict[str, str]:
        """What tells training processes, which get no options of ours."""
        if not self.is_wanted:
            return {}
        folder = {} if self.folder is None else {RECORD_VARIABLE: str(self.folder.absolute())}
        return {MEASURE_VARIABLE: "1", **folder}

    @property
    def arguments(self) -> list[str]:
        """The same for `msdata serve`."""
        given = {
            "--record": self.folder,
            "--metrics-port": self.metrics_port,
            "--metrics-host": self.metrics_host if self.metrics_port is not None else None,
            "--tensorboard": self.tensorboard,
        }
        return [word for name, value in given.items() if value is not None for word in (name, str(value))]

    @classmethod
    def from_options(
        cls, *, record: Path | None, metrics_port: int | None, metrics_host: str, tensorboard: Path | None
    ) -> "Watching":
        """From what a command was given."""
        return cls(
            folder=record, metrics_port=metrics_port, metrics_host=metrics_host, tensorboard=tensorboard
        )

    @classmethod
    def from_environment(cls) -> "Watching":
        """The same in a training process."""
        folder = os.environ.get(RECORD_VARIABLE, "")
        return cls(folder=Path(folder) if folder else None, measure=bool(os.environ.get(MEASURE_VARIABLE)))

    def check(self) -> None:
        """Refuse, before any rank starts, what could not be watched.

        Raises:
            LaunchError: the record's folder is not new.
            SourceError: a package is missing.
        """
        from msdata_jax.sources.protocol import require

        if self.folder is not None:
            records.check_new(self.folder)
        if self.metrics_port is not None:
            require("prometheus_client", "prometheus")
        if self.tensorboard is not None:
            from msdata_jax.observing.tensorboard import load_writer

            load_writer()


def observe(
    watching: Watching, rank: int, placement: Placement, on_measured: OnMeasured | None = None
) -> NoObserver:
    """The observer of a rank; one that sees nothing where nobody watches."""
    if not watching.is_wanted:
        return NoObserver()
    return Observer(rank, placement, folder=watching.folder, on_measured=on_measured)


def show_alarm(alarm: Alarm) -> None:
    """Show an alarm on stderr, unless people want quiet."""
    if not os.environ.get(QUIET_VARIABLE):
        print(f"msdata: {alarm.text}", file=sys.stderr, flush=True)  # noqa: T201


def keep_end(folder: Path | None, plan: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Play the planner, and write into the record, if there is one, how the job ended.

    Raises:
        JobFailed: as `plan` does.
    """
    if folder is None:
        return plan()
    try:
        figures = plan()
    except JobFailed as failed:
        records.write_end(folder, failed)
        raise
    records.write_end(folder, figures)
    return figures


def tell_decided(monitor: Monitor | None, decided: Round) -> None:
    """Write a round of scaling down, where anybody does, and show what people should know of it."""
    if monitor is not None:
        monitor.decided(decided.to_plain())
    if decided.note:
        print(f"msdata: {decided.note}", file=sys.stderr, flush=True)  # noqa: T201


def start_monitor(
    watching: Watching,
    recipe: Recipe,
    placement: Placement,
    hosts: Mapping[int, str],
    on_alarm: Callable[[Alarm], object] = lambda alarm: None,
) -> Monitor:
    """What the planner tells the figures of all ranks.

    A port that is taken costs the endpoint, not the job. `on_alarm` is told of data-wait alarms.

    Raises:
        LaunchError: the record is not new or cannot be begun, or TensorBoard's folder cannot be written.
        SourceError: a package is missing.
    """
    sinks: list[Sink] = []
    decisions: Ring | None = None
    if watching.folder is not None:
        records.begin(watching.folder, records.describe_run(recipe, placement, hosts, clock_anchor()))
        sinks.append(ThinnedLog(watching.folder / records.METRICS))
        decisions = Ring(watching.folder / records.DECISIONS, lambda: {"decisions_of": "msdata_jax"})
        alarms = Ring(watching.folder / records.ALARMS, lambda: {"alarms_of": "msdata_jax"})
        sinks.append(AlarmLog([on_alarm], log=alarms))
    else:
        sinks.append(AlarmLog([on_alarm]))
    if watching.metrics_port is not None:
        from msdata_jax.observing.prometheus import Exporter

        try:
            sinks.append(Exporter(watching.metrics_port, watching.metrics_host))
        except OSError as error:
            print(  # noqa: T201
                f"msdata: no metrics at {watching.metrics_host}:{watching.metrics_port}: {error}; "
                "the job goes on without, say another --metrics-port",
                file=sys.stderr,
                flush=True,
            )
    if watching.tensorboard is not None:
        from msdata_jax.observing.tensorboard import TensorBoard

        sinks.append(TensorBoard(watching.tensorboard))
    return Monitor(len(recipe.sources), sinks, decisions=decisions)
