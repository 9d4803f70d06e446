"""Data checkpoints of 306 sources: bytes of fulls and deltas, what a save adds to a step, and restoring.

The stream is real: the planner's functions mix 306 sources of text by unequal weights and pack them; what
waits for a later step is in the state. Saves go to a folder on disk through an asynchronous
`orbax.checkpoint.CheckpointManager`, with a small model, and beside it with the model alone.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import msdata_jax as msd
from benchmarks.headline import headline
from msdata_jax.checkpoint.files import BaseRef, digest_of, encode_delta, encode_full
from msdata_jax.checkpoint.finding import load_state
from msdata_jax.checkpoint.writer import Writer
from msdata_jax.data_state import BadRecords, DataState, SourceFacts
from msdata_jax.planning.graph import Composed, DGraph, NeedMore, StreamState, initial_state
from msdata_jax.records import info_dtype
from msdata_jax.simulate.distributions import draw

NUM_SOURCES = 306
SEQ_LEN, ROWS = 4096, 4096
DISTANCES = (1, 5, 20, 100)
"""Steps from the base to a delta."""
FIRST = 3
NAMES = tuple(f"source{number:03d}" for number in range(NUM_SOURCES))
FULL_EVERY = 10
DEAR_SECONDS = 0.002

Leaves = Mapping[str, bytes]

NOTES = (
    "bytes: of the file state.msd; share is a delta's over its base's. A delta holds the leaves that "
    "changed, each packed against the base's",
    "blocking_ms: median time in CheckpointManager.save; added_ms is over saves of the model alone, the two "
    "in turn. write_ms, in the background: deciding, encoding, and the file on disk (fsync)",
    "restore_ms: restoring model and data; state_ms of it reads the file and its base and builds the "
    "DataState",
    "blocks: what `Source.snapshot` adds, for 306 sources in one process with a transform of 2 ms a record: "
    "saving what is in flight, and the time to the first step of a job that goes on, with it and without",
)


def run(quick: bool) -> dict[str, Any]:
    """A row of each kind of file, and one of each way to save."""
    _say(f"playing {FIRST + DISTANCES[-1] + 1} steps of {NUM_SOURCES} sources")
    states = play(FIRST + DISTANCES[-1] + 1)
    rows = [*sizes(states), *saves(states, 10 if quick else 60), *blocks(1 if quick else 9)]
    return {"name": "checkpoint", "rows": rows, "notes": list(NOTES)}


def headlines(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a save writes and takes, and what saved blocks save."""
    size = {row["file"]: row["bytes"] for row in result["rows"] if "file" in row}
    blocking = {row["saved"]: row["blocking_ms"] for row in result["rows"] if "saved" in row}
    blocks = result["rows"][-1]
    return [
        headline(
            f"bytes of a delta, {NUM_SOURCES} sources",
            size["delta, 1 step on"],
            beside={"full": size["full"]},
        ),
        headline("ms that a save blocks", blocking.pop("model and data"), beside=blocking),
        headline(
            "ms to the first step after a restart, blocks saved",
            blocks["first_step_ms"],
            beside={"without": blocks["without_ms"]},
        ),
    ]


# --- the stream -------------------------------------------------------------------------------------------


def play(num_steps: int) -> list[DataState]:
    """The states behind the first steps."""
    rng = np.random.default_rng(0)
    drawn_weights = rng.zipf(1.3, NUM_SOURCES).clip(1, 500).tolist()
    weights = dict(zip(NAMES, drawn_weights, strict=True))
    graph = DGraph().mix(weights, unit="tokens").pack(seq_len=SEQ_LEN, rows=ROWS, oversize="truncate")
    shares = np.array(list(weights.values())) / sum(weights.values())
    ahead = [np.empty(0, info_dtype()) for _ in NAMES]
    known = np.zeros(NUM_SOURCES, dtype=np.int64)
    stream, states = initial_state(NUM_SOURCES), []
    while len(states) < num_steps:
        composed = graph.compose(stream, NAMES, ahead, [False] * NUM_SOURCES)
        if isinstance(composed, NeedMore):
            for source, share in enumerate(shares.tolist()):
                if len(ahead[source]) < 64 + 8 * ROWS * share:
                    more = _infos(source, known, int(64 + 16 * ROWS * share), rng)
                    ahead[source] = np.concatenate([ahead[source], more])
            continue
        if not isinstance(composed, Composed):
            raise RuntimeError(f"a step could not be composed: {composed}")
        stream = composed.state
        ahead = [infos[n:] for infos, n in zip(ahead, composed.drawn.tolist(), strict=True)]
        states.append(_state(graph, stream))
    return states


def _infos(source: int, known: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    samples = draw("text_pile", SEQ_LEN, count, rng)
    infos = np.zeros(count, info_dtype())
    infos["source"], infos["position"] = source, known[source] + np.arange(count)
    infos["tokens"], infos["num_bytes"] = samples.tokens, 4 * samples.tokens
    known[source] += count
    return infos


def _state(graph: DGraph, stream: StreamState) -> DataState:
    """With what a recipe of text files says of its sources."""
    assert graph.mixture is not None
    return DataState(
        stream=stream,
        sources=tuple(
            SourceFacts(
                name=name,
                data=f"/data/corpus/{name}/part-*.parquet",
                content="transforms=(Tokenize(path='data/tokenizer.json'), Split(max_tokens=4096)), "
                "measure=None, columns=(), on_bad_sample='skip', shuffle=True, options={}, "
                "one_per_record=False",
                num_records=1_000_000 + number,
                fingerprint=f"{number:032x}",
                files={f"part-{part:05d}.parquet": f"{number * 97 + part:032x}" for part in range(4)},
            )
            for number, name in enumerate(NAMES)
        ),
        bad=tuple(BadRecords() for _ in NAMES),
        mixture=graph.mixture,
        packing=str(graph),
        columns=(),
        seed=17,
        recipe="5a" * 16,
        plan_digest=f"{stream.step * 7919:032x}",
        mesh="dp=64",
    )


# --- what is measured -------------------------------------------------------------------------------------


def sizes(states: Sequence[DataState]) -> list[dict[str, Any]]:
    """A full, and deltas of later states against it.

    Raises:
        AssertionError: a delta after one step is 15 % of its base or more.
    """
    leaves = states[FIRST].to_leaves()
    full = encode_full(leaves, FIRST)
    ref = BaseRef(where="3", digest=digest_of(full))
    carried = int(np.mean([len(state.stream.carry) for state in states]))
    rows = [{"file": "full", "sources": NUM_SOURCES, "carried": carried, "bytes": len(full), "share": 1.0}]
    for distance in DISTANCES:
        later = states[FIRST + distance]
        delta = encode_delta(later.to_leaves(), FIRST + distance, ref, leaves)
        rows.append(
            {
                "file": f"delta, {distance} step{'s' * (distance > 1)} on",
                "sources": NUM_SOURCES,
                "carried": len(later.stream.carry),
                "bytes": len(delta),
                "share": round(len(delta) / len(full), 4),
            }
        )
    assert rows[1]["share"] < 0.15, f"a delta after one step is {rows[1]['share']} of a full"
    return rows


@dataclass
class _Delivered:
    """What a save asks of a loader: the leaves of the last step."""

    current: Leaves

    def leaves(self) -> Leaves:
        return self.current

    def pin_blocks(self) -> None:
        """No source asks for it."""

    def save_blocks(self, folder: Path, step: int) -> None:
        """No source asks for it."""

    def restore(
        self, state: DataState, *, accept_changes: bool = False, blocks: Path | None = None
    ) -> list[str]:
        self.current = state.to_leaves()
        return []


def saves(states: Sequence[DataState], rounds: int) -> list[dict[str, Any]]:
    """Saves of the model alone, and of model and data, in turn."""
    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    from msdata_jax.checkpoint import DataRestore, DataSave, KeepBases

    _say(f"{rounds} saves with orbax")
    model = {"w": jnp.ones((512, 512), jnp.float32), "b": jnp.zeros(512, jnp.float32)}
    all_leaves = [state.to_leaves() for state in states[: rounds + 1]]
    loader = _Delivered(all_leaves[0])
    bases = KeepBases(ocp.checkpoint_managers.LatestN(3), full_every=FULL_EVERY)
    to_save: list[dict[str, Any]] = [{}, {"data": DataSave(loader, bases)}]
    to_restore: list[dict[str, Any]] = [{}, {"data": DataRestore(loader)}]
    blocking: list[list[float]] = [[], []]
    with tempfile.TemporaryDirectory() as folder:
        roots = [Path(folder) / "alone", Path(folder) / "both"]
        options = [
            ocp.CheckpointManagerOptions(preservation_policy=policy) for policy in (bases.policy, bases)
        ]
        managers = [
            ocp.CheckpointManager(root, options=each) for root, each in zip(roots, options, strict=True)
        ]
        for step in range(1, rounds + 1):
            loader.current = all_leaves[step]
            for manager, items, taken in zip(managers, to_save, blocking, strict=True):
                args = ocp.args.Composite(model=ocp.args.StandardSave(model), **items)
                begin = time.perf_counter()
                manager.save(step, args=args)
                taken.append(1000 * (time.perf_counter() - begin))
                manager.wait_until_finished()
        restored = []
        for manager, items in zip(managers, to_restore, strict=True):
            args = ocp.args.Composite(model=ocp.args.StandardRestore(model), **items)
            restore = partial(manager.restore, rounds, args=args)
            restored.append(_milliseconds(restore))
            manager.close()
        state_ms = _milliseconds(lambda: load_state(roots[1] / str(rounds) / "data"))
        write_ms = _write_ms(Path(folder) / "plain", all_leaves)
    alone, both = (statistics.median(taken) for taken in blocking)
    return [
        _save_row("model alone", alone, 0.0, 0.0, restored[0], 0.0),
        _save_row("model and data", both, both - alone, write_ms, restored[1], state_ms),
    ]


def dear(record: dict[str, Any]) -> dict[str, Any]:
    """A transform that takes its time, as a decoder does."""
    time.sleep(DEAR_SECONDS)
    return record


def blocks(rounds: int) -> list[dict[str, Any]]:
    """Transformed samples in flight, saved and restored by a job in this process; and restarting without."""
    _say(f"{rounds} restarts with saved blocks and without")
    rng = np.random.default_rng(1)
    records = [{"tokens": np.ones(n, np.int32)} for n in draw("text_pile", SEQ_LEN, 64, rng).tokens]
    recipe = msd.Recipe(
        sources={name: msd.Source(records, [dear], block_size=8, snapshot=True) for name in NAMES},
        strategy=DGraph().mix(dict.fromkeys(NAMES, 1)).pack(seq_len=SEQ_LEN, rows=64, oversize="truncate"),
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with msd.DataLoader(recipe) as loader:
            for _ in range(3):
                next(loader)
            state, begin = loader.state(), time.perf_counter()
            loader.pin_blocks()
            saved = loader.save_blocks(folder, state.step)
            save_ms = 1000 * (time.perf_counter() - begin)
        assert saved is not None
        restarts = [[_restart(recipe, state, where) for where in (folder, None)] for _ in range(rounds)]
    with_blocks, without = (statistics.median(each[side][0] for each in restarts) for side in (0, 1))
    return [
        {
            "blocks_saved": saved["num_blocks"],
            "bytes": saved["num_bytes"],
            "save_ms": round(save_ms, 1),
            "restored": restarts[0][0][1],
            "first_step_ms": round(with_blocks),
            "without_ms": round(without),
            "ratio": round(with_blocks / without, 3),
        }
    ]


def _restart(recipe: msd.Recipe, state: DataState, folder: Path | None) -> tuple[float, int]:
    """Milliseconds to the first step of a job that goes on, and the blocks that it need not make."""
    with msd.DataLoader(recipe) as loader:
        loader.restore(state, blocks=folder)
        begin = time.perf_counter()
        next(loader)
        taken = 1000 * (time.perf_counter() - begin)
    return taken, sum(each["restored_blocks"] for each in loader.job_figures["loaders"])


def _save_row(saved: str, *milliseconds: float) -> dict[str, Any]:
    names = ("blocking_ms", "added_ms", "write_ms", "restore_ms", "state_ms")
    return {"saved": saved, **{name: round(ms, 2) for name, ms in zip(names, milliseconds, strict=True)}}


def _write_ms(root: Path, all_leaves: Sequence[Leaves]) -> float:
    writer, taken = Writer(), []
    for step, leaves in enumerate(all_leaves):
        item = root / str(step) / "data"
        item.mkdir(parents=True)
        (item.parent / "commit_success.txt").touch()
        begin = time.perf_counter()
        writer.write(item, leaves, full_every=FULL_EVERY)
        taken.append(1000 * (time.perf_counter() - begin))
    return statistics.median(taken)


def _milliseconds(call: Any, rounds: int = 5) -> float:
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        taken.append(1000 * (time.perf_counter() - begin))
    return statistics.median(taken)


def _say(text: str) -> None:
    print(f"checkpoint: {text}", file=sys.stderr)
