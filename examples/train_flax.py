"""Trains a small language model with flax nnx and optax on recipe_text.py.

python examples/train_flax.py
msdata launch --loaders 3 --trainers 2 examples/recipe_text.py -- examples/train_flax.py

Model, optimizer and data are in one orbax checkpoint. Started again with the same folder, on any number of
loaders, it goes on from the newest step as if it had never stopped. On SIGUSR1 `msdata launch` lets the data
end, so that the loop ends and the last step is saved.
"""

import argparse
import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import AxisType, Mesh
from orbax.checkpoint.checkpoint_managers import LatestN
from recipe_text import SEQ_LEN, recipe, tokenize

import msdata_jax as msd
from msdata_jax.checkpoint import DataRestore, DataSave, KeepBases

D_MODEL, NUM_LAYERS, NUM_HEADS = 128, 2, 4
FSDP_OUT, FSDP_IN = {"out_sharding": (None, "fsdp")}, {"out_sharding": ("fsdp", None)}

Linear = partial(nnx.Linear, use_bias=False)


class Block(nnx.Module):
    """Attention inside segments, and a hidden layer of four times the width."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norms = nnx.List([nnx.RMSNorm(D_MODEL, rngs=rngs) for _ in range(2)])
        self.attention_in = Linear(D_MODEL, 3 * D_MODEL, kernel_metadata=FSDP_OUT, rngs=rngs)
        self.attention_out = Linear(D_MODEL, D_MODEL, kernel_metadata=FSDP_IN, rngs=rngs)
        self.mlp_in = Linear(D_MODEL, 4 * D_MODEL, kernel_metadata=FSDP_OUT, rngs=rngs)
        self.mlp_out = Linear(4 * D_MODEL, D_MODEL, kernel_metadata=FSDP_IN, rngs=rngs)

    def __call__(self, x: jax.Array, visible: jax.Array) -> jax.Array:
        heads = (*x.shape[:2], 3, NUM_HEADS, D_MODEL // NUM_HEADS)
        query, key, value = jnp.moveaxis(self.attention_in(self.norms[0](x)).reshape(heads), 2, 0)
        mixed = jax.nn.dot_product_attention(query, key, value, mask=visible)
        x = x + self.attention_out(mixed.reshape(x.shape))
        return x + self.mlp_out(nnx.gelu(self.mlp_in(self.norms[1](x))))


class LanguageModel(nnx.Module):
    """A decoder over packed rows; the embedding is the output head too."""

    def __init__(self, vocab_size: int, rngs: nnx.Rngs) -> None:
        embed = partial(nnx.Embed, features=D_MODEL, embedding_metadata=FSDP_OUT, rngs=rngs)
        self.tokens = embed(vocab_size, embedding_init=nnx.initializers.normal(0.02))
        self.positions = embed(SEQ_LEN, embedding_init=nnx.initializers.normal(0.02))
        self.blocks = nnx.List([Block(rngs) for _ in range(NUM_LAYERS)])
        self.norm = nnx.RMSNorm(D_MODEL, rngs=rngs)

    def __call__(self, batch: dict[str, jax.Array]) -> jax.Array:
        """Scores of every token of the vocabulary, `[rows, seq_len, vocab_size]`."""
        segments, positions = batch["segment_ids"], batch["positions"]
        same_segment = segments[:, :, None] == segments[:, None, :]
        visible = same_segment & (positions[:, :, None] >= positions[:, None, :])
        x = self.tokens(batch["tokens"]) + self.positions(positions)
        for block in self.blocks:
            x = block(x, visible[:, None])  # the same for all heads
        return self.tokens.attend(self.norm(x))


def loss_of(model: LanguageModel, batch: dict[str, jax.Array]) -> jax.Array:
    """Mean nats of the targets that `loss_mask` marks, over the whole global batch."""
    nats = optax.softmax_cross_entropy_with_integer_labels(model(batch), batch["targets"])
    return jnp.sum(nats * batch["loss_mask"]) / jnp.maximum(jnp.sum(batch["loss_mask"]), 1)


def make_training() -> tuple[LanguageModel, nnx.Optimizer]:
    model = LanguageModel(tokenize.vocab_size, nnx.Rngs(0))
    rate = optax.linear_schedule(0.0, 3e-3, transition_steps=10)
    adam = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.98))
    return model, nnx.Optimizer(model, adam, wrt=nnx.Param)


class Checkpoints:
    """Model, optimizer and data in one orbax checkpoint a step."""

    def __init__(self, folder: Path, loader: msd.DataLoader) -> None:
        self._loader, self._bases = loader, KeepBases(LatestN(3))
        options = ocp.CheckpointManagerOptions(preservation_policy=self._bases)
        self._manager = ocp.CheckpointManager(folder.absolute(), options=options)

    def restore(self, abstract: nnx.State) -> nnx.State | None:
        """The newest step's state, with the loader behind that step; None where nothing was saved."""
        newest = self._manager.latest_step()
        if newest is None:
            return None
        model, data = ocp.args.StandardRestore(abstract), DataRestore(self._loader)
        return self._manager.restore(newest, args=ocp.args.Composite(model=model, data=data))["model"]

    def save(self, state: nnx.State) -> None:
        """Behind the step taken last, once; in the background, frozen before this returns."""
        step = self._loader.next_step - 1
        if step != self._manager.latest_step():
            model, data = ocp.args.StandardSave(state), DataSave(self._loader, self._bases)
            self._manager.save(step, args=ocp.args.Composite(model=model, data=data))

    def close(self) -> None:
        """Wait until the last save is on disk."""
        self._manager.close()


def train(mesh: Mesh, loader: msd.DataLoader, options: argparse.Namespace) -> dict[int, float]:
    """Train to the end of the data, from the newest checkpoint; gives the loss of every step taken."""
    graph, abstract = nnx.get_abstract_model(make_training, mesh)
    shardings = nnx.get_named_sharding(abstract, mesh)

    @partial(jax.jit, out_shardings=shardings)
    def init_state() -> nnx.State:
        return nnx.state(make_training())

    @partial(jax.jit, out_shardings=(shardings, None), donate_argnums=0)
    def train_step(state: nnx.State, batch: dict[str, jax.Array]) -> tuple[nnx.State, jax.Array]:
        model, optimizer = nnx.merge(graph, state)
        loss, gradients = nnx.value_and_grad(loss_of)(model, batch)
        optimizer.update(model, gradients)
        return nnx.state((model, optimizer)), loss

    checkpoints = Checkpoints(options.checkpoints, loader)
    state = checkpoints.restore(abstract) or init_state()
    losses = {}
    for step, batch in enumerate(loader, start=loader.next_step):
        state, losses[step] = train_step(state, batch)
        if (step + 1) % options.save_every == 0:
            checkpoints.save(state)
        if step % 10 == 0 and jax.process_index() == 0:
            print(f"step {step:4d}  loss {losses[step]:.3f}", flush=True)
    if losses:
        checkpoints.save(state)  # the data ended, or somebody asked the job to stop
    checkpoints.close()
    return {step: float(loss) for step, loss in losses.items()}


def main() -> None:
    options = parse_options()
    processes = msd.initialize(num_cpu_devices=options.cpu_devices)
    shape = (jax.device_count() // options.fsdp, options.fsdp)
    mesh = jax.make_mesh(shape, ("dp", "fsdp"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh), msd.DataLoader(recipe, mesh=mesh, num_steps=options.steps) as loader:
        losses = train(mesh, loader, options)
    if processes.process_index == 0 and options.losses:
        options.losses.write_text(json.dumps(losses))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100, help="training steps in all (default 100)")
    parser.add_argument("--checkpoints", type=Path, default=Path("out/flax"), help="default out/flax")
    parser.add_argument("--save-every", type=int, default=20, help="steps from one save to the next")
    parser.add_argument("--fsdp", type=int, default=1, help="devices that share the parameters")
    parser.add_argument("--cpu-devices", type=int, help="use the CPU, as so many devices a process")
    parser.add_argument("--losses", type=Path, help="JSON file for the loss of every step")
    return parser.parse_args()


if __name__ == "__main__":
    main()
