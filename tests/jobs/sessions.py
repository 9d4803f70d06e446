"""Several DataLoaders one after the other in one job; prints what each gave as a line of JSON.

usage: sessions.py ACTION
"""

import json
import os
import signal
import sys
from collections.abc import Iterable

from recipe import recipe

import msdata_jax as msd
from msdata_jax.data_state import DataState


def digests(loader: msd.DataLoader, steps: Iterable) -> list[str]:
    return [loader.last_step.content_digest for _ in steps]


def show(what: str, value: object) -> None:
    print(json.dumps({what: value}), flush=True)


def several() -> None:
    """All steps, then again from a state, from a step, and after a break."""
    states: dict[int, DataState] = {}
    with msd.DataLoader(recipe, num_steps=6) as loader:
        given = []
        for step, _ in enumerate(loader):
            given.append(loader.last_step.content_digest)
            states[step + 1] = loader.state()
    show("first", given)
    former, loader = loader, msd.DataLoader(recipe, num_steps=6)
    former.close()  # once more, which says nothing of the new one
    try:
        msd.DataLoader(recipe)
    except msd.LaunchError as error:
        show("second", str(error))
    loader.restore(states[2])
    show("restored", digests(loader, loader))
    loader.close()
    with msd.DataLoader(recipe, num_steps=6) as loader:
        loader.skip_to(4)
        show("skipped", digests(loader, loader))
    with msd.DataLoader(recipe) as loader:
        next(loader)  # and leave with steps under way
    with msd.DataLoader(recipe, num_steps=1) as loader:
        show("last", digests(loader, loader))


def lose_a_loader() -> None:
    """The loader that is killed between two sessions is not missed."""
    with msd.DataLoader(recipe, num_steps=3) as loader:
        show("first", digests(loader, loader))
    victim = loader.job_figures["loaders"][0]["pid"]
    os.kill(victim, signal.SIGKILL)
    with msd.DataLoader(recipe, num_steps=3) as loader:
        show("second", digests(loader, loader))
    show("lost", [each["why"] for each in loader.job_figures["lost"]])


def stop() -> None:
    """Steps until somebody asks the launcher to stop."""
    given = 0
    with msd.DataLoader(recipe, num_steps=1_000_000) as loader:
        for _ in loader:
            given += 1
            if given == 3:
                show("started", True)
        show("given", given)
        show("stopped", loader.stopped)
        show("next step", loader.next_step)


def leave_hard() -> None:
    """End without a word, behind the last session."""
    with msd.DataLoader(recipe, num_steps=2) as loader:
        show("first", digests(loader, loader))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    msd.initialize(use_jax=False)
    {"several": several, "lose": lose_a_loader, "stop": stop, "hard": leave_hard}[sys.argv[1]]()
