"""Plans a few steps of strategies full of equal lengths and costs; prints a digest for each strategy."""

import hashlib

import numpy as np

from msdata_jax import costs
from msdata_jax.planning.graph import Composed, DGraph, Gathered, initial_state
from msdata_jax.planning.place_tree import MeshLayout
from msdata_jax.records import info_dtype

NAMES = ("web", "code", "photos")
NUM_STEPS = 6

mixed = (
    DGraph()
    .mix(
        [(0, {"web": 5, "code": 3, "photos": 1}), (6, {"web": 1, "code": 3, "photos": 4})],
        interpolation="linear",
    )
    .cost(
        backbone=costs.transformer(num_layers=12, d_model=768, vocab_size=32000),
        encoder=costs.vit(num_layers=12, d_model=768),
    )
    .distribute("dp", microbatches=2)
)
packed = mixed.pack(seq_len=512, rows=32, patches_per_row=128)
decoder = costs.transformer(num_layers=12, d_model=768, causal=False)
text = packed.mix({"web": 5, "code": 3, "photos": 0}, unit="tokens").cost(backbone=decoder)
strategies = {
    "lpt": text.balance("lpt", refine=False),
    "refined": text.balance("lpt"),
    "karmarkar_karp": text.balance("karmarkar_karp"),
    "snake": text.balance("snake"),
    "two_costs": packed.balance("lpt"),
    "pipeline": packed.distribute("dp", microbatches=2, pipeline_axis="pp").balance(objective="pipeline"),
    "microbatch": packed.balance(objective="microbatch"),
    "groups": packed.distribute("dp", microbatches=2, group_size=4).balance(objective="microbatch"),
    "buckets": mixed.bucket({128: 64, 512: 32}, patches_per_row=128).balance("lpt"),
    "split": text.pack(seq_len=96, rows=32, oversize="split").balance("lpt"),
    "regroup": packed.regroup(steps=3).balance("lpt"),
    "first_fit": mixed.pack(seq_len=512, rows=32, patches_per_row=128, method="first_fit").balance("lpt"),
    "cheapest_fit": mixed.pack(seq_len=512, rows=32, patches_per_row=128, method="balanced").balance("lpt"),
    "together": text.pack(seq_len=512, rows=32, together="position").balance("lpt"),
}

layout = MeshLayout(axis_names=("dp", "pp", "tp"), axis_sizes=(8, 3, 2), process_of_device=(0,) * 48)
streams = []
for source in range(3):
    # A linear congruence: the numbers are the same wherever this runs.
    drawn = (np.arange(4000, dtype=np.int64) * 1103515245 + 12345 * (source + 1)) % 2**31 // 2**16
    infos = np.zeros(4000, dtype=info_dtype())
    infos["source"], infos["position"], infos["part"] = source, np.arange(4000) // 2, np.arange(4000) % 2
    infos["tokens"] = 16 * (1 + drawn % 15)
    infos["patches"] = 16 * (drawn % 4) * (source == 2)
    streams.append(infos)


def digest(graph: DGraph) -> str:
    """Of the first steps, content and placement."""
    tree = graph.place_tree(layout)
    graph.check_mesh(tree)
    state, taken, digest = initial_state(3), np.zeros(3, dtype=np.int64), hashlib.blake2b(digest_size=16)
    while state.step < NUM_STEPS:
        ahead = [stream[count:] for stream, count in zip(streams, taken, strict=True)]
        composed = graph.compose(state, NAMES, ahead, [False] * 3)
        assert isinstance(composed, Composed | Gathered), composed
        state, taken = composed.state, taken + composed.drawn
        if isinstance(composed, Composed):
            digest.update(graph.place(composed.plan, tree).digest.encode())
    return digest.hexdigest()


for name, graph in strategies.items():
    print(name, digest(graph))
