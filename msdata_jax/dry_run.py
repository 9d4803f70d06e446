"""A dry run: the steps of a recipe from its real metadata, planned in this process, with no job around it."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from msdata_jax.errors import BadSampleError, RecipeError
from msdata_jax.plan import StepPlan
from msdata_jax.planning.graph import (
    Composed,
    DGraph,
    EndOfData,
    Gathered,
    NeedMore,
    StreamState,
    initial_state,
)
from msdata_jax.planning.place_tree import MeshLayout
from msdata_jax.recipe import Recipe
from msdata_jax.records import info_dtype
from msdata_jax.roles.recording import InFlight, in_flight
from msdata_jax.roles.streams import SourceStream
from msdata_jax.sources.isolation import IsolatedReader, open_reader
from msdata_jax.sources.reader import SourceReader


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """A step of a dry run.

    Attributes:
        plan: the decision, placed on the mesh.
        drawn: samples that the mixture drew for it (SampleInfo records), in each source's order.
        weights: int64 `[sources]`, the mixture's integer weights of the step.
        in_flight: where the sources stand behind it.
        compose_seconds, place_seconds: CPU time of the two decisions.
    """

    plan: StepPlan
    drawn: np.ndarray
    weights: np.ndarray
    in_flight: InFlight
    compose_seconds: float
    place_seconds: float


class DryRun:
    """Reads and transforms the sources of a recipe and plans its steps; payloads are dropped at once.

    What it plans is what a job of this recipe delivers on such a mesh.

    Args:
        recipe: what to plan; its strategy is a `DGraph`.
        layout: the mesh.

    Raises:
        RecipeError: the strategy does not fit the mesh, or a transform is wrong.
        SourceError: a source cannot be opened.
    """

    def __init__(self, recipe: Recipe, layout: MeshLayout) -> None:
        if not isinstance(recipe.strategy, DGraph):
            raise RecipeError(f"strategy is a DGraph, got {type(recipe.strategy).__name__}")
        self.recipe, self.layout, self.graph = recipe, layout, recipe.strategy
        self.tree = self.graph.place_tree(layout)
        self.graph.check_mesh(self.tree)
        assert self.graph.mixture is not None
        self._mixture = self.graph.mixture
        self._stack = ExitStack()
        self._readers: list[SourceReader | IsolatedReader] = []
        with ExitStack() as opened:
            for index, (name, source) in enumerate(recipe.sources.items()):
                reader = open_reader(name, index, source, seed=recipe.seed, columns=recipe.columns)
                opened.callback(reader.close)
                self._readers.append(reader)
            self._stack = opened.pop_all()
        self.streams = [
            SourceStream(
                name,
                source,
                num_records=reader.num_records,
                repeat=self._mixture.on_exhausted == "repeat",
                dtype=info_dtype(recipe.columns),
            )
            for (name, source), reader in zip(recipe.sources.items(), self._readers, strict=True)
        ]

    @property
    def num_records(self) -> list[int]:
        """Records of each source in one epoch."""
        return [reader.num_records for reader in self._readers]

    def __enter__(self) -> "DryRun":
        """The dry run itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the sources."""
        self._stack.close()

    def steps(self, num_steps: int) -> Iterator[PlannedStep]:
        """The first `num_steps` steps, or fewer where the data end. To be called once.

        Raises:
            BadSampleError: a sample is bad or too long, and source or strategy do not let that pass.
            RecipeError: a cost function or a scheduled weight is wrong.
        """
        names = self.recipe.source_names
        state = initial_state(len(names), self.recipe.columns)
        for step in range(num_steps):
            found = self._compose(state)
            if found is None:
                return
            composed, drawn, compose_seconds = found
            begin = time.thread_time()
            plan = self.graph.place(composed.plan, self.tree)
            place_seconds = time.thread_time() - begin
            state = composed.state
            yield PlannedStep(
                plan=plan,
                drawn=drawn,
                weights=self._mixture.weights_at(step, names),
                in_flight=in_flight(state, self.streams),
                compose_seconds=compose_seconds,
                place_seconds=place_seconds,
            )

    def _compose(self, state: StreamState) -> tuple[Composed, np.ndarray, float] | None:
        """The next step, read for as far as it needs, what was drawn, and the CPU time of composing it."""
        drawn: list[np.ndarray] = []
        seconds = 0.0
        while True:
            begin = time.thread_time()
            found = self.graph.compose(
                state,
                self.recipe.source_names,
                [stream.ahead for stream in self.streams],
                [stream.ended for stream in self.streams],
            )
            if isinstance(found, NeedMore):
                self._read_on(state.step, found.source)
                continue
            if isinstance(found, EndOfData):
                return None
            drawn += self._take(found.drawn)
            seconds += time.thread_time() - begin
            if isinstance(found, Gathered):
                state = found.state
                continue
            return found, np.concatenate(drawn), seconds

    def _take(self, counts: np.ndarray) -> list[np.ndarray]:
        """The next samples of each source, which are drawn now."""
        drawn = [s.ahead[:count] for s, count in zip(self.streams, counts.tolist(), strict=True)]
        for stream, count in zip(self.streams, counts.tolist(), strict=True):
            stream.drop(count)
        return drawn

    def _read_on(self, step: int, source: int) -> None:
        """Read a block or an eighth of what is known, so that few compositions are tried in vain."""
        stream = self.streams[source]
        if stream.failure is not None:
            raise BadSampleError(f"step {step}: {stream.failure}")
        wanted = len(stream.ahead) * 9 // 8 + 1
        while len(stream.ahead) < wanted and not stream.ended and stream.failure is None:
            lease = stream.next_lease()
            assert lease is not None
            block = self._readers[source].read_block(*lease)
            stream.add_block(block.start, block.stop, block.infos, block.bad)
