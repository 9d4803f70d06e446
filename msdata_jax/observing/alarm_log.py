"""Gives data-wait alarms out: to the people who watch a job, and to its record."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msdata_jax.observing.alarms import Alarm, AlarmRules, Memory, look
from msdata_jax.observing.files import Ring


class AlarmLog:
    """A sink of lines (`observing.monitor.Sink`) that looks for alarms.

    Args:
        listeners: told of each alarm.
        rules: when to speak; None for those of `AlarmRules`.
        log: that alarms are written to; None for none.
    """

    def __init__(
        self,
        listeners: Sequence[Callable[[Alarm], object]],
        rules: AlarmRules | None = None,
        log: Ring | None = None,
    ) -> None:
        self._listeners, self._rules, self._memory = tuple(listeners), rules or AlarmRules(), Memory()
        self._log = log

    def write(self, line: Mapping[str, Any]) -> None:
        """Look at a line, or at `{"status": ...}`."""
        alarm, self._memory = look(line, self._memory, self._rules)
        if alarm is not None:
            for listener in self._listeners:
                listener(alarm)
            if self._log is not None:
                self._log.write([alarm.to_plain()])

    def tell(self, status: Mapping[str, Any]) -> None:
        """Look at a status, where that is all there is."""
        self.write({"status": status})

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()
