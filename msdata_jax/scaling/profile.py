"""What the sources of a recipe cost, as measured by `msdata profile`: plain values and their JSON form.

A profile is a file that may be old, of another recipe or damaged: every value is checked when it is read, and
`Profile.differences` says which sources it is not about.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from msdata_jax.errors import RecipeError
from msdata_jax.recipe import Recipe

VERSION = 1
MOST_SOURCES = 65536
MOST_TEXT = 4000
"""Characters of a text that is kept."""
MOST_SECONDS = 1e9
_MOST_COUNT = 2**62


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Reading, or a transform: seconds for each sample that comes out at the end.

    Attributes:
        name: `read`, or the transform's.
        wall_seconds: by the clock, without what the machine took for other processes where that is known.
        cpu_seconds: of the CPU, of all threads that it uses.
    """

    name: str
    wall_seconds: float
    cpu_seconds: float


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Tokens of the samples."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    longest: int = 0


@dataclass(frozen=True, kw_only=True)
class SourceProfile:
    """What one source costs. Seconds are for each sample.

    Attributes:
        name: in the recipe.
        data: where they are, for people.
        content: what decides what its positions yield, as `Recipe.content_of` says it.
        error: why it could not be measured, nothing else holds then; empty where it was.
        isolate: it reads in child processes, one for each thread.
        num_records: records of an epoch.
        block_size: positions of a block.
        records, samples: that were measured.
        bad_share: part of the records that could not be read or transformed.
        wall_seconds, cpu_seconds: reading and transforming (P).
        stages: the same in parts, reading first.
        lock_share: part of its time in which a thread keeps the others of its process from working, 0 to 1:
            `n` threads yield `n / (1 + lock_share * (n - 1))` times as much as one; None where it was not
            measured.
        send_seconds: joining, encoding and framing (T), which one thread of a loader does for all sources.
        sample_bytes: of a transformed sample (T).
        open_seconds: until the source is open, index and all; once for each loader.
        reader_bytes: memory that an open reader takes once it has read (M), its index included.
        index_bytes: of these, what it takes before it has read anything.
        library_bytes: memory of the libraries that it loads, once in a process.
        block_bytes: of the samples of a block.
        open_files: files that it keeps open.
        lengths: of its samples.
        means: mean of each metadata column.
    """

    name: str
    data: str = ""
    content: str = ""
    error: str = ""
    isolate: bool = False
    num_records: int = 0
    block_size: int = 1
    records: int = 0
    samples: int = 0
    bad_share: float = 0.0
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    stages: tuple[Stage, ...] = ()
    lock_share: float | None = None
    send_seconds: float = 0.0
    sample_bytes: float = 0.0
    open_seconds: float = 0.0
    reader_bytes: int = 0
    index_bytes: int = 0
    library_bytes: int = 0
    block_bytes: int = 0
    open_files: int = 0
    lengths: Lengths = field(default_factory=Lengths)
    means: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_measured(self) -> bool:
        """Whether the figures hold."""
        return not self.error and self.samples > 0

    @property
    def samples_per_record(self) -> float:
        """Above 1 where a transform splits, below where it leaves out."""
        return self.samples / self.records if self.records else 0.0

    @property
    def thread_speedup(self) -> float | None:
        """How many times as much two threads yield as one; None where it was not measured."""
        return None if self.lock_share is None else 2 / (1 + self.lock_share)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What the sources of a recipe cost, and on which machine.

    Attributes:
        recipe: fingerprint of the recipe.
        sources: in the recipe's order.
        num_cpus: that the measuring process could use.
        process_bytes: memory of a process that has the recipe and no source open.
    """

    recipe: str
    sources: tuple[SourceProfile, ...]
    num_cpus: int = 1
    process_bytes: int = 0

    def of(self, name: str) -> SourceProfile | None:
        """The figures of a source; None where there are none."""
        return next((each for each in self.sources if each.name == name and each.is_measured), None)

    def differences(self, recipe: Recipe) -> dict[str, str]:
        """For each source of `recipe` that this profile is not about: why. Matching sources stay usable."""
        if self.recipe == recipe.fingerprint():
            return {}
        known = {each.name: each for each in self.sources}
        found: dict[str, str] = {}
        for name in recipe.source_names:
            if name not in known:
                found[name] = "it was not there"
            elif known[name].data != recipe.data_of(name)[:MOST_TEXT]:
                found[name] = f"its data were {known[name].data!r:.200}"
            elif known[name].content != recipe.content_of(name)[:MOST_TEXT]:
                found[name] = _what_differs(known[name].content, recipe.content_of(name))
        return found

    def only(self, names: Sequence[str]) -> "Profile":
        """The same, of some sources only."""
        kept = tuple(each for each in self.sources if each.name in names)
        return Profile(
            recipe=self.recipe, sources=kept, num_cpus=self.num_cpus, process_bytes=self.process_bytes
        )

    def to_json(self) -> dict[str, Any]:
        """As plain values, for `profile_from_json`."""
        return {"version": VERSION, **asdict(self)}


def _what_differs(before: str, now: str) -> str:
    """The part of a description that changed: from the field in which it does, shortened."""
    place = next((i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), len(before))
    word = before.rfind(", ", 0, place) + 1
    return f"it was {before[word : word + 100].strip()!r} and is {now[word : word + 100].strip()!r}"


# --- from JSON --------------------------------------------------------------------------------------------


def profile_from_json(value: Any) -> Profile:
    """The profile that `Profile.to_json` described.

    Raises:
        RecipeError: it is none, or of another version; names the field and what it holds.
    """
    table = _table("the profile", value)
    if table.get("version") != VERSION:
        raise RecipeError(
            f"a profile of version {VERSION} is needed, got {str(table.get('version'))[:40]!r}; "
            "run `msdata profile` again"
        )
    listed = table.get("sources")
    if not isinstance(listed, list | tuple) or not 1 <= len(listed) <= MOST_SOURCES:
        raise RecipeError(f"a profile lists 1 to {MOST_SOURCES} sources; run `msdata profile` again")
    sources = tuple(_source(each) for each in listed)
    if len({each.name for each in sources}) < len(sources):
        raise RecipeError("a profile has each source once; run `msdata profile` again")
    return Profile(
        recipe=_text("recipe", table),
        sources=sources,
        num_cpus=_count("num_cpus", table),
        process_bytes=_count("process_bytes", table),
    )


def _source(value: Any) -> SourceProfile:
    table = _table("a source", value)
    known = {each.name for each in fields(SourceProfile)}
    if set(table) != known:
        raise RecipeError(
            f"a profiled source has the fields {sorted(known)}; "
            f"missing: {sorted(known - set(table))}, unknown: {sorted(map(str, set(table) - known))[:8]}"
        )
    name = _text("name", table)
    try:
        return _source_from(table)
    except RecipeError as error:
        raise RecipeError(f"source {name[:100]!r}: {error}") from error


def _source_from(table: Mapping[str, Any]) -> SourceProfile:
    values: dict[str, Any] = {name: _text(name, table) for name in _TEXTS}
    values |= {name: _count(name, table) for name in _COUNTS}
    values |= {name: _number(name, table) for name in _SECONDS}
    share = table["lock_share"]
    lengths = _table("lengths", table["lengths"])
    means = _table("means", table["means"])
    stages = table["stages"]
    if not isinstance(stages, list | tuple) or len(stages) > 1000 or len(means) > 1000:
        raise RecipeError("stages are a list, and means a table, of at most 1000")
    return SourceProfile(
        **values,
        isolate=bool(table["isolate"]),
        bad_share=_number("bad_share", table, most=1),
        sample_bytes=_number("sample_bytes", table, most=_MOST_COUNT),
        lock_share=None if share is None else _number("lock_share", table, most=1),
        stages=tuple(_stage(each) for each in stages),
        lengths=Lengths(
            **{name: _number(name, lengths) for name in ("mean", "p50", "p90", "p99")},
            longest=_count("longest", lengths),
        ),
        means={str(name)[:MOST_TEXT]: _number(name, means, most=_MOST_COUNT) for name in means},
    )


_TEXTS = ("name", "data", "content", "error")
_COUNTS = (
    *("num_records", "block_size", "records", "samples"),
    *("reader_bytes", "index_bytes", "library_bytes", "block_bytes", "open_files"),
)
_SECONDS = ("wall_seconds", "cpu_seconds", "send_seconds", "open_seconds")


def _stage(value: Any) -> Stage:
    table = _table("a stage", value)
    return Stage(
        name=_text("name", table),
        wall_seconds=_number("wall_seconds", table),
        cpu_seconds=_number("cpu_seconds", table),
    )


def _table(what: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise RecipeError(f"{what} is a table of names and values, got {type(value).__name__}")
    return value


def _text(name: str, table: Mapping[str, Any]) -> str:
    value = table.get(name)
    if not isinstance(value, str) or len(value) > MOST_TEXT:
        raise RecipeError(f"{name} is text of at most {MOST_TEXT} characters, got {str(value)[:40]!r}")
    return value


def _number(name: str, table: Mapping[str, Any], most: float = MOST_SECONDS) -> float:
    value = table.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise RecipeError(f"{name} is a number from 0 to {most:g}, got {str(value)[:40]!r}")
    return float(value)


def _count(name: str, table: Mapping[str, Any]) -> int:
    value = table.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_COUNT:
        raise RecipeError(f"{name} is a whole number from 0 up, got {str(value)[:40]!r}")
    return value
