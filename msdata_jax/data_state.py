"""`DataState`: all that a job needs to go on behind a step, exactly. Values, and their bytes.

The bytes come as *leaves*, named byte strings, so that what changes from step to step is told apart from what
stays: `checkpoint` stores the changed ones, the planner sends them. No leaf is pickled.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

import msgpack
import numpy as np

from msdata_jax.errors import CheckpointError, PlanError, RecipeError
from msdata_jax.plan import StepPlan
from msdata_jax.planning.composing import StreamState
from msdata_jax.planning.mixing import Mixture
from msdata_jax.planning.pieces import Pieces
from msdata_jax.recipe import without_addresses
from msdata_jax.records import BadSample, info_dtype

STATE_VERSION = 1
"""Of the leaves. A state of another version is refused."""

Leaves: TypeAlias = Mapping[str, bytes]

_PER_SOURCE = (
    ("credit", "<i8"), ("exhausted", "|b1"), ("last_position", "<i8"), ("last_part", "<i8"),
)  # fmt: skip
_PER_PIECE = (("start", "<i8"), ("length", "<i8"), ("unit", "<i8"))
_MOST_SOURCES = 1 << 20
_MOST_FILES = 64
"""Files of a source that the state names one by one; of more, the digest of all of them says enough."""


@dataclass(frozen=True, kw_only=True)
class SourceFacts:
    """What a source was, so that a later job can tell whether it still is.

    Attributes:
        name: in the recipe.
        data: where the data are, for people.
        content: what decides what a position yields besides the data: transforms, measure, policy, order.
        num_records: of one epoch.
        block_size: positions that were read together.
        fingerprint: of the data.
        files: digest of each file by its name; none for data in memory, or of very many files.
    """

    name: str
    data: str
    content: str
    num_records: int
    fingerprint: str
    block_size: int = 1
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BadRecords:
    """The bad samples of one source, up to a step.

    Attributes:
        num_bad: bad positions up to the last sample that was drawn.
        listed: the first of all that were met, for people.
        verdicts: (block start, position, reason) of positions that were found bad by a time-out or a crash,
            not by their bytes: whoever reads that block again takes the verdict as it is.
    """

    num_bad: int = 0
    listed: tuple[BadSample, ...] = ()
    verdicts: tuple[tuple[int, int, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class DataState:
    """Where in the function training stands, and which function it was.

    Attributes:
        stream: all that step `stream.step` needs of the steps before.
        sources: of the recipe, in its order.
        bad: of each source.
        mixture: the shares, with their schedule.
        packing: what else decides a step's content, as text: rows and costs.
        columns: user columns of the metadata.
        seed: of the recipe.
        recipe: the recipe's fingerprint.
        plan_digest: over the content of all steps before, hex.
        mesh: the trainers' mesh, for people.
    """

    stream: StreamState
    sources: tuple[SourceFacts, ...]
    bad: tuple[BadRecords, ...]
    mixture: Mixture
    packing: str
    columns: tuple[str, ...]
    seed: int
    recipe: str
    plan_digest: str
    mesh: str

    @property
    def step(self) -> int:
        """The step that is delivered next."""
        return self.stream.step

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names in the recipe's order."""
        return tuple(source.name for source in self.sources)

    def to_leaves(self) -> dict[str, bytes]:
        """The state as named byte strings; equal states give equal ones."""
        return {**self.run_leaves(), **self.step_leaves()}

    def run_leaves(self) -> dict[str, bytes]:
        """The leaves that are the same at every step of a run."""
        run = {name: getattr(self, name) for name in _RUN}
        leaves = {"run": _pack({"version": STATE_VERSION, "num_sources": len(self.sources), **run})}
        for index, source in enumerate(self.sources):
            facts = {each.name: getattr(source, each.name) for each in fields(SourceFacts)}
            files = dict(source.files) if len(source.files) <= _MOST_FILES else {}
            leaves[f"source/{index}"] = _pack({**facts, "files": files})
        return leaves if self._is_scheduled else leaves | self._mixture_leaf()

    def step_leaves(self) -> dict[str, bytes]:
        """The leaves that a step may change."""
        stream = self.stream
        step = {"step": stream.step, "ended": stream.ended, "num_carried": len(stream.carry)}
        leaves = {
            "step": _pack({**step, "plan_digest": self.plan_digest}),
            "carry/infos": stream.carry.infos.tobytes(),
        }
        if self._is_scheduled:
            leaves |= self._mixture_leaf()
        for name, kind in _PER_SOURCE:
            leaves[f"stream/{name}"] = getattr(stream, name).astype(kind).tobytes()
        for name, kind in _PER_PIECE:
            leaves[f"carry/{name}"] = getattr(stream.carry, name).astype(kind).tobytes()
        for index, bad in enumerate(self.bad):
            if bad != BadRecords():
                listed = [[each.position, each.reason, each.by_luck] for each in bad.listed]
                leaves[f"bad/{index}"] = _pack([bad.num_bad, listed, [list(each) for each in bad.verdicts]])
        for name in ("gathered", "pending"):
            leaves |= {f"{name}/{plan.step}": plan.to_bytes() for plan in getattr(stream, name)}
        return leaves

    @property
    def _is_scheduled(self) -> bool:
        """Whether a function gives the weights, so that they are told anew at each step."""
        return not isinstance(self.mixture.knots, Sequence)

    def _mixture_leaf(self) -> dict[str, bytes]:
        return {"mixture": _pack(_mixture_values(self.mixture, self.stream.step, self.source_names))}

    @staticmethod
    def from_leaves(leaves: Leaves) -> "DataState":
        """The state that `to_leaves` gave.

        Raises:
            CheckpointError: of another version, cut off, or no state of ours.
        """
        try:
            return _read(leaves)
        except CheckpointError:
            raise
        except (
            KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError, PlanError,
            RecipeError, msgpack.UnpackException,
        ) as error:  # fmt: skip
            raise CheckpointError(
                f"this is no state of a data stream: {type(error).__name__}: {error}"
            ) from None


_RUN = ("packing", "columns", "seed", "recipe", "mesh")


def _read(leaves: Leaves) -> DataState:
    run = msgpack.unpackb(leaves["run"])
    if not isinstance(run, dict) or run.get("version") != STATE_VERSION:
        version = run.get("version") if isinstance(run, dict) else None
        raise CheckpointError(
            f"the state is of version {version!r}; this msdata_jax reads version {STATE_VERSION}: "
            "go on with the one that wrote it"
        )
    num_sources = _whole(run["num_sources"], 1, _MOST_SOURCES)
    step = msgpack.unpackb(leaves["step"])
    num_carried = _whole(step["num_carried"], 0, 2**31)
    columns = tuple(_text(each) for each in run["columns"])
    carry = {name: _array(leaves, f"carry/{name}", kind, num_carried) for name, kind in _PER_PIECE}
    infos = _array(leaves, "carry/infos", info_dtype(columns), num_carried)
    stream = StreamState(
        step=_whole(step["step"], 0, 2**62),
        ended=_flag(step["ended"]),
        carry=Pieces(infos=infos, **carry),
        gathered=_plans(leaves, "gathered", columns),
        pending=_plans(leaves, "pending", columns),
        **{name: _array(leaves, f"stream/{name}", kind, num_sources) for name, kind in _PER_SOURCE},
    )
    _check_stream(stream, num_sources)
    sources = tuple(_source(msgpack.unpackb(leaves[f"source/{index}"])) for index in range(num_sources))
    known = len(_PER_SOURCE) + len(_PER_PIECE) + 4 + num_sources + len(stream.gathered) + len(stream.pending)
    with_bad = [index for index in range(num_sources) if f"bad/{index}" in leaves]
    some_bad = {index: _bad(leaves[f"bad/{index}"]) for index in with_bad}
    bad = tuple(some_bad.get(index, BadRecords()) for index in range(num_sources))
    if len(leaves) != known + len(with_bad):
        raise CheckpointError(f"the state has leaves that are none of ours, among {sorted(leaves)[:20]}")
    mixture = _mixture(msgpack.unpackb(leaves["mixture"]))
    names = [source.name for source in sources]
    mixture.weights_at(stream.step, names)
    return DataState(
        stream=stream,
        sources=sources,
        bad=bad,
        mixture=mixture,
        packing=_text(run["packing"]),
        columns=columns,
        seed=_whole(run["seed"], 0, 2**63),
        recipe=_text(run["recipe"]),
        plan_digest=_text(step["plan_digest"]),
        mesh=_text(run["mesh"]),
    )


def _check_stream(stream: StreamState, num_sources: int) -> None:
    if (stream.last_position < -1).any() or (stream.last_part < -1).any():
        raise CheckpointError("a source stands at a position below -1")
    if int(stream.credit.astype(object).sum()) != 0:
        raise CheckpointError("what the mixture owes the sources does not sum to zero")
    for infos in stream.composed_ahead():
        if len(infos) and not (
            0 <= infos["source"].min() <= infos["source"].max() < num_sources
            and infos["position"].min() >= 0
            and infos["part"].min() >= 0
            and (infos["position"] <= stream.last_position[infos["source"]]).all()
        ):
            raise CheckpointError("a sample that waits for a later step was never drawn")
    ahead = [plan.step for plan in (*stream.pending, *stream.gathered)]
    if ahead != list(range(stream.step, stream.step + len(ahead))):
        raise CheckpointError(f"step {stream.step} comes next, and the steps {ahead} are composed")
    carry = stream.carry
    tokens = carry.infos["tokens"]
    # No sum of numbers that may be anything.
    is_wrong = (carry.start < 0) | (carry.length < 1) | (carry.length > tokens)
    if (is_wrong | (carry.start > tokens - np.where(is_wrong, 0, carry.length))).any():
        raise CheckpointError("a piece that waits for a row uses more tokens than its sample has")


def _plans(leaves: Leaves, name: str, columns: Sequence[str]) -> tuple[StepPlan, ...]:
    steps = sorted(int(key.split("/")[1]) for key in leaves if key.startswith(f"{name}/"))
    plans = tuple(StepPlan.from_bytes(leaves[f"{name}/{step}"]) for step in steps)
    for step, plan in zip(steps, plans, strict=True):
        is_placed = (plan.num_groups, plan.num_microbatches, plan.num_slots) != (1, 1, 0)
        if is_placed or plan.step != step or plan.samples.dtype != info_dtype(columns):
            raise CheckpointError(f"the plan of step {step} is another's")
        plan.check()
    return plans


def _source(values: Mapping[str, Any]) -> SourceFacts:
    files = {_text(name): _text(digest) for name, digest in values["files"].items()}
    texts = {name: _text(values[name]) for name in ("name", "data", "content", "fingerprint")}
    return SourceFacts(
        num_records=_whole(values["num_records"], 1, 2**62),
        block_size=_whole(values["block_size"], 1, 2**31),
        files=files,
        **texts,
    )


def _bad(packed: bytes) -> BadRecords:
    num_bad, listed, verdicts = msgpack.unpackb(packed)
    return BadRecords(
        num_bad=_whole(num_bad, 0, 2**62),
        listed=tuple(
            BadSample(position=_whole(position, 0, 2**62), reason=_text(reason), by_luck=_flag(by_luck))
            for position, reason, by_luck in listed
        ),
        verdicts=tuple(
            (_whole(start, 0, 2**62), _whole(position, 0, 2**62), _text(reason))
            for start, position, reason in verdicts
        ),
    )


@dataclass(frozen=True)
class _StoredSchedule:
    """Stands for a function of the step: its name, and the weights that it gave for the next step."""

    name: str
    weights: Mapping[str, float]

    def __call__(self, step: int) -> Mapping[str, float]:
        return self.weights

    def __repr__(self) -> str:
        return self.name


_MIXTURE_OPTIONS = ("interpolation", "unit", "on_exhausted")


def _mixture_values(mixture: Mixture, step: int, source_names: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(mixture, name) for name in _MIXTURE_OPTIONS}
    values["groups"] = {name: _weights(members) for name, members in mixture.groups.items()}
    if isinstance(mixture.knots, Sequence):
        return {**values, "knots": [[first, _weights(weights)] for first, weights in mixture.knots]}
    weights = _weights(mixture.knots(_known_step(mixture, step, source_names)))
    return {**values, "function": without_addresses(repr(mixture.knots)), "weights": weights}


def _known_step(mixture: Mixture, step: int, source_names: Sequence[str]) -> int:
    """This step, or the one before where a function knows no weights of this one: it may be the last step."""
    try:
        mixture.weights_at(step, source_names)
    except RecipeError:
        return max(step - 1, 0)
    return step


def _weights(weights: Mapping[str, float]) -> dict[str, float]:
    return {name: w if isinstance(w, int) and abs(w) < 2**63 else float(w) for name, w in weights.items()}


def _mixture(values: Mapping[str, Any]) -> Mixture:
    options = {name: _text(values[name]) for name in _MIXTURE_OPTIONS}
    groups = {_text(name): _numbers(members) for name, members in values["groups"].items()}
    knots: Any
    if "function" in values:
        knots = _StoredSchedule(_text(values["function"]), _numbers(values["weights"]))
    else:
        knots = [(_whole(first, 0, 2**62), _numbers(weights)) for first, weights in values["knots"]]
    return Mixture(knots=knots, groups=groups, **options)  # pyright: ignore[reportArgumentType] - it checks


def _array(leaves: Leaves, name: str, kind: str | np.dtype, count: int) -> np.ndarray:
    dtype = np.dtype(kind)
    data = leaves[name]
    if len(data) != count * dtype.itemsize:
        raise CheckpointError(f"{name} has {len(data)} bytes; {count} of {dtype.itemsize} bytes belong there")
    return np.frombuffer(data, dtype).copy()


def _pack(value: Any) -> bytes:
    packed: Any = msgpack.packb(value)
    return packed


def _whole(value: Any, least: int, below: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < below:
        raise CheckpointError(f"a whole number from {least} to below {below} belongs where {value!r:.40} is")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise CheckpointError(f"a text belongs where {value!r:.40} is")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise CheckpointError(f"true or false belongs where {value!r:.40} is")
    return value


def _numbers(value: Any) -> dict[str, float]:
    for name, number in value.items():
        if not isinstance(name, str) or not isinstance(number, int | float) or isinstance(number, bool):
            raise CheckpointError(f"a weight by name belongs where {name!r:.40}: {number!r:.40} is")
    return dict(value)


def pack_leaves(leaves: Leaves) -> bytes:
    """Leaves as one byte string."""
    return _pack(dict(sorted(leaves.items())))


def unpack_leaves(data: bytes) -> dict[str, bytes]:
    """The leaves that `pack_leaves` packed. Raises CheckpointError where it did not."""
    try:
        leaves = msgpack.unpackb(data)
    except (ValueError, msgpack.UnpackException) as error:
        raise CheckpointError(f"these {len(data)} bytes are no state: {error}") from None
    sound = isinstance(leaves, dict) and all(
        isinstance(name, str) and isinstance(leaf, bytes) for name, leaf in leaves.items()
    )
    if not sound:
        raise CheckpointError(f"these {len(data)} bytes are no state: named byte strings belong there")
    return leaves


def leaves_digest(leaves: Leaves) -> str:
    """A digest of leaves, hex, equal for equal ones."""
    return hashlib.blake2b(pack_leaves(leaves), digest_size=16).hexdigest()


def changed_leaves(before: Leaves, after: Leaves) -> tuple[dict[str, bytes], list[str]]:
    """What of `after` is new or other than in `before`, and the names that are gone."""
    changed = {name: leaf for name, leaf in after.items() if before.get(name) != leaf}
    return changed, [name for name in before if name not in after]


def change_leaves(leaves: dict[str, bytes], changed: Leaves, removed: Sequence[str]) -> None:
    """Make `leaves` what `changed_leaves` compared them with."""
    for name in removed:
        leaves.pop(name, None)
    leaves.update(changed)
