"""A small decoder-only transformer over text and image patches, in plain JAX.

It reads the packed rows of a batch: several segments (samples) lie in one row, and a place of a row is a
token or an image patch. Place i attends to place j when both are of one segment and
`positions[j] <= positions[i]`; the order of places in the row plays no part, so a sequence may be cut over
`cp` in any order (zigzag).

On a mesh with axes `dp` (rows), `cp` (places of a row) and `tp` (heads, hidden units, vocabulary) the
compiler splits the work by the specs below. Nothing here depends on how many processes there are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

Params = dict[str, jax.Array]
Batch = dict[str, jax.Array]
State = dict[str, object]

BATCH_SPECS = {
    "tokens": P("dp", "cp"),  # int32 [rows, seq], 0 where a patch stands
    "targets": P("dp", "cp"),  # int32 [rows, seq]
    "segment_ids": P("dp", "cp"),  # int32 [rows, seq], from 1; 0 is padding
    "positions": P("dp", "cp"),  # int32 [rows, seq], place inside its segment
    "loss_mask": P("dp", "cp"),  # float32 or bool [rows, seq]
    "patch_index": P("dp", "cp"),  # int32 [rows, seq], which patch of the row; -1 is text
    "patches": P("dp"),  # uint8 [rows, patches_per_row, patch_values]
}

PARAM_SPECS = {
    "embedding": P("tp", None),  # [vocabulary, d_model], also the output head
    "patch_weights": P(),  # [patch_values, d_model]
    "patch_bias": P(),  # [d_model]
    "attention_norm": P(),  # [layers, d_model]
    "attention_in": P(None, None, None, "tp", None),  # [layers, d_model, qkv, heads, head_dim]
    "attention_out": P(None, "tp", None, None),  # [layers, heads, head_dim, d_model]
    "mlp_norm": P(),  # [layers, d_model]
    "mlp_in": P(None, None, None, "tp"),  # [layers, d_model, gate and value, hidden]
    "mlp_out": P(None, "tp", None),  # [layers, hidden, d_model]
    "final_norm": P(),  # [d_model]
}
LAYER_PARAMS = ("attention_norm", "attention_in", "attention_out", "mlp_norm", "mlp_in", "mlp_out")

ACTIVATIONS = P("dp", "cp", None)  # [rows, seq, d_model]
HEADS = P("dp", "cp", "tp", None)  # [rows, seq, heads, head_dim]
PLACE_SPECS = (P("dp", "cp"), P("dp", "cp"), P("dp", None), P("dp", None))


@dataclass(frozen=True, kw_only=True)
class Config:
    """The size of the model. `tp` has to divide heads, hidden units and vocabulary."""

    vocabulary_size: int = 8192
    d_model: int = 128
    num_layers: int = 2
    num_heads: int = 4
    mlp_hidden: int = 256
    patch_values: int = 768
    rope_base: float = 10_000.0

    @property
    def head_dim(self) -> int:
        return self.d_model // self.num_heads


class Places(NamedTuple):
    """What attention has to know of the places of the rows."""

    segment_ids: jax.Array
    positions: jax.Array
    rotation: tuple[jax.Array, jax.Array]


def make_mesh(dp: int, cp: int, tp: int) -> Mesh:
    """The first dp * cp * tp devices, with axes of type Auto: the compiler chooses shardings in between.

    `jax.make_mesh` alone makes Explicit axes, under which every contraction has to name its output sharding.
    """
    return jax.make_mesh((dp, cp, tp), ("dp", "cp", "tp"), axis_types=(AxisType.Auto,) * 3)


def param_shardings(mesh: Mesh) -> dict[str, NamedSharding]:
    return {name: NamedSharding(mesh, spec) for name, spec in PARAM_SPECS.items()}


def init(config: Config, seed: int, mesh: Mesh) -> Params:
    """Parameters on the mesh, each device filled with its own part; equal for equal seeds on every mesh."""
    return jax.jit(_init, static_argnums=(0, 1), out_shardings=param_shardings(mesh))(config, seed)


def _init(config: Config, seed: int) -> Params:
    keys = iter(jax.random.split(jax.random.key(seed), 6))

    def normal(fan_in: int, *shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape) / fan_in**0.5

    layers, d_model, hidden = config.num_layers, config.d_model, config.mlp_hidden
    heads, head_dim = config.num_heads, config.head_dim
    depth_scale = (2 * layers) ** -0.5  # what a layer adds shrinks with depth, so that the sum does not grow
    return {
        "embedding": 0.02 * normal(1, config.vocabulary_size, d_model),
        "patch_weights": 0.02 * normal(config.patch_values, config.patch_values, d_model),
        "patch_bias": jnp.zeros(d_model),
        "attention_norm": jnp.ones((layers, d_model)),
        "attention_in": normal(d_model, layers, d_model, 3, heads, head_dim),
        "attention_out": normal(d_model, layers, heads, head_dim, d_model) * depth_scale,
        "mlp_norm": jnp.ones((layers, d_model)),
        "mlp_in": normal(d_model, layers, d_model, 2, hidden),
        "mlp_out": normal(hidden, layers, hidden, d_model) * depth_scale,
        "final_norm": jnp.ones(d_model),
    }


def loss(params: Params, batch: Batch, config: Config) -> jax.Array:
    """Mean cross-entropy (nats) over the places that `loss_mask` marks, of the whole global batch."""
    weights = batch["loss_mask"].astype(jnp.float32)
    weights = weights / jnp.maximum(jnp.sum(weights), 1.0)
    return cross_entropy(hidden_states(params, batch, config), params["embedding"], batch["targets"], weights)


@jax.custom_vjp
def cross_entropy(
    hidden: jax.Array, embedding: jax.Array, targets: jax.Array, weights: jax.Array
) -> jax.Array:
    """Weighted sum of nats over all places, the output head included.

    The scores [rows, seq, vocabulary] would be by far the largest array of a step. So they are made one row
    at a time, and what the gradients need of them is taken at once: they are never kept and never made twice.
    """
    return _cross_entropy(hidden, embedding, targets, weights)[0]


def _cross_entropy_backward(gradients: tuple[jax.Array, jax.Array], upstream: jax.Array) -> tuple:
    of_hidden, of_embedding = gradients
    return upstream * of_hidden, upstream * of_embedding, None, None


def _cross_entropy_forward(*arguments: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    nats, *gradients = _cross_entropy(*arguments)
    return nats, tuple(gradients)


def _cross_entropy(*arguments: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Nats, gradient by `hidden`, gradient by `embedding`; every device computes with what it holds."""
    specs = (ACTIVATIONS, PARAM_SPECS["embedding"], BATCH_SPECS["targets"], BATCH_SPECS["loss_mask"])
    return jax.shard_map(
        _local_cross_entropy, in_specs=specs, out_specs=(P(), ACTIVATIONS, PARAM_SPECS["embedding"])
    )(*arguments)


def _local_cross_entropy(
    hidden: jax.Array, embedding: jax.Array, targets: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    first_entry = jax.lax.axis_index("tp") * embedding.shape[0]
    entries = first_entry + jnp.arange(embedding.shape[0], dtype=targets.dtype)
    head = embedding.T  # [d_model, entries]: this way round the products below are twice as fast on CPUs

    def one_row(of_head: jax.Array, row: tuple[jax.Array, jax.Array, jax.Array]) -> tuple:
        x, target, weight = row
        scores = x @ head  # [places, entries]
        top = jnp.max(scores, axis=-1)
        exponentials = jnp.exp(scores - top[:, None])
        is_target = target[:, None] == entries
        # One exchange over `tp`. Each part carries its share of the nats; their sum over `tp` is all of them.
        log_total = top + jnp.log(jnp.sum(exponentials, axis=-1))
        log_totals = jax.lax.all_gather(log_total, "tp")  # [parts, places]
        log_total = jax.nn.logsumexp(log_totals, axis=0)
        target_scores = jnp.sum(jnp.where(is_target, scores, 0.0), axis=-1)
        nats = weight * (log_total / len(log_totals) - target_scores)
        scale = weight * jnp.exp(top - log_total)
        of_scores = exponentials * scale[:, None] - jnp.where(is_target, weight[:, None], 0.0)
        return of_head + x.T @ of_scores, (jnp.sum(nats), of_scores @ embedding)

    start = jax.lax.pcast(jnp.zeros_like(head), ("dp", "cp"), to="varying")
    of_head, (nats, of_hidden) = jax.lax.scan(one_row, start, (hidden, targets, weights))
    nats = jax.lax.psum(jnp.sum(nats), ("dp", "cp", "tp"))
    return nats, jax.lax.psum(of_hidden, "tp"), jax.lax.psum(of_head, ("dp", "cp")).T


cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


def logits(params: Params, batch: Batch, config: Config) -> jax.Array:
    """Scores of every vocabulary entry at every place, [rows, seq, vocabulary]."""
    return jnp.einsum("bsd,vd->bsv", hidden_states(params, batch, config), params["embedding"])


def hidden_states(params: Params, batch: Batch, config: Config) -> jax.Array:
    """Embed, run the layers, normalise: [rows, seq, d_model]."""
    places = Places(batch["segment_ids"], batch["positions"], rope(batch["positions"], config))

    def layer(x: jax.Array, weights: Params) -> tuple[jax.Array, None]:
        x = _constrain(x + attention(rms_norm(x, weights["attention_norm"]), weights, places), ACTIVATIONS)
        x = _constrain(x + mlp(rms_norm(x, weights["mlp_norm"]), weights), ACTIVATIONS)
        return x, None

    x = embed(params, batch, config)
    x, _ = jax.lax.scan(layer, x, {name: params[name] for name in LAYER_PARAMS})
    return rms_norm(x, params["final_norm"])


def embed(params: Params, batch: Batch, config: Config) -> jax.Array:
    """Token or patch embedding of every place, [rows, seq, d_model]."""
    x = params["embedding"][batch["tokens"]]
    pixels = batch["patches"].astype(jnp.float32) / 127.5 - 1.0
    patches = pixels @ params["patch_weights"] + params["patch_bias"]  # [rows, patches_per_row, d_model]
    index = batch["patch_index"][..., None]
    of_place = jnp.take_along_axis(patches, jnp.maximum(index, 0), axis=1)
    return _constrain(jnp.where(index >= 0, of_place, x), ACTIVATIONS)


def attention(x: jax.Array, weights: Params, places: Places) -> jax.Array:
    """Multi-head attention: queries stay cut over `cp`, keys and values are gathered over it."""
    query, key, value = jnp.einsum("bsd,dthe->tbshe", x, weights["attention_in"])
    query, key = rotate(query, places.rotation), rotate(key, places.rotation)
    mixed = jax.shard_map(
        _local_attention,
        in_specs=(HEADS, P("dp", None, "tp", None), P("dp", None, "tp", None), *PLACE_SPECS),
        out_specs=HEADS,
    )(query, key, value, places.segment_ids, places.positions, places.segment_ids, places.positions)
    return jnp.einsum("bqhe,hed->bqd", mixed, weights["attention_out"])


def _local_attention(query: jax.Array, key: jax.Array, value: jax.Array, *places: jax.Array) -> jax.Array:
    """One row at a time, and scores made again for the gradient: what stays in memory is small."""
    # Keys and values are equal over `cp`. Said to vary, their gradients are summed once, not once a row.
    key, value = jax.lax.pcast((key, value), "cp", to="varying")
    return jax.lax.map(jax.checkpoint(_row_attention), (query, key, value, *places))


def _row_attention(row: tuple[jax.Array, ...]) -> jax.Array:
    """[queries, heads, head_dim] of one row; every place sees itself, so that no sum of shares is zero."""
    query, key, value, query_segment, query_position, key_segment, key_position = row
    same_segment = query_segment[:, None] == key_segment
    visible = same_segment & (key_position <= query_position[:, None])
    scores = jnp.einsum("qhe,khe->hqk", query, key) * query.shape[-1] ** -0.5
    shares = jax.nn.softmax(jnp.where(visible, scores, -1e30), axis=-1)
    return jnp.einsum("hqk,khe->qhe", shares, value)


def mlp(x: jax.Array, weights: Params) -> jax.Array:
    """SwiGLU: a gated hidden layer."""
    hidden = jnp.einsum("bsd,dgf->bsgf", x, weights["mlp_in"])
    return jnp.einsum("bsf,fd->bsd", jax.nn.silu(hidden[:, :, 0]) * hidden[:, :, 1], weights["mlp_out"])


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def rope(positions: jax.Array, config: Config) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine of every place's angles, each [rows, seq, 1, head_dim / 2]."""
    half = config.head_dim // 2
    frequencies = config.rope_base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions[..., None, None].astype(jnp.float32) * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, rotation: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Turn the two halves of each head's vector by the angles of its place."""
    cos, sin = rotation
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)


def make_optimizer(peak_learning_rate: float = 3e-3, warmup_steps: int = 10) -> optax.GradientTransformation:
    """AdamW with a linear warm-up to a constant rate, after clipping to norm 1."""
    rate = optax.linear_schedule(0.0, peak_learning_rate, warmup_steps)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.98, weight_decay=0.01))


def init_state(params: Params, mesh: Mesh, optimizer: optax.GradientTransformation) -> State:
    """Parameters and a fresh optimizer state, cut over the mesh in the same way."""
    make = jax.jit(optimizer.init, out_shardings=state_shardings(params, mesh, optimizer)["optimizer"])
    return {"params": params, "optimizer": make(params)}


def state_shardings(params: Params, mesh: Mesh, optimizer: optax.GradientTransformation) -> State:
    """A sharding for every array of the state: an average has its parameter's, a count is everywhere."""
    of_params = param_shardings(mesh)
    of_optimizer = optax.tree_utils.tree_map_params(
        optimizer,
        lambda _, sharding: sharding,
        jax.eval_shape(optimizer.init, params),
        of_params,
        transform_non_params=lambda _: NamedSharding(mesh, P()),
    )
    return {"params": of_params, "optimizer": of_optimizer}


def make_train_step(
    config: Config, mesh: Mesh, optimizer: optax.GradientTransformation
) -> Callable[[State, Batch], tuple[State, jax.Array]]:
    """A jitted `(state, batch) -> (state, loss)`; the old state's memory is used again for the new one.

    Args:
        config: size of the model, as `init` was given it.
        mesh: axes `dp`, `cp` and `tp`, all of type Auto (`make_mesh`).
        optimizer: as `init_state` was given it.

    Returns:
        a function whose `state` comes from `init_state`, and whose `batch` holds the arrays that
        `BATCH_SPECS` names, on `mesh` and in those shardings.
    """

    def train_step(state: State, batch: Batch) -> tuple[State, jax.Array]:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            value, gradients = jax.value_and_grad(loss)(state["params"], batch, config)
            updates, optimizer_state = optimizer.update(gradients, state["optimizer"], state["params"])
            params = optax.apply_updates(state["params"], updates)
        return {"params": params, "optimizer": optimizer_state}, value

    of_state = state_shardings(jax.eval_shape(lambda: _init(config, 0)), mesh, optimizer)
    of_batch = {name: NamedSharding(mesh, spec) for name, spec in BATCH_SPECS.items()}
    return jax.jit(
        train_step,
        in_shardings=(of_state, of_batch),
        out_shardings=(of_state, NamedSharding(mesh, P())),
        donate_argnums=0,
    )


def _constrain(x: jax.Array, spec: P) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, spec)
