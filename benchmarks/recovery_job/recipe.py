"""Sources that are computed, not read: equal on every run, dear enough that loaders are always at work."""

import os
import signal
import time
from pathlib import Path

import numpy as np

import msdata_jax as msd

WORK_SECONDS = float(os.environ.get("MSDATA_CHAOS_WORK", "0.002"))
POISON = os.environ.get("MSDATA_CHAOS_POISON", "")
"""A record of the source `short`."""
PATCH_VALUES = 3072
LARGE_BYTES = 1 << 11


class Computed:
    """Records that follow from their number."""

    def __init__(self, num_records: int, longest: int, patches: int) -> None:
        self._num_records, self._longest, self._patches = num_records, longest, patches

    def __len__(self) -> int:
        return self._num_records

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        random = np.random.Generator(np.random.Philox(key=index + 7 * self._longest))
        tokens = random.integers(0, 1 << 15, random.integers(1, self._longest + 1)).astype(np.int32)
        if not self._patches:
            return {"tokens": tokens}
        count = int(random.integers(1, self._patches + 1))
        places = np.full(count, msd.IMAGE_TOKEN, np.int32)
        patches = random.integers(0, 256, (count, PATCH_VALUES)).astype(np.uint8)
        return {"tokens": np.concatenate([places, tokens]), "patches": patches}


def work(record: dict) -> dict:
    """As a decoder would, leave the interpreter to others while it takes its time; one record kills it."""
    time.sleep(WORK_SECONDS)
    if POISON and record["tokens"].tolist() == Computed(500, 60, 0)[int(POISON)]["tokens"].tolist():
        os.kill(os.getpid(), signal.SIGKILL)
    return record


folder = os.environ.get("MSDATA_CHAOS_FOLDER")
if folder:  # whoever makes the trouble must know whom to strike
    rank = os.environ.get("PMI_RANK", "0")
    Path(folder, f"rank-{rank}-{os.environ.get('MSDATA_ROLE', 'alone')}").write_text(str(os.getpid()))


def die_in_mid_send(large_array: int) -> None:
    """Let this rank kill itself once MPI has so many large arrays of it, with others still to come."""
    from msdata_transport import mpi

    send, given = mpi.MpiWire.start_send, []

    def start_send(wire: mpi.MpiWire, to: int, data: object) -> object:
        pending = send(wire, to, data)
        if memoryview(data).nbytes >= LARGE_BYTES:
            given.append(to)
            if len(given) == large_array:
                os.kill(os.getpid(), signal.SIGKILL)
        return pending

    mpi.MpiWire.start_send = start_send


victim, _, large_array = os.environ.get("MSDATA_CHAOS_MID_SEND", "").partition(":")
if victim and victim == os.environ.get("PMI_RANK"):
    die_in_mid_send(int(large_array))

recipe = msd.Recipe(
    sources={
        "short": msd.Source(Computed(500, 60, 0), [work], block_size=16, on_bad_sample="skip"),
        "long": msd.Source(Computed(300, 500, 0), [work], block_size=8),
        "images": msd.Source(Computed(200, 30, 150), [work], block_size=4),
        "rare": msd.Source(Computed(50, 200, 0), [work], block_size=8),
    },
    strategy=msd.DGraph()
    .mix({"short": 4, "long": 3, "images": 2, "rare": 1}, unit="samples")
    .pack(seq_len=512, rows=12, patches_per_row=320, patch_values=PATCH_VALUES, oversize="split")
    .distribute("dp")
    .balance("lpt"),
    seed=3,
)
