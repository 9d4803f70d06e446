"""Trains a small transformer on recipe.py over a (dp, cp, tp) mesh.

python examples/train.py                                                     # everything in one process
msdata launch --loaders 3 --trainers 2 examples/recipe.py -- examples/train.py   # planner and loaders apart

With --checkpoints FOLDER it saves model and data together, and goes on from the newest step that is there.
"""

import argparse
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
from recipe import recipe

import msdata_jax as msd


def main() -> None:
    options = parse_options()
    processes = msd.initialize(num_cpu_devices=options.devices)

    import jax
    import model
    from jax.sharding import AxisType

    mesh = jax.make_mesh(options.mesh, ("dp", "cp", "tp"), axis_types=(AxisType.Auto,) * 3)
    config, optimizer = model.Config(), model.make_optimizer()
    state = model.init_state(model.init(config, seed=0, mesh=mesh), mesh, optimizer)
    train_step = model.make_train_step(config, mesh, optimizer)
    losses, step_seconds = [], []
    with msd.DataLoader(recipe, mesh=mesh, specs=model.BATCH_SPECS, num_steps=options.steps) as loader:
        saves = Checkpoints(options.checkpoints, loader) if options.checkpoints else None
        if saves is not None:
            state = saves.restore(state)
        begin = time.perf_counter()
        for step, batch in enumerate(loader, start=loader.next_step):
            state, loss = train_step(state, batch)
            losses.append(float(loss))
            step_seconds.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            if saves is not None and (step + 1) % options.save_every == 0:
                saves.save(step, state)
            if processes.process_index == 0 and (step % 10 == 0 or step + 1 == options.steps):
                print(
                    f"step {step + 1:4d}/{options.steps}  loss {losses[-1]:.3f}  {step_seconds[-1]:.2f} s",
                    flush=True,
                )
        if saves is not None:
            saves.close()
    if processes.process_index == 0 and options.report:
        write_report(loader, options, losses, step_seconds)


class Checkpoints:
    """Model and data in one orbax checkpoint a step, the data as what changed since the last whole one."""

    def __init__(self, folder: Path, loader: msd.DataLoader) -> None:
        import orbax.checkpoint as ocp
        from orbax.checkpoint.checkpoint_managers import LatestN

        from msdata_jax.checkpoint import KeepBases

        self._loader = loader
        self._bases = KeepBases(LatestN(3))
        options = ocp.CheckpointManagerOptions(preservation_policy=self._bases)
        self._manager = ocp.CheckpointManager(folder.absolute(), options=options)

    def restore(self, state: dict) -> dict:
        """The model of the newest step, with the loader behind that step; `state` where nothing was saved."""
        import orbax.checkpoint as ocp

        from msdata_jax.checkpoint import DataRestore

        step = self._manager.latest_step()
        if step is None:
            return state
        items = ocp.args.Composite(model=ocp.args.StandardRestore(state), data=DataRestore(self._loader))
        return self._manager.restore(step, args=items)["model"]

    def save(self, step: int, state: dict) -> None:
        """In the background; what is saved is frozen before this returns."""
        import orbax.checkpoint as ocp

        from msdata_jax.checkpoint import DataSave

        data = DataSave(self._loader, bases=self._bases)
        self._manager.save(step, args=ocp.args.Composite(model=ocp.args.StandardSave(state), data=data))

    def close(self) -> None:
        """Wait until the last save is on disk."""
        self._manager.close()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=40, help="training steps (default 40)")
    parser.add_argument("--mesh", type=sizes, default=(2, 2, 2), help="sizes of dp,cp,tp (default 2,2,2)")
    parser.add_argument("--processes", type=int, default=1, help="training processes that share the mesh")
    parser.add_argument("--report", type=Path, help="folder for report.json and pictures")
    parser.add_argument("--checkpoints", type=Path, help="folder of checkpoints to go on from and save to")
    parser.add_argument("--save-every", type=int, default=10, help="steps from one save to the next")
    options = parser.parse_args()
    options.devices = int(np.prod(options.mesh)) // options.processes
    return options


def sizes(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def write_report(
    loader: msd.DataLoader, options: argparse.Namespace, losses: list[float], step_seconds: list[float]
) -> None:
    import report

    figures, job = loader.figures.summary(), loader.job_figures
    asked = recipe.strategy.mixture.weights_at(0, recipe.source_names)
    content = {
        **figures,
        "sources": [
            {
                **source,
                "share_asked": float(weight / asked.sum()),
                "share_realised": source["share_of_tokens"],
                "bad_samples": job["sources"][source["name"]]["bad_samples"],
            }
            for source, weight in zip(figures["sources"], asked, strict=True)
        ],
        "step_ms": {"p50": round(1000 * float(np.median(step_seconds[1:])), 1)},
        "memory_pss_mb": {
            "planner": job["planner"]["pss_mb"],
            "loader": [each["pss_mb"] for each in job["loaders"]],
            "constructor": [each["pss_mb"] for each in job["constructors"]],
        },
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "losses": losses,
        "mesh": dict(zip(("dp", "cp", "tp"), options.mesh, strict=True)),
        "versions": {name: version(name) for name in ("msdata-jax", "jax", "numpy", "mpi4py")},
    }
    mflop = 1e6  # the strategy's costs are in millions of operations
    balanced, unbalanced = np.array(loader.figures.group_costs), np.array(loader.figures.unbalanced_costs)
    report.write(options.report, content, balanced * mflop, unbalanced * mflop)
    report.print_report(content)


if __name__ == "__main__":
    main()
