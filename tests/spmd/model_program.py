"""Checks the model of the benchmark `training` in a process that computes; prints what held."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.training_job import model


def dense_layers(layers, x, segments, causal):
    visible = segments[:, None] == segments[None, :]
    if causal:
        visible &= np.tril(np.ones_like(visible))
    for layer in layers:
        query, key, value = jnp.split(model._project(layer, {"x": x}), 3, axis=-1)
        scores = jnp.where(visible, query @ key.T * query.shape[-1] ** -0.5, -1e30)
        x = model._mix_and_mlp(layer, {"x": x, "mixed": jax.nn.softmax(scores, axis=-1) @ value})
    return x


def check_gradients():
    """Blockwise attention's against dense; segments begin and end inside blocks, the last is padding."""
    rng = np.random.default_rng(0)
    sizes = (150, 20, 70, 144)
    places, num_patches = sum(sizes), 256
    segments = np.repeat(np.array([1, 2, 3, 0], np.int32), sizes)
    index = np.full(places, -1, np.int32)
    index[:140], index[150:165] = np.arange(140), np.arange(140, 155)
    row = {
        "tokens": rng.integers(0, 256, places, np.int32),
        "targets": rng.integers(0, 256, places, np.int32),
        "segment_ids": segments,
        "positions": np.concatenate([np.arange(n, dtype=np.int32) for n in sizes]),
        "loss_mask": (segments > 0).astype(np.float32),
        "patch_index": index,
    }
    patches = rng.integers(0, 256, (num_patches, 192), np.uint8)
    shown = model.segments_of_patches(row, num_patches)
    assert shown.tolist() == [1] * 140 + [2] * 15 + [0] * 101

    def blockwise(params):
        return model.nats(params, row, model.encode(params, patches, shown))

    def dense(params):
        embedded = model._embed_patches(params["patches"], {"pixels": patches})
        images = dense_layers(params["encoder"], embedded, shown, causal=False)
        x = model._embed({"tokens": params["embedding"], "images": images}, row)
        x = dense_layers(params["layers"], x, segments, causal=True)
        return model._nats(
            params["head"], {"x": x, "targets": row["targets"], "weights": row["loss_mask"]}
        ).sum()

    params = model.init(0)
    found, gradients = jax.jit(jax.value_and_grad(blockwise))(params)
    expected, of_dense = jax.jit(jax.value_and_grad(dense))(params)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for ours, theirs in zip(jax.tree.leaves(gradients), jax.tree.leaves(of_dense), strict=True):
        scale = float(np.abs(theirs).max())
        assert scale > 0
        np.testing.assert_allclose(ours, theirs, atol=2e-5 * scale)


def check_reaches():
    """What a block reaches, against a loop over all pairs of places."""
    lengths = (5, 3, 9, 1, 2)
    segments = np.repeat(np.array([1, 2, 3, 4, 0], np.int32), lengths).reshape(5, 4)
    flat, count = segments.reshape(-1), np.int32(5)
    for causal in (True, False):
        first, behind = (np.asarray(each) for each in model.reach(segments, count, causal=causal))
        for block in range(4):  # the last one is half padding
            seen = [
                key // 4
                for query in range(4 * block, 4 * block + 4)
                for key in range(len(flat))
                if flat[query] == flat[key] and (key <= query or not causal)
            ]
            assert (first[block], behind[block]) == (min(seen), max(seen) + 1)


check_gradients()
print("gradients")
check_reaches()
print("reaches")
