import pytest

from msdata_jax.roles import messages as m
from msdata_jax.roles.watching import Watch

IDLE = m.Heartbeat(source=-1, start=-1, seconds=0.0)


def ticks(watch, count):
    """Who is lost, tick by tick."""
    return [[rank for rank, _ in watch.tick()] for _ in range(count)]


def test_a_rank_is_lost_when_it_was_silent_for_longer_than_it_may_and_only_once():
    watch = Watch([1, 2], heartbeat_seconds=3)
    assert ticks(watch, 2) == [[], []]
    watch.heard(1, IDLE)
    assert ticks(watch, 5) == [[], [2], [], [1], []]


def test_any_message_is_a_sign_of_life():
    watch = Watch([1], heartbeat_seconds=2)
    for message in (IDLE, m.Failed(message="no"), m.Heartbeat(source=0, start=8, seconds=1.0)) * 3:
        assert ticks(watch, 2) == [[], []]
        watch.heard(1, message)
    assert ticks(watch, 3) == [[], [], [1]]


def test_the_reason_says_which_option_it_was():
    watch = Watch([7], heartbeat_seconds=0.5)
    assert list(watch.tick()) == [(7, "it was silent for 0.5 s (--heartbeat-seconds)")]


def test_a_rank_that_reads_one_block_for_ever_is_lost_though_it_is_not_silent():
    watch = Watch([1, 2], heartbeat_seconds=9, read_seconds=60)
    watch.heard(1, m.Heartbeat(source=3, start=640, seconds=60.0))
    watch.heard(2, m.Heartbeat(source=0, start=0, seconds=5.0))
    assert list(watch.tick()) == []
    watch.heard(1, m.Heartbeat(source=3, start=640, seconds=61.2))
    ((rank, why),) = watch.tick()
    assert rank == 1
    assert why == (
        "it has been reading the block at position 640 of source number 3 for 61 s, longer than 60 s "
        "(--read-seconds)"
    )
    assert ticks(watch, 1) == [[]]


def test_a_long_read_that_ended_is_forgiven():
    watch = Watch([1], read_seconds=60)
    watch.heard(1, m.Heartbeat(source=3, start=640, seconds=59.0))
    watch.heard(1, IDLE)
    assert ticks(watch, 10) == [[]] * 10


def test_who_said_farewell_or_is_no_loader_is_not_watched():
    watch = Watch([1, 2], heartbeat_seconds=1)
    watch.heard(1, m.Farewell(figures={}))
    watch.heard(5, IDLE)
    assert ticks(watch, 4) == [[], [2], [], []]
    watch.heard(1, IDLE)  # it stays so
    watch.heard(2, IDLE)
    assert ticks(watch, 3) == [[]] * 3


@pytest.mark.parametrize("silent_ticks", [0, 1, 5])
def test_time_counts_in_ticks_so_that_a_watcher_that_stood_still_blames_nobody(silent_ticks):
    """A planner that was stopped for a minute ticks once for it."""
    watch = Watch([1], heartbeat_seconds=5)
    assert ticks(watch, silent_ticks) == [[]] * silent_ticks
    watch.heard(1, IDLE)
    assert ticks(watch, 6) == [[]] * 5 + [[1]]
