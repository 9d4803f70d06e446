"""How long reading takes, and what loaders still have to do."""

import pytest
from roles.played import whole_block

from msdata_jax.roles import messages as m
from msdata_jax.roles.reading_rates import ReadingRates


def block(source=0, start=0, size=8, seconds=8.0, bad=()):
    lease = m.Lease(source=source, start=start, stop=start + size, keep=True, isolate=False, verdicts=[])
    return whole_block(lease, seconds=seconds, bad=bad)


def test_seconds_are_of_the_samples_that_come_of_what_is_read():
    rates = ReadingRates([None, 0.5])
    assert (rates.seconds_per_sample(0), rates.seconds_per_sample(1)) == (None, 0.5)
    rates.report(1, block(bad=(0, 1, 2, 3)))
    assert rates.seconds_per_sample(0) == 2.0
    rates.report(1, block(source=1))
    assert rates.seconds_per_sample(1) == 1.0, "what is measured counts, not what was thought"


def test_blocks_of_late_count_most():
    rates = ReadingRates([None])
    for start in range(0, 800, 8):
        rates.report(1, block(start=start, seconds=8.0))
    for start in range(800, 1200, 8):
        rates.report(1, block(start=start, seconds=16.0))
    assert rates.seconds_per_sample(0) == pytest.approx(2.0, rel=0.01)


def test_what_loaders_still_have_to_do():
    rates = ReadingRates([None, 0.25])
    rates.report(1, block())
    rates.lease(1, (0, 8), 8)
    rates.lease(1, (1, 0), 4)
    assert rates.waiting_seconds(1) == 9.0
    assert rates.waiting_seconds(2) == 0.0
    rates.report(1, block(start=8))
    assert rates.waiting_seconds(1) == 1.0
    rates.report(2, block(source=1, seconds=0.0))
    rates.lease(2, (1, 8), 8)
    assert rates.waiting_seconds(2) == 0.0, "what is measured counts, nothing too"
    rates.forget((1, 0))
    rates.forget((1, 0))
    assert rates.waiting_seconds(1) == 0.0


def test_a_block_that_is_leased_again_is_another_ones_work():
    rates = ReadingRates([1.0])
    rates.lease(1, (0, 0), 8)
    rates.lease(2, (0, 0), 8)
    assert (rates.waiting_seconds(1), rates.waiting_seconds(2)) == (0.0, 8.0)


def test_busy_seconds_are_told_once():
    rates = ReadingRates([None])
    rates.report(1, block(seconds=1.0))
    rates.report(1, block(start=8, seconds=2.0))
    rates.report(2, block(start=16, seconds=4.0))
    assert rates.take_busy() == {1: 3.0, 2: 4.0}
    assert rates.take_busy() == {}
