import contextlib

import numpy as np
from strategies import make_infos

from msdata_jax.roles.holdings import Holdings


def test_bytes_are_promised_reported_and_released():
    holdings = Holdings([8, 4])
    holdings.lease(1, 0, 0)
    assert holdings.num_bytes(1) == 1  # nothing is known of the source yet
    holdings.report(0, 0, 800)
    assert holdings.num_bytes(1) == 800
    holdings.lease(2, 0, 8)
    holdings.lease(1, 1, 0)
    assert (holdings.num_bytes(1), holdings.num_bytes(2)) == (801, 800)  # as much as the source's last block
    holdings.report(0, 8, 0)
    holdings.report(1, 0, 40)
    assert (holdings.num_bytes(1), holdings.num_bytes(2)) == (840, 0)
    infos = make_infos(0, [10, 20], positions=[3, 5])
    holdings.plan_step(0, infos)
    holdings.plan_step(1, make_infos(1, [2], positions=[3]))
    assert holdings.num_bytes(1) == 840
    holdings.release(0)
    assert holdings.num_bytes(1) == 840 - 40 - 80
    holdings.release(5)
    assert holdings.num_bytes(1) == 840 - 40 - 80 - 8


def test_owners_are_found_by_block():
    holdings = Holdings([8, 4])
    for loader, source, start in ((1, 0, 0), (2, 0, 8), (3, 1, 4), (1, 1, 8)):
        holdings.lease(loader, source, start)
    infos = np.concatenate(
        [make_infos(0, [1] * 3, positions=[7, 8, 0]), make_infos(1, [1] * 3, positions=[4, 8, 7])]
    )
    assert holdings.owners(infos).tolist() == [1, 2, 1, 3, 1, 3]
    assert holdings.owners(infos[:0]).tolist() == []


def known(holdings):
    """Blocks whose owner is known, of two sources of blocks of 8 and 4."""
    blocks = [(source, start) for source, size in ((0, 8), (1, 4)) for start in range(0, 40, size)]
    found = []
    for source, start in blocks:
        with contextlib.suppress(KeyError):
            holdings.owners(make_infos(source, [1], positions=[start]))
            found.append((source, start))
    return found


def test_forgets_blocks_that_are_done():
    holdings = Holdings([8, 4])
    for source, start in ((0, 0), (0, 8), (0, 16), (0, 24), (1, 0), (1, 4)):
        holdings.lease(1, source, start)
    waiting = [make_infos(0, [1] * 2, positions=[1, 30]), make_infos(1, [])]
    holdings.forget_before(np.array([23, -1]), waiting)  # one that waits does not hold the blocks behind it
    assert known(holdings) == [(0, 0), (0, 16), (0, 24), (1, 0), (1, 4)]
    holdings.forget_before(np.array([23, 5]), [])
    assert known(holdings) == [(0, 16), (0, 24), (1, 4)]
