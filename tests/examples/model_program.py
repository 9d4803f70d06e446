"""Checks of examples/model.py on eight CPU devices, one JSON line {check: "ok" or what was wrong}.

Run by test_model.py in a process of its own: the number of devices is fixed when JAX starts.
"""

import functools
import json
import sys
import traceback
from pathlib import Path

import jax
import numpy as np

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_disable_most_optimizations", True)  # compiling is what takes the time here
sys.path.append(str(Path(__file__).parents[2] / "examples"))

import jax.numpy as jnp  # noqa: E402
import model  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402

CONFIG = model.Config(
    vocabulary_size=64, d_model=32, num_layers=2, num_heads=4, mlp_hidden=48, patch_values=12
)
ROWS, SEQ, PATCHES = 4, 16, 6
ONE, EIGHT = model.make_mesh(1, 1, 1), model.make_mesh(2, 2, 2)


def make_batch() -> dict[str, np.ndarray]:
    """Each row: a segment of 7 places (the first 3 show patches 2, 0, 4), one of 6, then padding."""
    rng = np.random.default_rng(0)
    segment_ids = np.repeat([1, 2, 0], [7, 6, 3])
    positions = np.concatenate((np.arange(7), np.arange(6), np.arange(3)))
    patch_index = np.full(SEQ, -1)
    patch_index[:3] = (2, 0, 4)
    row = {"segment_ids": segment_ids, "positions": positions, "patch_index": patch_index}
    batch = {name: np.tile(value.astype(np.int32), (ROWS, 1)) for name, value in row.items()}
    tokens = rng.integers(1, 64, (ROWS, SEQ), dtype=np.int32)
    batch["tokens"] = np.where(batch["patch_index"] >= 0, 0, tokens)
    batch["targets"] = rng.integers(0, 64, (ROWS, SEQ), dtype=np.int32)
    batch["loss_mask"] = (batch["segment_ids"] > 0).astype(np.float32)
    batch["loss_mask"][0, 4:] = 0  # rows of unequal weight: the mean has to be the global one
    batch["patches"] = rng.integers(0, 256, (ROWS, PATCHES, 12), dtype=np.uint8)
    return batch


def put(batch: dict[str, np.ndarray], mesh: jax.sharding.Mesh) -> dict[str, jax.Array]:
    return {k: jax.device_put(v, NamedSharding(mesh, model.BATCH_SPECS[k])) for k, v in batch.items()}


def run(function, batch: dict[str, np.ndarray], mesh: jax.sharding.Mesh = ONE) -> np.ndarray:
    with jax.set_mesh(mesh):
        return np.asarray(compiled(function)(params_on(mesh), put(batch, mesh), CONFIG))


@functools.cache
def compiled(function):
    return jax.jit(function, static_argnums=2)


@functools.cache
def params_on(mesh: jax.sharding.Mesh) -> model.Params:
    return model.init(CONFIG, 3, mesh)


def check_loss_starts_near_that_of_a_uniform_guess() -> None:
    assert abs(run(model.loss, make_batch()) - np.log(64)) < 0.2


def check_order_of_places_plays_no_part() -> None:
    batch = make_batch()
    zigzag = np.array([0, 1, 2, 3, 12, 13, 14, 15, 4, 5, 6, 7, 8, 9, 10, 11])
    moved = {name: value if name == "patches" else value[:, zigzag] for name, value in batch.items()}
    for mesh in (ONE, EIGHT):
        np.testing.assert_allclose(run(model.loss, moved, mesh), run(model.loss, batch, mesh), rtol=2e-6)


def check_meshes_agree_on_loss_and_training() -> None:
    ends = []
    for mesh in (ONE, EIGHT, model.make_mesh(1, 4, 2)):
        optimizer = model.make_optimizer(1e-2, 2)
        state = model.init_state(model.init(CONFIG, 3, mesh), mesh, optimizer)
        step = model.make_train_step(CONFIG, mesh, optimizer)
        losses = []
        for _ in range(6):
            state, loss = step(state, put(make_batch(), mesh))
            losses.append(float(loss))
        ends.append((losses, np.asarray(state["params"]["embedding"])))
    assert ends[0][0][-1] < ends[0][0][0] - 0.05, ends[0][0]
    for losses, embedding in ends[1:]:
        np.testing.assert_allclose(losses, ends[0][0], rtol=1e-4)
        np.testing.assert_allclose(embedding, ends[0][1], atol=1e-3)


def check_parameters_and_averages_are_cut_over_tp() -> None:
    optimizer = model.make_optimizer()
    state = model.init_state(model.init(CONFIG, 3, EIGHT), EIGHT, optimizer)
    kept = [x for x in jax.tree.leaves(state) if x.shape == (64, 32)]
    assert len(kept) == 3  # the embedding and its two averages
    assert all(x.addressable_shards[0].data.shape == (32, 32) for x in kept)


def check_segments_do_not_see_each_other() -> None:
    batch, other = make_batch(), make_batch()
    other["tokens"][:, 7:13] = 5  # all of segment 2
    before, after = run(model.logits, batch), run(model.logits, other)
    np.testing.assert_allclose(after[:, :7], before[:, :7], atol=1e-6)
    assert np.abs(after[:, 7:13] - before[:, 7:13]).max() > 1e-3


def check_a_place_sees_no_later_place() -> None:
    batch, other = make_batch(), make_batch()
    other["tokens"][:, 5] = (other["tokens"][:, 5] + 1) % 64
    before, after = run(model.logits, batch), run(model.logits, other)
    np.testing.assert_allclose(after[:, :5], before[:, :5], atol=1e-6)
    assert np.abs(after[:, 6] - before[:, 6]).max() > 1e-4


def check_image_places_show_their_patch() -> None:
    batch, unused, used, token = make_batch(), make_batch(), make_batch(), make_batch()
    unused["patches"][:, 1] = 7
    used["patches"][:, 0] = 255 - used["patches"][:, 0]  # shown at place 1
    token["tokens"][:, :3] = 9
    before = run(model.logits, batch)
    np.testing.assert_array_equal(run(model.logits, unused), before)
    np.testing.assert_array_equal(run(model.logits, token), before)
    after = run(model.logits, used)
    np.testing.assert_allclose(after[:, 0], before[:, 0], atol=1e-6)
    assert np.abs(after[:, 1] - before[:, 1]).max() > 1e-4


def check_gradient_of_cross_entropy_equals_the_plain_one() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    hidden, head = jax.random.normal(keys[0], (4, 16, 32)), jax.random.normal(keys[1], (64, 32))
    targets = jax.random.randint(keys[2], (4, 16), 0, 64)
    weights = jnp.linspace(0, 1, 64).reshape(4, 16)

    def plain(hidden: jax.Array, head: jax.Array) -> jax.Array:
        scores = jax.nn.log_softmax(hidden @ head.T)
        return -jnp.sum(weights * jnp.take_along_axis(scores, targets[..., None], axis=-1)[..., 0])

    def ours(hidden: jax.Array, head: jax.Array) -> jax.Array:
        return model.cross_entropy(hidden, head, targets, weights)

    expected = jax.value_and_grad(plain, (0, 1))(hidden, head)
    with jax.set_mesh(EIGHT):
        actual = jax.jit(jax.value_and_grad(ours, (0, 1)))(hidden, head)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=1e-4, atol=1e-4)


def check_a_boolean_loss_mask_will_do() -> None:
    batch = make_batch()
    expected = run(model.loss, batch)
    batch["loss_mask"] = batch["loss_mask"].astype(bool)
    np.testing.assert_array_equal(run(model.loss, batch), expected)


def main() -> None:
    verdicts = {}
    for name, check in [(n, f) for n, f in globals().items() if n.startswith("check_")]:
        try:
            check()
            verdicts[name] = "ok"
        except Exception:  # noqa: BLE001  # reported by the test of the same name
            verdicts[name] = traceback.format_exc()
    print(json.dumps(verdicts))


if __name__ == "__main__":
    main()
