"""Work per sample from its metadata, as integers (a plan must not depend on how floats are summed).

Costs are in millions of floating-point operations (MFLOP), forward and backward pass together, the backward
pass counted as twice the forward one.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from msdata_jax.errors import RecipeError

BACKWARD_AND_FORWARD = 3
MEGA = 1_000_000


class Cost(Protocol):
    """Work of each sample."""

    def __call__(self, infos: np.ndarray) -> np.ndarray:
        """int64 `[samples]` from SampleInfo records, each at least 0."""
        ...


@dataclass(frozen=True, kw_only=True)
class TransformerCost:
    """A dense decoder: `3 * (2 P L + 2 n d L^2)` for a causal sample of L places.

    `P` counts the weights that every token meets (attention `4 d^2`, gated MLP `3 d f` per layer, and the
    output head `d V`); scores and values cost `4 d L^2` a layer, halved by the causal mask (PaLM, arXiv
    2204.02311, appendix B). Samples of a packed row are masked from each other, so a row costs the sum over
    its samples.
    """

    num_layers: int
    d_model: int
    d_ff: int
    vocab_size: int = 0
    causal: bool = True

    def __call__(self, infos: np.ndarray) -> np.ndarray:
        """MFLOP of each sample from its `tokens`."""
        weights = self.num_layers * (4 * self.d_model**2 + 3 * self.d_model * self.d_ff)
        weights += self.d_model * self.vocab_size
        pairs = self.num_layers * self.d_model * (2 if self.causal else 4)
        return _mflop(infos["tokens"], 2 * weights, pairs)


@dataclass(frozen=True, kw_only=True)
class VitCost:
    """A vision encoder: `3 * (2 P p + 4 n d p^2)` for an image of p patches (bidirectional attention)."""

    num_layers: int
    d_model: int
    d_ff: int
    patch_values: int = 768

    def __call__(self, infos: np.ndarray) -> np.ndarray:
        """MFLOP of each sample from its `patches`."""
        weights = self.num_layers * (4 * self.d_model**2 + 2 * self.d_model * self.d_ff)
        weights += self.patch_values * self.d_model
        return _mflop(infos["patches"], 2 * weights, 4 * self.num_layers * self.d_model)


def _mflop(lengths: np.ndarray, per_place: int, per_pair: int) -> np.ndarray:
    """Millions of operations, rounded down, and one more so that no sample is free."""
    lengths = lengths.astype(np.int64)
    pairs = lengths * lengths
    # Millions and remainders apart, so that a million places of a large model stay inside int64.
    place_mega, place_rest = divmod(BACKWARD_AND_FORWARD * per_place, MEGA)
    pair_mega, pair_rest = divmod(BACKWARD_AND_FORWARD * per_pair, MEGA)
    whole = lengths * place_mega + pairs * pair_mega
    return whole + (lengths * place_rest + pairs * pair_rest) // MEGA + (lengths > 0)


def transformer(
    *, num_layers: int, d_model: int, d_ff: int | None = None, vocab_size: int = 0, causal: bool = True
) -> TransformerCost:
    """Cost of a dense transformer decoder; see `TransformerCost`.

    Args:
        num_layers: layers, at least 1.
        d_model: width, at least 1.
        d_ff: hidden width of the gated MLP; None for `8/3 d_model`, as is usual with gating.
        vocab_size: entries of the output head; 0 leaves the head out.
        causal: whether a place attends to earlier places only.
    """
    _check_sizes(num_layers=num_layers, d_model=d_model, d_ff=d_ff)
    if vocab_size < 0:
        raise RecipeError(f"vocab_size is at least 0, got {vocab_size}")
    return TransformerCost(
        num_layers=num_layers,
        d_model=d_model,
        d_ff=d_ff or 8 * d_model // 3,
        vocab_size=vocab_size,
        causal=causal,
    )


def vit(*, num_layers: int, d_model: int, d_ff: int | None = None, patch_values: int = 768) -> VitCost:
    """Cost of a vision transformer encoder; see `VitCost`. `d_ff` defaults to `4 d_model`."""
    _check_sizes(num_layers=num_layers, d_model=d_model, d_ff=d_ff, patch_values=patch_values)
    return VitCost(
        num_layers=num_layers, d_model=d_model, d_ff=d_ff or 4 * d_model, patch_values=patch_values
    )


def _check_sizes(**sizes: int | None) -> None:
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise RecipeError(f"{name} is at least 1, got {size}")


def sample_costs(infos: np.ndarray, backbone: Cost | None, encoder: Cost | None) -> np.ndarray:
    """Total work of each sample; the number of places where no formula is given.

    Raises:
        RecipeError: a cost function returned another shape, a negative number or no integers.
    """
    parts = [part for part in (backbone, encoder) if part is not None]
    if not parts or not len(infos):
        return infos["tokens"].astype(np.int64)
    total = np.zeros(len(infos), dtype=np.int64)
    for part in parts:
        costs = np.asarray(part(infos))
        if costs.shape != (len(infos),) or costs.dtype.kind not in "iu":
            raise RecipeError(
                f"a cost gives one integer for each of the {len(infos)} samples; "
                f"{part!r} gave {costs.dtype} of shape {costs.shape}"
            )
        if len(costs) and costs.min() < 0:
            raise RecipeError(f"a cost is at least 0; {part!r} gave {costs.min()}")
        total += costs.astype(np.int64)
    return total
