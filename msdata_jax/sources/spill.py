"""A temporary file without a name, for what is too large to keep in memory; it goes with its owner."""

import os
import tempfile
import threading
import weakref

from msdata_jax.errors import SourceError


class Spill:
    """Bytes on disk in the folder for temporary files (`TMPDIR`), which the system frees with the process.

    Args:
        max_bytes: of the file.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._descriptor = -1
        self._num_bytes = 0
        self._lock = threading.Lock()

    def append(self, content: bytes) -> int:
        """Write bytes and return their offset.

        Raises:
            SourceError: the file would have more than `max_bytes`, or the disk is full.
        """
        with self._lock:
            if self._num_bytes + len(content) > self._max_bytes:
                raise SourceError(f"more than max_temp_bytes={self._max_bytes} would be written")
            offset = self._num_bytes
            try:
                self._write(content, offset)
            except OSError as error:
                raise SourceError(
                    f"{tempfile.gettempdir()} cannot take {len(content)} bytes more after {offset}: "
                    f"{error.strerror}; set TMPDIR to a folder with more room"
                ) from error
            self._num_bytes += len(content)
            return offset

    def read(self, offset: int, size: int) -> bytes:
        """Bytes that were written."""
        return os.pread(self._descriptor, size, offset)

    def _write(self, content: bytes, offset: int) -> None:
        if self._descriptor < 0:
            self._descriptor, path = tempfile.mkstemp(prefix="msdata-")
            os.unlink(path)
            weakref.finalize(self, os.close, self._descriptor)
        rest = memoryview(content)
        while rest:
            written = os.pwrite(self._descriptor, rest, offset)
            rest, offset = rest[written:], offset + written
