"""Forks a child process that runs one function and shares nothing but memory with its parent.

The parent may have threads, MPI and JAX loaded. The child uses none of them: it keeps no descriptor of
theirs, runs no handler or finalizer of theirs, and never returns into the code that forked it.
"""

import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import os
import resource
import signal
import stat
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator

from msdata_jax.errors import SourceError

_PR_SET_PDEATHSIG = 1
_IGNORED = (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ)  # the last two as Python itself does
_FIRST_OWN = 3  # descriptors 0 to 2 are standard input, output and error
_MAX_DESCRIPTORS = 65536
_IMPORT_SECONDS = 5.0
_lock = threading.Lock()


class ForkUnsafeError(SourceError):
    """A source cannot be read in a forked child, because of what its parent has used before."""


def fork(main: Callable[[], object], keep: Collection[int], *, reopen_files: bool) -> int:
    """Fork a child that runs `main`, and ends when it returns or raises.

    The child is killed when the thread that called this ends, and so with its process.

    Args:
        main: what the child does.
        keep: descriptors of the child; it closes all others but those of standard input, output and error.
        reopen_files: files that are open for reading stay open, with a place of their own.

    Returns:
        the child's process id, in the parent.

    Raises:
        OSError: the system starts no process.
    """
    _wait_for_imports()
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
    with _quiet():
        pid = os.fork()
    if pid:
        return pid
    try:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            _settle(keep, reopen_files)
            main()
    finally:
        os._exit(1)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of Python and of JAX that a forked child cannot use their threads: it does not."""
    with _lock, warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*use of fork\(\) may lead to deadlocks", DeprecationWarning)
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        yield


def _wait_for_imports() -> None:
    """Until no other thread imports: a child would wait for ever for the lock of a module half imported."""
    deadline = time.monotonic() + _IMPORT_SECONDS
    while time.monotonic() < deadline:
        specs = [getattr(module, "__spec__", None) for module in list(sys.modules.values())]
        if not any(getattr(spec, "_initializing", False) for spec in specs):
            return
        time.sleep(0.01)


def _settle(keep: Collection[int], reopen_files: bool) -> None:
    gc.freeze()  # no finalizer of the parent's objects, and no copies of its pages
    faulthandler.disable()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN if number in _IGNORED else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as stream:
        stream.write("1000")  # where memory runs out, this process goes first
    for descriptor in _descriptors():
        if descriptor >= _FIRST_OWN and descriptor not in keep:
            with contextlib.suppress(OSError):
                _close(descriptor, reopen_files)
    # What the parent had buffered is the parent's to write.
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - for good
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 - for good


def _descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return list(range(_FIRST_OWN, min(os.sysconf("SC_OPEN_MAX"), _MAX_DESCRIPTORS)))


def _close(descriptor: int, reopen_files: bool) -> None:
    if reopen_files and _is_file_for_reading(descriptor):
        own = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        os.lseek(own, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(own, descriptor, inheritable=False)
        os.close(own)
    else:
        os.close(descriptor)


def _is_file_for_reading(descriptor: int) -> bool:
    mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    return mode == os.O_RDONLY and stat.S_ISREG(os.fstat(descriptor).st_mode)
