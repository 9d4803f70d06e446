"""A training script for chaos: says at every step what it got, byte for byte, and when.

usage: train.py OUT STEPS SECONDS_PER_STEP
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

from recipe import recipe

import msdata_jax as msd

out, num_steps, step_seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
journal = os.environ.get("MSDATA_CHAOS_JOURNAL")
written = out / "steps.jsonl"
seen = written.read_text().count("\n") if written.exists() else 0  # of an earlier run that died
msd.initialize(use_jax=False)
with (
    written.open("a", buffering=1) as log,
    msd.DataLoader(recipe, num_steps=num_steps, journal=Path(journal) if journal else None) as loader,
):
    if seen:
        loader.restore_journal(Path(journal), step=seen)
    for batch in loader:
        expect = loader.last_step
        digest = hashlib.blake2b(digest_size=16)
        for name in sorted(batch):
            digest.update(name.encode())
            digest.update(batch[name])
        keys = [expect.infos[name].tolist() for name in ("source", "position", "part")]
        line = {
            "step": expect.step,
            "digest": digest.hexdigest(),
            "samples": list(zip(*keys, expect.start.tolist(), strict=True)),
            "at": time.monotonic(),
        }
        log.write(json.dumps(line) + "\n")
        time.sleep(step_seconds)
(out / "figures.json").write_text(json.dumps(dict(loader.job_figures)))
