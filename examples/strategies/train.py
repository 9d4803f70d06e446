"""Takes the steps of one of the strategies beside this file, and shows what each step brought.

python examples/strategies/train.py hybrid --steps 10
msdata launch --trainers 2 examples/strategies/hybrid.py -- examples/strategies/train.py hybrid --processes 2

In place of a model there is a sum over the weights of the loss, the first thing that a loss is divided by.
"""

import argparse
import importlib
from collections.abc import Sequence

import msdata_jax as msd

STRATEGIES = ("annealing", "curriculum", "hybrid", "long_short")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    options = parse_options(arguments)
    recipe = importlib.import_module(options.strategy).recipe
    processes = msd.initialize(num_cpu_devices=options.dp * options.cp // options.processes)

    import jax

    mesh = jax.make_mesh((options.dp, options.cp), ("dp", "cp"))
    sum_weights = jax.jit(lambda mask: mask.sum(dtype="float32"))
    with msd.DataLoader(recipe, mesh=mesh, num_steps=options.steps) as loader:
        for step, batch in enumerate(loader):
            weight = float(sum_weights(batch["loss_mask"]))
            if processes.process_index == 0:
                expect = loader.last_step
                shares = expect.source_tokens / expect.source_tokens.sum()
                mixed = ", ".join(
                    f"{name} {share:.2f}" for name, share in zip(recipe.sources, shares, strict=True)
                )
                print(
                    f"step {step}: {batch['tokens'].shape}, fill {expect.fill:.3f}, "
                    f"imbalance {expect.imbalance:.3f}, loss weight {weight:.0f}; {mixed}",
                    flush=True,
                )


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("strategy", choices=STRATEGIES)
    parser.add_argument("--steps", type=int, default=10, help="steps (default 10)")
    parser.add_argument("--dp", type=int, default=4, help="data-parallel devices (default 4)")
    parser.add_argument("--cp", type=int, default=2, help="context-parallel devices (default 2)")
    parser.add_argument(
        "--processes", type=int, default=1, help="training processes that share the mesh (default 1)"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
