"""The one loop: carries messages between a role and its endpoint, runs its background work, and waits.

It holds no policy. A role that raises is told so as `Failed`; the planner turns that into `Abort` for all.
What happens here is told to an observer (`runtime.observing`), of which the roles know nothing.
"""

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msdata_transport import Endpoint, Message, PeerLost, TooLate

from msdata_jax.errors import JobFailed, MSDataError
from msdata_jax.roles import messages as m
from msdata_jax.roles.effects import (
    Deliver,
    Effect,
    EndStream,
    Finish,
    Forget,
    Resize,
    Role,
    Run,
    Saved,
    Send,
    Show,
)
from msdata_jax.runtime import wire
from msdata_jax.runtime.observing import NoObserver, Work
from msdata_jax.runtime.workers import Workers

TICK_SECONDS = 1.0
FAILURE_SECONDS = 5.0
"""How long a rank that failed waits to be told to abort before it ends on its own."""
MOST_WAITING = 64
"""Messages that a tick handles before it says that more are waiting than it knows of."""
WORKER_SECONDS = 2.0
"""How long background work that is under way may take when the role has finished."""

_IN_ANY_SESSION = (m.Failed.__name__, m.Abort.__name__)
_LAST_WORDS = (m.Farewell, m.Leave)
"""Behind them nothing goes to the planner, who may be gone by then."""


def describe_failure(error: BaseException) -> str:
    """One message for people: the text of our own errors, a traceback of any other."""
    if isinstance(error, MSDataError):
        return f"{type(error).__name__}: {error}"
    return "".join(traceback.format_exception(error)).strip()


class RoleLoop:
    """Runs one role over one endpoint until the role finishes.

    Args:
        role: the state machine.
        endpoint: owned by the thread that calls `run`.
        session: number of the role's session; messages of earlier ones are dropped.
        num_workers: threads for background work (`Run`).
        on_deliver: takes `Deliver` effects.
        on_show: takes `Show` effects.
        on_saved: takes `Saved` effects.
        on_end: takes `EndStream` effects.
        on_forget: told of a rank that is lost and done without.
        on_failure: told why the job cannot go on, where this rank finds out, before any other rank is told.
        observer: told what happens here, and when.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, each with a default
        self,
        role: Role,
        endpoint: Endpoint,
        *,
        session: int = 0,
        num_workers: int = 1,
        on_deliver: Callable[[Deliver], None] | None = None,
        on_show: Callable[[Show], None] | None = None,
        on_saved: Callable[[Saved], None] | None = None,
        on_end: Callable[[EndStream], None] | None = None,
        on_forget: Callable[[Forget], None] | None = None,
        on_failure: Callable[[JobFailed], None] | None = None,
        observer: NoObserver | None = None,
    ) -> None:
        self._role, self._endpoint, self._on_failure = role, endpoint, on_failure
        self._session = session
        takers = {Deliver: on_deliver, Show: on_show, Saved: on_saved, EndStream: on_end}
        self._takers: dict[type, Callable[[Any], None]] = {k: take for k, take in takers.items() if take}
        self._on_forget = on_forget
        self._workers = Workers(num_workers)
        self._observer = observer or NoObserver()
        self._inbox: deque[tuple[m.RoleMessage, Work | None]] = deque()
        self._finish: Finish | None = None
        self._failure: JobFailed | None = None
        self._failed_at = 0.0
        self._num_received = 0
        self._said_last = False

    @property
    def serves_again(self) -> bool:
        """Behind `run`: whether another session may follow."""
        return self._finish is not None and self._finish.again

    def post(self, message: m.RoleMessage, *, soon: bool = True) -> None:
        """Give the role a message from its own rank. May be called from any thread.

        Without `soon` also from a handler of a signal: it then waits for up to a tick.
        """
        now = time.monotonic()
        self._put(message, Work(now, now, now, threading.current_thread().name), soon=soon)

    def _put(self, message: m.RoleMessage, work: Work | None, *, soon: bool = True) -> None:
        self._inbox.append((message, work))
        if soon:
            self._endpoint.wake()

    def run(self) -> Mapping[str, Any]:
        """Run until the role finishes.

        Returns:
            the figures it finished with.

        Raises:
            JobFailed: this rank or another one failed.
        """
        begin = next_tick = time.monotonic()
        try:
            self._guarded(self._role.start)
            while self._finish is None:
                self._take_one(next_tick - time.monotonic())
                now = time.monotonic()
                if now >= next_tick:
                    next_tick = now + TICK_SECONDS
                    caught_up = self._is_caught_up()
                    self._guarded(lambda: self._role.tick(now - begin, caught_up=caught_up))  # noqa: B023
                    self._guarded(self._measure)
                    self._check_failure(now)
        finally:
            self._workers.close(WORKER_SECONDS)
        if self._finish.error is not None:
            raise self._finish.error
        return self._finish.figures or {}

    def _take_one(self, timeout_seconds: float) -> None:
        while self._inbox and self._finish is None:
            message, work = self._inbox.popleft()
            if isinstance(message, m.Failed):
                self._fail(message.message)
            elif isinstance(message, m.Lost) and self._failure is not None:
                continue  # the job is ending
            else:
                self._guarded(lambda: self._handle(self._endpoint.rank, message, work))  # noqa: B023
        if self._finish is not None:
            return
        self._guarded(lambda: self._receive(max(timeout_seconds, 0.0)))

    def _is_caught_up(self) -> bool:
        """Handle the few messages that may wait; whether none is left, so that a silent rank really is."""
        for _ in range(MOST_WAITING):
            before = self._num_received
            self._guarded(lambda: self._receive(0.0))
            if self._num_received == before or self._finish is not None:
                return True
        return False

    def _receive(self, timeout_seconds: float) -> Sequence[Effect]:
        try:
            received = self._endpoint.receive(timeout_seconds)
        except TooLate:
            return []
        if received is None:
            return []
        self._num_received += 1
        sender, message = received
        self._observer.received(sender, _num_bytes(message))
        if message.kind == m.Measured.__name__:
            self._observer.measured(sender, wire.decode(message).figures)
            return []
        # Samples may be under way still when a session ends. What ends the job counts in any.
        is_past = wire.session_of(message) not in (self._session, None)
        if is_past and message.kind not in _IN_ANY_SESSION:
            return []
        return self._handle(sender, wire.decode(message))

    def _handle(self, sender: int, message: m.RoleMessage, work: Work | None = None) -> Sequence[Effect]:
        begin = time.monotonic()
        effects = self._role.handle(sender, message)
        self._observer.handled(sender, message, effects, (begin, time.monotonic()), work)
        return effects

    def _measure(self) -> Sequence[Effect]:
        """Tell the planner what this rank did, unless the job is ending or the planner may be gone."""
        if self._failure is not None or self._said_last or self._finish is not None:
            return []
        measured = self._observer.measure(waiting=self._workers.num_waiting, inbox=len(self._inbox))
        return [] if measured is None else [measured]

    def _guarded(self, step: Callable[[], Sequence[Effect]]) -> None:
        """Run one step of the role; tell the planner where it raises."""
        try:
            for effect in step():
                self._perform(effect)
        except PeerLost as lost:
            self._lose(lost)
        except JobFailed as failed:
            self._fail(failed.message, failed.rank)
        except Exception as error:  # noqa: BLE001 - a rank's boundary: whatever it is, the job must hear of it
            self._fail(describe_failure(error))

    def _lose(self, lost: PeerLost) -> None:
        """Let the role say whether it can do without a rank."""
        if self._failure is None:
            message = m.Lost(rank=lost.rank, why=lost.why)
            self._guarded(lambda: self._handle(self._endpoint.rank, message))

    def _fail(self, message: str, rank: int | None = None) -> None:
        """The job cannot go on because of `rank`, by default this one; only the first reason counts."""
        if self._failure is not None:
            return
        rank = self._endpoint.rank if rank is None else rank
        self._failure, self._failed_at = JobFailed(rank, message), time.monotonic()
        try:
            if self._on_failure is not None:
                self._on_failure(self._failure)
            for effect in self._role.handle(rank, m.Failed(message=message)):
                self._perform(effect)
        except Exception:  # noqa: BLE001 - nobody can be told any more, and the first reason is what matters
            self._finish = Finish(error=self._failure)

    def _check_failure(self, now: float) -> None:
        if self._failure is not None and now - self._failed_at > FAILURE_SECONDS and self._finish is None:
            self._finish = Finish(error=self._failure)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(rank=rank, message=message):
                self._send(rank, message)
            case Run(call=call, due=due):
                self._workers.submit(partial(self._work, call, time.monotonic()), due)
            case Resize(num_threads=num_threads):
                self._workers.resize(num_threads)
            case Forget(rank=rank, why=why):
                self._endpoint.forget(rank, why)
                if self._on_forget is not None:
                    self._on_forget(effect)
            case Finish():
                self._finish = effect
            case _ if type(effect) in self._takers:
                begin = time.monotonic()
                self._takers[type(effect)](effect)
                self._observer.took(effect, (begin, time.monotonic()))
            case _:
                raise MSDataError(f"nobody takes {type(effect).__name__} here")

    def _send(self, rank: int, message: m.RoleMessage) -> None:
        if isinstance(message, _LAST_WORDS):
            for measured in self._measure():
                self._perform(measured)
            self._said_last = True
        try:
            begin = time.monotonic()
            encoded = wire.encode(message, self._session)
            self._endpoint.send(rank, encoded)
            self._observer.sent(rank, message, _num_bytes(encoded), (begin, time.monotonic()))
        except PeerLost as lost:
            # What else this step of the role brought about must still be done.
            self._inbox.append((m.Lost(rank=lost.rank, why=lost.why), None))

    def _work(self, call: Callable[[], m.RoleMessage], submitted: float) -> None:
        """On a worker thread."""
        began = time.monotonic()
        try:
            message = call()
        except BaseException as error:  # noqa: BLE001 - a thread's boundary: even sys.exit() in a transform
            message = m.Failed(message=describe_failure(error))
        self._put(message, Work(submitted, began, time.monotonic(), threading.current_thread().name))


def _num_bytes(message: Message) -> int:
    """Bytes of a message's arrays; its header is small."""
    return sum(array.nbytes for array in message.arrays)
