"""What a role may ask of the loop that runs it. A role returns these; it never acts itself."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from msdata_jax.roles.messages import BlocksSaved, Expect, RoleMessage, StateAfter


@dataclass(frozen=True, kw_only=True)
class Send:
    """Send a message to a rank."""

    rank: int
    message: RoleMessage


@dataclass(frozen=True, kw_only=True)
class Run:
    """Run `call` on a worker thread; the role then handles its result as a message from itself.

    What has a smaller `due` begins first, else what came first.
    """

    call: Callable[[], RoleMessage]
    due: int = -1


@dataclass(frozen=True, kw_only=True)
class Resize:
    """Have so many worker threads, at least 1."""

    num_threads: int


@dataclass(frozen=True, kw_only=True)
class Deliver:
    """Make a finished step ready for the trainer, who gets it when it is shown."""

    expect: Expect
    fields: Mapping[str, np.ndarray]
    states: Sequence[StateAfter] = ()


@dataclass(frozen=True, kw_only=True)
class Show:
    """Let the trainer have the steps that are ready, up to `step`."""

    step: int


@dataclass(frozen=True, kw_only=True)
class Saved:
    """Tell the trainer that the blocks it asked for are on disk, or why not."""

    message: BlocksSaved


@dataclass(frozen=True, kw_only=True)
class EndStream:
    """Tell the trainer that there is no further step.

    Attributes:
        error: where the data failed.
        stopped: somebody asked for it.
    """

    error: Exception | None
    stopped: bool = False


@dataclass(frozen=True, kw_only=True)
class Finish:
    """The role is done: send what is queued, then stop the loop.

    Attributes:
        error: why, where it failed.
        figures: what it has to say of its session.
        again: another session may follow.
    """

    error: Exception | None = None
    figures: Mapping[str, Any] | None = None
    again: bool = False


@dataclass(frozen=True, kw_only=True)
class Forget:
    """Take nothing from this rank any more, and do not wait for it."""

    rank: int
    why: str


Effect: TypeAlias = Send | Run | Resize | Deliver | Show | Saved | EndStream | Finish | Forget


class Role(Protocol):
    """A state machine: messages in, effects out."""

    def start(self) -> Sequence[Effect]:
        """What the role does first."""
        ...

    def handle(self, sender: int, message: RoleMessage) -> Sequence[Effect]:
        """React to one message."""
        ...

    def tick(self, elapsed_seconds: float, *, caught_up: bool = True) -> Sequence[Effect]:
        """Called about once a second with the time since `start`; for deadlines.

        `caught_up` says that no message waited just now, so that who was silent really was.
        """
        ...
