"""The errors of the transport.

TransportError
├── EndpointClosed   the endpoint was closed and takes and gives no more messages
├── PeerLost         a peer is gone; names its rank
├── TooLate          nothing came before the deadline
└── BadFrame         bytes that are no message of ours, or break a stated bound
"""


class TransportError(Exception):
    """Base of every error that the transport raises on purpose."""


class EndpointClosed(TransportError):
    """The endpoint was closed and takes and gives no more messages."""


class PeerLost(TransportError):
    """A peer is gone.

    Attributes:
        rank: the lost peer.
        why: how it was found out.
    """

    def __init__(self, rank: int, why: str) -> None:
        super().__init__(f"rank {rank} is lost: {why}")
        self.rank = rank
        self.why = why


class TooLate(TransportError):
    """Nothing came before the deadline."""


class BadFrame(TransportError):
    """Bytes that are no message of ours, or that break a stated bound."""
