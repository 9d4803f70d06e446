"""Divides items full of equal costs in every way there is; prints one digest of all parts."""

import hashlib

import numpy as np

from msdata_jax.planning.giants import context_degrees
from msdata_jax.planning.partitioning import METHODS, partition

digest = hashlib.blake2b(digest_size=16)
for count, num_parts in ((64, 8), (960, 64), (7680, 512), (12_000, 100)):
    # A linear congruence: the numbers are the same wherever this runs.
    drawn = (np.arange(2 * count, dtype=np.int64) * 1103515245 + 12345) % 2**31 // 2**16
    tokens, patches = (16 * (1 + drawn % 24) ** 2).reshape(2, count)
    patches[::3] = 0
    tokens[::331] *= 400
    parts = [
        partition(tokens, num_parts, method, equal_counts=equal, refine=refine)
        for method in METHODS
        for equal in (False, True)
        for refine in (False, True)
    ]
    vector = np.stack([tokens, patches])
    parts += [partition(vector, num_parts, equal_counts=equal) for equal in (False, True)]
    room = int(tokens.max() + tokens.sum() // num_parts * 21 // 20)
    parts.append(partition(patches, num_parts, sizes=tokens, cap=room, refine=True))
    shared = context_degrees(tokens, num_parts)
    for array in (*parts, shared.part, shared.degree, shared.loads):
        digest.update(array.astype("<i8").tobytes())
print(digest.hexdigest())
