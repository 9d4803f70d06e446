# pyright: strict
"""The run folder: how a job's planner and the guards around its ranks talk, on one host and without MPI.

A private folder that `msdata launch` makes, names in `MSDATA_RUN_FOLDER` and locks while it lives. In it:

| file | made by | says |
|---|---|---|
| `formed` | planner | all ranks have joined: from now on the job can do without an expendable rank |
| `planner.sock` | planner | takes `{"event": "died", "rank": 3, "how": "killed by signal 9"}` from guards |
| `guard-3.sock` | guard of rank 3 | takes `{"event": "kill"}` and `{"event": "done"}` from the planner |
| `vital-4` | guard of rank 4 | that rank is vital and goes on; locked while its guard lives |
| `failed-4` | guard of rank 4 | that rank failed, and the job with it; how, as text |
| `stop` | launcher | the job is to end early, in order |
| `status.json` | planner | how the job goes, about once a second |
| `outcome.json` | planner | how the job ended, in the planner's words |

Sockets are Unix datagram sockets; a datagram is JSON of at most 1024 bytes, and anything else is ignored.
Nothing here waits for the other side, except a report of a death, for some seconds. The guard of every rank
loads this file, so what costs memory is imported where it is used.
"""

import contextlib
import json
import os
import socket
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from msdata_transport.shared_folder import SharedListener

VARIABLE = "MSDATA_RUN_FOLDER"
PREFIX = "msdata_"
"""Of the names of run folders in the folder for temporary files."""
MAX_DATAGRAM_BYTES = 1024
REPORT_SECONDS = 5.0
"""How long a report of a death may wait for room in the planner's socket."""

MAX_HOW = 200
_MAX_OUTCOME_BYTES = 1 << 20
MAX_STATUS_BYTES = 1 << 20
_LONGEST_PATH = 80  # a socket's path has at most 107 bytes


class RunFolder:
    """One job's run folder. Any process of the job may have one; nothing is opened until it is used."""

    is_shared = False
    """Whether ranks on several hosts see it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "RunFolder | None":
        """The folder of the job that this process belongs to; None when it has none."""
        path = environ.get(VARIABLE, "")
        if not path or not os.path.isdir(path):
            return None
        if "MSDATA_RUN_FOLDER_SHARED" not in environ:
            return cls(path)
        from msdata_transport.shared_folder import SharedRunFolder

        return SharedRunFolder(path)

    @classmethod
    @contextlib.contextmanager
    def temporary(cls) -> "Generator[RunFolder]":
        """Make a folder that only this user may enter; it is removed in the end.

        Raises:
            OSError: there is no folder for temporary files, or no room in it.
        """
        import shutil
        import tempfile

        parent = tempfile.gettempdir()
        is_short = len(os.fsencode(parent)) < _LONGEST_PATH - 20
        path = tempfile.mkdtemp(prefix=PREFIX, dir=parent if is_short else "/tmp")
        held = _lock_folder(path)
        try:
            yield cls(path)
        finally:
            shutil.rmtree(path, ignore_errors=True)
            if held is not None:
                os.close(held)

    @property
    def is_held(self) -> bool:
        """Whether the process that made it lives, or the guard of a vital rank."""
        try:
            locked = [self.path]
            locked += [self._file(name) for name in os.listdir(self.path) if name.startswith("vital-")]
            return not all(_is_unlocked(path) for path in locked)
        except OSError:  # it is going just now, or cannot be looked into
            return True

    def announce_formed(self) -> None:
        """Say that all ranks have joined. The planner listens for deaths before it says so."""
        with contextlib.suppress(OSError):
            self._write("formed", b"")

    @property
    def is_formed(self) -> bool:
        """Whether all ranks had joined."""
        return os.path.exists(self._file("formed"))

    def listen_for_deaths(self, callback: Callable[[int, str], object]) -> "DeathListener | SharedListener":
        """Call `callback(rank, how)` for each death that a guard reports, on a thread of its own.

        Raises:
            OSError: the folder is gone.
        """
        return DeathListener(bind(self._file("planner.sock")), callback)

    def report_death(self, rank: int, how: str, timeout_seconds: float = REPORT_SECONDS) -> bool:
        """Tell the planner of a death; returns whether it could be told."""
        event = {"event": "died", "rank": rank, "how": how[:MAX_HOW]}
        return _send(self._file("planner.sock"), event, timeout_seconds)

    def listen_as_guard(self, rank: int) -> socket.socket | None:
        """The socket of a rank's guard, nonblocking, for `receive_event`; None when it cannot be made."""
        try:
            return bind(self._guard(rank))
        except OSError:
            return None

    def told(self, rank: int) -> str | None:
        """What a guard without a socket is told: `kill`, `done` or nothing."""
        return None

    def kill(self, rank: int) -> bool:
        """Let the guard of a rank kill it; returns whether the guard could be told."""
        return _send(self._guard(rank), {"event": "kill"})

    def done(self) -> None:
        """Tell all guards that the job is over: each goes once its rank has ended."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.path):
                if name.startswith("guard-"):
                    _send(self._file(name), {"event": "done"})

    def report_failure(self, rank: int | None, how: str) -> None:
        """Note that a rank failed and that the job fails with it."""
        with contextlib.suppress(OSError):
            self._write(f"failed-{'x' if rank is None else rank}", how[:MAX_HOW].encode())

    def failures(self) -> list[str]:
        """How the ranks whose failure ended the job ended, with their ranks."""
        found: list[str] = []
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(self.path)):
                if name.startswith("failed-"):
                    with open(self._file(name), "rb") as file:
                        how = file.read(MAX_HOW).decode(errors="replace")
                    found.append(f"rank {name.removeprefix('failed-')}: {how}")
        return found

    def hold_vital(self, rank: int) -> None:
        """Let the other guards of vital ranks see when this process dies before `release_vital`."""
        import fcntl

        passing = self._file(f".vital-{rank}")
        with contextlib.suppress(OSError):
            descriptor = os.open(passing, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # until this process ends
            os.replace(passing, self._file(f"vital-{rank}"))

    def release_vital(self, rank: int) -> None:
        """This rank needs no guard any more."""
        with contextlib.suppress(OSError):
            os.unlink(self._file(f"vital-{rank}"))

    def find_unguarded(self) -> int | None:
        """A vital rank whose guard died, and the rank with it."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.path):
                rank = name.removeprefix("vital-")
                if name.startswith("vital-") and rank.isdecimal() and _is_unlocked(self._file(name)):
                    return int(rank)
        return None

    def ask_to_stop(self) -> None:
        """Let the job end early, in order."""
        with contextlib.suppress(OSError):
            self._write("stop", b"")

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether the job is to end early."""
        return os.path.exists(self._file("stop"))

    def write_outcome(self, outcome: Mapping[str, Any]) -> None:
        """Write how the job ended.

        `{"ok": true, "stopped": false, "lost": [{"rank": 3, "why": "killed by signal 9"}]}`
        """
        with contextlib.suppress(OSError):
            self._write("outcome.json", json.dumps(dict(outcome)).encode())

    def read_outcome(self) -> dict[str, Any] | None:
        """What `write_outcome` wrote; None when the planner had no word."""
        try:
            with open(self._file("outcome.json"), "rb") as file:
                return _decode(file.read(_MAX_OUTCOME_BYTES))
        except OSError:
            return None

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Write how the job goes; one that takes more than `MAX_STATUS_BYTES` is not written."""
        data = json.dumps(dict(status)).encode()
        if len(data) <= MAX_STATUS_BYTES:
            with contextlib.suppress(OSError):
                self._write("status.json", data)

    def read_status(self) -> dict[str, Any] | None:
        """What `write_status` wrote last; None when there is nothing yet."""
        try:
            with open(self._file("status.json"), "rb") as file:
                return _decode(file.read(MAX_STATUS_BYTES))
        except OSError:
            return None

    @property
    def is_over(self) -> bool:
        """Whether the planner wrote the outcome, or the folder is gone."""
        return os.path.exists(self._file("outcome.json")) or not os.path.isdir(self.path)

    def _file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _guard(self, rank: int) -> str:
        return self._file(f"guard-{rank}.sock")

    def _write(self, name: str, data: bytes) -> None:
        """All or nothing: a reader sees the whole file or none."""
        passing = self._file(f".{name}.{os.getpid()}")
        with open(passing, "wb") as file:
            file.write(data)
        os.replace(passing, self._file(name))


class DeathListener:
    """A thread that reads the planner's socket. Made by `RunFolder.listen_for_deaths`."""

    def __init__(self, sock: socket.socket, callback: Callable[[int, str], object]) -> None:
        import threading

        self._socket = sock
        self._callback = callback
        self._closing = False
        sock.setblocking(True)
        self._thread = threading.Thread(target=self._listen, name="msdata-deaths", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more; a call that is under way ends first. Calling it again does nothing."""
        if self._closing:
            return
        self._closing = True
        self._socket.shutdown(socket.SHUT_RDWR)  # ends the pending read
        self._thread.join()
        with contextlib.suppress(OSError):
            os.unlink(cast("str", self._socket.getsockname()))
        self._socket.close()

    def _listen(self) -> None:
        while not self._closing:
            match receive_event(self._socket):
                case {"event": "died", "rank": int(rank), "how": str(how)} if type(rank) is int and rank >= 0:
                    self._callback(rank, how)
                case _:
                    pass


def bind(path: str) -> socket.socket:
    """A nonblocking datagram socket at a path; one that was left there is replaced."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        sock.bind(path)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def receive_event(sock: socket.socket) -> dict[str, Any] | None:
    """The next datagram's event; None when there is none, or when it is none of ours."""
    try:
        return _decode(sock.recv(MAX_DATAGRAM_BYTES + 1))
    except OSError:
        return None


def _lock_folder(path: str) -> int | None:
    """Show that a folder is in use while this process lives; None where the file system has no locks."""
    import fcntl

    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor
    return None


def _is_unlocked(path: str) -> bool:
    import fcntl

    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return os.path.exists(path)  # or its guard ended in order just now


def _send(path: str, event: Mapping[str, Any], timeout_seconds: float = 0.0) -> bool:
    """Send an event to a socket, for at most so long; returns whether it left."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.settimeout(timeout_seconds)
        try:
            sock.sendto(json.dumps(dict(event)).encode(), path)
        except OSError:  # nobody listens, or its queue stayed full
            return False
    return True


def _decode(data: bytes) -> dict[str, Any] | None:
    # Bounded by its readers, but JSON may still nest too deep.
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
