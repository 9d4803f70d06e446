"""Parameters cut over a (dp, fsdp, tp) mesh with `jax.jit` and shardings, and batches that arrive cut alike.

python examples/train_pjit.py --cpu-devices 8
msdata launch --loaders 3 --trainers 2 examples/recipe_text.py -- examples/train_pjit.py --cpu-devices 4

Every array has its sharding from the start and keeps it: nothing is moved between steps.
"""

import argparse

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from recipe_text import recipe, tokenize

import msdata_jax as msd

Arrays = dict[str, jax.Array]

WIDTH, HIDDEN, LEARNING_RATE = 128, 512, 0.3

BATCH_SPEC = P(("dp", "fsdp"))  # rows over both axes; every tp part of a row holds the same places
PARAM_SPECS = {
    "embedding": P("fsdp", "tp"),  # [vocab_size, width]
    "hidden_in": P("fsdp", "tp"),  # [width, hidden]
    "hidden_out": P("tp", "fsdp"),  # [hidden, width]
    "head": P("fsdp", "tp"),  # [width, vocab_size]
}


def make_params() -> Arrays:
    vocab_size = tokenize.vocab_size
    keys = jax.random.split(jax.random.key(0), 4)
    return {
        "embedding": jax.random.normal(keys[0], (vocab_size, WIDTH)),
        "hidden_in": jax.random.normal(keys[1], (WIDTH, HIDDEN)) * WIDTH**-0.5,
        "hidden_out": jax.random.normal(keys[2], (HIDDEN, WIDTH)) * HIDDEN**-0.5,
        "head": jax.random.normal(keys[3], (WIDTH, vocab_size)) * 0.02,
    }


def loss_of(params: Arrays, batch: Arrays) -> jax.Array:
    """Mean nats of the targets that `loss_mask` marks, over the whole global batch."""
    x = params["embedding"][batch["tokens"]]
    x = x + jax.nn.gelu(x @ params["hidden_in"]) @ params["hidden_out"]
    scores = jax.nn.log_softmax(x @ params["head"])
    nats = -jnp.take_along_axis(scores, batch["targets"][..., None], axis=-1)[..., 0]
    return jnp.sum(nats * batch["loss_mask"]) / jnp.maximum(jnp.sum(batch["loss_mask"]), 1)


def train_step(params: Arrays, batch: Arrays) -> tuple[Arrays, jax.Array]:
    loss, gradients = jax.value_and_grad(loss_of)(params, batch)
    return jax.tree.map(lambda x, gradient: x - LEARNING_RATE * gradient, params, gradients), loss


def main() -> None:
    options = parse_options()
    processes = msd.initialize(num_cpu_devices=options.cpu_devices)
    shape = (jax.device_count() // (options.fsdp * options.tp), options.fsdp, options.tp)
    mesh = jax.make_mesh(shape, ("dp", "fsdp", "tp"), axis_types=(AxisType.Auto,) * 3)
    of_params = {name: NamedSharding(mesh, spec) for name, spec in PARAM_SPECS.items()}
    of_batch, of_loss = NamedSharding(mesh, BATCH_SPEC), NamedSharding(mesh, P())
    step_fn = jax.jit(
        train_step,
        in_shardings=(of_params, of_batch),
        out_shardings=(of_params, of_loss),
        donate_argnums=0,
    )
    params = jax.jit(make_params, out_shardings=of_params)()  # each device makes its own part
    # Fields that are not named follow `tokens`.
    with msd.DataLoader(recipe, mesh=mesh, specs={"tokens": BATCH_SPEC}, num_steps=options.steps) as loader:
        for step, batch in enumerate(loader):
            params, loss = step_fn(params, batch)
            if processes.process_index == 0:
                print(f"step {step:4d}  loss {loss:.4f}", flush=True)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50, help="training steps (default 50)")
    parser.add_argument("--fsdp", type=int, default=2, help="parts of the parameters (default 2)")
    parser.add_argument("--tp", type=int, default=2, help="parts of every layer (default 2)")
    parser.add_argument("--cpu-devices", type=int, help="use the CPU, as so many devices a process")
    return parser.parse_args()


if __name__ == "__main__":
    main()
