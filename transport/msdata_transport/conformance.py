# pyright: strict
"""What every transport must do, as checks that all ranks run together, each with its own endpoint.

`run(endpoint)` is called by every rank of a fresh set of endpoints: in threads for the in-process twin, in
processes for MPI. It raises AssertionError on all ranks when a check failed on any, and closes the endpoint.
Two things close it, `closes_in_order` and `forgets`, so a transport runs them over two sets of endpoints.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from msdata_transport.endpoint import Endpoint, Message
from msdata_transport.errors import BadFrame, EndpointClosed, TooLate, TransportError
from msdata_transport.framing import DTYPES

_PATIENCE_SECONDS = 30.0


class Party:
    """An endpoint with a memory, so that a fast rank's next check does not disturb a slow rank's last one."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.rank = endpoint.rank
        self.size = endpoint.size
        self.ranks = range(endpoint.size)
        self._early: deque[tuple[int, Message]] = deque()

    def send(
        self, rank: int, kind: str, header: Mapping[str, Any] | None = None, arrays: Sequence[np.ndarray] = ()
    ) -> None:
        self.endpoint.send(rank, Message(kind=kind, header=header or {}, arrays=arrays))

    def expect(self, kind: str, timeout_seconds: float = _PATIENCE_SECONDS) -> tuple[int, Message]:
        """The next message of that kind; others are kept for later."""
        for index, (sender, message) in enumerate(self._early):
            if message.kind == kind:
                del self._early[index]
                return sender, message
        deadline = time.monotonic() + timeout_seconds
        while True:
            got = self.receive(deadline - time.monotonic(), kind)
            if got is not None:
                if got[1].kind == kind:
                    return got
                self._early.append(got)

    def keep(self, got: tuple[int, Message] | None) -> None:
        if got is not None:
            self._early.append(got)

    def receive(self, timeout_seconds: float, kind: str) -> tuple[int, Message] | None:
        try:
            return self.endpoint.receive(timeout_seconds)
        except TooLate as error:
            raise AssertionError(f"rank {self.rank} waited for {kind!r} in vain") from error

    def agree(self, name: str, problem: str) -> None:
        """Meet all ranks; raise on all when one has a problem."""
        self.send(0, f"{name}: verdict", {"problem": problem})
        if self.rank == 0:
            verdicts = dict(self.expect(f"{name}: verdict") for _ in self.ranks)
            problems = {rank: verdicts[rank].header["problem"] for rank in self.ranks}
            text = "; ".join(f"rank {rank}: {problem}" for rank, problem in problems.items() if problem)
            for rank in self.ranks:
                self.send(rank, f"{name}: result", {"text": text})
        text = self.expect(f"{name}: result")[1].header["text"]
        assert not text, f"{name} failed on {text}"


def keeps_order_per_sender(party: Party) -> None:
    for number in range(50):
        for rank in party.ranks:
            party.send(rank, "ordered", {"number": number})
    next_of = dict.fromkeys(party.ranks, 0)
    for _ in range(50 * party.size):
        sender, message = party.expect("ordered")
        number = message.header["number"]
        assert number == next_of[sender], f"message {number} of rank {sender} came for {next_of[sender]}"
        next_of[sender] += 1


def reaches_all_from_all(party: Party) -> None:
    for rank in party.ranks:
        party.send(rank, "all to all", {"to": rank}, [np.full(1000 + rank, party.rank, np.int32)])
    senders: set[int] = set()
    for _ in party.ranks:
        sender, message = party.expect("all to all")
        senders.add(sender)
        assert message.header == {"to": party.rank}, f"got what was for {message.header}"
        _same(message.arrays[0], np.full(1000 + party.rank, sender, np.int32))
    assert senders == set(party.ranks), f"heard only from {sorted(senders)}"


def sends_to_itself(party: Party) -> None:
    array = np.arange(10)
    party.send(party.rank, "self", {"x": 1}, [array])
    sender, message = party.expect("self")
    assert sender == party.rank, f"came from {sender}"
    assert not np.shares_memory(message.arrays[0], array), "shares memory with what was sent"
    _same(message.arrays[0], array)


def carries_empty_message(party: Party) -> None:
    party.send(_next(party), "", {})
    _, message = party.expect("")
    assert message.header == {}, f"header {message.header}"
    assert len(message.arrays) == 0, f"{len(message.arrays)} arrays"


def carries_headers(party: Party) -> None:
    header: dict[str, Any] = {
        "none": None,
        "bools": [True, False],
        "ints": [0, -1, 2**63 - 1, -(2**63), 2**64 - 1],
        "floats": [0.0, -0.5, 1e300, float("inf")],
        "text": "Grüße, 世界 🙂",
        "bytes": b"\x00\xff",
        "nested": {"a": {"b": [{}, [], {"c": []}]}},
        "long": list(range(10_000)),
    }
    party.send(_next(party), "header", header)
    _, message = party.expect("header")
    assert message.header == header, f"header arrived as {str(message.header)[:500]}"


def carries_all_arrays(party: Party) -> None:
    arrays = _many_arrays()
    party.send(_next(party), "arrays", {}, arrays)
    _, message = party.expect("arrays")
    assert len(message.arrays) == len(arrays), f"{len(message.arrays)} arrays of {len(arrays)}"
    for got, sent in zip(message.arrays, arrays, strict=True):
        _same(got, sent)


def carries_large_arrays(party: Party) -> None:
    numbers = np.arange(4 << 20, dtype=np.int64)  # 32 MiB
    party.send(_next(party), "large", {}, [numbers, np.ones(3), numbers[: 1 << 20]])
    _, message = party.expect("large")
    _same(message.arrays[0], numbers)
    _same(message.arrays[1], np.ones(3))
    _same(message.arrays[2], numbers[: 1 << 20])


def gives_arrays_of_its_own(party: Party) -> None:
    sent = np.zeros(1000)
    for rank in party.ranks:
        party.send(rank, "own", {}, [sent, sent])
    for _ in party.ranks:
        _, message = party.expect("own")
        for array in message.arrays:
            assert array.flags.writeable, "cannot be written"
            assert not array.any(), "was written by somebody else"
            array[:] = party.rank + 1
    assert not sent.any(), "the sender's array was written"


def is_late_in_time(party: Party) -> None:
    for timeout_seconds in (0.0, 0.1):
        while True:
            started = time.monotonic()
            try:
                party.keep(party.endpoint.receive(timeout_seconds))
            except TooLate:
                break
        waited = time.monotonic() - started
        in_time = timeout_seconds <= waited < timeout_seconds + 5.0
        assert in_time, f"waited {waited} s of {timeout_seconds} s"


def wakes(party: Party) -> None:
    party.endpoint.wake()
    assert party.receive(_PATIENCE_SECONDS, "wake") is None, "a wake before receive was lost"
    waker = threading.Timer(0.05, party.endpoint.wake)
    waker.start()
    try:
        while (got := party.receive(_PATIENCE_SECONDS, "wake from another thread")) is not None:
            party.keep(got)
    finally:
        waker.join()


def survives_bursts_both_ways(party: Party) -> None:
    """All send far more than any window before they receive at all, small ones and large."""
    arrays = [np.full(size, party.rank, np.uint8) for size in (10, 1 << 10, 64 << 10, 256 << 10)]
    for number in range(100):
        for rank in party.ranks:
            party.send(rank, "burst", {"number": number}, [arrays[number % len(arrays)]])
    next_of = dict.fromkeys(party.ranks, 0)
    for _ in range(100 * party.size):
        sender, message = party.expect("burst")
        assert message.header["number"] == next_of[sender], f"out of order from rank {sender}"
        assert (message.arrays[0] == sender).all(), f"wrong bytes from rank {sender}"
        next_of[sender] += 1


def refuses_bad_messages(party: Party) -> None:
    good = Message(kind="good")
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    bad = {
        "object array": Message(kind="x", arrays=[np.array([object()])]),
        "text array": Message(kind="x", arrays=[np.array(["text"])]),
        "structured array": Message(kind="x", arrays=[np.zeros(2, "i4,f4")]),
        "byte-swapped array": Message(kind="x", arrays=[np.zeros(2, ">i4")]),
        "strided array": Message(kind="x", arrays=[np.zeros((4, 4))[:, ::2]]),
        "no array": Message(kind="x", arrays=[[1, 2]]),  # pyright: ignore[reportArgumentType]
        "long kind": Message(kind="k" * 65),
        "object in header": Message(kind="x", header={"x": object()}),
        "number as key": Message(kind="x", header={"x": {1: 2}}),
        "65 bits": Message(kind="x", header={"x": 2**64}),
        "deep header": Message(kind="x", header={"x": deep}),
    }
    for rank in {party.rank, _next(party)}:
        for name, message in bad.items():
            with _raises(BadFrame, name):
                party.endpoint.send(rank, message)
        for far in (-1, party.size):
            with _raises(ValueError, f"rank {far}"):
                party.endpoint.send(far, good)


def closes_in_order(party: Party) -> None:
    """Rank after rank sends much to the next and closes at once: the next must get all. Must come last."""
    endpoint = party.endpoint
    if party.rank > 0:
        for number in range(40):
            sender, message = party.expect("chain")
            assert (sender, message.header["number"]) == (party.rank - 1, number), "lost by close"
            _same(message.arrays[0], np.arange(20_000 + number))
    if party.rank + 1 < party.size:
        for number in range(40):
            party.send(party.rank + 1, "chain", {"number": number}, [np.arange(20_000 + number)])
    endpoint.close(timeout_seconds=_PATIENCE_SECONDS)
    endpoint.close()
    with _raises(EndpointClosed, "send after close"):
        endpoint.send(party.rank, Message(kind="x"))
    with _raises(EndpointClosed, "receive after close"):
        endpoint.receive(0.0)


def forgets(party: Party) -> None:
    """The last rank and the others give each other up in full traffic; the others go on. Must come last."""
    endpoint, last = party.endpoint, party.size - 1
    near, far = (party.ranks[:-1], [last]) if party.rank != last else ([last], party.ranks[:-1])
    for rank in (party.rank, -1, party.size):
        with _raises(ValueError, f"forget rank {rank}"):
            endpoint.forget(rank)
    for rank in far:
        _forget_in_traffic(party, rank)
    for number in range(40):
        for rank in near:
            party.send(rank, "kept", {"number": number}, [np.arange(20_000 + number)])
    for _ in range(40 * len(near)):
        got = party.receive(_PATIENCE_SECONDS, "kept")
        assert got is not None, "woke for nothing"
        assert got[0] in near, f"a message of the forgotten rank {got[0]} was given out"
        _same(got[1].arrays[0], np.arange(20_000 + int(got[1].header["number"])))
    started = time.monotonic()
    endpoint.close(timeout_seconds=_PATIENCE_SECONDS)
    assert time.monotonic() - started < 0.5 * _PATIENCE_SECONDS, "close waited for the forgotten"
    for rank in far:
        endpoint.forget(rank)


def _forget_in_traffic(party: Party, rank: int) -> None:
    for _ in range(40):  # more than any window, and nobody takes them
        party.send(rank, "forgotten", {}, [np.zeros(50_000)])
    for _ in range(2):
        party.endpoint.forget(rank, "this is a test")
    party.send(rank, "forgotten", {}, [np.zeros(50_000)])
    with _raises(BadFrame, "send to the forgotten"):
        party.endpoint.send(rank, Message(kind="k" * 65))


CHECKS: tuple[Callable[[Party], None], ...] = (
    keeps_order_per_sender,
    reaches_all_from_all,
    sends_to_itself,
    carries_empty_message,
    carries_headers,
    carries_all_arrays,
    carries_large_arrays,
    gives_arrays_of_its_own,
    is_late_in_time,
    wakes,
    survives_bursts_both_ways,
    refuses_bad_messages,
)


def run(
    endpoint: Endpoint,
    checks: Sequence[Callable[[Party], None]] = CHECKS,
    last: Callable[[Party], None] = closes_in_order,
) -> list[str]:
    """Run all checks, then `last`, which closes; returns their names.

    AssertionError on all ranks when a check failed on one; where `last` fails, on that rank alone.
    """
    party = Party(endpoint)
    for check in checks:
        problem = ""
        try:
            check(party)
        except (AssertionError, TransportError) as error:
            problem = f"{type(error).__name__}: {error}"
        party.agree(check.__name__, problem)
    last(party)
    return [check.__name__ for check in (*checks, last)]


def _next(party: Party) -> int:
    return (party.rank + 1) % party.size


def _many_arrays() -> list[np.ndarray]:
    arrays = [np.arange(6).reshape(2, 3).astype(dtype) for dtype in DTYPES.values()]
    arrays += [np.zeros((), dtype) for dtype in DTYPES.values()]
    arrays += [np.zeros(0), np.zeros((3, 0, 2), np.float16), np.zeros((1,) * 32, bool), np.array(True)]
    arrays += [np.array([1 + 2j, np.nan * 1j], np.complex64), np.array([np.nan, np.inf, -0.0])]
    arrays += [np.full(index, index, np.uint8) for index in range(200)]
    read_only = np.arange(5)
    read_only.flags.writeable = False
    return [*arrays, read_only]


def _same(got: np.ndarray, sent: np.ndarray) -> None:
    """Equal bit for bit, as arrays that may be written."""
    assert got.dtype == sent.dtype, f"dtype {got.dtype} of {sent.dtype}"
    assert got.shape == sent.shape, f"shape {got.shape} of {sent.shape}"
    assert got.flags.writeable, f"array of shape {got.shape} cannot be written"
    assert got.tobytes() == sent.tobytes(), f"other values in an array of {sent.dtype}{sent.shape}"


@contextmanager
def _raises(expected: type[Exception], name: str) -> Generator[None]:
    try:
        yield
    except expected:
        return
    raise AssertionError(f"{name}: {expected.__name__} was not raised")
