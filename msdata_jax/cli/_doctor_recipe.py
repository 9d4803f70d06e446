"""The recipe of the job that `msdata doctor` starts: two sources in memory, two rows a training process."""

import os

import numpy as np

import msdata_jax as msd

TRAINERS_VARIABLE = "MSDATA_DOCTOR_TRAINERS"
NUM_STEPS = 20


class _Documents:
    """Documents of 1 to 16 tokens."""

    def __init__(self, first_token: int) -> None:
        self._first_token = first_token

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"tokens": np.arange(1 + index % 16, dtype=np.int32) + self._first_token}


recipe = msd.Recipe(
    sources={"low": msd.Source(_Documents(0)), "high": msd.Source(_Documents(100))},
    strategy=msd.DGraph()
    .mix({"low": 0.5, "high": 0.5})
    .pack(seq_len=32, rows=2 * int(os.environ.get(TRAINERS_VARIABLE, "1")))
    .distribute("dp")
    .balance("lpt"),
    seed=1,
)
