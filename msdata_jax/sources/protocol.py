"""What the reader needs of a dataset (`Records`), and what a file format needs to provide (`Format`)."""

import errno
import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from msdata_jax.errors import SourceError
from msdata_jax.recipe import without_addresses

_TRANSIENT = frozenset(
    (
        *(errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ETIMEDOUT, errno.EMFILE),
        *(errno.ECONNRESET, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ENOTCONN, errno.ENFILE),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH),
        *((errno.EREMOTEIO,) if hasattr(errno, "EREMOTEIO") else ()),
    )
)


@dataclass(frozen=True, slots=True)
class BadRecord:
    """Stands for a record that cannot be read.

    Attributes:
        reason: why, in words; the same in every process unless `transient`.
        transient: the disk or the network failed and not the record: another try may go well.
    """

    reason: str
    transient: bool = False


class Records(Protocol):
    """A dataset with random access. Methods may be called from several threads at once."""

    @property
    def group_sizes(self) -> np.ndarray | None:
        """Records per group (int64) where reads are cheap within one, None where they are cheap anywhere."""
        ...

    @property
    def window_groups(self) -> int:
        """How many groups may be open at a time without being decoded again."""
        ...

    @property
    def counts_epochs(self) -> bool:
        """Whether index `epoch * len + record` asks for the record as that epoch sees it."""
        ...

    @property
    def num_open_files(self) -> int:
        """Files that are open now."""
        ...

    def __len__(self) -> int:
        """Records of one epoch."""
        ...

    def read(self, indices: np.ndarray) -> list[Any]:
        """The records at `indices` (int64), in that order; a `BadRecord` for each that cannot be read.

        None stands for a record that the dataset itself leaves out.

        Raises:
            SourceError: nothing can be read any more.
        """
        ...

    def describe(self, index: int) -> str:
        """Where a record is to be found, for people; equal in every process."""
        ...

    def fingerprint(self) -> str:
        """A digest that changes when the data does, without reading them all. Free of paths and times."""
        ...

    def file_digests(self) -> dict[str, str]:
        """A digest (hex, 16 digits) of each file by its name, of the same bytes as the fingerprint.

        Names are base names, or paths from the files' common folder where base names clash. Empty where there
        are no files, or more than 64.
        """
        ...

    def drop_handles(self) -> None:
        """Open files anew from now on: the handles at hand may be stale."""
        ...

    def close(self) -> None:
        """Close the files. Reading afterwards is an error; closing twice is not."""
        ...


class Handle(Protocol):
    """An open file."""

    def close(self) -> object:
        """Close it."""
        ...


class RecordFile(Protocol):
    """One indexed file. It keeps the index in memory and no file open."""

    @property
    def group_sizes(self) -> np.ndarray | None:
        """As in `Records`."""
        ...

    def __len__(self) -> int:
        """Records of the file."""
        ...

    def open(self) -> Handle:
        """Open the file for reading. Raises OSError as `open` does."""
        ...

    def read(self, handle: Any, indices: np.ndarray) -> list[Any]:
        """As in `Records`, through a handle from `open`, which other threads may use as well."""
        ...


@runtime_checkable
class DigestedFile(Protocol):
    """A `RecordFile` that is no single file: it says itself what tells its data apart."""

    def content_digest(self) -> bytes:
        """A digest that changes when the data does, without reading them all. Free of paths and times."""
        ...


@runtime_checkable
class ClosableFile(Protocol):
    """A `RecordFile` that keeps something of its own, such as a temporary file, until its source closes."""

    def close(self) -> None:
        """Free it. Reading afterwards is an error; closing twice is not."""
        ...


class Format(Protocol):
    """A file format with its options; shared by the files of one source."""

    @property
    def window_groups(self) -> int:
        """As in `Records`."""
        ...

    def index(self, path: str) -> RecordFile:
        """Look at one file.

        Raises:
            SourceError: the file is not of this format or is damaged; says which file and where.
        """
        ...


def require(module: str, extra: str) -> ModuleType:
    """Import an optional package.

    Raises:
        SourceError: it is not installed; says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SourceError(
            f"this needs the package {module.split('.', maxsplit=1)[0]}, which cannot be imported ({error}); "
            f"install it with: pip install 'msdata-jax[{extra}]'"
        ) from error


def compact(values: Any) -> np.ndarray:
    """Integers as int32 where all of them fit, else as int64: an index is kept as long as its source."""
    numbers = np.asarray(values, np.int64)
    limits = np.iinfo(np.int32)
    fits = not len(numbers) or (limits.min <= numbers.min() and numbers.max() <= limits.max)
    return numbers.astype(np.int32) if fits else numbers.copy()


def is_transient(error: BaseException) -> bool:
    """Whether an error is one of the disk or the network that may pass, and not one of the data."""
    status = http_status(error)
    if status is not None:
        return is_transient_status(status)
    # Libraries raise OSError for damaged data too, without a number.
    return isinstance(error, ConnectionError | TimeoutError) or (
        isinstance(error, OSError) and error.errno in _TRANSIENT
    )


def is_transient_status(status: int) -> bool:
    """Whether a server that answers with such an HTTP status may answer well another time."""
    return status in (408, 425, 429) or status >= 500


def http_status(error: BaseException) -> int | None:
    """The status (400 to 599) in an exception of urllib, requests, aiohttp or botocore, else None."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status if _is_status(status) else None
    if _is_status(status := getattr(response, "status_code", None)):
        return status
    for name in ("status", "status_code", "code"):  # the first that there is: some warn of the others
        if _is_status(status := getattr(error, name, None)):
            return status
    return None


def _is_status(value: Any) -> bool:
    return type(value) is int and 400 <= value < 600


def says_transient(text: str) -> bool:
    """The same of a message whose library keeps the number to itself."""
    return any(os.strerror(number) in text for number in _TRANSIENT)


def one_line(error: BaseException, known: Sequence[str] = ()) -> str:
    """An error as a short line that is equal in every process: no addresses, no line breaks."""
    text = without_addresses(" ".join(str(error).split()))
    for path in known:
        text = text.replace(path, "the file")
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
