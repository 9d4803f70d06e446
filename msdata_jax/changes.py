"""Going on from a saved state with a recipe that may have changed: what carries over, and what is refused."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from msdata_jax.data_state import BadRecords, DataState, SourceFacts
from msdata_jax.errors import CheckpointError, RecipeError
from msdata_jax.planning.composing import StreamState
from msdata_jax.planning.graph import DGraph
from msdata_jax.planning.packing import Pack
from msdata_jax.planning.resuming import carry_state, left_out_text
from msdata_jax.recipe import Recipe
from msdata_jax.records import info_dtype


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """A saved state, fitted to the recipe that goes on.

    Attributes:
        stream: where it stands, its sources in the recipe's order.
        bad: of each source.
        changes: sentences on what the user changed and what follows.
        silent: sentences on what would change the meaning of the run without anybody having said so.
        stale: sources that yield other samples now; those of them that waited for a row are left out.
        other_rows: whether rows or costs, which decide what shares a step, are others.
    """

    stream: StreamState
    bad: tuple[BadRecords, ...]
    changes: list[str]
    silent: list[str]
    stale: list[str]
    other_rows: bool

    def check(self, *, accept_changes: bool) -> None:
        """Refuse what cannot go on.

        Raises:
            CheckpointError: something would silently change and is not accepted.
            RecipeError: it is accepted, but steps are composed already of samples that are no more.
        """
        if self.silent and not accept_changes:
            raise CheckpointError(
                f"the saved state does not fit this recipe: {'; '.join(self.silent)}. Go on with what was, "
                "or say accept_changes=True to go on all the same"
            )
        ahead = (*self.stream.gathered, *self.stream.pending)
        if ahead and (self.stale or self.other_rows):
            what = f"of what the sources {self.stale} were" if self.stale else "in rows as they were"
            raise RecipeError(
                f"steps up to {ahead[-1].step} are composed already, {what}; change that at step "
                f"{ahead[-1].step + 1}, where regroup begins anew"
            )


def resume(saved: DataState, recipe: Recipe, facts: Sequence[SourceFacts] | None = None) -> Resumed:
    """Fit a saved state to a recipe.

    Sources that stay go on behind their last sample; new ones begin at their first; removed ones are out.

    Args:
        saved: the state.
        recipe: what goes on.
        facts: of its sources as they are; None where nobody looked at the data.

    Raises:
        RecipeError: weights and sources do not match; or the sources change inside a window of `regroup`.
    """
    graph = recipe.strategy
    assert isinstance(graph, DGraph)
    assert graph.mixture is not None
    assert graph.packing is not None
    stream, changes = carry_state(
        saved.stream, saved.source_names, saved.mixture, recipe.source_names, graph.mixture
    )
    if saved.columns != recipe.columns:
        stream = replace(stream, carry=replace(stream.carry, infos=_as_columns(stream.carry.infos, recipe)))
    stale = _stale(saved, recipe, facts or ())
    stream, left_out = _without_stale(stream, recipe, graph.packing, stale)
    bad = {
        source.name: replace(each, verdicts=_verdicts_of(source, each, recipe, stale))
        for source, each in zip(saved.sources, saved.bad, strict=True)
    }
    return Resumed(
        stream=stream,
        bad=tuple(bad.get(name, BadRecords()) for name in recipe.source_names),
        changes=[*changes, *left_out],
        silent=[*_silent(saved, recipe, graph), *data_changes(saved.sources, facts or ())],
        stale=stale,
        other_rows=saved.packing != graph.describe_content(),
    )


def _verdicts_of(
    source: SourceFacts, bad: BadRecords, recipe: Recipe, stale: Sequence[str]
) -> tuple[tuple[int, int, str], ...]:
    """The verdicts that still hold; of no certain block where blocks are of another size now."""
    if source.name in stale or source.name not in recipe.sources:
        return ()  # they were of other records
    if recipe.sources[source.name].block_size == source.block_size:
        return bad.verdicts
    return tuple((-1, position, reason) for _, position, reason in bad.verdicts)


def _stale(saved: DataState, recipe: Recipe, facts: Sequence[SourceFacts]) -> list[str]:
    """The sources that stay and whose positions yield something else than they did."""
    now = {source.name: (source.fingerprint, source.num_records) for source in facts}
    return [
        source.name
        for source in saved.sources
        if source.name in recipe.sources
        and (
            saved.seed != recipe.seed
            or source.content != recipe.content_of(source.name)
            or now.get(source.name) not in (None, (source.fingerprint, source.num_records))
        )
    ]


def _without_stale(
    stream: StreamState, recipe: Recipe, pack: Pack, stale: Sequence[str]
) -> tuple[StreamState, list[str]]:
    """Leave out what waits for a row and is no more, or fits no row any more; and say so."""
    carry, names = stream.carry, recipe.source_names
    source = carry.infos["source"]
    goes = np.isin(source, [names.index(name) for name in stale])
    goes |= (carry.length > pack.seq_len) | (carry.infos["patches"] > pack.patches_per_row)
    texts = [
        left_out_text(int(np.count_nonzero(source[goes] == each)), names[each])
        for each in np.unique(source[goes]).tolist()
    ]
    return replace(stream, carry=carry.take(~goes)), texts


def _as_columns(infos: np.ndarray, recipe: Recipe) -> np.ndarray:
    """Records with the recipe's columns; new ones are 0."""
    converted = np.zeros(len(infos), dtype=info_dtype(recipe.columns))
    for name in set(converted.dtype.names or ()) & set(infos.dtype.names or ()):
        converted[name] = infos[name]
    return converted


def _silent(saved: DataState, recipe: Recipe, graph: DGraph) -> Iterator[str]:
    if saved.seed != recipe.seed:
        yield (
            f"the seed was {saved.seed} and is {recipe.seed}: every source would go on in another order, and "
            "show some records again and others never"
        )
    if saved.packing != graph.describe_content():
        was, now = _where_they_differ(saved.packing, graph.describe_content())
        yield f"rows and costs decide which samples share a step; they were {was} and are {now}"
    if saved.columns != recipe.columns:
        yield f"the metadata columns were {list(saved.columns)} and are {list(recipe.columns)}"
    for source in saved.sources:
        if source.name in recipe.sources and source.content != recipe.content_of(source.name):
            was, now = _where_they_differ(source.content, recipe.content_of(source.name))
            yield f"source {source.name!r} was made with {was} and is made with {now}"


def _where_they_differ(before: str, now: str) -> tuple[str, str]:
    """Two texts without what they begin and end with alike, but for the names of what differs."""
    parts, others = before.split(", "), now.split(", ")
    while parts and others and parts[0] == others[0]:
        parts, others = parts[1:], others[1:]
    while parts and others and parts[-1] == others[-1]:
        parts, others = parts[:-1], others[:-1]
    return ", ".join(parts) or "nothing more", ", ".join(others) or "nothing more"


def data_changes(saved: Sequence[SourceFacts], now: Sequence[SourceFacts]) -> list[str]:
    """Sentences on data that are not what they were, file by file where that is known."""
    before = {source.name: source for source in saved}
    gone = {s.fingerprint: s.name for s in saved if s.name not in {source.name for source in now}}
    texts = []
    for source in now:
        old = before.get(source.name)
        if old is None:
            if source.fingerprint in gone and source.files:
                texts.append(
                    f"source {source.name!r} has the data of {gone[source.fingerprint]!r}, which is "
                    "gone, and would begin at its first sample; keep the name to go on behind the last one"
                )
        elif (old.fingerprint, old.num_records) != (source.fingerprint, source.num_records):
            texts.append(
                f"the data of source {source.name!r} changed: {_what_changed(old.files, source.files)}"
                f"{old.num_records} records were there and {source.num_records} are ({source.data})"
            )
    return texts


def _what_changed(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Which files are other, in words."""
    if not before or not now:
        return ""
    parts = [
        f"{what} {', '.join(sorted(names)[:5])}{' and more' if len(names) > 5 else ''}"
        for what, names in (
            ("other bytes in", {name for name in before if name in now and now[name] != before[name]}),
            ("no more", before.keys() - now.keys()),
            ("new", now.keys() - before.keys()),
        )
        if names
    ]
    return f"{'; '.join(parts)}; " if parts else ""
