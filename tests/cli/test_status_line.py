"""The live line of `msdata launch` in a real terminal: no byte of the ranks is lost, and no line is torn."""

import fcntl
import os
import pty
import random
import re
import signal
import struct
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Callable
from pathlib import Path

import pytest

from msdata_jax.cli.status_line import describe

STATUS = {
    "step": 123, "num_steps": 400, "began": True, "stopping": False,
    "steps_per_second": 4.1234, "data_wait": 0.003, "recent": {"imbalance": 1.0213}, "buffers": 0.38,
    "slowest_source": "photos", "lost": [], "sources_to_open": 0, "trainers_to_come": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {},
            "step 123/400 · 4.12 steps/s · data wait 0.3 % · imbalance 1.02 · buffers 38 % · "
            "slowest source photos",
        ),
        (
            {"steps_per_second": 0.0999, "recent": {"imbalance": 1.0}, "slowest_source": None},
            "step 123/400 · 10 s a step · data wait 0.3 % · imbalance 1.00 · buffers 38 %",
        ),
        (
            {"steps_per_second": 0.0, "data_wait": 0.0, "buffers": None, "slowest_source": None},
            "step 123/400 · 0 steps/s · data wait 0.0 % · imbalance 1.02",
        ),
        (
            {"num_steps": None, "data_wait": 0.4567, "slowest_source": None, "buffers": None},
            "step 123 · 4.12 steps/s · data wait 46 % · imbalance 1.02",
        ),
        (
            {"lost": [{"rank": 2, "why": "x"}], "stopping": True, "slowest_source": "a\x1b[2Jb\n"},
            "step 123/400 · 4.12 steps/s · data wait 0.3 % · imbalance 1.02 · buffers 38 % · "
            "slowest source a?[2Jb? · 1 lost · stopping",
        ),
        (
            {
                "step": 0,
                "steps_per_second": None,
                "data_wait": None,
                "recent": None,
                "slowest_source": None,
                "buffers": 0.0,
            },
            "step 0/400 · the first is being made · buffers 0 %",
        ),
        ({"began": False}, "starting"),
        (
            {"began": False, "sources_to_open": 1, "trainers_to_come": 2},
            "starting: 1 source to open, 2 DataLoaders to be built",
        ),
    ],
)
def test_a_status_in_a_line(changes: dict, line: str) -> None:
    assert describe({**STATUS, **changes}) == line


def test_before_there_is_a_status() -> None:
    assert describe(None) == "starting"


# --- a terminal ---------------------------------------------------------------------------------------------


def screen(data: bytes) -> list[str]:
    """The lines that a terminal would show, of the few things that we send one."""
    lines: list[list[str]] = [[]]
    column = 0
    for piece in re.findall(r"\x1b\[2K|\r|\n|[^\x1b\r\n]", data.decode()):
        if piece == "\x1b[2K":
            lines[-1] = []
        elif piece == "\r":
            column = 0
        elif piece == "\n":
            lines.append([])
        else:
            lines[-1] += [" "] * (column + 1 - len(lines[-1]))
            lines[-1][column] = piece
            column += 1
    return ["".join(line) for line in lines]


LAUNCH = """
import signal, sys
from msdata_jax.cli.running import run_until_done
from msdata_jax.cli.showing import Showing
seconds = float(sys.argv[2]) if len(sys.argv) > 2 else None
showing = Showing(status=True, status_seconds=seconds, quiet=False)
sys.exit(run_until_done([sys.executable, "-c", sys.argv[1]], showing=showing))
"""


class Terminal:
    """A launch in a terminal of its own.

    Args:
        program: that takes the place of mpiexec.
        columns: of the terminal.
        stdout: a file in place of the terminal.
        term: its kind.
        raw: whether it shows a line's end as it is.
        nohup: whether the launch outlives it.
    """

    def __init__(
        self,
        program: str,
        *arguments: str,
        columns: int = 120,
        stdout: Path | None = None,
        term: str = "xterm",
        raw: bool = False,
        nohup: bool = False,
    ) -> None:
        self.child, self.descriptor = pty.fork()
        if self.child == 0:
            os.environ["TERM"] = term
            if nohup:
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
            if raw:
                tty.setraw(0)
            if stdout is not None:
                os.dup2(os.open(stdout, os.O_WRONLY | os.O_CREAT), 1)
            os.execv(sys.executable, [sys.executable, "-c", LAUNCH, program, *arguments])
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        self.shown = b""

    def read_until(self, done: Callable[[bytes], object]) -> None:
        deadline = time.monotonic() + 60
        while not done(self.shown):
            assert time.monotonic() < deadline, self.shown
            self.shown += os.read(self.descriptor, 1 << 16)

    def end(self) -> int:
        """Read to the end; returns the exit status."""
        try:
            while data := os.read(self.descriptor, 1 << 16):
                self.shown += data
        except OSError:  # how a terminal says so
            pass
        os.close(self.descriptor)
        return os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])


WRITE_STATUS = f"""
import os, pathlib, sys, time
from msdata_transport import RunFolder
folder = RunFolder.from_environment()
status = {STATUS!r}
folder.write_status(status)
def wait_for(path):
    deadline = time.monotonic() + 50
    while not pathlib.Path(path).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
"""


def test_what_ranks_print_is_whole_and_the_line_stays_below(tmp_path: Path) -> None:
    go = tmp_path / "go"
    program = (
        WRITE_STATUS
        + "os.write(1, b'first\\n'); os.write(2, b'to stderr\\n')\n"
        + f"wait_for({str(go)!r})\n"
        + "for i in range(300):\n"
        + "    os.write(1 + i % 2, b'line %d ' % i); os.write(1 + i % 2, b'and its end\\n')\n"
        + "os.write(1, 'ünd\\n'.encode())\n"
    )
    terminal = Terminal(program)
    terminal.read_until(lambda shown: b"step 123/400" in shown)
    lines = screen(terminal.shown)
    assert lines[-1] == describe(STATUS)
    terminal.read_until(lambda shown: {"first", "to stderr"} <= set(screen(shown)))
    assert screen(terminal.shown)[-1] in ("", describe(STATUS))
    go.touch()
    assert terminal.end() == 0
    lines = screen(terminal.shown)
    assert lines[:2] == ["first", "to stderr"]
    # stdout and stderr are two pipes, as they are for any launcher: each is in order.
    for parity in (0, 1):
        of_stream = [line for line in lines if re.fullmatch(r"line \d+ and its end", line)]
        numbers = [int(line.split()[1]) for line in of_stream if int(line.split()[1]) % 2 == parity]
        assert numbers == sorted(numbers)
    assert "ünd" in lines
    assert "step 123/400" not in "\n".join(lines)


def test_the_bytes_of_a_stream_are_passed_on_as_they_are(tmp_path: Path) -> None:
    rng = random.Random(5)
    data = bytes(rng.choice(b"abc\r\n\x00\x80\xff") for _ in range(300_000)) + b"\n"
    (tmp_path / "data").write_bytes(data)
    program = WRITE_STATUS + f"sys.stdout.buffer.write(open({str(tmp_path / 'data')!r}, 'rb').read())"
    terminal = Terminal(program, raw=True)
    assert terminal.end() == 0
    without_line = re.sub(
        rb"\r\x1b\[2K", b"", terminal.shown.replace(describe(STATUS).encode(), b"").replace(b"starting", b"")
    )
    assert without_line == data


def test_a_line_that_is_not_ended_keeps_the_status_away(tmp_path: Path) -> None:
    bar, more, go = tmp_path / "bar", tmp_path / "more", tmp_path / "go"
    program = (
        WRITE_STATUS
        + f"wait_for({str(bar)!r})\nos.write(2, b'10 %')\n"
        + f"wait_for({str(more)!r})\n"
        + "for i in range(20):\n    os.write(2, b'\\r%d %%' % i); time.sleep(0.05)\n"
        + f"os.write(2, b'\\n')\nwait_for({str(go)!r})\n"
    )
    terminal = Terminal(program)
    terminal.read_until(lambda shown: b"step 123/400" in shown)
    bar.touch()
    terminal.read_until(lambda shown: screen(shown)[-1] == "10 %")
    before = len(terminal.shown)
    more.touch()
    terminal.read_until(lambda shown: b"19 %\r\n" in shown)
    assert b"step" not in terminal.shown[before : terminal.shown.index(b"19 %\r\n")]
    terminal.read_until(lambda shown: screen(shown)[-1] == describe(STATUS))
    go.touch()
    assert terminal.end() == 0
    assert screen(terminal.shown)[0].startswith("19 %")


def test_the_line_is_as_wide_as_the_terminal(tmp_path: Path) -> None:
    go = tmp_path / "go"
    terminal = Terminal(WRITE_STATUS + f"wait_for({str(go)!r})", columns=30)
    terminal.read_until(lambda shown: b"step 123/400" in shown)
    assert screen(terminal.shown)[-1] == describe(STATUS)[:29].rstrip()
    go.touch()
    assert terminal.end() == 0


def test_stdout_that_goes_to_a_file_goes_there_unseen(tmp_path: Path) -> None:
    go = tmp_path / "go"
    program = WRITE_STATUS + f"os.write(1, b'data')\nos.write(2, b'told\\n')\nwait_for({str(go)!r})"
    terminal = Terminal(program, stdout=tmp_path / "out")
    terminal.read_until(lambda shown: b"step 123/400" in shown and b"told" in shown)
    go.touch()
    assert terminal.end() == 0
    assert (tmp_path / "out").read_bytes() == b"data"


def test_stdout_that_goes_to_a_pipe_may_come_back_to_the_terminal_so_there_is_no_line(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    terminal = Terminal(WRITE_STATUS + "os.write(1, b'x\\n'); os.write(2, b'y\\n')", stdout=fifo)
    assert terminal.end() == 0
    assert terminal.shown == b"y\r\n"
    assert os.read(reading, 100) == b"x\n"
    os.close(reading)


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_draw_has_no_line(term: str) -> None:
    terminal = Terminal(
        WRITE_STATUS + "assert os.isatty(1) and os.isatty(2)\nos.write(1, b'x\\n')", term=term
    )
    assert terminal.end() == 0
    assert terminal.shown == b"x\r\n"


def test_an_interrupt_takes_the_line_away(tmp_path: Path) -> None:
    terminal = Terminal(WRITE_STATUS + "time.sleep(60)")
    terminal.read_until(lambda shown: b"step 123/400" in shown)
    os.kill(terminal.child, signal.SIGINT)
    assert terminal.end() == 130
    assert screen(terminal.shown) == ["msdata: interrupted; all ranks are stopped", ""]


def test_a_job_under_nohup_prints_on_when_the_terminal_is_gone(tmp_path: Path) -> None:
    """The pipes are read to the end, or the ranks would wait for room in them."""
    go, done = tmp_path / "go", tmp_path / "done"
    program = (
        WRITE_STATUS
        + f"wait_for({str(go)!r})\n"
        + "for i in range(1000): os.write(1, b'x' * 1000 + b'\\n')\n"
        + f"pathlib.Path({str(done)!r}).touch()"
    )
    terminal = Terminal(program, nohup=True)
    terminal.read_until(lambda shown: b"step 123/400" in shown)
    os.close(terminal.descriptor)
    go.touch()
    assert os.waitstatus_to_exitcode(os.waitpid(terminal.child, 0)[1]) == 0
    assert done.exists()


def test_without_a_terminal_lines_come_as_often_as_asked_and_only_then(tmp_path: Path) -> None:
    go = tmp_path / "go"
    for arguments in ((), ("0.1",)):
        program = WRITE_STATUS + ("time.sleep(0)" if not arguments else f"wait_for({str(go)!r})")
        with subprocess.Popen(
            [sys.executable, "-c", LAUNCH, program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as launch:
            assert launch.stderr is not None
            assert launch.stdout is not None
            if arguments:
                while launch.stderr.readline().decode() != f"msdata: {describe(STATUS)}\n":
                    assert launch.poll() is None
                go.touch()
            rest = launch.stderr.read()
            assert launch.stdout.read() == b""
            assert launch.wait(30) == 0
        assert set(rest.decode().splitlines()) <= {f"msdata: {describe(STATUS)}" if arguments else ""}
