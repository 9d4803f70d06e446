"""Work and memory of a sample from its metadata, in integers (a plan may not depend on how floats sum).

Formulas count millions of floating-point operations (MFLOP), forward and backward pass together, the backward
pass counted as twice the forward one; fitted tables count nanoseconds; memory counts bytes. Costs that are
added (backbone and encoder) have to be in one unit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np

from msdata_jax.errors import RecipeError
from msdata_jax.records import BASE_COLUMNS

BACKWARD_AND_FORWARD = 3
MEGA = 1_000_000
MAX = 2**63 - 1

Recompute = Literal["none", "selective", "full"]


class Cost(Protocol):
    """Work of each sample. A cost may name the metadata columns that it reads in an attribute `columns`."""

    def __call__(self, infos: np.ndarray, /) -> np.ndarray:
        """int64 `[samples]` from SampleInfo records, each at least 0."""
        ...


# --- formulas -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TransformerCost:
    """A decoder: `3 * (2 P L + 2 n q L^2)` for a causal sample of L places.

    `P` (`weights`) counts the weights that every token meets: `2 d (q + k)` a layer for attention, with `q`
    and `k` the widths of all query and all key heads (`4 d^2` where both are `d`), `3 d f` for a gated MLP or
    for each active expert, `d E` for the router of `E` experts, and once `d V` for the output head. Scores
    and values cost `4 q L^2` a layer whatever the number of key heads, halved by the causal mask (PaLM, arXiv
    2204.02311, appendix B). A window of `w` places puts `m (2 L - m)` for `L^2`, with `m = min(L, w)`;
    without the mask, `L m`.

    Samples of a packed row are masked from each other, so a row costs the sum over its samples.
    """

    num_layers: int
    d_model: int
    d_ff: int
    vocab_size: int = 0
    causal: bool = True
    num_heads: int = 1
    num_kv_heads: int | None = None
    head_dim: int | None = None
    window: int | None = None
    full_layers: int = 0
    num_experts: int = 0
    experts_per_token: int = 1
    shared_d_ff: int = 0

    def __post_init__(self) -> None:
        """Refuse sizes that mean nothing or do not fit together."""
        check_sizes(1, **{name: getattr(self, name) for name in _AT_LEAST_1})
        check_sizes(0, **{name: getattr(self, name) for name in _AT_LEAST_0})
        if self.head_dim is None and self.d_model % self.num_heads:
            raise RecipeError(
                f"d_model={self.d_model} does not divide by num_heads={self.num_heads}; give the head_dim"
            )
        if self.num_heads % (self.num_kv_heads or 1):
            raise RecipeError(
                f"num_heads={self.num_heads} does not divide by num_kv_heads={self.num_kv_heads}"
            )
        if self.full_layers and (self.window is None or self.full_layers > self.num_layers):
            raise RecipeError(
                f"full_layers are those of num_layers={self.num_layers} without the window={self.window}; "
                f"got {self.full_layers}"
            )
        if self.experts_per_token > (self.num_experts or 1):
            raise RecipeError(
                f"experts_per_token={self.experts_per_token} is more than num_experts={self.num_experts}"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return ("tokens",)

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * (self.head_dim or self.d_model // self.num_heads)

    @property
    def weights(self) -> int:
        """Weights that one token meets, without the embedding table, which is looked up."""
        key_width = self.query_width // self.num_heads * (self.num_kv_heads or self.num_heads)
        attention = 2 * self.d_model * (self.query_width + key_width)
        mlp = 3 * self.d_model * (self.experts_per_token * self.d_ff + self.shared_d_ff)
        router = self.d_model * self.num_experts
        return self.num_layers * (attention + mlp + router) + self.d_model * self.vocab_size

    def __call__(self, infos: np.ndarray) -> np.ndarray:
        """MFLOP of each sample from its `tokens`."""
        lengths = infos["tokens"].astype(np.int64)
        check_range(self, self.num_layers * largest(lengths) ** 2, "pairs of places in a sample")
        pairs = self._pairs(lengths)
        return _mflop(self, lengths, pairs, 2 * self.weights, (2 if self.causal else 4) * self.query_width)

    def _pairs(self, lengths: np.ndarray) -> np.ndarray:
        if self.window is None:
            return self.num_layers * lengths * lengths
        near = np.minimum(lengths, self.window)
        near *= 2 * lengths - near if self.causal else lengths
        return self.full_layers * lengths * lengths + (self.num_layers - self.full_layers) * near


_AT_LEAST_1 = (
    *("num_layers", "d_model", "d_ff", "num_heads", "num_kv_heads", "head_dim", "window"),
    *("experts_per_token",),
)
_AT_LEAST_0 = ("vocab_size", "full_layers", "num_experts", "shared_d_ff")


@dataclass(frozen=True, kw_only=True)
class VitCost:
    """A vision encoder: `3 * (2 P p + 4 n d s)` for p patches whose images have `s = sum(p_i^2)` pairs.

    Attention is bidirectional and stays inside an image; `costs.vit` says what may be known of `s`.
    """

    num_layers: int
    d_model: int
    d_ff: int
    patch_values: int = 768
    images_column: str | None = None
    pairs_column: str | None = None

    def __post_init__(self) -> None:
        """Refuse sizes that mean nothing, and two ways to count the pairs."""
        check_sizes(
            1,
            num_layers=self.num_layers,
            d_model=self.d_model,
            d_ff=self.d_ff,
            patch_values=self.patch_values,
        )
        if self.images_column is not None and self.pairs_column is not None:
            raise RecipeError(
                f"pairs come from the number of images or are measured, not both; "
                f"got images_column={self.images_column!r} and pairs_column={self.pairs_column!r}"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return ("patches", *(name for name in (self.images_column, self.pairs_column) if name is not None))

    def __call__(self, infos: np.ndarray) -> np.ndarray:
        """MFLOP of each sample from its `patches`."""
        weights = self.num_layers * (4 * self.d_model**2 + 2 * self.d_model * self.d_ff)
        weights += self.patch_values * self.d_model
        patches = infos["patches"].astype(np.int64)
        if self.pairs_column is not None:
            pairs = infos[self.pairs_column].astype(np.int64)
        else:
            check_range(self, largest(patches) ** 2, "pairs of patches in a sample")
            pairs = patches * patches
            if self.images_column is not None:
                pairs //= np.maximum(infos[self.images_column], 1)
        return _mflop(self, patches, pairs, 2 * weights, 4 * self.num_layers * self.d_model)


@dataclass(frozen=True, kw_only=True)
class MemoryCost:
    """Bytes of activations that a transformer keeps for the backward pass; see `costs.memory`."""

    num_layers: int
    d_model: int
    recompute: Recompute = "selective"
    num_heads: int | None = None
    bytes_per_width: int = 34

    def __post_init__(self) -> None:
        """Refuse sizes that mean nothing, and stored scores of an unknown number of heads."""
        check_sizes(
            1,
            num_layers=self.num_layers,
            d_model=self.d_model,
            num_heads=self.num_heads,
            bytes_per_width=self.bytes_per_width,
        )
        if self.recompute not in get_args(Recompute):
            raise RecipeError(f"recompute is one of {get_args(Recompute)}, got {self.recompute!r}")
        if self.recompute == "none" and self.num_heads is None:
            raise RecipeError("memory(recompute='none') stores the scores of each head; give num_heads")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return ("tokens",)

    def __call__(self, infos: np.ndarray) -> np.ndarray:
        """Bytes of each sample from its `tokens`."""
        lengths = infos["tokens"].astype(np.int64)
        per_place = self.num_layers * self.d_model * (2 if self.recompute == "full" else self.bytes_per_width)
        per_pair = 5 * self.num_layers * (self.num_heads or 0) if self.recompute == "none" else 0
        longest = largest(lengths)
        check_range(self, longest * (per_place + longest * per_pair), "bytes in a sample")
        return lengths * (per_place + lengths * per_pair)


@dataclass(frozen=True, kw_only=True)
class ColumnCost:
    """`scale` times a metadata column; see `costs.column`."""

    column: str
    scale: int = 1

    def __post_init__(self) -> None:
        """Refuse a scale that is not a whole number of units."""
        check_sizes(1, scale=self.scale)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return (self.column,)

    def __call__(self, infos: np.ndarray) -> np.ndarray:
        """`scale` times the column."""
        values = infos[self.column].astype(np.int64)
        check_range(self, self.scale * largest(values), "in a sample")
        return self.scale * values


def _mflop(cost: Cost, lengths: np.ndarray, pairs: np.ndarray, per_place: int, per_pair: int) -> np.ndarray:
    """Millions of operations, rounded down, and one more so that no sample is free. Overwrites `pairs`."""
    per_place, per_pair = BACKWARD_AND_FORWARD * per_place, BACKWARD_AND_FORWARD * per_pair
    longest, most = largest(lengths), largest(pairs)
    check_range(cost, (longest * per_place + most * per_pair) // MEGA + 1, "MFLOP in a sample")
    check_range(cost, MEGA * (longest + per_pair), "operations for a remainder of a million pairs")
    # Millions and remainders apart, so that a million places of a large model stay inside int64.
    place_mega, place_rest = divmod(per_place, MEGA)
    mega = pairs // MEGA
    pairs -= mega * MEGA
    pairs *= per_pair
    pairs += lengths * place_rest
    pairs //= MEGA
    mega *= per_pair
    mega += lengths * place_mega
    mega += pairs
    mega += lengths > 0
    return mega


def largest(values: np.ndarray) -> int:
    """The largest value as a Python int, 0 if there is none."""
    return int(values.max(initial=0))


def check_range(cost: Any, value: int, of: str) -> None:
    """Raise RecipeError where a value, computed without bound, leaves int64."""
    if value > MAX:
        raise RecipeError(
            f"costs and their sums are int64, at most {MAX}; {_name(cost):.300} comes to {value} {of}; "
            f"divide your units, or split such samples"
        )


def _name(cost: Any) -> str:
    """A formula with its values; a function by its name."""
    return getattr(cost, "__qualname__", repr(cost))


def check_sizes(least: int, **sizes: int | None) -> None:
    """Raise RecipeError unless each size is None or an int of at least `least`."""
    for name, size in sizes.items():
        if size is not None and (not isinstance(size, int) or size < least):
            raise RecipeError(f"{name} is an int, at least {least}, got {size!r}")


# --- what a strategy asks -------------------------------------------------------------------------------


def needs(cost: Cost | None) -> tuple[str, ...]:
    """The columns that a cost says it reads; none for a function without the attribute `columns`."""
    return tuple(getattr(cost, "columns", ()))


def check_columns(cost: Cost | None, known_columns: Sequence[str]) -> None:
    """Raise RecipeError where a cost reads a column that is not there.

    Args:
        cost: a formula or function, or None.
        known_columns: user columns of the sources; every source has `tokens`, `patches` and `num_bytes`.
    """
    known = tuple(dict.fromkeys((*BASE_COLUMNS, *known_columns)))
    unknown = [name for name in needs(cost) if name not in known]
    if unknown:
        raise RecipeError(
            f"{cost!r} reads the columns {unknown}, which no source has; there are {known}; "
            f"a source's measure adds columns"
        )


def cost_parts(
    infos: np.ndarray, backbone: Cost | None, encoder: Cost | None, memory: Cost | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Work in the backbone, work in the encoder and memory of each sample, int64 `[samples]` each.

    A part without a formula is 0; where backbone and encoder both have none, the backbone's work is `tokens`.

    Raises:
        RecipeError: a cost returned another shape, no integers, or a negative number; it reads a column that
            is not there; or the sum over all samples and both kinds of work leaves int64.
    """
    parts = [_evaluate(cost, infos) for cost in (backbone, encoder, memory)]
    if backbone is None and encoder is None:
        parts[0] = infos["tokens"].astype(np.int64)
    work = sum(int(part.sum()) for part in parts[:2])
    check_range((backbone, encoder), work, f"for {len(infos)} samples")
    return parts[0], parts[1], parts[2]


def sample_costs(infos: np.ndarray, backbone: Cost | None, encoder: Cost | None) -> np.ndarray:
    """Total work of each sample, int64 `[samples]`; see `cost_parts` for errors and missing formulas."""
    backbone_cost, encoder_cost, _ = cost_parts(infos, backbone, encoder)
    return backbone_cost + encoder_cost


def _evaluate(cost: Cost | None, infos: np.ndarray) -> np.ndarray:
    """What a cost gives, int64, once it is found sound; its sum over the samples is within int64."""
    if cost is None or not len(infos):
        return np.zeros(len(infos), dtype=np.int64)
    try:
        costs = np.asarray(cost(infos))
    except RecipeError:
        raise
    except Exception as error:
        if "no field of name" in str(error):
            raise RecipeError(
                f"{_name(cost)} reads a column that no source has ({error}); there are {infos.dtype.names}; "
                f"a source's measure adds columns"
            ) from error
        raise RecipeError(
            f"{_name(cost)} raised {type(error).__name__}: {error}; a cost is called with SampleInfo records "
            f"of the columns {infos.dtype.names} and works on all of them at once"
        ) from error
    if costs.shape != (len(infos),) or costs.dtype.kind not in "iu":
        raise RecipeError(
            f"a cost gives one integer for each of the {len(infos)} samples; {_name(cost)} gave "
            f"{costs.dtype} of shape {costs.shape}; return shape ({len(infos)},), and round floats to a unit "
            f"that is small enough, as in (...).astype(np.int64)"
        )
    if costs.min() < 0:
        worst = dict(zip(infos.dtype.names or (), infos[costs.argmin()].tolist(), strict=True))
        raise RecipeError(
            f"a cost is at least 0; {_name(cost)} gave {costs.min()} for the sample {worst}; "
            f"take np.maximum(..., 0), or see whether it left the range of its integers"
        )
    if largest(costs) > MAX // len(costs):
        check_range(cost, sum(costs.tolist()), f"for {len(infos)} samples")
    return costs.astype(np.int64)
