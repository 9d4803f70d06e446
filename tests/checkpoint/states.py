"""States to save, and what holds them: real streams that the planner's own functions play, no planner."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from strategies import stories

from msdata_jax.data_state import BadRecords, DataState, SourceFacts
from msdata_jax.planning.graph import (
    Composed,
    DGraph,
    EndOfData,
    Gathered,
    NeedMore,
    StreamState,
    initial_state,
)
from msdata_jax.records import BadSample, info_dtype


@dataclass
class Stand:
    """Stands for a `DataLoader`: holds the state behind the last step, and what it was restored from."""

    state: DataState | None = None
    restored: list[DataState] = field(default_factory=list)
    writes: bool = True

    def leaves(self) -> Mapping[str, bytes] | None:
        return self.state.to_leaves() if self.writes and self.state else None

    def pin_blocks(self) -> None:
        """No source asks for it."""

    def save_blocks(self, folder: Path, step: int) -> None:
        """No source asks for it."""

    def restore(
        self, state: DataState, *, accept_changes: bool = False, blocks: Path | None = None
    ) -> list[str]:
        self.state = state
        self.restored.append(state)
        return ["accepted"] if accept_changes else []


def make_state(graph: DGraph, names: tuple[str, ...], stream: StreamState, **values) -> DataState:
    """A state of made-up sources; `values` replace fields."""
    assert graph.mixture is not None
    sources = tuple(
        SourceFacts(
            name=name,
            data=f"/data/corpus/{name}/part-*.parquet",
            content="transforms=(Tokenize(path='data/tokenizer.json'), Split(max_tokens=2048)), "
            "measure=None, columns=(), on_bad_sample='skip', shuffle=True, options={}, one_per_record=False",
            num_records=100_000 + index,
            fingerprint=f"{index:032x}",
            files={f"part-{part:05d}.parquet": f"{7 * index + part:032x}" for part in range(4)},
        )
        for index, name in enumerate(names)
    )
    whole = DataState(
        stream=stream,
        sources=sources,
        bad=tuple(BadRecords() for _ in names),
        mixture=graph.mixture,
        packing=str(graph),
        columns=(),
        seed=17,
        recipe="ab" * 16,
        plan_digest=f"{stream.step:032x}",
        mesh="dp=8",
    )
    return replace(whole, **values)


def play(num_sources: int = 6, num_steps: int = 12, rows: int = 8) -> list[DataState]:
    """The states behind steps 1, 2, ... of a mixture of text; some samples always wait for a later step."""
    names = tuple(f"s{index}" for index in range(num_sources))
    graph = DGraph().mix({name: 1 + index % 5 for index, name in enumerate(names)}, unit="tokens")
    graph = graph.pack(seq_len=512, rows=rows)
    rng = np.random.default_rng(5)
    ahead = [np.empty(0, info_dtype()) for _ in names]
    known = [0] * num_sources
    stream, states = initial_state(num_sources), []
    while len(states) < num_steps:
        composed = graph.compose(stream, names, ahead, [False] * num_sources)
        if isinstance(composed, NeedMore):
            source = composed.source
            infos = np.zeros(64, info_dtype())
            infos["source"], infos["position"] = source, known[source] + np.arange(64)
            infos["tokens"] = rng.integers(20, 512, 64)
            infos["num_bytes"] = 4 * infos["tokens"]
            known[source] += 64
            ahead[source] = np.concatenate([ahead[source], infos])
            continue
        assert isinstance(composed, Composed)
        stream = composed.state
        ahead = [infos[n:] for infos, n in zip(ahead, composed.drawn.tolist(), strict=True)]
        states.append(make_state(graph, names, stream))
    return states


_BAD = st.builds(
    BadRecords,
    num_bad=st.integers(0, 100),
    listed=st.lists(
        st.builds(
            BadSample,
            position=st.integers(0, 2**40),
            reason=st.text(max_size=20),
            by_luck=st.booleans(),
        ),
        max_size=3,
    ).map(tuple),
    verdicts=st.lists(
        st.tuples(st.integers(0, 2**40), st.integers(0, 2**40), st.text(max_size=20)), max_size=3
    ).map(tuple),
)


@st.composite
def runs(draw, max_steps=5):
    """The states behind the steps of a story, any strategy: carried pieces, windows, bad records."""
    graph, names, streams = draw(stories())
    stream, states = initial_state(len(names)), []
    ahead = list(streams)
    for _ in range(draw(st.integers(0, max_steps)) * graph.regrouped_steps):
        composed = graph.compose(stream, names, ahead, [True] * len(names))
        if isinstance(composed, EndOfData | NeedMore):
            break
        assert isinstance(composed, Composed | Gathered)
        stream = composed.state
        ahead = [infos[n:] for infos, n in zip(ahead, composed.drawn.tolist(), strict=True)]
        states.append(make_state(graph, names, stream, bad=tuple(draw(_BAD) for _ in names)))
    return states or [make_state(graph, names, stream)]
