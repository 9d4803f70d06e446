"""The contract that every transport fulfils: messages between numbered ranks.

Order is kept per sender. `send` queues and returns. One thread owns an endpoint: only `wake` may be called
from another. Every `receive` has a deadline. `close` first waits until queued messages have left.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A kind, a small header and any number of arrays.

    Attributes:
        kind: what the message is, at most 64 characters; the receiver dispatches on it.
        header: plain values: None, bool, int of 64 bits, float, str, bytes, list, dict with str keys, at most
            32 levels deep. A tuple arrives as a list.
        arrays: numeric or bool numpy arrays, C-contiguous, of at most 32 dimensions. They must not be
            written after `send`; the receiver gets arrays of its own, which it may write.
    """

    kind: str
    header: Mapping[str, Any] = field(default_factory=dict)
    arrays: Sequence[np.ndarray] = ()


class Endpoint(Protocol):
    """One rank's end of the transport."""

    @property
    def rank(self) -> int:
        """This rank, `0 <= rank < size`."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    def send(self, rank: int, message: Message) -> None:
        """Queue a message for `rank`, which may be this rank itself.

        To a peer that has closed, or that `forget` named, it vanishes.

        Raises:
            EndpointClosed: after `close`.
            PeerLost: `rank` is known to be lost, and was not forgotten.
            BadFrame: the message breaks a bound or carries what cannot be sent.
        """
        ...

    def receive(self, timeout_seconds: float) -> tuple[int, Message] | None:
        """Wait for the next message of any rank.

        Returns:
            (sender, message), or None when `wake` was called since the last receive.

        Raises:
            TooLate: nothing came within `timeout_seconds`.
            PeerLost: a peer was found lost; raised once for each, after its complete messages were given out.
            BadFrame: a peer sent bytes that are no message.
            EndpointClosed: after `close`.
        """
        ...

    def wake(self) -> None:
        """Make the pending or next `receive` return None at once. May be called from any thread."""
        ...

    def forget(self, rank: int, why: str = "it was given up") -> None:
        """Go on without a peer, dead or not: it counts as lost, and no PeerLost is raised for it any more.

        What waits to leave for it is dropped, later messages to it vanish, nothing that it sent is given out
        any more, and `close` does not wait for it. It is not told. There is no way back. Forgetting a peer
        again, or one that is lost or has closed, is no error, nor is it after `close`.

        Args:
            rank: the peer.
            why: for people; what this endpoint says of it.

        Raises:
            ValueError: `rank` is this rank, or none.
        """
        ...

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Wait until queued messages have left, then take and give no more. Calling it again does nothing.

        Raises:
            TooLate: a peer did not take its messages in time; the endpoint is closed all the same.
        """
        ...
