"""Opens the files of a source, and reads them; `conftest` closes behind each test what was opened."""

import threading
from collections.abc import Callable

import numpy as np

from msdata_jax.sources.files import FileRecords, open_files

OPENED: list[FileRecords] = []


def opened(path, options=None, *, keep_damaged=False) -> FileRecords:
    OPENED.append(open_files(str(path), options or {}, keep_damaged=keep_damaged))
    return OPENED[-1]


def read_all(records: FileRecords) -> list:
    return records.read(np.arange(len(records)))


def on_threads(read: Callable[[int], object]) -> None:
    """Call `read` with the numbers 0 to 3 on four threads at once; all of them end."""
    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
