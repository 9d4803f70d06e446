"""A temporary file without a name, for what is too large to keep in memory."""

import os
import tempfile
import threading
import weakref
from collections.abc import Callable

from msdata_jax.errors import SourceError


class Spill:
    """Bytes on disk in the folder for temporary files (`TMPDIR`); the system frees them with the process.

    Args:
        max_bytes: of the file.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._descriptor = -1
        self._close: Callable[[], object] = lambda: None
        self._num_bytes = 0
        self._is_closed = False
        self._lock = threading.Lock()

    def append(self, content: bytes, path: str) -> int:
        """Write bytes and return their offset.

        Args:
            content: the bytes.
            path: the file that they are of, for errors.

        Raises:
            SourceError: the temporary file would have more than `max_bytes`, the disk is full, or `close` was
                called.
        """
        with self._lock:
            self._check_open()
            if self._num_bytes + len(content) > self._max_bytes:
                raise SourceError(
                    f"{path} needs more than max_temp_bytes={self._max_bytes} of the temporary file; raise "
                    "it in Source.options, or compress in gzip members or zstd frames of at most "
                    "max_group_bytes"
                )
            offset = self._num_bytes
            try:
                self._write(content, offset)
            except OSError as error:
                raise SourceError(
                    f"{path} needs a temporary file, and its folder cannot take {len(content)} bytes more "
                    f"after {offset}: {error.strerror}; set TMPDIR to a folder with more room"
                ) from error
            self._num_bytes += len(content)
            return offset

    def read(self, offset: int, size: int) -> bytes:
        """Bytes that were written. Raises SourceError after `close`."""
        with self._lock:  # so that the descriptor is not closed, and another file's, while it is read
            self._check_open()
            return os.pread(self._descriptor, size, offset)

    def close(self) -> None:
        """Free the file; twice is no error. Without, it is freed with this object."""
        with self._lock:
            self._close()
            self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise SourceError("the source is closed; open it anew to read on")

    def _write(self, content: bytes, offset: int) -> None:
        if self._descriptor < 0:
            self._descriptor, path = tempfile.mkstemp(prefix="msdata-")
            os.unlink(path)
            self._close = weakref.finalize(self, os.close, self._descriptor)
        rest = memoryview(content)
        while rest:
            written = os.pwrite(self._descriptor, rest, offset)
            rest, offset = rest[written:], offset + written
