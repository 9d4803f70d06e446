"""Where the data stand behind every step under way, and what to tell the training process that keeps it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from msdata_jax.data_state import BadRecords, DataState, SourceFacts, changed_leaves
from msdata_jax.plan import StepPlan
from msdata_jax.planning.graph import DGraph, StreamState
from msdata_jax.planning.place_tree import MeshLayout
from msdata_jax.recipe import Recipe
from msdata_jax.roles import messages as m
from msdata_jax.roles.effects import Effect, Send


@dataclass(kw_only=True)
class Standing:
    """The state to go on with behind each step that is not delivered everywhere.

    Only what changes from step to step is sent: the state's own leaves, not those of the run.

    Attributes:
        recipe: what is delivered.
        facts: its sources as they are.
        layout: the trainers' mesh.
        keeper: the rank that is told, the first training process.
        plan_digest: over the content of all steps that are planned, hex.
        notes: sentences to send with the first message.
    """

    recipe: Recipe
    facts: tuple[SourceFacts, ...]
    layout: MeshLayout
    keeper: int
    plan_digest: str
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Nothing was sent yet."""
        self._states: dict[int, StreamState] = {}
        self._saved: DataState | None = None  # as it was told last
        self._sent: dict[str, bytes] = {}

    def planned(self, plan: StepPlan) -> None:
        """A step follows those before."""
        self.plan_digest = chain_digest(self.plan_digest, plan.content_digest)

    def after(self, state: StreamState, bad: Sequence[BadRecords]) -> list[Effect]:
        """The state before step `state.step`, as a message to the keeper."""
        self._states[state.step - 1] = state
        first = self._saved is None
        saved = self._saved or self._first_state(state)
        saved = self._saved = replace(saved, stream=state, bad=tuple(bad), plan_digest=self.plan_digest)
        leaves = saved.step_leaves()
        changed, removed = changed_leaves(self._sent, leaves)
        if first:
            changed |= saved.run_leaves()
        self._sent = leaves
        notes, self.notes = list(self.notes), ()
        message = m.StateAfter(step=state.step - 1, changed=changed, removed=removed, notes=notes)
        return [Send(rank=self.keeper, message=message)]

    def _first_state(self, state: StreamState) -> DataState:
        graph = self.recipe.strategy
        assert isinstance(graph, DGraph)
        assert graph.mixture is not None
        axes = zip(self.layout.axis_names, self.layout.axis_sizes, strict=True)
        return DataState(
            stream=state,
            sources=self.facts,
            bad=(),
            mixture=graph.mixture,
            packing=graph.describe_content(),
            columns=self.recipe.columns,
            seed=self.recipe.seed,
            recipe=self.recipe.fingerprint(),
            plan_digest=self.plan_digest,
            mesh=",".join(f"{name}={size}" for name, size in axes),
        )

    def release(self, step: int) -> StreamState:
        """The state behind a step; nobody asks for one before any more."""
        for earlier in [each for each in self._states if each < step]:
            del self._states[earlier]
        return self._states[step]


def chain_digest(before: str, content_digest: str) -> str:
    """The digest of some steps and one more."""
    return hashlib.blake2b(f"{before} {content_digest}".encode(), digest_size=16).hexdigest()
