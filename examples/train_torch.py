"""Data-parallel training in torch: guesses the next token from the token alone, by gradient descent.

python examples/train_torch.py
msdata launch --loaders 2 --trainers 2 examples/recipe_text.py -- examples/train_torch.py

With --checkpoints FOLDER it saves model and data together at the end, and goes on from there on any number of
processes; --steps counts all steps.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from recipe_text import recipe, tokenize
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy

from msdata_jax.torch import MSIterableDataset, initialize

WIDTH, LEARNING_RATE = 64, 10.0


def make_model() -> torch.nn.Sequential:
    """The same on every process."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Embedding(tokenize.vocab_size, WIDTH),
        torch.nn.Linear(WIDTH, tokenize.vocab_size, bias=False),
    )


def train_step(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> float:
    """Descend along the gradient of the global batch's loss, whose parts the processes hold."""
    scores, weights = model(batch["tokens"]), batch["loss_mask"]
    nats = cross_entropy(scores.flatten(0, 1), batch["targets"].flatten().long(), reduction="none")
    loss = (nats * weights.flatten()).sum()
    model.zero_grad()
    loss.backward()
    totals = torch.stack([loss.detach(), weights.sum()])
    dist.all_reduce(totals)
    with torch.no_grad():
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter -= LEARNING_RATE / totals[1] * parameter.grad
    return (totals[0] / totals[1]).item()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=50, help="training steps (default 50)")
    parser.add_argument("--checkpoints", type=Path, help="folder to go on from and to save to")
    options = parser.parse_args()
    processes = initialize(backend="gloo")
    mesh = init_device_mesh("cpu", (processes.num_processes, 1), mesh_dim_names=("dp", "fsdp"))
    model = make_model()
    with MSIterableDataset(recipe, mesh=mesh, num_steps=options.steps) as dataset:
        state = {"model": model.state_dict(), "data": dataset}
        if options.checkpoints and options.checkpoints.exists():
            dcp.load(state, checkpoint_id=options.checkpoints)
        first = dataset.state_dict()["step"]
        for step, batch in enumerate(dataset, start=first):
            loss = train_step(model, batch)
            if processes.process_index == 0:
                print(f"step {step:4d}  loss {loss:.4f}", flush=True)
        if options.checkpoints:
            dcp.save({"model": model.state_dict(), "data": dataset}, checkpoint_id=options.checkpoints)


if __name__ == "__main__":
    main()
