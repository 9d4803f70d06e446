"""`Position`: where an iterator stands, as grain keeps it. A few plain values, whatever the recipe holds."""

import re
from dataclasses import asdict, dataclass
from typing import Any

from msdata_jax.errors import CheckpointError

POSITION_VERSION = 1
"""Of the dict. One of another version is refused."""

NO_DIGEST = "0" * 32
"""Stands for the plan of a step that is not known here, or of the step before the first."""

_DIGEST = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, kw_only=True)
class Position:
    """A place in the stream of a recipe. The same on every training process and on any mesh.

    Attributes:
        step: the step that comes next, from 0.
        recipe: the recipe's fingerprint, 32 hex digits.
        plan_digest: what the step before delivered (`content_digest` of its plan), 32 hex digits.
    """

    step: int
    recipe: str
    plan_digest: str = NO_DIGEST

    def to_state(self) -> dict[str, Any]:
        """The dict that grain saves: text and whole numbers, of the same lengths at every step."""
        return {"version": POSITION_VERSION, **asdict(self)}

    @staticmethod
    def from_state(state: Any) -> "Position":
        """The position that `to_state` gave.

        Raises:
            CheckpointError: it is none of ours, or of another version.
        """
        values = dict(state) if isinstance(state, dict) else {}
        version = values.pop("version", None)
        if version != POSITION_VERSION:
            raise CheckpointError(
                f"a position in an MSDataset is of version {POSITION_VERSION}, got {state!r:.200}; restore "
                "into the pipeline, and with the msdata_jax, that saved it"
            )
        if values.keys() != {"step", "recipe", "plan_digest"}:
            raise CheckpointError(f"a position has step, recipe and plan_digest, got {sorted(values)}")
        step, digests = values["step"], (values["recipe"], values["plan_digest"])
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            raise CheckpointError(f"the step of a position is a whole number from 0, got {step!r:.40}")
        if not all(isinstance(each, str) and _DIGEST.fullmatch(each) for each in digests):
            raise CheckpointError(f"the digests of a position are 32 hex digits, got {digests!r:.120}")
        return Position(step=step, recipe=digests[0], plan_digest=digests[1])

    def check_recipe(self, fingerprint: str) -> None:
        """Refuse the position of another recipe.

        Raises:
            CheckpointError: it is one.
        """
        if self.recipe != fingerprint:
            raise CheckpointError(
                f"this position, before step {self.step}, is of the recipe {self.recipe}, and the dataset is "
                f"of {fingerprint}: sources, strategy or seed are not what they were. Go on with the recipe "
                "that was; or restore a data checkpoint, DataRestore(iterator, accept_changes=True), which "
                "can carry a stream over to a changed one"
            )
