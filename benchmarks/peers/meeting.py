"""How training processes and whoever measures them meet: JSON lines over a Unix socket, both ways.

A process says that a phase is done, with what it has to report, and waits until all have said so.
"""

import json
import select
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

POLL_SECONDS = 0.2


class Attendant:
    """One training process's end."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("r")

    def meet(self, phase: str, **report: Any) -> None:
        """Say that a phase is done, and wait for the others."""
        self.say(phase, **report)
        if not self._lines.readline():
            raise SystemExit("whoever measures is gone")

    def say(self, phase: str, **report: Any) -> None:
        """Say it without waiting."""
        self._socket.sendall(json.dumps({"phase": phase, **report}).encode() + b"\n")


class MeetingProblem(RuntimeError):
    """A training process failed, ended, or took too long."""


class Meeting:
    """The other end: of all training processes of a run.

    Args:
        path: where they come to.
        number: how many come.
        check: called several times a second while it waits; raises to end the run.
    """

    def __init__(self, path: Path, number: int, check: Callable[[], None]) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(number)
        self._number, self._check = number, check
        self._processes: dict[socket.socket, TextIO] = {}

    def gather(self, phase: str, seconds: float) -> list[dict[str, Any]]:
        """What all report at the end of a phase.

        Raises:
            MeetingProblem: one of them failed, or did not come within `seconds`.
        """
        deadline = time.monotonic() + seconds
        while len(self._processes) < self._number:
            self._wait([self._listener], phase, deadline)
            connection = self._listener.accept()[0]
            self._processes[connection] = connection.makefile("r")
        reports: dict[socket.socket, dict[str, Any]] = {}
        while len(reports) < self._number:
            missing = [each for each in self._processes if each not in reports]
            for connection in self._wait(missing, phase, deadline):
                reports[connection] = _read(self._processes[connection], phase)
        return [reports[each] for each in self._processes]

    def release(self) -> None:
        """Let all go on."""
        for each in self._processes:
            each.sendall(b"go\n")

    def close(self) -> None:
        """Hang up."""
        for each in (*self._processes.values(), *self._processes, self._listener):
            each.close()

    def _wait(self, readable: list[socket.socket], phase: str, deadline: float) -> list[socket.socket]:
        while not (ready := select.select(readable, [], [], POLL_SECONDS)[0]):
            self._check()
            if time.monotonic() > deadline:
                raise MeetingProblem(f"waiting for {phase!r}: not all training processes came in time")
        return ready


def _read(file: TextIO, phase: str) -> dict[str, Any]:
    line = file.readline()
    report = json.loads(line) if line else {"phase": "end", "error": "a training process is gone"}
    if report["phase"] != phase:
        raise MeetingProblem(f"waiting for {phase!r}: {report.get('error', report['phase'])}".strip())
    return report
