"""A training loop that takes a fixed time a step, and says how long it waited for each and what it got.

usage: train.py REPORT STEPS SECONDS_PER_STEP
"""

import hashlib
import json
import sys
import time
from pathlib import Path

from recipe import recipe

import msdata_jax as msd

report, num_steps, step_seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
msd.initialize(use_jax=False)
waits: list[float] = []
begins: list[float] = []
digest = hashlib.blake2b(digest_size=16)
with msd.DataLoader(recipe, num_steps=num_steps) as loader:
    for _ in range(num_steps):
        before = time.monotonic()
        batch = next(loader)
        begins.append(time.monotonic())
        waits.append(begins[-1] - before)
        for name in sorted(batch):
            digest.update(batch[name])
        time.sleep(max(begins[-1] + step_seconds - time.monotonic(), 0.0))
end = time.monotonic()
report.write_text(json.dumps({"waits": waits, "begins": begins, "end": end, "digest": digest.hexdigest()}))
