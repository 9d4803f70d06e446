"""The shortest training loop in plain JAX: guesses the next token from the token alone, by gradient descent.

python examples/train_plain.py
msdata launch --loaders 3 examples/recipe_text.py -- examples/train_plain.py

Without a mesh a batch is the whole step's rows, as numpy arrays; train_pjit.py cuts batch and parameters.
"""

import argparse

import jax
import jax.numpy as jnp
from recipe_text import recipe, tokenize

import msdata_jax as msd

WIDTH, LEARNING_RATE = 64, 10.0


def loss_of(params: dict[str, jax.Array], batch: dict[str, jax.Array]) -> jax.Array:
    """Mean nats of the targets that `loss_mask` marks."""
    scores = params["embedding"][batch["tokens"]] @ params["head"]
    nats = -jnp.take_along_axis(jax.nn.log_softmax(scores), batch["targets"][..., None], axis=-1)[..., 0]
    return jnp.sum(nats * batch["loss_mask"]) / jnp.maximum(jnp.sum(batch["loss_mask"]), 1)


@jax.jit
def train_step(
    params: dict[str, jax.Array], batch: dict[str, jax.Array]
) -> tuple[dict[str, jax.Array], jax.Array]:
    loss, gradients = jax.value_and_grad(loss_of)(params, batch)
    return jax.tree.map(lambda x, gradient: x - LEARNING_RATE * gradient, params, gradients), loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50, help="training steps (default 50)")
    options = parser.parse_args()
    msd.initialize()
    keys = jax.random.split(jax.random.key(0))
    params = {
        "embedding": jax.random.normal(keys[0], (tokenize.vocab_size, WIDTH)),
        "head": 0.02 * jax.random.normal(keys[1], (WIDTH, tokenize.vocab_size)),
    }
    with msd.DataLoader(recipe, num_steps=options.steps) as loader:
        for step, batch in enumerate(loader):
            params, loss = train_step(params, batch)
            print(f"step {step:4d}  loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
