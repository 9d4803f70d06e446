"""Cost formulas and measured costs for `DGraph.cost`."""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from msdata_jax.errors import RecipeError
from msdata_jax.planning.costs import ColumnCost as ColumnCost
from msdata_jax.planning.costs import Cost as Cost
from msdata_jax.planning.costs import MemoryCost as MemoryCost
from msdata_jax.planning.costs import Recompute as Recompute
from msdata_jax.planning.costs import TransformerCost as TransformerCost
from msdata_jax.planning.costs import VitCost as VitCost
from msdata_jax.planning.costs import check_range, largest

MAX_KNOTS = 256
MAX_FILE_BYTES = 1 << 20
FORMAT = {"format": "msdata_jax.costs.fitted", "version": 1}


# --- formulas -------------------------------------------------------------------------------------------


def transformer(  # noqa: PLR0913 - keyword-only, the fields of TransformerCost
    *,
    num_layers: int,
    d_model: int,
    d_ff: int | None = None,
    vocab_size: int = 0,
    causal: bool = True,
    num_heads: int = 1,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    window: int | None = None,
    full_layers: int = 0,
) -> TransformerCost:
    """MFLOP of a dense transformer decoder; see `TransformerCost` for the formula.

    Args:
        num_layers: layers, at least 1.
        d_model: width, at least 1.
        d_ff: hidden width of the gated MLP; None for `8/3 d_model`, as is usual with gating.
        vocab_size: entries of the output head; 0 leaves the head out.
        causal: whether a place attends to earlier places only.
        num_heads: query heads; they matter only beside `num_kv_heads` or `head_dim`.
        num_kv_heads: key and value heads of grouped-query attention (arXiv 2305.13245), a divisor of
            `num_heads`; None for as many as there are query heads.
        head_dim: width of a head; None for `d_model / num_heads`.
        window: places that a place attends to, itself included, under sliding-window attention (arXiv
            2004.05150); None for all.
        full_layers: layers without the window, in models that mix both.

    Raises:
        RecipeError: sizes that are too small, are no ints, or do not divide.
    """
    return TransformerCost(
        num_layers=num_layers,
        d_model=d_model,
        d_ff=8 * d_model // 3 if d_ff is None else d_ff,
        vocab_size=vocab_size,
        causal=causal,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        window=window,
        full_layers=full_layers,
    )


def moe(  # noqa: PLR0913 - keyword-only, the fields of TransformerCost
    *,
    num_layers: int,
    d_model: int,
    num_experts: int,
    experts_per_token: int,
    d_ff: int,
    shared_d_ff: int = 0,
    vocab_size: int = 0,
    causal: bool = True,
    num_heads: int = 1,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    window: int | None = None,
    full_layers: int = 0,
) -> TransformerCost:
    """MFLOP of a mixture-of-experts decoder: active weights only, as in Mixtral (arXiv 2401.04088).

    A token meets `experts_per_token` experts, the shared expert and the router in every layer. How evenly the
    router spreads tokens over experts is not known from metadata and left out.

    Args:
        num_layers: layers, each with experts.
        d_model: width.
        num_experts: experts that the router chooses from, at least 1.
        experts_per_token: experts that a token meets, from 1 to `num_experts`.
        d_ff: hidden width of one expert (a gated MLP).
        shared_d_ff: hidden width of all experts that every token meets (DeepSeekMoE, arXiv 2401.06066).
        vocab_size: as in `transformer`, and so are the others.
        causal: see `transformer`.
        num_heads: see `transformer`.
        num_kv_heads: see `transformer`.
        head_dim: see `transformer`.
        window: see `transformer`.
        full_layers: see `transformer`.

    Raises:
        RecipeError: sizes that are too small, are no ints or do not divide, or more active experts than there
            are.
    """
    if num_experts < 1:
        raise RecipeError(f"num_experts is at least 1, got {num_experts}; costs.transformer has none")
    return TransformerCost(
        num_layers=num_layers,
        d_model=d_model,
        d_ff=d_ff,
        vocab_size=vocab_size,
        causal=causal,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        window=window,
        full_layers=full_layers,
        num_experts=num_experts,
        experts_per_token=experts_per_token,
        shared_d_ff=shared_d_ff,
    )


def vit(
    *,
    num_layers: int,
    d_model: int,
    d_ff: int | None = None,
    patch_values: int = 768,
    images_column: str | None = None,
    pairs_column: str | None = None,
) -> VitCost:
    """MFLOP of a vision transformer encoder; see `VitCost` for the formula.

    Args:
        num_layers: layers, at least 1.
        d_model: width, at least 1.
        d_ff: hidden width of the MLP; None for `4 d_model`.
        patch_values: values of a patch.
        images_column: metadata column with the number of images of a sample, over which its patches are taken
            to be spread evenly: `p^2 / images` pairs. 0 images count as one.
        pairs_column: metadata column with the sum of the squares of each image's patches, as `measure` finds
            it. Without either, all patches of a sample are one image: `p^2` pairs.

    Raises:
        RecipeError: sizes that are too small or no ints, or both columns.
    """
    return VitCost(
        num_layers=num_layers,
        d_model=d_model,
        d_ff=4 * d_model if d_ff is None else d_ff,
        patch_values=patch_values,
        images_column=images_column,
        pairs_column=pairs_column,
    )


def memory(
    *,
    num_layers: int,
    d_model: int,
    recompute: Recompute = "selective",
    num_heads: int | None = None,
    bytes_per_width: int = 34,
) -> MemoryCost:
    """Bytes of activations that all layers keep for the backward pass, on all devices that share the sample.

    A layer keeps `34 d L` bytes, and `5 h L^2` more where the scores of `h` heads are stored (Korthikanti et
    al., arXiv 2205.05198, equation 1: 16-bit values, an MLP of width `4 d` with dropout). Weights, optimizer
    state, embeddings and logits are left out: they are the same for every plan, or not kept.

    Args:
        num_layers: layers, at least 1.
        d_model: width, at least 1.
        recompute: `none` stores the scores; `selective` makes them again, as flash attention does; `full`
            keeps the input of each layer alone, `2 d L` bytes.
        num_heads: query heads; needed with `none`.
        bytes_per_width: in place of 34 for another kind of layer, better measured than derived.

    Raises:
        RecipeError: sizes that are too small or no ints, an unknown `recompute`, or `none` without heads.
    """
    return MemoryCost(
        num_layers=num_layers,
        d_model=d_model,
        recompute=recompute,
        num_heads=num_heads,
        bytes_per_width=bytes_per_width,
    )


def column(name: str, *, scale: int = 1) -> ColumnCost:
    """`scale` times the metadata column `name`, such as a source's `measure` fills.

    Raises:
        RecipeError: `scale` is not an int of at least 1.
    """
    return ColumnCost(column=name, scale=scale)


# --- measured costs -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FittedCost:
    """A measured cost: nanoseconds by length, linear between knots; see `fitted`.

    Attributes:
        lengths: of the knots, ints that rise from 0; 3 to 257 of them.
        nanoseconds: cost at each knot, ints of at least 0 that never fall; the first is the constant that
            every sample costs, whatever its length.
        column: the metadata column that is the length. A sample of length 0 costs nothing.

    Beyond the last knot the cost goes on with the last slope: too cheap where the true one curves upward.

    Raises:
        RecipeError: a table that breaks one of these rules.
    """

    lengths: tuple[int, ...]
    nanoseconds: tuple[int, ...]
    column: str = "tokens"

    def __post_init__(self) -> None:
        """Refuse what is no table."""
        lengths, costs = self.lengths, self.nanoseconds
        for name, values in (("lengths", lengths), ("nanoseconds", costs)):
            if not all(type(value) is int for value in values):
                raise RecipeError(f"{name} of a fitted cost are ints, got {values!r:.200}")
        if not 3 <= len(lengths) == len(costs) <= MAX_KNOTS + 1:
            raise RecipeError(
                f"a fitted cost has 3 to {MAX_KNOTS + 1} lengths and as many nanoseconds, "
                f"got {len(lengths)} and {len(costs)}"
            )
        if lengths[0] != 0 or any(a >= b for a, b in pairwise(lengths)):
            raise RecipeError(f"lengths of a fitted cost rise from 0, got {lengths!r:.200}")
        if costs[0] < 0 or any(a > b for a, b in pairwise(costs)):
            raise RecipeError(f"nanoseconds are at least 0 and never fall with length, got {costs!r:.200}")
        check_range(self, lengths[-1] * costs[-1], "nanoseconds x length at its end")
        if not isinstance(self.column, str):
            raise RecipeError(f"column is the name of a metadata column, got {self.column!r}")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return (self.column,)

    def __call__(self, infos: np.ndarray) -> np.ndarray:
        """Nanoseconds of each sample, rounded down."""
        lengths = infos[self.column].astype(np.int64)
        knots, costs = np.array(self.lengths), np.array(self.nanoseconds)
        run, rise = np.diff(knots), np.diff(costs)
        check_range(self, largest(lengths) * int(rise[-1]) + self.nanoseconds[-1], "nanoseconds x length")
        segment = np.searchsorted(knots[1:-1], lengths, side="right")
        fitted_costs = costs[segment] + (lengths - knots[segment]) * rise[segment] // run[segment]
        return np.where(lengths > 0, fitted_costs, 0)

    def save(self, path: str | Path) -> None:
        """Write the table as JSON.

        Raises:
            OSError: the file cannot be written.
        """
        Path(path).write_text(json.dumps({**FORMAT, **asdict(self)}) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "FittedCost":
        """Read a table that `save` wrote.

        Raises:
            RecipeError: the file cannot be read, is larger than 1 MiB, is not such a table, or holds one that
                breaks its rules.
        """
        try:
            with Path(path).open("rb") as file:
                text = file.read(MAX_FILE_BYTES + 1)
            if len(text) > MAX_FILE_BYTES:
                raise ValueError(f"larger than {MAX_FILE_BYTES} bytes")
            return _table(json.loads(text))
        except (OSError, ValueError, RecursionError) as error:
            raise RecipeError(
                f"a fitted cost is a JSON file written by FittedCost.save; {str(path)!r}: {error}"
            ) from error


def _table(read: Any) -> FittedCost:
    names = {*FORMAT, "lengths", "nanoseconds", "column"}
    if not isinstance(read, dict) or set(read) != names:
        raise RecipeError(f"its fields are {sorted(names)}")
    if any(read[name] != value for name, value in FORMAT.items()):
        raise RecipeError(f"this release reads {FORMAT}, got {[read[name] for name in FORMAT]!r:.200}")
    if not isinstance(read["lengths"], list) or not isinstance(read["nanoseconds"], list):
        raise RecipeError("lengths and nanoseconds are lists")
    return FittedCost(
        lengths=tuple(read["lengths"]), nanoseconds=tuple(read["nanoseconds"]), column=read["column"]
    )


def fitted(pairs: Iterable[tuple[int, float]], *, column: str = "tokens") -> FittedCost:
    """The cost that measurements show: a constant per sample and a monotone piecewise-linear table.

    Seconds become integer nanoseconds first, and all that follows is exact, so the same measurements give the
    same table on every machine. Measurements of one length count as their (lower) median. A cost that falls
    with the length is noise: such neighbours get their mean, which makes the monotone table with the least
    squared error (pool adjacent violators, Ayer et al. 1955). The constant is the first segment's line
    carried back to length 0, at least 0.

    *Not a polynomial* `a + b L + c L^2`: kernels are flat for short samples and reach their quadratic growth
    late, and least squares over a wide range of lengths would serve the longest alone.

    Args:
        pairs: (length, seconds), in order of length; a length may come several times.
        column: the metadata column that is the length: `tokens`, `patches`, or any other.

    Raises:
        RecipeError: fewer than 2 or more than 256 lengths, lengths that are no ints, below 1 or out of order,
            seconds that are negative or not finite, or a product of the two out of range.
    """
    measured = [_measurement(place, *pair) for place, pair in enumerate(pairs)]
    for (before, _), (after, _) in pairwise(measured):
        if before > after:
            raise RecipeError(
                f"pairs come in order of length, got {after} behind {before}; use sorted(pairs)"
            )
    lengths, medians = [], []
    for length, same in groupby(measured, key=lambda pair: pair[0]):
        times = sorted(time for _, time in same)
        lengths.append(length)
        medians.append(times[(len(times) - 1) // 2])
    if not 2 <= len(lengths) <= MAX_KNOTS:
        raise RecipeError(
            f"a fit needs 2 to {MAX_KNOTS} different lengths, got {len(lengths)}; "
            f"measure at powers of two up to the longest sample"
        )
    costs = _never_falling(medians)
    slope = (costs[1] - costs[0]) * lengths[0] // (lengths[1] - lengths[0])
    constant = max(0, costs[0] - slope)
    return FittedCost(lengths=(0, *lengths), nanoseconds=(constant, *costs), column=column)


def _measurement(place: int, length: int, seconds: float) -> tuple[int, int]:
    """Length and nanoseconds of one measurement."""
    if not isinstance(length, int | np.integer) or length < 1:
        raise RecipeError(f"a length is an int, at least 1; pairs[{place}] has {length!r}")
    if not math.isfinite(seconds) or seconds < 0:
        raise RecipeError(
            f"seconds are finite and at least 0; pairs[{place}] has {seconds!r}; leave the measurement out"
        )
    return int(length), round(float(seconds) * 1e9)


def _never_falling(values: list[int]) -> list[int]:
    """The closest sequence that never falls (least squares), rounded down."""
    pools: list[tuple[int, int]] = []  # (sum, count)
    for value in values:
        total, count = value, 1
        while pools and pools[-1][0] * count > total * pools[-1][1]:
            before = pools.pop()
            total, count = total + before[0], count + before[1]
        pools.append((total, count))
    return [total // count for total, count in pools for _ in range(count)]
