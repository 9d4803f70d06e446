"""How a running job goes: on a terminal a line that stays below what the ranks print, else one now and then.

The live line needs to know what else reaches the terminal. So the launcher of the ranks writes to pipes
instead, and what comes out of them is shown above the line, byte for byte; a stream that goes to a file is
left alone.
"""

import contextlib
import os
import selectors
import stat
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from msdata_transport import RunFolder

REFRESH_SECONDS = 0.5
DRAIN_SECONDS = 2.0
"""How long what the ranks have printed may take to arrive once their launcher has ended."""
CHUNK_BYTES = 1 << 16

_ERASE = b"\r\x1b[2K"


def describe(status: Mapping[str, Any] | None) -> str:
    """A status of `runtime.status` in one line; None before there is any."""
    if status is None:
        return "starting"
    return _running(status) if status["began"] else _starting(status)


def _starting(status: Mapping[str, Any]) -> str:
    coming = (
        (status["sources_to_open"], "source to open", "sources to open"),
        (status["trainers_to_come"], "DataLoader to be built", "DataLoaders to be built"),
    )
    waiting = ", ".join(f"{count} {one if count == 1 else many}" for count, one, many in coming if count)
    return f"starting: {waiting}" if waiting else "starting"


def _running(status: Mapping[str, Any]) -> str:
    last = status["num_steps"]
    parts = [f"step {status['step']}" + (f"/{last}" if last else "")]
    if not status["recent"]:
        parts.append("the first is being made")
    if status["steps_per_second"] is not None:
        parts += [in_pace(status["steps_per_second"]), f"data wait {percent(status['data_wait'])}"]
    if status["recent"] is not None:
        parts.append(f"imbalance {status['recent']['imbalance']:.2f}")
    if status["buffers"] is not None:
        parts.append(f"buffers {100 * status['buffers']:.0f} %")
    if status["slowest_source"] is not None:
        parts.append(f"slowest source {printable(status['slowest_source'])}")
    if status["lost"]:
        parts.append(f"{len(status['lost'])} lost")
    if status["stopping"]:
        parts.append("stopping")
    return " · ".join(parts)


def in_pace(steps_per_second: float) -> str:
    """A rate as people say it."""
    if 0 < steps_per_second < 1:
        return f"{1 / steps_per_second:.3g} s a step"
    return f"{steps_per_second:.3g} steps/s"


def percent(share: float) -> str:
    """A share as people say it."""
    return f"{100 * share:.1f} %" if share < 0.0995 else f"{100 * share:.0f} %"


def printable(name: str) -> str:
    """A name that cannot move the cursor."""
    return "".join(each if each.isprintable() else "?" for each in name)


def can_show_live() -> bool:
    """Whether stderr is a terminal on which a line can be drawn anew.

    Where stdout goes to a pipe, whoever reads it (`tee`) may print to the same terminal and tear the line.
    """
    passed_on = stat.S_ISFIFO(os.fstat(1).st_mode) or stat.S_ISSOCK(os.fstat(1).st_mode)
    return os.isatty(2) and not passed_on and os.environ.get("TERM", "") not in ("", "dumb")


class LiveLine:
    """The last line of a terminal, and all that is written above it.

    A line that somebody has begun and not ended, such as a progress bar, keeps it away until it is ended.

    Args:
        terminal: file descriptor.
    """

    def __init__(self, terminal: int = 2) -> None:
        self._terminal = terminal
        self._text = b""
        self._is_drawn = False
        self._at_line_start = True

    def write(self, descriptor: int, data: bytes) -> None:
        """Pass on what a rank has printed."""
        self._erase()
        _write_all(descriptor, data)
        self._at_line_start = data.endswith(b"\n")
        self._draw()

    def show(self, text: str) -> None:
        """Draw the line anew, cut to the width of the terminal; in the background there is none."""
        fitting = _fit(text, _width(self._terminal) - 1) if _is_in_front(self._terminal) else ""
        line = fitting.encode(sys.stderr.encoding, "replace")
        if line != self._text:
            self._erase()
            self._text = line
        if not self._is_drawn:
            self._draw()

    def clear(self) -> None:
        """Leave nothing behind."""
        self._erase()
        self._text = b""

    def _draw(self) -> None:
        if self._at_line_start and self._text:
            _write_all(self._terminal, self._text)
            self._is_drawn = True

    def _erase(self) -> None:
        if self._is_drawn:
            _write_all(self._terminal, _ERASE)
            self._is_drawn = False


def _is_in_front(terminal: int) -> bool:
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False


def _width(terminal: int) -> int:
    try:
        return os.get_terminal_size(terminal).columns or 80
    except OSError:
        return 80


def _fit(text: str, cells: int) -> str:
    from rich.cells import set_cell_size

    return set_cell_size(text, cells).rstrip()


def _write_all(descriptor: int, data: bytes) -> None:
    """Write it all; to a terminal that is gone, nothing, so that no rank has to wait for it."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # another program has made the terminal nonblocking
            time.sleep(0.01)
        except OSError:
            return


class StatusView:
    """Shows the status of a job on a thread of its own, from `start` to the end of its context.

    The context gives what `subprocess.Popen` is to be told of the launcher's stdout and stderr.

    Args:
        folder: of the job.
        every_seconds: print a line so often; None draws the live line.
    """

    def __init__(self, folder: RunFolder, every_seconds: float | None = None) -> None:
        self._folder, self._every_seconds = folder, every_seconds
        self._line = LiveLine()
        self._selector = selectors.DefaultSelector()
        self._waking, self._wake = os.pipe()
        self._selector.register(self._waking, selectors.EVENT_READ, None)
        self._passed: list[int] = []  # the ends of the pipes that the launcher gets
        self._over_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="msdata-status", daemon=True)

    def __enter__(self) -> dict[str, int]:
        """Nothing for streams that are no terminal: the launcher inherits them."""
        if self._every_seconds is not None:
            return {}
        ends: dict[str, int] = {}
        for name, descriptor in (("stdout", 1), ("stderr", 2)):
            if os.isatty(descriptor):
                reading, ends[name] = os.pipe()
                self._selector.register(reading, selectors.EVENT_READ, descriptor)
        self._passed = list(ends.values())
        return ends

    def start(self) -> None:
        """Begin, once the launcher has its streams."""
        self._close_passed()
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        """Show what is still to come, for some seconds at most, and take the line away."""
        self._close_passed()
        os.close(self._wake)  # which the thread sees
        if self._thread.ident is not None:
            self._thread.join()
        for key in list(self._selector.get_map().values()):
            self._selector.unregister(key.fd)
            os.close(key.fd)
        self._selector.close()

    def _close_passed(self) -> None:
        for end in self._passed:
            os.close(end)
        self._passed = []

    def _run(self) -> None:
        period = self._every_seconds or REFRESH_SECONDS
        next_at = time.monotonic() + (period if self._every_seconds else 0.0)
        while not self._is_done():
            now = time.monotonic()
            if now >= next_at and self._over_at is None:
                next_at = now + period
                self._show()
            for key, _ in self._selector.select(max(next_at - now, 0.0) if self._over_at is None else 0.1):
                self._take(key.fd, key.data)
        self._line.clear()

    def _is_done(self) -> bool:
        streams = len(self._selector.get_map()) - (self._over_at is None)  # but for the pipe that wakes
        return self._over_at is not None and (not streams or time.monotonic() >= self._over_at)

    def _take(self, descriptor: int, to: int | None) -> None:
        if to is None:
            self._over_at = time.monotonic() + DRAIN_SECONDS
        elif data := os.read(descriptor, CHUNK_BYTES):
            self._line.write(to, data)
            return
        self._selector.unregister(descriptor)
        os.close(descriptor)

    def _show(self) -> None:
        with contextlib.suppress(LookupError, TypeError, ValueError):  # the file is another program's
            text = describe(self._folder.read_status())
            if self._every_seconds is None:
                self._line.show(text)
            else:
                _write_all(2, f"msdata: {text}\n".encode(sys.stderr.encoding, "replace"))
