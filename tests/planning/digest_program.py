"""Plans a few steps of a mixture full of equal lengths and costs; prints one digest of them all."""

import hashlib

import numpy as np

from msdata_jax import costs
from msdata_jax.planning.graph import Composed, DGraph, initial_state
from msdata_jax.planning.place_tree import ClientPlaceTree, MeshLayout
from msdata_jax.records import info_dtype

names = ("web", "code", "photos")
graph = (
    DGraph()
    .mix(
        [(0, {"web": 5, "code": 3, "photos": 1}), (6, {"web": 1, "code": 3, "photos": 4})],
        interpolation="linear",
    )
    .pack(seq_len=512, rows=32, patches_per_row=128)
    .cost(
        backbone=costs.transformer(num_layers=12, d_model=768, vocab_size=32000),
        encoder=costs.vit(num_layers=12, d_model=768),
    )
    .distribute("dp", microbatches=2)
    .balance("lpt")
)
tree = ClientPlaceTree(
    MeshLayout(axis_names=("dp", "tp"), axis_sizes=(8, 2), process_of_device=(0,) * 16), ("tp",)
)
streams = []
for source in range(3):
    # A linear congruence: the numbers are the same wherever this runs.
    drawn = (np.arange(3000, dtype=np.int64) * 1103515245 + 12345 * (source + 1)) % 2**31 // 2**16
    infos = np.zeros(3000, dtype=info_dtype())
    infos["source"], infos["position"] = source, np.arange(3000)
    infos["tokens"] = 16 * (1 + drawn % 24)
    infos["patches"] = 16 * (drawn % 4) * (source == 2)
    streams.append(infos)

digest = hashlib.blake2b(digest_size=16)
state, taken = initial_state(3), np.zeros(3, dtype=np.int64)
for _ in range(6):
    ahead = [stream[count:] for stream, count in zip(streams, taken, strict=True)]
    composed = graph.compose(state, names, ahead, [False] * 3)
    assert isinstance(composed, Composed), composed
    state, taken = composed.state, taken + composed.drawn
    digest.update(graph.place(composed.plan, tree).digest().encode())
print(digest.hexdigest())
