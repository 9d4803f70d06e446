"""Keeps the bases of deltas: a preservation policy around another one, for both versions of orbax."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from msdata_jax.checkpoint.finding import COMMITTED, TEMPORARY, Found, final_name, states_of_step, step_number
from msdata_jax.errors import CheckpointError

FULL_EVERY = 10
KEPT_BASES = 2


class StepInfo(Protocol):
    """What orbax says of a step."""

    @property
    def step(self) -> int: ...


class Policy(Protocol):
    """A preservation policy of orbax."""

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """For each step, oldest first, whether it stays."""
        ...


class KeepBases:
    """Keeps what `policy` keeps, and every step that a delta needs. The outermost policy of its manager.

    Give one object in two places: to the manager as `preservation_policy`, and to `DataSave` or
    `DataCheckpointable`, which then saves deltas. Beside what `policy` keeps there stay the bases of all
    steps that are there, and the two newest bases, so that one that is damaged does not take all steps with
    it. A base is a step like any other, with its model.

    Every process decides alike, by what is on disk: nothing is sent.

    Args:
        policy: any preservation policy, such as `LatestN(3)`; None keeps every step.
        full_every: saves from one full to the next; those between are deltas.

    Raises:
        CheckpointError: from a save, where the manager does not ask this policy, or asks it and nothing is
            saved with it: bases would be collected, and the deltas that need them lost.
    """

    def __init__(self, policy: Policy | None = None, *, full_every: int = FULL_EVERY) -> None:
        if full_every < 1:
            raise CheckpointError(f"full_every counts saves and is at least 1, got {full_every}")
        self.policy, self.full_every = policy, full_every
        self._root: Path | None = None
        self._saving = ""
        self._asked = True
        self._in_place = False
        self._known: dict[str, list[Found]] = {}

    def __repr__(self) -> str:
        return f"KeepBases({self.policy!r}, full_every={self.full_every})"

    def begin(self, step: Path) -> None:
        """A state is about to be saved in the directory of a step; on every process.

        Raises:
            CheckpointError: the manager committed an earlier save and did not ask about it; or it is a second
                manager, or its steps have no numbers.
        """
        root, name = step.parent, final_name(step.name)
        if self._root not in (None, root):
            raise CheckpointError(
                f"one KeepBases serves one manager: it keeps bases in {self._root} and is given a save in "
                f"{root}; make one for each"
            )
        if name != self._saving:
            self.check_asked()
        if step_number(name) < 0:
            raise CheckpointError(f"the name of a step's directory ends in its number; {name!r} does not")
        self._root, self._saving, self._asked = root, name, False
        self._in_place = TEMPORARY not in step.name
        self._known.pop(name, None)

    def check_asked(self) -> None:
        """Raise CheckpointError where an earlier save was committed and its manager did not ask about it."""
        if self._root is not None and not self._asked and self._is_committed(self._root / self._saving):
            raise CheckpointError(
                f"step {self._saving} was saved with {self}, but its manager does not ask it which steps "
                "stay, and max_to_keep or another policy would delete the bases of deltas: give the same "
                "object to the manager, as preservation_policy in its options, or none to the save"
            )

    def should_preserve(self, checkpoints: Sequence[StepInfo], *, context: Any) -> Sequence[bool]:
        """For each step, oldest first, whether it stays; as orbax asks it, within `save`."""
        if self._root is None:
            raise CheckpointError(
                f"the manager asks {self} which steps stay, but no save of data was given it, so it cannot "
                "know their bases: give the same object to DataSave or DataCheckpointable, or take it out"
            )
        steps = [each.step for each in checkpoints]
        self._asked = self._asked or step_number(self._saving) in steps
        chosen = [True] * len(steps)
        if self.policy is not None:
            chosen = list(self.policy.should_preserve(checkpoints, context=context))
        needed = _needed(self._states(steps))
        return [keep or step in needed for keep, step in zip(chosen, steps, strict=True)]

    def _states(self, steps: Sequence[int]) -> list[Found]:
        """States of the committed steps; the one that is saved now counts as not committed, everywhere."""
        assert self._root is not None
        there = {
            step_number(each.name): each.name
            for each in self._root.iterdir()
            if TEMPORARY not in each.name and each.name != self._saving
        }
        names = [there[step] for step in steps if step in there]
        self._known = {name: self._known.get(name) or states_of_step(self._root / name) for name in names}
        return [state for name in names for state in self._known[name]]

    def _is_committed(self, step: Path) -> bool:
        return (step / COMMITTED).exists() if self._in_place else step.is_dir()


def _needed(states: Sequence[Found]) -> set[int]:
    """Steps that hold the base of another one, or one of the newest bases of an item."""
    numbers = {(state.where, state.item): state.step for state in states}
    needed: set[int] = set()
    for state in states:
        if state.head and state.head.base:
            needed.add(numbers.get((state.head.base.where, state.item), -1))
    for item in {state.item for state in states}:
        fulls = [
            (each.head.created, each.step)
            for each in states
            if each.item == item and each.head and not each.head.base
        ]
        needed.update(step for _, step in sorted(fulls)[-KEPT_BASES:])
    return needed
