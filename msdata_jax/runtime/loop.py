"""The one loop: carries messages between a role and its endpoint, runs its background work, and waits.

It holds no policy. A role that raises is told so as `Failed`; the planner turns that into `Abort` for all.
"""

import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from msdata_transport import Endpoint, PeerLost, TooLate

from msdata_jax.errors import JobFailed, MSDataError
from msdata_jax.roles import messages as m
from msdata_jax.roles.effects import Deliver, Effect, EndStream, Finish, Role, Run, Send
from msdata_jax.runtime import wire

TICK_SECONDS = 1.0
FAILURE_SECONDS = 5.0
"""How long a rank that failed waits to be told to abort before it ends on its own."""


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
        num_workers: threads for background work (`Run`).
        on_deliver: takes `Deliver` effects.
        on_end: takes `EndStream` effects.
    """

    def __init__(
        self,
        role: Role,
        endpoint: Endpoint,
        *,
        num_workers: int = 1,
        on_deliver: Callable[[Deliver], None] | None = None,
        on_end: Callable[[EndStream], None] | None = None,
    ) -> None:
        self._role, self._endpoint = role, endpoint
        self._on_deliver, self._on_end = on_deliver, on_end
        self._num_workers = num_workers
        self._workers: ThreadPoolExecutor | None = None
        self._inbox: deque[m.RoleMessage] = deque()
        self._finish: Finish | None = None
        self._failed_at: float | None = None
        self.failure: str | None = None

    def post(self, message: m.RoleMessage) -> None:
        """Give the role a message from its own rank. May be called from any thread."""
        self._inbox.append(message)
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
                    self._guarded(lambda: self._role.tick(now - begin))  # noqa: B023 - called at once
                    self._check_failure(now)
        finally:
            if self._workers is not None:
                self._workers.shutdown(wait=self._failed_at is None, cancel_futures=True)
        if self._finish.error is not None:
            raise self._finish.error
        return self._finish.figures or {}

    def _take_one(self, timeout_seconds: float) -> None:
        while self._inbox and self._finish is None:
            message = self._inbox.popleft()
            self._guarded(lambda: self._role.handle(self._endpoint.rank, message))  # noqa: B023
        if self._finish is not None:
            return
        try:
            received = self._endpoint.receive(max(timeout_seconds, 0.0))
        except TooLate:
            return
        except PeerLost as lost:
            self._fail(f"lost contact: {lost}")
            return
        if received is not None:
            sender, message = received
            self._guarded(lambda: self._role.handle(sender, wire.decode(message)))

    def _guarded(self, step: Callable[[], Sequence[Effect]]) -> None:
        """Run one step of the role; tell the planner where it raises."""
        try:
            for effect in step():
                self._perform(effect)
        except Exception as error:  # noqa: BLE001 - a rank's boundary: whatever it is, the job must hear of it
            self._fail(describe_failure(error))

    def _fail(self, message: str) -> None:
        if self._failed_at is not None:
            return
        self._failed_at, self.failure = time.monotonic(), message
        for effect in self._role.handle(self._endpoint.rank, m.Failed(message=message)):
            self._perform(effect)

    def _check_failure(self, now: float) -> None:
        if self._failed_at is not None and now - self._failed_at > FAILURE_SECONDS and self._finish is None:
            self._finish = Finish(error=JobFailed(self._endpoint.rank, self.failure or ""))

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(rank=rank, message=message):
                self._endpoint.send(rank, wire.encode(message))
            case Run(call=call):
                self._submit(call)
            case Deliver() if self._on_deliver is not None:
                self._on_deliver(effect)
            case EndStream() if self._on_end is not None:
                self._on_end(effect)
            case Finish():
                self._finish = effect
            case _:
                raise MSDataError(f"nobody takes {type(effect).__name__} here")

    def _submit(self, call: Callable[[], m.RoleMessage]) -> None:
        if self._workers is None:
            self._workers = ThreadPoolExecutor(self._num_workers, thread_name_prefix="msdata-worker")
        self._workers.submit(call).add_done_callback(self._collect)

    def _collect(self, future: "Future[m.RoleMessage]") -> None:
        if future.cancelled():
            return
        error = future.exception()
        self.post(future.result() if error is None else m.Failed(message=describe_failure(error)))
