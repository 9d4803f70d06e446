"""A process that reads sources of `recipe.py` on its own, without planner, packing or messages.

`floor` reads what a job consumed, on one thread, and reports time. `every-source` is a loader inside one of
several training processes: it opens every source, reads its share, and reports memory while the others still
run (it says `ready` and waits for a line on stdin).
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from recipe import recipe

from msdata_jax.records import Block
from msdata_jax.runtime.figures import pss_mb
from msdata_jax.sources.reader import SourceReader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("floor", "every-source"))
    parser.add_argument("--counts", type=Path, help="floor: JSON file with samples by source")
    parser.add_argument("--share", type=int, default=0, help="every-source: which share, from 0")
    parser.add_argument("--shares", type=int, default=1, help="every-source: of how many")
    options = parser.parse_args()
    if options.what == "floor":
        report = floor(json.loads(options.counts.read_text()))
    else:
        report = every_source(options.share, options.shares)
    print(json.dumps(report), flush=True)


def open_reader(name: str) -> SourceReader:
    index = recipe.source_names.index(name)
    return SourceReader(name, index, recipe.sources[name], seed=recipe.seed)


def floor(counts: dict[str, int]) -> dict[str, Any]:
    """Read blocks of each source until it gave as many samples as `counts` says."""
    readers = {name: open_reader(name) for name in counts}
    samples, tokens = 0, 0
    cpu_begin, begin = time.process_time(), time.perf_counter()
    for name, reader in readers.items():
        size = recipe.sources[name].block_size
        start, missing = 0, counts[name]
        while missing > 0:
            infos = reader.read_block(start, start + size).infos[:missing]
            start, missing = start + size, missing - len(infos)
            samples += len(infos)
            tokens += int(infos["tokens"].sum())
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu_begin
    return {"seconds": seconds, "cpu_seconds": cpu, "samples": samples, "tokens": tokens}


def every_source(share: int, num_shares: int) -> dict[str, Any]:
    """Open all sources and hold this process's share of one block of each."""
    before_mb = pss_mb()
    readers: list[SourceReader] = []
    blocks: list[Block] = []
    first_mb = 0.0
    for name in recipe.source_names:
        size = max(1, recipe.sources[name].block_size // num_shares)
        readers.append(open_reader(name))
        blocks.append(readers[-1].read_block(share * size, (share + 1) * size))
        first_mb = first_mb or pss_mb()
    print("ready", flush=True)
    input()
    return {
        "before_mb": before_mb,
        "first_mb": first_mb,
        "pss_mb": pss_mb(),
        "readers": len(readers),
        "open_files": sum(reader.num_open_files for reader in readers),
        "samples": sum(len(block.samples) for block in blocks),
    }


main()
