"""How a process of a job writes its lines, and how it ends when it failed."""

import atexit
import io
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from msdata_transport.guard import report_failure

END_SECONDS = 4.0
"""How long a rank that failed waits to be ended with the job, before it ends by itself.

JAX's coordinator is in process 0; where that goes first, JAX aborts the others with traces of its own.
"""


def write_whole_lines() -> None:
    """Write each line at once; where PYTHONUNBUFFERED has each word written, lines of ranks would mix."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def run_first_at_exit(hook: Callable[..., object], *arguments: object) -> None:
    """Run `hook` at exit before all that is registered so far; where it is registered itself, only then."""
    atexit.unregister(hook)
    atexit.register(hook, *arguments)


def flush() -> None:
    """Write what is printed."""
    sys.stdout.flush()
    sys.stderr.flush()


def end_badly() -> NoReturn:
    """End this process with status 1, and the job with it, without waiting for anything that others do."""
    flush()
    report_failure(END_SECONDS)
    os._exit(1)
