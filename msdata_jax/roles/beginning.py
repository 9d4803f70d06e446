"""Where a job begins, and for whom: what the training processes said when they joined, put together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msdata_jax.changes import resume
from msdata_jax.data_state import BadRecords, DataState, SourceFacts, unpack_leaves
from msdata_jax.errors import RecipeError
from msdata_jax.planning.graph import DGraph, StreamState, initial_state
from msdata_jax.planning.place_tree import axes_tuple
from msdata_jax.recipe import Recipe
from msdata_jax.roles.announcing import Audience, build_clients
from msdata_jax.roles.joining import check_joins
from msdata_jax.roles.messages import Join
from msdata_jax.roles.placement import Placement


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """Where a job begins.

    Attributes:
        join: what all training processes said alike.
        audience: who is told of a step.
        keeper: the rank of the first training process, which keeps the state.
        state: what the first step needs of those before.
        bad: bad samples of each source until then.
        plan_digest: over the content of all steps before; empty for none.
        skip_to: the step to begin with, where those before must be composed first; -1 for none.
        notes: what changed since the state was saved, in sentences.
    """

    join: Join
    audience: Audience
    keeper: int
    state: StreamState
    bad: Sequence[BadRecords]
    plan_digest: str
    skip_to: int
    notes: Sequence[str]


def begin(
    recipe: Recipe, placement: Placement, joins: Mapping[int, Join], facts: Sequence[SourceFacts]
) -> Beginning:
    """Compare what the training processes said, and find the state to begin with.

    Args:
        recipe: what the data ranks serve.
        placement: the job's ranks.
        joins: by rank, one of each constructor.
        facts: what the sources are now.

    Raises:
        LaunchError: training processes differ, from one another or from the data ranks.
        RecipeError: the strategy does not fit the mesh, or the sources changed where they may not.
        CheckpointError: the state does not fit recipe and data.
    """
    graph = recipe.strategy
    assert isinstance(graph, DGraph)
    join = check_joins(joins, placement, recipe.fingerprint())
    tree = graph.place_tree(join.layout)
    graph.check_mesh(tree)
    clients = build_clients(tree, joins, placement.constructors, by_host=graph.broadcast.via == "host")
    keeper = min(clients, key=lambda client: client.process).rank
    state, bad, plan_digest, notes = _state_of(recipe, joins[keeper], facts)
    skip_to = -1
    if join.skip_to > state.step:
        at_once = _state_before(join.skip_to, state, recipe, graph)
        if at_once is None:
            skip_to = join.skip_to
        else:
            state, plan_digest = at_once, f"from step {join.skip_to}"
    return Beginning(
        join=join,
        audience=Audience(
            tree=tree,
            clients=clients,
            row_axes=tuple(join.row_axes),
            encoder_axes=axes_tuple(tree.axes(graph.distribution.encoder_axis)),
            num_sources=len(recipe.sources),
        ),
        keeper=keeper,
        state=state,
        bad=bad,
        plan_digest=plan_digest,
        skip_to=skip_to,
        notes=notes,
    )


def _state_of(
    recipe: Recipe, join: Join, facts: Sequence[SourceFacts]
) -> tuple[StreamState, Sequence[BadRecords], str, Sequence[str]]:
    """State, bad samples, digest and notes to go on with; those of step 0 where nothing was saved."""
    if not len(join.state):
        start = initial_state(len(recipe.sources), recipe.columns)
        return start, (BadRecords(),) * len(recipe.sources), "", []
    saved = DataState.from_leaves(unpack_leaves(join.state.tobytes()))
    resumed = resume(saved, recipe, facts)
    resumed.check(accept_changes=join.accept_changes)
    return resumed.stream, resumed.bad, saved.plan_digest, [*resumed.changes, *resumed.silent]


def _state_before(step: int, state: StreamState, recipe: Recipe, graph: DGraph) -> StreamState | None:
    """The state before a step without going through those before it, where the recipe allows that."""
    sources = recipe.sources.values()
    if state.step > 0 or not all(s.one_per_record and s.max_bad_samples is None for s in sources):
        return None
    try:
        return graph.state_before(step, recipe.source_names, recipe.columns)
    except RecipeError:  # the steps before decide more than that
        return None
