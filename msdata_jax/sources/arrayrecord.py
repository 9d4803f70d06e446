"""ArrayRecord: records of bytes with checksums and random access, fastest if written with `group_size:1`."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from msdata_jax.errors import SourceError
from msdata_jax.sources import storage
from msdata_jax.sources.protocol import BadRecord, one_line, require, says_transient


@dataclass(frozen=True, kw_only=True)
class ArrayRecordFormat:
    """ArrayRecord.

    Attributes:
        reader_options: for `ArrayRecordReader`; the default reads only what is asked for. The library
            starts 64 threads with its first reader, whatever the options say.
    """

    reader_options: str = "readahead_buffer_size:0,max_parallelism:0"
    window_groups = 1

    def index(self, path: str) -> "ArrayRecordFile":
        """Read the footer. Raises SourceError where there is none."""
        return ArrayRecordFile(path, self.reader_options)


class ArrayRecordFile:
    """One file: the number of its records. A record is `{"record": bytes}`."""

    group_sizes = None

    def __init__(self, path: str, reader_options: str) -> None:
        self._path = path
        self._reader_options = reader_options
        handle = self.open()
        self._num_records = handle.reader.num_records()
        is_whole = handle.reader.ok()
        reason = handle.close()
        if not is_whole:
            raise SourceError(
                f"{path} is not a readable ArrayRecord file, cut short, damaged or never closed: {reason}; "
                "write it again"
            )

    def __len__(self) -> int:
        return self._num_records

    def open(self) -> "_Handle":
        """An `ArrayRecordReader`; of a remote file on its copy in the disk cache."""
        module = require("array_record.python.array_record_module", "arrayrecord")
        return _Handle(module.ArrayRecordReader(storage.local_copy(self._path), self._reader_options))

    def read(self, handle: "_Handle", indices: np.ndarray) -> list[Any]:
        """One batched read; one by one where that fails, to find out which records are bad."""
        try:
            return [{"record": record} for record in handle.reader.read(indices.tolist())]
        except RuntimeError:
            return [self._read_one(handle, index) for index in indices.tolist()]

    def _read_one(self, handle: "_Handle", index: int) -> Any:
        try:
            return {"record": handle.reader.read([index])[0]}
        except RuntimeError as error:
            return BadRecord(
                f"record {index}: {one_line(error, [self._path])}", transient=says_transient(str(error))
            )


class _Handle:
    """A reader whose `close` does not raise: it would tell once more of a record that was found to be bad."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader

    def close(self) -> str:
        """Close the file; says what was wrong with it."""
        try:
            self.reader.close()
        except RuntimeError as error:
            return one_line(error)
        return ""
