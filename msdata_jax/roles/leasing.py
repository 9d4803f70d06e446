"""Leases: which loader reads which block of which source. One mechanism for reading, resuming and recovery.

A block that somebody will ask for and that nobody keeps is leased: because training comes near it, because
the job goes on from a saved state, or because its loader is lost.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from msdata_jax.data_state import BadRecords, SourceFacts
from msdata_jax.errors import LaunchError
from msdata_jax.planning.graph import StreamState
from msdata_jax.recipe import Recipe
from msdata_jax.records import MAX_SUBSTITUTES, BadSample, info_dtype
from msdata_jax.roles import messages as m
from msdata_jax.roles.announcing import order_to_forget
from msdata_jax.roles.effects import Effect, Send
from msdata_jax.roles.holdings import NOBODY, BlockKey, Holdings
from msdata_jax.roles.placement import Placement
from msdata_jax.roles.reading_rates import ReadingRates
from msdata_jax.roles.streams import SourceStream

MOST_SUSPECTS = 4
"""Blocks that a loader reads at once, as a guess: those told first are read first."""


class Leasing:
    """What is read of every source, by whom, and what is known of it.

    Args:
        recipe: what to read.
        placement: the job's ranks.
        lost: loaders and shadows that are gone already, by rank, and why; None for none.
        affinity: ranks of the loaders that each source is leased to at first; None for `Placement.affinity`.
        costs: seconds a sample of each source, as far as they are known before; None for no source.

    Attributes:
        streams: what is known of each source; none before `begin`.
        holdings: who has which block.
        rates: how long reading takes.
        refused: (source, rank) of those that did not open there, and why.
        lost: why each lost loader or shadow is gone, by rank.
        threads: worker threads of each loader, as far as they are known.
        broken: what a block that was read twice shows to be wrong; empty while the law holds.
    """

    def __init__(
        self,
        recipe: Recipe,
        placement: Placement,
        lost: Mapping[int, str] | None = None,
        affinity: Sequence[Sequence[int]] | None = None,
        costs: Sequence[float | None] | None = None,
    ) -> None:
        placement = placement.without(lost or {})
        self._recipe, self._placement = recipe, placement
        self._names = recipe.source_names
        self._affinity = [list(loaders) for loaders in placement.affinity(len(self._names))]
        for loaders, wanted in zip(self._affinity, affinity or (), strict=False):
            loaders[:] = [rank for rank in wanted if rank in placement.loaders] or loaders
        self.rates = ReadingRates(costs or [None] * len(self._names))
        self.refused: dict[tuple[int, int], str] = {}
        self._widening: set[tuple[int, int]] = set()
        self._readers = list(placement.readers)
        self._opened: set[tuple[int, int]] = set()
        self._first_opened: dict[int, tuple[int, m.SourceOpened]] = {}
        self._asked: set[tuple[int, int]] = set()
        self._verdicts: dict[BlockKey, dict[int, str]] = defaultdict(dict)
        self._unkept: set[BlockKey] = set()  # being read for their metadata alone
        self._to_compare: dict[BlockKey, np.ndarray] = {}  # what a saved state says of a block
        self._suspects: set[BlockKey] = set()  # being read when their loader was lost
        self.streams: list[SourceStream] = []
        self.holdings = Holdings([source.block_size for source in recipe.sources.values()])
        self.lost = dict(lost or {})
        self.broken = ""
        self.threads: dict[int, int] = {}
        self._blocks = ""  # folder of blocks that were saved

    @property
    def readers(self) -> Sequence[int]:
        """Loaders and shadows that are left."""
        return self._readers

    def loaders_of(self, source: int) -> Sequence[int]:
        """The loaders that a source may be leased to."""
        return self._affinity[source]

    # --- opening ----------------------------------------------------------------------------------------

    def open_first(self) -> list[Effect]:
        """Ask the first loader of each source to open it; the others follow when it could."""
        return [effect for s, loaders in enumerate(self._affinity) for effect in self._open(s, loaders[:1])]

    def _open(self, source: int, ranks: Sequence[int]) -> list[Effect]:
        new = [rank for rank in ranks if (source, rank) not in self._asked]
        self._asked |= {(source, rank) for rank in new}
        return [Send(rank=rank, message=m.OpenSource(source=source)) for rank in new]

    def _openers(self, source: int) -> list[int]:
        """Everybody who is to have a source open: its loaders and its shadow."""
        shadow = self._shadow_of(source)
        return [*self._affinity[source], *([] if shadow is None else [shadow])]

    def _shadow_of(self, source: int) -> int | None:
        standing_by = [rank for rank in self._placement.shadows if rank in self._readers]
        return standing_by[source % len(standing_by)] if standing_by else None

    def opened(self, sender: int, message: m.SourceOpened) -> list[Effect]:
        """A source is open somewhere: one that cannot be opened fails once, not once for every loader of it.

        Raises:
            LaunchError: it is not the same everywhere.
        """
        source = message.source
        if (source, sender) in self._widening:
            return self._widened(sender, message)
        if (source, sender) not in self._asked:
            return []  # it was told to close it meanwhile
        self._opened.add((source, sender))
        rank, first = self._first_opened.setdefault(source, (sender, message))
        if _data_of(first) != _data_of(message):
            raise LaunchError(
                f"source {self._names[source]!r} is not the same on all its loaders: "
                f"{_data_text(first)} on rank {rank}, {_data_text(message)} on rank {sender}"
            )
        return self._open(source, self._openers(source))

    # --- who may read what ------------------------------------------------------------------------------

    def widen(self, source: int, rank: int) -> list[Effect]:
        """Lease a source to one more loader, as soon as that has opened it."""
        if rank not in self._readers or (source, rank) in self.refused:
            return []
        if rank in self._affinity[source] or (source, rank) in self._asked - self._opened:
            return []
        self._asked.add((source, rank))
        self._widening.add((source, rank))
        return [Send(rank=rank, message=m.OpenSource(source=source, may_fail=True))]

    def _widened(self, rank: int, message: m.SourceOpened) -> list[Effect]:
        """A further loader has opened a source, or could not: the job goes on without it then."""
        source = message.source
        self._widening.discard((source, rank))
        first = self._first_opened[source][1]
        error = message.error
        if not error and _data_of(first) != _data_of(message):
            error = f"it is not the same there: {_data_text(message)}, not {_data_text(first)}"
        if error and rank in self._affinity[source]:  # since all others are lost
            raise LaunchError(f"source {self._names[source]!r} cannot be read on rank {rank}: {error}")
        if error:
            self._asked.discard((source, rank))
            self.refused[source, rank] = error
            return []
        self._opened.add((source, rank))
        if rank not in self._affinity[source]:
            self._affinity[source].append(rank)
        return []

    def narrow(self, source: int, rank: int) -> list[Effect]:
        """Lease a source to one loader less; what that is reading, and what it holds, stays its own."""
        loaders = self._affinity[source]
        if rank not in loaders or len(loaders) == 1:
            return []
        loaders.remove(rank)
        self._widening.discard((source, rank))
        if rank == self._shadow_of(source):
            return []
        self._asked.discard((source, rank))
        self._opened.discard((source, rank))
        return [Send(rank=rank, message=m.CloseSource(source=source))]

    def set_threads(self, rank: int, count: int) -> list[Effect]:
        """Let a loader have so many worker threads."""
        self.threads[rank] = count
        return [Send(rank=rank, message=m.SetThreads(num_threads=count))]

    @property
    def working_ranks(self) -> list[int]:
        """Loaders that are left, and shadows that have taken over."""
        at_work = {rank for loaders in self._affinity for rank in loaders}
        return [rank for rank in self._readers if rank in self._placement.loaders or rank in at_work]

    def opening(self, source: int) -> list[int]:
        """The loaders that were told to open a source, so that it can be leased to them."""
        return sorted(rank for each, rank in self._widening if each == source)

    def unopened(self) -> list[tuple[int, int]]:
        """(source, rank) of what is still to be opened before the job may begin."""
        pairs = [(source, rank) for source in range(len(self._names)) for rank in self._openers(source)]
        return [pair for pair in pairs if pair not in self._opened]

    @property
    def all_open(self) -> bool:
        """Whether nothing is to be opened any more before the job may begin."""
        # `unopened` looks at all sources, so it is not asked with each one that opens.
        return len(self._first_opened) == len(self._names) and not self.unopened()

    def facts(self) -> tuple[SourceFacts, ...]:
        """What the sources are."""
        first = [self._first_opened[index][1] for index in range(len(self._names))]
        return tuple(
            SourceFacts(
                name=name,
                data=self._recipe.data_of(name),
                content=self._recipe.content_of(name),
                num_records=first[index].num_records,
                fingerprint=first[index].fingerprint,
                block_size=self._recipe.sources[name].block_size,
                files=first[index].files,
            )
            for index, name in enumerate(self._names)
        )

    def begin(self, state: StreamState, bad: Sequence[BadRecords], *, repeat: bool, blocks: str = "") -> None:
        """Build the streams, which begin behind the last samples that were drawn.

        Args:
            state: where the job begins.
            bad: bad samples of each source until then.
            repeat: sources begin anew when they end.
            blocks: folder of blocks that were saved with the state.
        """
        self._blocks = blocks
        num_records = [facts.num_records for facts in self.facts()]
        for index, name in enumerate(self._names):
            stream = SourceStream(
                name,
                self._recipe.sources[name],
                num_records=num_records[index],
                repeat=repeat,
                dtype=info_dtype(self._recipe.columns),
                last=(int(state.last_position[index]), int(state.last_part[index])),
                bad=bad[index],
            )
            self.streams.append(stream)
            for start, position, reason in bad[index].verdicts:
                for key in self._blocks_of_verdict(index, start, position):
                    self._verdicts[key][position] = reason
        ahead = state.composed_ahead()
        for key in self.holdings.blocks_of(ahead):
            mine = [infos[self.holdings.in_block(infos, key)] for infos in ahead]
            self._to_compare[key] = np.unique(np.concatenate(mine))

    def _blocks_of_verdict(self, source: int, start: int, position: int) -> set[BlockKey]:
        """The blocks that a saved verdict is for: the one in which it fell.

        Where blocks are of another size now (`start` is -1), every block in which the position may be tried:
        its own, and under `replace` those for which it may be a substitute.
        """
        if start >= 0:
            return {self.holdings.block_of(source, start)}
        replaces = self._recipe.sources[self._names[source]].on_bad_sample == "replace"
        first = max(position - MAX_SUBSTITUTES * replaces, 0)
        return {self.holdings.block_of(source, each) for each in range(first, position + 1)}

    # --- leases -----------------------------------------------------------------------------------------

    def lease_next(self, source: int, loader: int, *, keep: bool, due: int = 0) -> list[Effect]:
        """Lease a source's next block, which step `due` is likely to need; nothing when there is none."""
        lease = self.streams[source].next_lease()
        return [] if lease is None else [self._lease((source, lease[0]), loader, keep=keep, due=due)]

    def lease_unkept(self, needed: Sequence[np.ndarray]) -> list[Effect]:
        """Lease what is needed and kept by nobody, and what is not known yet and being read by nobody.

        Args:
            needed: SampleInfo records of samples that will be asked for.
        """
        wanted = self.holdings.blocks_of(needed)
        unread = {key for key in wanted if self.holdings.owner(*key) in (None, NOBODY)}
        ahead = {key for key in self.holdings.without_owner() if not self.streams[key[0]].is_behind(key[1])}
        effects = [self._lease(key, self.least_loaded(key[0])) for key in sorted(unread | ahead)]
        for source, start in unread:
            self.streams[source].claim(start)  # where it is the block to be leased next
        return effects

    def lease_unread(self) -> list[Effect]:
        """Lease again, for their metadata alone, the blocks whose loader is lost before it had read them."""
        unread = [key for key in self.holdings.without_owner() if self.streams[key[0]].expects(key[1])]
        return [self._lease(key, self.least_loaded(key[0]), keep=False) for key in unread]

    def least_loaded(self, source: int, most_bytes: int | None = None) -> int | None:
        """The loader of a source that will have read first what it is to read, or that holds least.

        Args:
            source: its number.
            most_bytes: leave out loaders that hold so much; None where they are all full then.
        """
        loaders = [
            rank
            for rank in self._affinity[source]
            if most_bytes is None or self.holdings.num_bytes(rank) < most_bytes
        ]
        return min(loaders, key=self._load_of, default=None)

    def _load_of(self, rank: int) -> tuple[float, int, int]:
        waiting = self.rates.waiting_seconds(rank) / self.threads.get(rank, 1)
        return round(waiting, 2), self.holdings.num_bytes(rank), rank

    def _lease(self, key: BlockKey, loader: int | None, *, keep: bool = True, due: int = 0) -> Effect:
        source, start = key
        assert loader is not None
        self.holdings.lease(loader, source, start)
        self.rates.lease(loader, key, self.streams[source].block_stop(start) - start)
        if keep:
            self._unkept.discard(key)
        else:
            self._unkept.add(key)
        lease = m.Lease(
            source=source,
            start=start,
            stop=self.streams[source].block_stop(start),
            keep=keep,
            isolate=key in self._suspects,
            verdicts=sorted(self._verdicts.get(key, {}).items()),
            blocks=self._blocks if self._recipe.sources[self._names[source]].snapshot else "",
            due=due,
        )
        return Send(rank=loader, message=lease)

    def take_block(
        self, sender: int, block: m.BlockReady, needed: Callable[[], Sequence[np.ndarray]], step: int
    ) -> list[Effect]:
        """Take what a lease yielded; what comes from a loader that has the lease no more is left out.

        Args:
            sender: the loader.
            block: what it says.
            needed: gives SampleInfo records of the samples that will be asked for.
            step: the last step that was planned.
        """
        key = (block.source, block.start)
        if self.holdings.owner(*key) != sender or not self.holdings.is_being_read(*key):
            return []
        kept = key not in self._unkept
        self._unkept.discard(key)
        self._suspects.discard(key)
        self.rates.report(sender, block)
        before = self.holdings.digest(*key)
        if before not in (None, block.digest):
            self._break(key, "it gave other samples when it was read again")
        if block.verdicts:
            self._verdicts[key] = dict(block.verdicts)
        self.holdings.report(*key, int(block.infos["num_bytes"].sum()), block.digest, kept=kept)
        self._compare(key, block.infos)
        stream = self.streams[block.source]
        if stream.expects(block.start):
            bad = [BadSample(position=p, reason=reason, by_luck=luck) for p, reason, luck in block.bad]
            stream.add_block(block.start, block.stop, block.infos, bad)
            if not stream.begins_behind(block.start):
                return []
        if not kept or not stream.is_behind(block.start):
            return []
        return self._forget_unneeded(sender, key, block.infos, needed(), step)

    def _compare(self, key: BlockKey, infos: np.ndarray) -> None:
        """Hold what was read against what the saved state says of it."""
        saved = self._to_compare.pop(key, None)
        if saved is not None and not np.isin(saved, infos).all():
            self._break(key, "it does not give the samples that the saved state has drawn from it")

    def _break(self, key: BlockKey, what: str) -> None:
        source, start = key
        last = self.streams[source].block_stop(start) - 1
        self.broken = (
            f"source {self._names[source]!r}, positions {start} to {last}: {what}; its data changed, or a "
            "transform is not a function of the record (a random one takes its generator, see "
            "docs/architecture.md), or was changed under its name: give it another, and accept_changes=True"
        )

    def _forget_unneeded(
        self, loader: int, key: BlockKey, infos: np.ndarray, needed: Sequence[np.ndarray], step: int
    ) -> list[Effect]:
        """Of a block that was read again, only what is still to be delivered is kept."""
        mine = [each[self.holdings.in_block(each, key)] for each in needed]
        wanted = {(p, part) for each in mine for p, part in zip(*_places(each), strict=True)}
        is_wanted = [place in wanted for place in zip(*_places(infos), strict=True)]
        unneeded = infos[~np.array(is_wanted, dtype=bool)]
        if not len(unneeded):
            return []
        self.holdings.drop(unneeded)
        return [Send(rank=loader, message=order_to_forget(step, unneeded))]

    # --- loss -------------------------------------------------------------------------------------------

    def lose(self, rank: int, why: str) -> list[Effect]:
        """A loader or shadow is gone: its sources go to their shadows, or to whoever is left.

        `lease_unkept` then leases again what it had.
        """
        self.lost[rank] = why
        self._readers.remove(rank)
        being_read = self.holdings.being_read(rank)
        self._suspects.update(being_read[:MOST_SUSPECTS])
        for key in being_read:
            self.rates.forget(key)
        self._widening = {(source, each) for source, each in self._widening if each != rank}
        self.holdings.lose(rank)
        effects: list[Effect] = []
        for source, loaders in enumerate(self._affinity):
            if rank in loaders:
                loaders.remove(rank)
                if not loaders and self._readers:
                    loaders.append(self._successor(source))
            openers = self._openers(source) if source in self._first_opened else loaders[:1]
            effects += self._open(source, openers)
        return effects

    def _successor(self, source: int) -> int:
        """Who reads a source whose loaders are lost: its shadow, else the loader with the fewest sources.

        One that could not open it, or has not yet, only where there is no other.
        """
        shadow = self._shadow_of(source)
        if shadow is not None:
            return shadow
        load = Counter(loader for loaders in self._affinity for loader in loaders)
        unfit = self._widening | self.refused.keys()
        return min(self._readers, key=lambda rank: ((source, rank) in unfit, load[rank], rank))

    # --- forgetting -------------------------------------------------------------------------------------

    def forget(self, state: StreamState) -> None:
        """Nothing before this state will be asked for again."""
        self.holdings.forget_before(state.last_position, state.composed_ahead())
        for stream, position in zip(self.streams, state.last_position.tolist(), strict=True):
            stream.forget_bad_up_to(position)
        if self._verdicts:
            known = {
                key
                for key in self._verdicts
                if self.holdings.owner(*key) is not None or not self.streams[key[0]].is_behind(key[1])
            } | (self._verdicts.keys() & self.holdings.blocks_of(state.composed_ahead()))
            self._verdicts = defaultdict(dict, {key: self._verdicts[key] for key in known})

    def status(self) -> dict[str, Any]:
        """What is known, under way and held, by source and by loader."""
        ahead = [stream.ahead for stream in self.streams]
        counts = [len(infos) for infos in ahead]
        source = np.repeat(np.arange(len(ahead)), counts)
        num_bytes = np.concatenate([infos["num_bytes"] for infos in ahead]) if ahead else source
        return {
            "sources_to_open": 0 if self.streams else len(self.unopened()),
            "known": counts,
            "leased": [stream.num_leased_positions for stream in self.streams],
            "known_bytes": np.bincount(source, num_bytes, len(ahead)).astype(np.int64).tolist(),
            "bad": [stream.num_bad for stream in self.streams],
            "held_bytes": {rank: self.holdings.num_bytes(rank) for rank in self._readers},
            "lost": dict(self.lost),
            "loaders": [list(loaders) for loaders in self._affinity],
            "threads": {rank: self.threads.get(rank, 1) for rank in self.working_ranks},
            "busy_seconds": dict(self.rates.busy_seconds),
        }

    def bad_records(self, state: StreamState) -> tuple[BadRecords, ...]:
        """The bad samples of each source, up to a state."""
        if not self._verdicts and not any(stream.num_bad for stream in self.streams):
            return (BadRecords(),) * len(self.streams)
        records = []
        for source, (stream, position) in enumerate(
            zip(self.streams, state.last_position.tolist(), strict=True)
        ):
            num_bad, listed = stream.bad_up_to(position)
            verdicts = tuple(
                (start, p, reason)
                for (s, start), found in sorted(self._verdicts.items())
                if s == source
                for p, reason in sorted(found.items())
            )
            records.append(BadRecords(num_bad=num_bad, listed=listed, verdicts=verdicts))
        return tuple(records)


def _data_of(opened: m.SourceOpened) -> tuple[int, str]:
    return opened.num_records, opened.fingerprint


def _data_text(opened: m.SourceOpened) -> str:
    return f"{opened.num_records} records, fingerprint {opened.fingerprint}"


def _places(infos: np.ndarray) -> tuple[list[int], list[int]]:
    return infos["position"].tolist(), infos["part"].tolist()
