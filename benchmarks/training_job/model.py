"""A small transformer over one packed row whose time follows what the row holds, in plain JAX.

A row is cut into blocks of `BLOCK` places. Every loop below runs over blocks up to a bound that is read from
the row: products over places run over the blocks that hold any, and attention of a block of queries runs over
the blocks of keys that a segment of it reaches into, as block-sparse flash attention does. So padding costs
nothing, a row costs the sum of the squares of its segments plus something for each place, and one compiled
program serves all rows of a length. JAX cannot differentiate loops whose bounds are data: the gradients are
written here, and make the activations of a block again.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.training_job import sizes
from benchmarks.training_job.sizes import BLOCK

FAR = -1e30
FIELDS = ("tokens", "targets", "segment_ids", "positions", "loss_mask")

Params = dict[str, Any]
Row = Mapping[str, Any]


def init(seed: int) -> Params:
    """Parameters of the backbone and of the encoder, of the sizes in `sizes`; one head each."""
    rng = np.random.default_rng(seed)
    d_model, d_ff = sizes.D_MODEL, sizes.D_FF

    def normal(fan_in: int, fan_out: int) -> np.ndarray:
        return rng.standard_normal((fan_in, fan_out), np.float32) / np.float32(fan_in**0.5)

    def layer() -> Params:
        return {
            "qkv": normal(d_model, 3 * d_model),
            "out": normal(d_model, d_model),
            "gate": normal(d_model, d_ff),
            "up": normal(d_model, d_ff),
            "down": normal(d_ff, d_model),
        }

    return {
        "embedding": np.float32(0.02) * rng.standard_normal((sizes.VOCABULARY, d_model), np.float32),
        "head": normal(d_model, sizes.VOCABULARY),
        "layers": [layer() for _ in range(sizes.LAYERS)],
        "patches": normal(sizes.PATCH_VALUES, d_model),
        "encoder": [layer() for _ in range(sizes.ENCODER_LAYERS)],
    }


# --- products over the blocks of a row ----------------------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def over_blocks(function: Callable[..., jax.Array], params: Any, blocks: Any, count: jax.Array) -> jax.Array:
    """`function(params, block)` of the first `count` blocks, zeros behind them: `[blocks, ...]`.

    Args:
        function: of one block, and pure.
        params: what is the same for all blocks.
        blocks: arrays `[blocks, ...]`; gradients are those of the floating ones.
        count: int32, blocks that are not padding.
    """
    like = jax.eval_shape(function, params, _at(blocks, 0))
    num_blocks = len(jax.tree.leaves(blocks)[0])

    def put(i: jax.Array, out: jax.Array) -> jax.Array:
        return out.at[i].set(function(params, _at(blocks, i)))

    return jax.lax.fori_loop(0, count, put, jnp.zeros((num_blocks, *like.shape), like.dtype))


def _over_blocks_forward(
    function: Callable[..., jax.Array], params: Any, blocks: Any, count: jax.Array
) -> tuple[jax.Array, tuple[Any, Any, jax.Array]]:
    return over_blocks(function, params, blocks, count), (params, blocks, count)


def _over_blocks_backward(
    function: Callable[..., jax.Array], kept: tuple[Any, Any, jax.Array], upstream: jax.Array
) -> tuple[Any, Any, None]:
    params, blocks, count = kept
    floating = {name: each for name, each in blocks.items() if jnp.issubdtype(each.dtype, jnp.floating)}

    def add(i: jax.Array, so_far: tuple[Any, Any]) -> tuple[Any, Any]:
        of_params, of_blocks = so_far
        rest = _at({name: each for name, each in blocks.items() if name not in floating}, i)
        _, pull = jax.vjp(lambda p, block: function(p, {**block, **rest}), params, _at(floating, i))
        more, here = pull(upstream[i])
        of_blocks = jax.tree.map(lambda all_blocks, one: all_blocks.at[i].set(one), of_blocks, here)
        return jax.tree.map(jnp.add, of_params, more), of_blocks

    start = jax.tree.map(jnp.zeros_like, (params, floating))
    of_params, of_blocks = jax.lax.fori_loop(0, count, add, start)
    return of_params, {name: of_blocks.get(name) for name in blocks}, None


over_blocks.defvjp(_over_blocks_forward, _over_blocks_backward)


def _at(tree: Any, i: Any) -> Any:
    return jax.tree.map(lambda array: array[i], tree)


# --- attention ----------------------------------------------------------------------------------------------


def reach(segments: jax.Array, count: jax.Array, *, causal: bool) -> tuple[jax.Array, jax.Array]:
    """First block of keys, and the one behind the last, of each block of queries: int32 `[blocks]` each.

    Segments are contiguous, so a block reaches back to where the segment of its first place begins, and on to
    where that of its last place ends (causal: to itself).
    """
    num_blocks, width = segments.shape
    flat = segments.reshape(-1)
    starts = jnp.concatenate([jnp.array([True]), flat[1:] != flat[:-1]])
    place = jnp.arange(len(flat), dtype=jnp.int32)
    start_of = jax.lax.cummax(jnp.where(starts, place, 0))
    first = start_of.reshape(num_blocks, width)[:, 0] // width
    if causal:
        return first, jnp.arange(1, num_blocks + 1, dtype=jnp.int32)
    ends = jnp.concatenate([flat[1:] != flat[:-1], jnp.array([True])])
    end_of = jax.lax.cummin(jnp.where(ends, place, len(flat)), reverse=True)
    return first, jnp.minimum(end_of.reshape(num_blocks, width)[:, -1] // width + 1, count)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def attention(qkv: jax.Array, segments: jax.Array, count: jax.Array, causal: bool) -> jax.Array:
    """Softmax attention inside segments: `[blocks, BLOCK, d_model]` from `[blocks, BLOCK, 3 d_model]`.

    Args:
        qkv: queries, keys and values, one behind the other.
        segments: int32 `[blocks, BLOCK]`, contiguous, 0 in padding at the end.
        count: int32, blocks that are not padding.
        causal: whether a place sees itself and those before it only.
    """
    return _attention_forward(qkv, segments, count, causal)[0]


def _visible(segments: jax.Array, i: jax.Array, j: jax.Array, causal: bool) -> jax.Array:
    same = segments[i][:, None] == segments[j][None, :]
    if not causal:
        return same
    place = jnp.arange(segments.shape[1])
    return same & (i * segments.shape[1] + place[:, None] >= j * segments.shape[1] + place[None, :])


def _attention_forward(
    qkv: jax.Array, segments: jax.Array, count: jax.Array, causal: bool
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    query, key, value = jnp.split(qkv, 3, axis=-1)
    num_blocks, width, d_model = query.shape
    query = query * d_model**-0.5
    first, behind = reach(segments, count, causal=causal)

    def of_queries(i: jax.Array, so_far: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        def with_keys(j: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            mixed, top, total = state
            scores = jnp.where(_visible(segments, i, j, causal), query[i] @ key[j].T, FAR)
            new_top = jnp.maximum(top, scores.max(axis=1))
            shares, shrink = jnp.exp(scores - new_top[:, None]), jnp.exp(top - new_top)
            return mixed * shrink[:, None] + shares @ value[j], new_top, total * shrink + shares.sum(axis=1)

        start = (jnp.zeros((width, d_model)), jnp.full(width, FAR), jnp.zeros(width))
        mixed, top, total = jax.lax.fori_loop(first[i], behind[i], with_keys, start)
        out, log_total = so_far
        return out.at[i].set(mixed / total[:, None]), log_total.at[i].set(top + jnp.log(total))

    start = (jnp.zeros_like(query), jnp.zeros((num_blocks, width)))
    out, log_total = jax.lax.fori_loop(0, count, of_queries, start)
    return out, (qkv, segments, count, out, log_total)


def _attention_backward(
    causal: bool, kept: tuple[jax.Array, ...], upstream: jax.Array
) -> tuple[jax.Array, None, None]:
    qkv, segments, count, out, log_total = kept
    query, key, value = jnp.split(qkv, 3, axis=-1)
    scale = query.shape[-1] ** -0.5
    query = query * scale
    first, behind = reach(segments, count, causal=causal)
    inner = (upstream * out).sum(axis=-1)

    def of_queries(i: jax.Array, so_far: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        def with_keys(j: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            of_query, of_key, of_value = state
            scores = jnp.where(_visible(segments, i, j, causal), query[i] @ key[j].T, FAR)
            shares = jnp.exp(scores - log_total[i][:, None])
            of_scores = shares * (upstream[i] @ value[j].T - inner[i][:, None])
            of_key = of_key.at[j].add(of_scores.T @ query[i])
            of_value = of_value.at[j].add(shares.T @ upstream[i])
            return of_query + of_scores @ key[j], of_key, of_value

        all_queries, of_key, of_value = so_far
        here = (jnp.zeros(query.shape[1:]), of_key, of_value)
        of_query, of_key, of_value = jax.lax.fori_loop(first[i], behind[i], with_keys, here)
        return all_queries.at[i].set(of_query * scale), of_key, of_value

    start = tuple(jnp.zeros_like(query) for _ in range(3))
    return jnp.concatenate(jax.lax.fori_loop(0, count, of_queries, start), axis=-1), None, None


attention.defvjp(_attention_forward, _attention_backward)


# --- the model ----------------------------------------------------------------------------------------------


def _norm(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def _project(layer: Params, block: Params) -> jax.Array:
    return _norm(block["x"]) @ layer["qkv"]


def _mix_and_mlp(layer: Params, block: Params) -> jax.Array:
    x = block["x"] + block["mixed"] @ layer["out"]
    normal = _norm(x)
    return x + (jax.nn.silu(normal @ layer["gate"]) * (normal @ layer["up"])) @ layer["down"]


def _nats(head: jax.Array, block: Params) -> jax.Array:
    scores = _norm(block["x"]) @ head
    target = jnp.take_along_axis(scores, block["targets"][:, None], axis=-1)[:, 0]
    return block["weights"] * (jax.nn.logsumexp(scores, axis=-1) - target)


def _layers(layers: list[Params], x: Any, segments: jax.Array, *, causal: bool) -> jax.Array:
    count = blocks_used(segments)
    for layer in layers:
        mixed = attention(over_blocks(_project, layer, {"x": x}, count), segments, count, causal)
        x = over_blocks(_mix_and_mlp, layer, {"x": x, "mixed": mixed}, count)
    return x


def blocks_used(segments: jax.Array) -> jax.Array:
    """int32: blocks up to the last place that is no padding."""
    return (jnp.count_nonzero(segments) + BLOCK - 1).astype(jnp.int32) // BLOCK


def in_blocks(places: Any) -> jax.Array:
    """`[places, ...]` to `[blocks, BLOCK, ...]`."""
    return jnp.asarray(places).reshape(-1, BLOCK, *places.shape[1:])


def encode(params: Params, patches: jax.Array, segments: jax.Array) -> jax.Array:
    """Embeddings `[patches, d_model]` of the patches of one row; every image sees itself only.

    Args:
        params: of `init`.
        patches: uint8 `[patches, values]`, their number a multiple of `BLOCK`.
        segments: int32 `[patches]`, the image of each, contiguous, 0 for none.
    """
    blocks = in_blocks(segments)
    x = over_blocks(_embed_patches, params["patches"], {"pixels": in_blocks(patches)}, blocks_used(blocks))
    return _layers(params["encoder"], x, blocks, causal=False).reshape(len(patches), -1)


def _embed_patches(weights: jax.Array, block: Params) -> jax.Array:
    return (block["pixels"].astype(jnp.float32) / 127.5 - 1) @ weights


def nats(params: Params, row: Row, images: jax.Array) -> jax.Array:
    """Sum over a row of its targets' nats times their weights.

    Args:
        params: of `init`.
        row: fields of `msdata_jax.batching.rows`, each `[seq_len]`, a multiple of `BLOCK`.
        images: embeddings of the row's patches, `[patches, d_model]`; `NO_IMAGES` for text.
    """
    segments = in_blocks(row["segment_ids"])
    count = blocks_used(segments)
    tables = {"tokens": params["embedding"], "images": images}
    block = {name: in_blocks(row[name]) for name in ("tokens", "positions", "patch_index")}
    x = _layers(params["layers"], over_blocks(_embed, tables, block, count), segments, causal=True)
    block = {"x": x, "targets": in_blocks(row["targets"]), "weights": in_blocks(row["loss_mask"])}
    return jnp.sum(over_blocks(_nats, params["head"], block, count))


def _embed(tables: Params, block: Params) -> jax.Array:
    index = block["patch_index"]
    images = tables["images"][jnp.maximum(index, 0)]
    x = jnp.where(index[:, None] >= 0, images, tables["tokens"][block["tokens"]])
    half = x.shape[-1] // 2
    angles = block["positions"][:, None] * 10_000.0 ** (-jnp.arange(half) / half)
    return x + 0.02 * jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def shown_row(fields: Mapping[str, Any]) -> Row:
    """What `nats` reads of a row of a batch; text alone shows no patch."""
    no_patch = np.full(len(fields["tokens"]), -1, np.int32)
    return {name: fields[name] for name in FIELDS} | {"patch_index": fields.get("patch_index", no_patch)}


def segments_of_patches(row: Mapping[str, np.ndarray], num_patches: int) -> np.ndarray:
    """int32 `[num_patches]`: the segment that shows each patch of a row, 0 for none."""
    segments = np.zeros(num_patches, dtype=np.int32)
    shown = row["patch_index"] >= 0
    segments[row["patch_index"][shown]] = row["segment_ids"][shown]
    return segments


# --- steps --------------------------------------------------------------------------------------------------

row_gradients = jax.jit(jax.value_and_grad(nats, argnums=(0, 2)))
"""`(params, row, images) -> nats, (gradients of the parameters, of the images' embeddings)` of one row."""

NO_IMAGES = np.zeros((sizes.PATCHES_PER_ROW, sizes.D_MODEL), np.float32)


@jax.jit
def encoder_gradients(
    params: Params, patches: jax.Array, segments: jax.Array, upstream: jax.Array
) -> tuple[jax.Array, Params]:
    """Embeddings of a row's patches, and gradients of the parameters for an upstream of the same shape."""
    embedded, pull = jax.vjp(lambda p: encode(p, patches, segments), params)
    return embedded, pull(upstream)[0]
