"""The recipe: which sources, which strategy, which seed. Frozen values that every rank builds alike."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, Protocol

from msdata_jax.errors import RecipeError
from msdata_jax.records import Sample

BadSamplePolicy = Literal["raise", "skip", "replace"]


@dataclass(frozen=True, kw_only=False)
class Source:
    """One dataset and what is done to its records.

    Attributes:
        data: anything with grain's random-access protocol (`__len__`, `__getitem__`; batched `__getitems__`
            or `_getitems` where there is one), a `grain.MapDataset`, or a path, URL or glob of files:
            `.arrayrecord` or `.array_record`, `.parquet`, `.jsonl`, `.ndjson` or `.json` (one JSON object a
            line; also `.gz` and `.zst`), `.tar` (WebDataset), `.tfrecord` or `.tfrecords`, `.idx` or `.bin`
            (a pair of Megatron-LM); or a folder: of MDS, Zarr, N5, or loose files that are values.
        transforms: applied in order to each record; callables, or grain's `Map`, `RandomMap`, `Filter`. A
            callable returns the new sample, a list of samples (a split), or None to leave the record out.
        measure: turns a transformed sample into metadata columns (int64) beyond `tokens`, `patches` and
            `num_bytes`; mixtures and costs may use them.
        columns: names of the columns that `measure` returns.
        on_bad_sample: what a record that cannot be read or transformed does: `raise` ends the data at the
            step that needs it, `skip` leaves it out, `replace` takes the next readable position's content.
        max_bad_samples: how many bad records may be met before the data ends with an error; None for any.
        shuffle: visit each epoch in an order of its own (a permutation by seed, source and epoch).
        block_size: consecutive positions that are leased, read and reported together.
        options: format options for the reader, such as `{"columns": ("text",)}` for Parquet.
        storage: how URLs are read: `RemoteOptions`, such as `{"read_ahead": 16}`, and what the file system of
            fsspec takes, such as `{"anon": True}`. It decides no content: fingerprints, messages and
            checkpoints are free of it.
        isolate: read and transform in a child process of the loader, so that a decoder that crashes or hangs
            costs a sample and not the loader; what it was at becomes a bad sample.
        sample_seconds: with `isolate`, how long one record may take before it counts as bad; None for ever.
        read_retries: how often a read that failed for want of the disk or the network is tried again, with
            longer and longer pauses, before it counts.
        one_per_record: every record yields exactly one sample; one that does not ends the data with an error.
            `DataLoader.skip_to` then need not read what it skips.
        snapshot: data checkpoints that ask for it keep this source's transformed samples in flight, for
            sources that are dear to recompute.
    """

    data: Any
    transforms: Sequence[Any] = ()
    measure: Callable[[Sample], Mapping[str, int]] | None = field(default=None, kw_only=True)
    columns: Sequence[str] = field(default=(), kw_only=True)
    on_bad_sample: BadSamplePolicy = field(default="raise", kw_only=True)
    max_bad_samples: int | None = field(default=None, kw_only=True)
    shuffle: bool = field(default=True, kw_only=True)
    block_size: int = field(default=64, kw_only=True)
    options: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    storage: Mapping[str, Any] = field(default_factory=dict, kw_only=True, repr=False)
    isolate: bool = field(default=False, kw_only=True)
    sample_seconds: float | None = field(default=None, kw_only=True)
    read_retries: int = field(default=3, kw_only=True)
    one_per_record: bool = field(default=False, kw_only=True)
    snapshot: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse values that no reader could honour."""
        object.__setattr__(self, "transforms", tuple(self.transforms))
        object.__setattr__(self, "columns", tuple(self.columns))
        self._check_reading()
        if self.on_bad_sample not in ("raise", "skip", "replace"):
            raise RecipeError(
                f"on_bad_sample is one of 'raise', 'skip', 'replace', got {self.on_bad_sample!r}"
            )
        if self.max_bad_samples is not None and self.max_bad_samples < 0:
            raise RecipeError(f"max_bad_samples counts records and is at least 0, got {self.max_bad_samples}")
        if not 1 <= self.block_size <= 65536:
            raise RecipeError(f"block_size is between 1 and 65536 positions, got {self.block_size}")
        if self.columns and self.measure is None:
            raise RecipeError(
                f"columns {self.columns} are named but measure is None; give the function that fills them"
            )
        if self.measure is not None and not self.columns:
            raise RecipeError(
                f"measure={getattr(self.measure, '__name__', self.measure)!r} is given but columns is empty; "
                "name the columns that it returns"
            )

    def _check_reading(self) -> None:
        if self.storage and not (isinstance(self.data, str) or hasattr(self.data, "__fspath__")):
            raise RecipeError(
                f"storage={sorted(self.storage)} is for URLs; data is {type(self.data).__qualname__}, leave "
                "it out"
            )
        if self.sample_seconds is not None and not (self.isolate and self.sample_seconds > 0):
            raise RecipeError(
                f"sample_seconds={self.sample_seconds} is above 0 and needs isolate=True: only what runs in "
                "a process of its own can be stopped"
            )
        if not 0 <= self.read_retries <= 100:
            raise RecipeError(f"read_retries is from 0 to 100, got {self.read_retries}")
        if self.one_per_record and self.on_bad_sample == "skip":
            raise RecipeError(
                "one_per_record=True cannot hold where on_bad_sample='skip' leaves records out; say 'raise' "
                "or 'replace', or leave one_per_record out"
            )


class Strategy(Protocol):
    """What a recipe needs of its strategy (a `DGraph`)."""

    def check(self, source_names: Sequence[str], columns: Sequence[str]) -> None:
        """Raise RecipeError where the strategy does not fit the sources and their metadata columns."""
        ...

    def describe(self) -> str:
        """A text that is equal for equal strategies, in every process."""
        ...


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides what each step delivers: the law's `recipe` and `seed`.

    Attributes:
        sources: datasets by name; their order is part of the recipe (ties are broken by it).
        strategy: a `DGraph`.
        seed: any integer from 0 to 2**63 - 1.
        scaling: a `scaling.ScalingPolicy` that decides, while a job runs, which loaders read what; None for
            the usual one. It decides nothing of what steps deliver, and is no part of the fingerprint.

    Raises:
        RecipeError: no source, a seed out of range, or a strategy that does not fit the sources.
    """

    sources: Mapping[str, Source]
    strategy: Strategy
    seed: int = 0
    scaling: Any = None

    def __post_init__(self) -> None:
        """Check the parts against each other, so that a wrong recipe fails before any rank starts."""
        if not self.sources:
            raise RecipeError("a recipe needs at least one source; sources is empty")
        for name, source in self.sources.items():
            if not isinstance(source, Source):
                raise RecipeError(
                    f"sources[{name!r}] is a {type(source).__name__}; wrap it in msd.Source(...)"
                )
        if not 0 <= self.seed < 2**63:
            raise RecipeError(f"seed is between 0 and 2**63 - 1, got {self.seed}")
        self._check_scaling()
        self.strategy.check(self.source_names, self.columns)

    def _check_scaling(self) -> None:
        if self.scaling is None:
            return
        seconds = [getattr(self.scaling, f"{name}_seconds", None) for name in ("interval", "lookahead")]
        finite = all(isinstance(each, int | float) and 0 <= each < float("inf") for each in seconds)
        if not callable(getattr(self.scaling, "decide", None)) or not finite:
            raise RecipeError(
                "scaling is a policy such as msdata_jax.scaling.Hysteresis(): it has `decide`, and "
                f"interval_seconds and lookahead_seconds, finite and not negative; got {self.scaling!r}"
            )

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names in order; a source's index in messages and plans is its place here."""
        return tuple(self.sources)

    @property
    def columns(self) -> tuple[str, ...]:
        """User metadata columns of all sources, sorted."""
        return tuple(sorted({column for source in self.sources.values() for column in source.columns}))

    def data_of(self, name: str) -> str:
        """Where the data of a source are, for people: the path, or the type of what is in memory.

        A URL is without user, password and query.
        """
        data = self.sources[name].data
        text = str(data.__fspath__()) if hasattr(data, "__fspath__") else _text_of(data).strip("'")
        return without_credentials(text)

    def content_of(self, name: str) -> str:
        """What decides what the positions of a source yield besides its data, as text: equal where that is.

        Paths of transforms and dataclasses enter by value, other objects and functions by name.
        """
        source = self.sources[name]
        return ", ".join(f"{each}={_text_of(getattr(source, each))}" for each in _CONTENT)

    def fingerprint(self) -> str:
        """A digest that is equal in every process that built the same recipe (hex, 16 bytes).

        It covers the seed, the strategy, and each source's fields. Paths and dataclasses (the transforms of
        this package) enter by value, other objects and functions by name. `storage` does not enter, nor do
        user, password and query of a URL: they may differ from rank to rank, and from day to day.
        """
        lines = [f"seed={self.seed}", self.strategy.describe()]
        for name, source in self.sources.items():
            values = {each.name: getattr(source, each.name) for each in fields(source)}
            if isinstance(source.data, str):
                values["data"] = without_credentials(source.data)
            del values["storage"]
            lines.append(f"{name}: {[_text_of(value) for value in values.values()]}")
        return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()


_CONTENT = ("transforms", "measure", "columns", "on_bad_sample", "shuffle", "options", "one_per_record")


def without_credentials(location: str) -> str:
    """A URL without user, password and query, which may hold a signature; a path as it is."""
    scheme, separator, rest = location.partition("://")
    if not separator:
        return location
    rest = re.sub(r"^[^/]*@", "", rest)
    rest = re.sub(r"://[^/@]*@", "://", rest)  # a URL inside a URL
    # Elsewhere than in http a question mark may be part of a glob.
    query = r"[?#].*$" if scheme in ("http", "https") else r"\?[^/]*=.*$"
    return f"{scheme}://{re.sub(query, '', rest, flags=re.DOTALL)}"


def without_addresses(text: str) -> str:
    """A `repr` that is equal in every process: functions and objects keep their names alone."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def _text_of(value: Any) -> str:
    """A text that is equal for equal values in every process, and free of addresses."""
    if value is None or isinstance(value, str | int | float | bool):
        return repr(value)
    if hasattr(value, "__fspath__"):
        return repr(value.__fspath__())
    if isinstance(value, Mapping):
        return str({str(key): _text_of(each) for key, each in value.items()})
    if isinstance(value, tuple):
        return str([_text_of(each) for each in value])
    if is_dataclass(value) and not isinstance(value, type):
        return without_addresses(repr(value))
    return str(getattr(value, "__qualname__", type(value).__qualname__))
