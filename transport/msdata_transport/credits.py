# pyright: strict
"""How many messages may be under way to a peer. Pure bookkeeping.

MPI keeps a few dozen cells for messages between processes of a host, and those of a dead peer never come
back. So at most `window` messages to one peer are unacknowledged; the rest wait at the sender.
"""

from msdata_transport.errors import BadFrame

WINDOW = 8


class Credits:
    """Both directions between this rank and one peer."""

    def __init__(self, window: int = WINDOW) -> None:
        if window < 1:
            raise ValueError(f"a window holds at least 1 message, got {window}")
        self._window = window
        self.num_unacknowledged = 0
        self._num_owed = 0

    @property
    def may_send(self) -> bool:
        return self.num_unacknowledged < self._window

    def sent(self) -> None:
        """Count a message that goes out; only while `may_send`."""
        if not self.may_send:
            raise ValueError(
                f"{self.num_unacknowledged} messages are under way already, the window is {self._window}"
            )
        self.num_unacknowledged += 1

    def acknowledged(self, num_messages: int) -> None:
        """Count what the peer says it took.

        Raises:
            BadFrame: it says more than it was sent.
        """
        if not 0 < num_messages <= self.num_unacknowledged:
            raise BadFrame(f"it acknowledged {num_messages} messages of {self.num_unacknowledged} under way")
        self.num_unacknowledged -= num_messages

    def taken(self) -> None:
        """Count a message of the peer that the owner took: an acknowledgement is owed."""
        self._num_owed += 1

    def collect_owed(self, *, at_least: int | None = None) -> int:
        """What to acknowledge now: all that is owed, or 0 where that is under `at_least`.

        The default, half a window, keeps the peer sending while acknowledgements stay few.
        """
        if self._num_owed < (max(1, self._window // 2) if at_least is None else at_least):
            return 0
        num_owed, self._num_owed = self._num_owed, 0
        return num_owed
