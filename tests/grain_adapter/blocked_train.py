"""Closes its iterator while a read waits for a loader that waits for ever.

usage: blocked_train.py OUT raw|prefetch
"""

import json
import sys
import threading
import time
from pathlib import Path

from blocked_recipe import recipe

import msdata_jax as msd

processes = msd.initialize(num_cpu_devices=2)

import grain  # noqa: E402
import jax  # noqa: E402

from msdata_jax.grain import MSDataset  # noqa: E402


def main() -> None:
    dataset = MSDataset(recipe, mesh=jax.make_mesh((4,), ("dp",)), as_numpy=True)
    if sys.argv[2] == "prefetch":
        dataset = grain.experimental.ThreadPrefetchIterDataset(dataset, prefetch_buffer_size=2)
    iterator = iter(dataset)
    steps = []
    two_came = threading.Event()

    def read() -> None:
        """Two steps are whole in the first two blocks; the third never comes."""
        try:
            for batch in iterator:
                steps.append(batch)
                if len(steps) == 2:
                    two_came.set()
        except (ValueError, msd.MSDataError):
            pass

    threading.Thread(target=read, daemon=True).start()
    assert two_came.wait(60)
    begin = time.monotonic()
    iterator.close()
    seconds = time.monotonic() - begin
    (Path(sys.argv[1]) / f"closed{processes.process_index}.json").write_text(json.dumps(seconds))


main()
