"""ArrayRecord: records of bytes with checksums and random access, fastest if written with `group_size:1`."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from msdata_jax.errors import SourceError
from msdata_jax.sources.protocol import BadRecord, one_line, require


@dataclass(frozen=True, kw_only=True)
class ArrayRecordFormat:
    """ArrayRecord.

    Attributes:
        reader_options: for `ArrayRecordReader`; the default reads only what is asked for, with no threads.
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
        try:
            if not handle.ok():
                raise SourceError(
                    f"{path} is not a readable ArrayRecord file: it has no footer, is cut short or was never "
                    "closed; write it again"
                )
            self._num_records = handle.num_records()
        finally:
            handle.close()

    def __len__(self) -> int:
        return self._num_records

    def open(self) -> Any:
        """An `ArrayRecordReader`."""
        module = require("array_record.python.array_record_module", "arrayrecord")
        try:
            return module.ArrayRecordReader(self._path, self._reader_options)
        except (RuntimeError, ValueError) as error:
            raise SourceError(f"{self._path} cannot be opened: {one_line(error)}") from error

    def read(self, handle: Any, indices: np.ndarray) -> list[Any]:
        """One batched read; one by one where that fails, to find out which records are bad."""
        try:
            return [{"record": record} for record in handle.read(indices.tolist())]
        except RuntimeError:
            return [self._read_one(handle, index) for index in indices.tolist()]

    def _read_one(self, handle: Any, index: int) -> Any:
        try:
            return {"record": handle.read([index])[0]}
        except RuntimeError as error:
            return BadRecord(f"record {index}: {one_line(error, [self._path])}")
