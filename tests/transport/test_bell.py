"""Bells: who waits is woken, by whom, and what becomes of rings that nobody hears."""

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msdata_transport.bell import CARD_BYTES, Bell

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such sockets")

LONG_SECONDS = 60.0


@pytest.fixture
def bells() -> Iterator[list[Bell]]:
    """Three that met."""
    bells = [Bell() for _ in range(3)]
    for bell in bells:
        bell.meet([each.card for each in bells])
    yield bells
    for bell in bells:
        bell.close()


def slept(bell: Bell, seconds: float) -> bool:
    """Whether it slept to the end."""
    begin = time.monotonic()
    bell.wait(seconds)
    return time.monotonic() - begin >= seconds


def test_a_ring_wakes_whom_it_is_for_alone(bells: list[Bell]) -> None:
    bells[0].ring(1)
    assert slept(bells[0], 0.02)
    assert slept(bells[2], 0.02)
    assert not slept(bells[1], LONG_SECONDS)


def test_a_rank_rings_itself_from_another_thread(bells: list[Bell]) -> None:
    ringer = threading.Timer(0.05, bells[2].ring, [2])
    ringer.start()
    assert not slept(bells[2], LONG_SECONDS)
    ringer.join()


def test_one_wait_takes_all_rings(bells: list[Bell]) -> None:
    for _ in range(5):
        bells[0].ring(1)
        bells[2].ring(1)
    assert not slept(bells[1], LONG_SECONDS)
    assert slept(bells[1], 0.02)


def test_more_rings_than_a_socket_holds_are_dropped_and_wake_all_the_same(bells: list[Bell]) -> None:
    for _ in range(100_000):
        bells[0].ring(1)
    assert not slept(bells[1], LONG_SECONDS)


def test_the_shortest_sleeps_leave_rings_for_the_next(bells: list[Bell]) -> None:
    bells[0].ring(1)
    assert slept(bells[1], 1e-4)
    assert not slept(bells[1], LONG_SECONDS)


def test_a_rank_that_is_gone_is_rung_in_vain(bells: list[Bell]) -> None:
    bells[1].close()
    bells[0].ring(1)
    bells[0].ring(2)
    assert not slept(bells[2], LONG_SECONDS)


def test_cards_of_other_hosts_and_of_ranks_without_a_bell_are_passed_over() -> None:
    bell, other = Bell(), Bell()
    elsewhere = b"f" * 32 + b"/1 " + other.card.split()[1]
    for cards in ([bell.card, elsewhere], [bell.card, b""]):
        bell.meet(cards)
        assert not bell.reaches_all
        bell.ring(1)
        assert slept(other, 0.02)
    bell.meet([bell.card, other.card])
    assert bell.reaches_all
    bell.close()
    other.close()


def test_a_bell_leaves_no_file_and_its_card_fits(bells: list[Bell], tmp_path: Path) -> None:
    for bell in bells:
        name = bytes.fromhex(bell.card.split()[1].decode())
        assert name.startswith(b"\0")  # in no file system
        assert len(bell.card) <= CARD_BYTES
