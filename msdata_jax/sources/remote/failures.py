"""What other libraries raise -> OSError that says URL and status, and whether another try may go well."""

import errno
import time
from collections.abc import Callable
from typing import TypeVar

from msdata_jax.sources.protocol import http_status, is_transient, is_transient_status
from msdata_jax.sources.remote.urls import redacted

FIRST_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 5.0

T = TypeVar("T")


class ChangedError(OSError):
    """An object is no longer the one that was looked at when the source was opened."""


def changed(name: str) -> ChangedError:
    """The error for it."""
    return ChangedError(
        errno.EINVAL,
        f"{name} was changed while the job read it; write new files under new names, and start the job anew",
    )


def short(name: str, found: int, wanted: int) -> ConnectionError:
    """The error for an answer that ends too early."""
    return ConnectionError(errno.ECONNABORTED, f"{name}: the answer ended after {found} of {wanted} bytes")


def of_status(name: str, status: int, text: str = "") -> OSError:
    """The error for an HTTP status."""
    message = f"{name}: status {status} {text}".rstrip()
    if is_transient_status(status):
        return ConnectionError(errno.EAGAIN, message)
    if status in (401, 403, 407):
        return PermissionError(errno.EACCES, f"{message}; check the credentials in Source.storage")
    if status in (404, 410):
        return FileNotFoundError(errno.ENOENT, message)
    return OSError(errno.EINVAL, message)


def translated(error: Exception, name: str) -> OSError:
    """An exception of a file system as OSError, without credentials."""
    status = http_status(error)
    text = f"{type(error).__name__}: {redacted(str(error))}"
    if status is not None:
        return of_status(name, status, redacted(str(getattr(error, "message", "") or "")))
    if isinstance(error, ChangedError) or (isinstance(error, OSError) and error.args and name in str(error)):
        return error
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, f"{name}: there is no such file")
    if isinstance(error, PermissionError):
        return PermissionError(errno.EACCES, f"{name}: {text}; check the credentials in Source.storage")
    if is_transient(error) or _says_connection(error):
        return ConnectionError(errno.ECONNABORTED, f"{name}: {text}")
    number = error.errno if isinstance(error, OSError) and error.errno else errno.EINVAL
    return OSError(number, f"{name}: {text}")


def _says_connection(error: Exception) -> bool:
    """Errors of connections that are neither ConnectionError nor have a number."""
    names = {each.__name__ for each in type(error).__mro__}
    return bool(
        names & {"ClientConnectionError", "ClientPayloadError", "HTTPClientError", "EndpointConnectionError"}
    )


def with_retries(call: Callable[[], T], deadline_seconds: float, count: Callable[[], None]) -> T:
    """What `call` returns; tried again while its error may pass, with longer and longer pauses.

    Args:
        call: raises OSError.
        deadline_seconds: no other try is begun after so long.
        count: is called before each other try.
    """
    deadline = time.monotonic() + deadline_seconds
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return call()
        except OSError as error:
            if not is_transient(error) or time.monotonic() + pause > deadline:
                raise
        count()
        time.sleep(pause)
        pause = min(2 * pause, MAX_PAUSE_SECONDS)
