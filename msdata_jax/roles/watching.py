"""When a loader counts as lost although nobody saw it die: it is silent, or one read takes for ever. Pure."""

from collections.abc import Collection, Iterator, Sequence

from msdata_jax.roles import messages as m

HEARTBEAT_SECONDS = 15.0
"""How long a loader may be silent."""
READ_SECONDS = 600.0
"""How long one block may take to read."""


class Watch:
    """Counts ticks, not seconds: while the watcher itself stands still, nobody else is to blame.

    Args:
        ranks: loaders and shadows.
        heartbeat_seconds: how long one may be silent; a tick is about a second.
        read_seconds: how long one block may take to read.
        source_names: for messages.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        read_seconds: float = READ_SECONDS,
        source_names: Sequence[str] = (),
    ) -> None:
        self._ranks, self._source_names = tuple(ranks), source_names
        self._heartbeat_seconds, self._read_seconds = heartbeat_seconds, read_seconds
        self._silent_ticks = dict.fromkeys(ranks, 0)
        self._reading: dict[int, m.Heartbeat] = {}

    def anew(self, without: Collection[int] = ()) -> "Watch":
        """For another session: the same ranks but some, none of them silent."""
        ranks = [rank for rank in self._ranks if rank not in without]
        return Watch(ranks, self._heartbeat_seconds, self._read_seconds, self._source_names)

    def heard(self, sender: int, message: m.RoleMessage) -> None:
        """Something came from a rank."""
        if sender not in self._silent_ticks:
            return
        self._silent_ticks[sender] = 0
        if isinstance(message, m.Heartbeat):
            self._reading[sender] = message
        elif isinstance(message, m.Farewell):
            del self._silent_ticks[sender]

    def tick(self) -> Iterator[tuple[int, str]]:
        """Ranks that count as lost from now on, and why. They are not watched any more."""
        for rank in list(self._silent_ticks):
            self._silent_ticks[rank] += 1
            why = self._why_lost(rank)
            if why:
                del self._silent_ticks[rank]
                yield rank, why

    def _why_lost(self, rank: int) -> str:
        reading = self._reading.get(rank)
        if self._silent_ticks[rank] > self._heartbeat_seconds:
            return f"it was silent for {self._heartbeat_seconds:g} s (--heartbeat-seconds)"
        if reading is not None and reading.seconds > self._read_seconds:
            named = dict(enumerate(map(repr, self._source_names)))
            name = named.get(reading.source, f"number {reading.source}")
            where = f"the block at position {reading.start} of source {name}"
            return (
                f"it has been reading {where} for {reading.seconds:.0f} s, longer than "
                f"{self._read_seconds:g} s (--read-seconds)"
            )
        return ""
