"""The open files of a process: bounded in number over all of its sources.

The least recently used file of any source is closed first, one in use never. No lock is held while a file is
opened, read or closed, but one of its own while it is opened, so that two threads do not open it twice.
"""

import contextlib
import errno
import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from msdata_jax.errors import SourceError
from msdata_jax.sources.protocol import Handle

OPEN_FILES_VARIABLE = "MSDATA_OPEN_FILES"
DEFAULT_OPEN_FILES = 64
_SHARE_OF_LIMIT = 2  # the other half is for sockets, pipes, libraries and the user's own files
_TOO_MANY = (errno.EMFILE, errno.ENFILE)


def choose_max_open(environ: Mapping[str, str], limit: int) -> int:
    """How many files stay open: what MSDATA_OPEN_FILES says, else 64; at most half of the process's limit.

    Args:
        environ: the process's environment.
        limit: files that the process may open (`ulimit -n`).

    Raises:
        SourceError: MSDATA_OPEN_FILES is no number of at least 1.
    """
    wanted = read_count(environ, OPEN_FILES_VARIABLE, DEFAULT_OPEN_FILES)
    allowed = max(1, limit // _SHARE_OF_LIMIT)
    if wanted > allowed:
        warnings.warn(
            f"sources keep at most {allowed} files open instead of {wanted}, half of this process's limit of "
            f"{limit}; raise it by ulimit -n {_SHARE_OF_LIMIT * wanted}, or set {OPEN_FILES_VARIABLE}="
            f"{allowed}",
            RuntimeWarning,
            stacklevel=2,
        )
    return min(wanted, allowed)


def read_count(environ: Mapping[str, str], variable: str, default: int) -> int:
    """A number of at least 1 out of the environment. Raises SourceError where it is none."""
    text = environ.get(variable, "")
    if text and not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise SourceError(f"{variable} is a whole number of at least 1, got {text!r}; correct or unset it")
    return int(text) if text else default


@dataclass(eq=False)
class _Entry:
    handle: Handle | None = None
    num_users: int = 0
    is_kept: bool = True  # False once its source dropped it: it closes when nobody uses it
    opening: threading.Lock = field(default_factory=threading.Lock)


class OpenFiles:
    """The budget that several sources share.

    Args:
        max_open: how many handles are open at a time, at least 1. More only while more are in use.
    """

    def __init__(self, max_open: int) -> None:
        self._max_open = max_open
        self._num_open = 0
        self._idle: OrderedDict[_Entry, tuple[Handles, int]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def num_open(self) -> int:
        """Handles that are open or being opened, of all sources."""
        return self._num_open

    def take(self, owner: "Handles", number: int) -> _Entry:
        """The entry of a handle, for `give_back`; it may not be open yet. Others are closed to make room."""
        surplus: list[_Entry] = []
        with self._lock:
            owner.check_open()
            entry = owner.entries.get(number)
            if entry is None:
                entry = owner.entries[number] = _Entry()
                self._num_open += 1
                surplus = self._pop_surplus()
            self._idle.pop(entry, None)
            entry.num_users += 1
        _close(surplus)
        return entry

    def give_back(self, owner: "Handles", number: int, entry: _Entry) -> None:
        """The caller uses the handle no longer."""
        surplus: list[_Entry] = []
        with self._lock:
            entry.num_users -= 1
            if entry.num_users == 0:
                if entry.is_kept and entry.handle is None:  # it could not be opened
                    del owner.entries[number]
                if entry.is_kept and entry.handle is not None:
                    self._idle[entry] = owner, number
                    surplus = self._pop_surplus()
                else:
                    self._num_open -= 1
                    surplus = [entry]
        _close(surplus)

    def close_idle(self) -> None:
        """Close whatever nobody uses."""
        with self._lock:
            surplus = self._pop_surplus(max_open=0)
        _close(surplus)

    def drop(self, owner: "Handles", *, for_good: bool) -> None:
        """Close the handles of a source that nobody uses; the others close when nobody does any more."""
        with self._lock:
            owner.is_closed = owner.is_closed or for_good
            idle = [entry for entry in owner.entries.values() if entry in self._idle]
            for entry in owner.entries.values():
                entry.is_kept = False
                self._idle.pop(entry, None)
            owner.entries.clear()
            self._num_open -= len(idle)
        _close(idle)

    def _pop_surplus(self, max_open: int | None = None) -> list[_Entry]:
        popped = []
        while self._idle and self._num_open > (self._max_open if max_open is None else max_open):
            entry, (owner, number) = self._idle.popitem(last=False)
            del owner.entries[number]
            self._num_open -= 1
            popped.append(entry)
        return popped


class Handles:
    """Open handles of one source by number.

    Args:
        open_handle: opens the handle of a number.
        budget: shared with other sources; None for that of the process.
    """

    def __init__(self, open_handle: Callable[[int], Handle], budget: OpenFiles | None = None) -> None:
        self._open_handle = open_handle
        self._budget = shared_budget() if budget is None else budget
        self.entries: dict[int, _Entry] = {}
        self.is_closed = False

    def __len__(self) -> int:
        return len(self.entries)

    @contextmanager
    def using(self, number: int) -> Iterator[Handle]:
        """The handle of `number`, open until the block ends.

        Raises:
            SourceError: the handles were closed. And whatever opening a handle raises.
        """
        entry = self._budget.take(self, number)
        try:
            with entry.opening:
                handle = entry.handle = entry.handle or self._open(number)
            yield handle
        finally:
            self._budget.give_back(self, number, entry)

    def check_open(self) -> None:
        """Raise SourceError after `close`."""
        if self.is_closed:
            raise SourceError("the source is closed; open a new SourceReader to read on")

    def drop(self) -> None:
        """Open anew from now on: close what is idle now, and what is in use as soon as it no longer is."""
        self._budget.drop(self, for_good=False)

    def close(self) -> None:
        """Close what is idle now, and what is in use as soon as it no longer is."""
        self._budget.drop(self, for_good=True)

    def _open(self, number: int) -> Handle:
        try:
            return self._open_handle(number)
        except (OSError, SourceError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if not (isinstance(cause, OSError) and cause.errno in _TOO_MANY):
                raise
        self._budget.close_idle()  # the process has no descriptor left
        return self._open_handle(number)


_BUDGETS: dict[int, OpenFiles] = {}


def shared_budget() -> OpenFiles:
    """The budget of this process. A forked child has one of its own: it uses no file of its parent's."""
    pid = os.getpid()
    if pid not in _BUDGETS:
        _BUDGETS.setdefault(pid, OpenFiles(choose_max_open(os.environ, _limit())))
    return _BUDGETS[pid]


def _limit() -> int:
    import resource  # not on Windows

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


def _close(entries: list[_Entry]) -> None:
    for entry in entries:
        if entry.handle is not None:
            with contextlib.suppress(OSError):  # it was read only
                entry.handle.close()
