"""Opens the files of a source; `conftest` closes behind each test what was opened."""

import numpy as np

from msdata_jax.sources.files import FileRecords, open_files

OPENED: list[FileRecords] = []


def opened(path, options=None, *, keep_damaged=False) -> FileRecords:
    OPENED.append(open_files(str(path), options or {}, keep_damaged=keep_damaged))
    return OPENED[-1]


def read_all(records: FileRecords) -> list:
    return records.read(np.arange(len(records)))
