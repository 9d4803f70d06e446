"""Published length distributions for the planner's benchmark: samples, costs, and whole strategies."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

import msdata_jax as msd
from benchmarks.peers.data import TEXT_SHARE, draw_lengths
from benchmarks.peers.work import NUM_PATCHES
from msdata_jax.planning.graph import Composed, DGraph, StreamState, initial_state
from msdata_jax.planning.place_tree import ClientPlaceTree, MeshLayout
from msdata_jax.records import info_dtype
from msdata_jax.simulate.distributions import Samples, draw

CONTEXTS = {"text_pile": 32768, "text_wlb": 131072, "coyo": 8192, "mix": 32768}
"""Places in a row, at least the longest sample."""
COLUMNS = ("images",)
SHARES = {"first": 4, "second": 3, "third": 2, "fourth": 1}
"""Sources, all of one distribution, and the weights that they are mixed by."""

BACKBONE = msd.costs.transformer(num_layers=45, d_model=4608)
ENCODERS = {
    "vit-1b": msd.costs.vit(num_layers=40, d_model=1408, d_ff=6144, images_column="images"),
    "vit-2b": msd.costs.vit(num_layers=48, d_model=1664, d_ff=8192, images_column="images"),
}


def sample_infos(distribution: str, count: int, seed: int) -> np.ndarray:
    """SampleInfo records `[count]` with the column `images`, of source 0."""
    return _infos(draw(distribution, CONTEXTS[distribution], count, np.random.default_rng(seed)), 0)


def cut_infos(cut: int, count: int, seed: int) -> np.ndarray:
    """SampleInfo records `[count]` of lengths as `benchmarks.peers.data` writes, cut at so many tokens."""
    rng = np.random.default_rng(seed)
    lengths = draw_lengths(rng, count, longest=cut)
    lengths[rng.random(count) >= TEXT_SHARE] = NUM_PATCHES
    return _infos(Samples(tokens=lengths, patches=0 * lengths, images=0 * lengths), 0)


def _infos(samples: Samples, source: int) -> np.ndarray:
    infos = np.zeros(len(samples), info_dtype(COLUMNS))
    infos["source"], infos["position"] = source, np.arange(len(samples))
    infos["tokens"], infos["patches"], infos["images"] = samples.tokens, samples.patches, samples.images
    infos["num_bytes"] = 4 * samples.tokens
    return infos


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A strategy, where it stands, and its sources' samples from there on, about two steps of them."""

    graph: DGraph
    tree: ClientPlaceTree
    ahead: Sequence[np.ndarray]
    state: StreamState

    def compose(self) -> Composed:
        """The step that comes next."""
        composed = self.graph.compose(self.state, tuple(SHARES), self.ahead, [False] * len(SHARES))
        if not isinstance(composed, Composed):
            raise RuntimeError(f"a step could not be composed of what is ahead: {composed}")
        return composed

    def after(self, composed: Composed) -> "Stream":
        """The same behind a step."""
        ahead = [infos[n:] for infos, n in zip(self.ahead, composed.drawn.tolist(), strict=True)]
        return replace(self, ahead=ahead, state=composed.state)


def make_stream(distribution: str, num_groups: int, num_samples: int, seed: int = 0) -> Stream:
    """A strategy whose steps hold about `num_samples` samples.

    A group has as many microbatches of one row as those samples fill, and one at least: where a row of
    each group holds more samples than that, so does the step. The first step is behind, so that samples are
    carried over from it.
    """
    seq_len = CONTEXTS[distribution]
    mean_tokens = float(sample_infos(distribution, 50_000, seed=2**20)["tokens"].mean())
    microbatches = max(1, round(num_samples * mean_tokens / (num_groups * seq_len)))
    rows = num_groups * microbatches
    graph = (
        DGraph()
        .mix(SHARES, unit="tokens")
        .pack(seq_len=seq_len, rows=rows, patches_per_row=4 * seq_len)
        .cost(backbone=BACKBONE, encoder=ENCODERS["vit-1b"])
        .distribute("dp", microbatches=microbatches)
    )
    layout = MeshLayout(
        axis_names=("dp",), axis_sizes=(num_groups,), process_of_device=tuple(range(num_groups))
    )
    rng = np.random.default_rng(seed)
    ahead = []
    for source, weight in enumerate(SHARES.values()):
        count = 3.2 * (rows + 2) * seq_len / mean_tokens * weight / sum(SHARES.values())
        ahead.append(_infos(draw(distribution, seq_len, int(count) + 64, rng), source))
    state = initial_state(len(SHARES), COLUMNS)
    stream = Stream(graph=graph, tree=ClientPlaceTree(layout), ahead=ahead, state=state)
    return stream.after(stream.compose())
