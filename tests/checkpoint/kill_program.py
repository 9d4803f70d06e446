"""Saves step after step, and is killed at one point of one save. Or goes on after such a death, and checks.

`kill_program.py save ROOT POINT STEP` never returns. `kill_program.py go_on ROOT...` does so for many roots,
and prints what it found in each as JSON.

Points are calls of the operating system: this program replaces functions of `os` by ones that kill it.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import jax

jax.config.update("jax_platforms", "cpu")

import jax.numpy as jnp  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1]))

from checkpoint.states import Stand, play  # noqa: E402

from msdata_jax.checkpoint import DataRestore, DataSave, KeepBases, find_states  # noqa: E402

STATES = play(num_sources=12, num_steps=12)


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(name: str, concerns: Callable[..., bool], act: Callable[..., None] = die) -> None:
    """Have a function of `os` act first where a call of it concerns us."""
    real = getattr(os, name)

    def replaced(*args, **kwargs):
        if concerns(*args):
            act(*args)
        return real(*args, **kwargs)

    setattr(os, name, replaced)


def path_of(handle: int) -> str:
    return os.readlink(f"/proc/self/fd/{handle}")


def arm(point: str, step: int) -> None:
    tmp = f"/{step}.orbax-checkpoint-tmp"
    draft = f"{tmp}/data.orbax-checkpoint-tmp/state.msd.tmp"
    real_write = os.write

    def write_half(handle: int, data: memoryview) -> None:
        real_write(handle, data[: len(data) // 2])
        die()

    match point:
        case "before the directory":
            before("mkdir", lambda path, *_: tmp in str(path))
        case "half a file":
            before("write", lambda handle, _: path_of(handle).endswith(draft), write_half)
        case "file not on disk yet":
            before("fsync", lambda handle: path_of(handle).endswith(draft))
        case "file without its name":
            before("replace", lambda path, _: str(path).endswith(draft))
        case "item without its name":
            for name in ("rename", "replace"):
                before(name, lambda path, _: str(path).endswith(f"{tmp}/data.orbax-checkpoint-tmp"))
        case "step without its name":
            for name in ("rename", "replace"):
                before(name, lambda path, _: str(path).endswith(tmp))
        case "old steps not deleted yet":
            for name in ("rmdir", "unlink", "remove"):
                before(name, lambda path, *_, **__: Path(f"{ROOT}/{step}").exists())


def open_manager(root: Path, bases: KeepBases) -> ocp.CheckpointManager:
    return ocp.CheckpointManager(root, options=ocp.CheckpointManagerOptions(preservation_policy=bases))


def make_bases() -> KeepBases:
    return KeepBases(ocp.checkpoint_managers.LatestN(2), full_every=4)


def save(manager: ocp.CheckpointManager, step: int, bases: KeepBases) -> None:
    model = ocp.args.StandardSave({"w": jnp.full(3, step)})
    args = ocp.args.Composite(model=model, data=DataSave(Stand(STATES[step]), bases))
    manager.save(step, args=args)


def go_on(root: Path) -> dict:
    """Restore the newest step, save on to step 11, and restore every step that is left."""
    bases = make_bases()
    with open_manager(root, bases) as manager:
        latest = manager.latest_step()
        assert latest is not None
        exact = restores(manager, latest)
        save(manager, latest + 1, bases)
        manager.wait_until_finished()
        first = find_states(root / str(latest + 1))[0].head
        for step in range(latest + 2, 12):
            save(manager, step, bases)
        manager.wait_until_finished()
        left = {step: restores(manager, step) for step in manager.all_steps()}
    return {"latest": latest, "exact": exact, "first": first and first.kind, "left": left}


def restores(manager: ocp.CheckpointManager, step: int) -> bool:
    loader = Stand()
    model = ocp.args.StandardRestore({"w": jnp.zeros(3, int)})
    restored = manager.restore(step, args=ocp.args.Composite(model=model, data=DataRestore(loader)))
    assert loader.state is not None
    return loader.state.to_leaves() == STATES[step].to_leaves() and restored["model"]["w"][0] == step


if sys.argv[1] == "go_on":
    print(json.dumps([go_on(Path(root)) for root in sys.argv[2:]], default=bool))
else:
    ROOT, POINT, STEP = Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    arm(POINT, STEP)
    the_bases = make_bases()
    with open_manager(ROOT, the_bases) as the_manager:
        for number in range(1, 12):
            save(the_manager, number, the_bases)
    sys.exit(f"step {STEP} was saved, and nothing killed this process {POINT}")
