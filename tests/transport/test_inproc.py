"""The in-process twin: the conformance suite in threads, and its faults."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from msdata_transport import EndpointClosed, Faults, Message, PeerLost, TooLate, conformance, connect


@pytest.mark.parametrize("size", [1, 2, 5])
def test_conforms(size: int) -> None:
    with ThreadPoolExecutor(size) as threads:
        names = list(threads.map(conformance.run, connect(size), timeout=60))
    assert names == [names[0]] * size
    assert len(names[0]) == len(conformance.CHECKS) + 1


@pytest.mark.parametrize("size", [1, 2, 5])
def test_forgets(size: int) -> None:
    with ThreadPoolExecutor(size) as threads:
        runs = [
            threads.submit(conformance.run, endpoint, [], conformance.forgets) for endpoint in connect(size)
        ]
        for run in runs:
            assert run.result(timeout=60) == ["forgets"]


def test_the_forgotten_are_not_told_lost_whatever_happens_first() -> None:
    faults = Faults()
    endpoint, killed, dying, alive = connect(4, faults)
    for peer in (killed, dying, alive):
        peer.send(0, Message(kind="last words"))
    faults.kill(1)
    for rank in (1, 2):
        endpoint.forget(rank, "a test")
    faults.kill(2)
    assert endpoint.receive(1) == (3, Message(kind="last words", header={}))
    with pytest.raises(TooLate):
        endpoint.receive(0)
    for rank in (1, 2):
        endpoint.send(rank, Message(kind="vanishes"))
    endpoint.close()
    endpoint.forget(3)


def test_a_failure_is_told_on_every_rank() -> None:
    def fails_on_last(party: conformance.Party) -> None:
        assert party.rank < 2, "broken on purpose"

    with ThreadPoolExecutor(3) as threads:
        runs = [threads.submit(conformance.run, endpoint, [fails_on_last]) for endpoint in connect(3)]
        for run in runs:
            with pytest.raises(
                AssertionError, match="fails_on_last failed on rank 2: AssertionError: broken"
            ):
                run.result(timeout=30)


def test_the_dead_are_lost_once_after_their_messages() -> None:
    faults = Faults()
    first, victim, other = connect(3, faults)
    for number in range(3):
        victim.send(0, Message(kind="last words", header={"number": number}))
    faults.kill(1)
    faults.kill(1)
    for number in range(3):
        assert first.receive(1) == (1, Message(kind="last words", header={"number": number}))
    for survivor in (first, other):
        with pytest.raises(PeerLost) as lost:
            survivor.receive(1)
        assert lost.value.rank == 1
        with pytest.raises(TooLate):
            survivor.receive(0)
        with pytest.raises(PeerLost):
            survivor.send(1, Message(kind="x"))
    for call in (lambda: victim.send(0, Message(kind="x")), lambda: victim.receive(1)):
        with pytest.raises(EndpointClosed, match="rank 1 was killed"):
            call()
    first.send(2, Message(kind="still here"))
    assert other.receive(1) == (0, Message(kind="still here", header={}))
    for endpoint in (first, other, victim):
        endpoint.close()


def test_killing_ends_a_pending_receive() -> None:
    faults = Faults()
    endpoint = connect(2, faults)[0]
    killer = threading.Timer(0.02, faults.kill, [0])
    killer.start()
    with pytest.raises(EndpointClosed):
        endpoint.receive(30)
    killer.join()


def test_delayed_messages_keep_their_order() -> None:
    faults = Faults()
    sender, receiver = connect(2, faults)
    faults.delay(0, 1, 0.1)
    started = time.monotonic()
    sender.send(1, Message(kind="slow"))
    faults.heal()
    sender.send(1, Message(kind="fast"))
    receiver.send(1, Message(kind="own"))
    sender.close()
    assert [receiver.receive(5)[1].kind for _ in range(3)] == ["own", "slow", "fast"]
    assert time.monotonic() - started >= 0.1


def test_a_delay_may_outlast_a_deadline() -> None:
    faults = Faults()
    sender, receiver = connect(2, faults)
    faults.delay(0, 1, 60)
    sender.send(1, Message(kind="slow"))
    with pytest.raises(TooLate):
        receiver.receive(0.01)


def test_dropped_messages_are_the_ones_named() -> None:
    faults = Faults()
    endpoints = connect(3, faults)
    faults.drop(sender=0, receiver=1, kind="a")
    faults.drop(lambda sender, receiver, message: message.header.get("number") == 7)

    def sent(sender: int, receiver: int, kind: str, number: int) -> bool:
        endpoints[sender].send(receiver, Message(kind=kind, header={"number": number}))
        try:
            return endpoints[receiver].receive(0) is not None
        except TooLate:
            return False

    assert not sent(0, 1, "a", 1)
    assert sent(0, 1, "b", 1)
    assert sent(0, 2, "a", 1)
    assert sent(2, 1, "a", 1)
    assert not sent(2, 1, "a", 7)
    faults.heal()
    assert sent(0, 1, "a", 7)


def test_messages_to_the_closed_vanish() -> None:
    sender, receiver = connect(2)
    receiver.close()
    sender.send(1, Message(kind="x", arrays=[np.zeros(3)]))
    sender.close()


def test_faults_belong_to_one_set() -> None:
    faults = Faults()
    connect(1, faults)
    with pytest.raises(ValueError, match="other endpoints"):
        connect(1, faults)
    with pytest.raises(ValueError, match="at least 1 rank"):
        connect(0)
