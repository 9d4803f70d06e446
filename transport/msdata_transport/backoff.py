# pyright: strict
"""How long to sleep between two looks. Pure: the clock is passed in.

Every blocking MPI call spins, so waiting is done by looking and sleeping.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Look again at once for a moment, then sleep longer and longer; traffic starts it over.

    Attributes:
        spin_seconds: after traffic, how long to look without sleeping.
        moving_seconds: after traffic, how long sleeps stay short while bytes are under way.
        first_seconds: the first sleep; each sleep is twice the one before.
        longest_seconds: the longest sleep soon after traffic.
        quiet_after_seconds: without traffic for this long, sleeps grow on, up to `quiet_longest_seconds`.
    """

    spin_seconds: float = 100e-6
    moving_seconds: float = 5e-3
    first_seconds: float = 50e-6
    longest_seconds: float = 1e-3
    quiet_after_seconds: float = 0.1
    quiet_longest_seconds: float = 5e-3
    _last_traffic: float = float("-inf")
    _last_pause: float = 0.0

    def traffic(self, now: float) -> None:
        """Something came or went at `now` (seconds of any steady clock)."""
        self._last_traffic = now
        self._last_pause = 0.0

    def pause(self, now: float, *, moving: bool = False) -> float:
        """Seconds to sleep before the next look; 0 means look again at once.

        Args:
            now: the clock.
            moving: whether bytes are under way, so that the next look is likely to find something.
        """
        quiet = now - self._last_traffic
        if quiet < self.spin_seconds:
            return 0.0
        if moving and quiet < self.moving_seconds:
            return self.first_seconds
        longest = self.longest_seconds if quiet < self.quiet_after_seconds else self.quiet_longest_seconds
        self._last_pause = min(longest, max(self.first_seconds, 2 * self._last_pause))
        return self._last_pause
