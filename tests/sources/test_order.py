import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msdata_jax.sources.order import Order

GROUPS = st.one_of(
    st.none(), st.lists(st.integers(0, 20), min_size=1, max_size=30).filter(lambda sizes: sum(sizes) > 0)
)


def make_order(sizes, *, n=50, shuffle=True, window=3, seed=1, name="a"):
    return Order(
        n if sizes is None else sum(sizes),
        seed=seed,
        source_name=name,
        shuffle=shuffle,
        group_sizes=None if sizes is None else np.array(sizes, np.int64),
        window_groups=window,
    )


@settings(deadline=None)
@given(GROUPS, st.booleans(), st.integers(1, 5), st.integers(0, 2**63 - 1))
def test_each_epoch_visits_each_record_once(sizes, shuffle, window, seed):
    order = make_order(sizes, shuffle=shuffle, window=window, seed=seed)
    n = order.num_records
    epochs, records = order.locate(np.arange(3 * n))
    assert np.array_equal(epochs, np.repeat(np.arange(3), n))
    assert np.array_equal(np.sort(records.reshape(3, n), axis=1), np.tile(np.arange(n), (3, 1)))


@settings(deadline=None)
@given(GROUPS, st.integers(1, 5), st.lists(st.integers(0, 400), max_size=30))
def test_depends_on_the_position_alone(sizes, window, positions):
    """Asked in any order, split in any way, by one who has seen other epochs: the same answer."""
    asked = np.array(positions, np.int64)
    together = make_order(sizes, window=window).locate(asked)
    used = make_order(sizes, window=window)
    used.locate(np.arange(0, 500, 9))
    for place, position in enumerate(positions):
        alone = used.locate(np.array([position]))
        assert (alone.epochs[0], alone.records[0]) == (together.epochs[place], together.records[place])


def test_without_shuffle_the_order_is_the_stored_one():
    epochs, records = make_order([3, 4], shuffle=False).locate(np.arange(14))
    assert records.tolist() == [*range(7), *range(7)]
    assert epochs.tolist() == [0] * 7 + [1] * 7


def test_a_window_stays_within_its_groups():
    order = make_order([10] * 12, window=3)
    for epoch in range(2):
        records = order.locate(np.arange(120) + 120 * epoch).records
        windows = [set(records[start : start + 30] // 10) for start in range(0, 120, 30)]
        assert [len(groups) for groups in windows] == [3, 3, 3, 3]
        assert set().union(*windows) == set(range(12))
        # mixed, not one group after the other
        assert all(len(set(records[start : start + 10] // 10)) > 1 for start in range(0, 120, 30))


def test_names_and_seeds_give_orders_of_their_own():
    orders = {
        tuple(make_order(None, seed=seed, name=name).locate(np.arange(50)).records)
        for seed in range(4)
        for name in "abc"
    }
    assert len(orders) == 12


@pytest.mark.parametrize("sizes", [None, [5, 0, 7, 1, 9, 3]])
def test_pinned_values(sizes):
    records = make_order(sizes, n=25, window=2, seed=17, name="books").locate(np.arange(25, 35)).records
    assert records.tolist() == GOLDEN[sizes is None]


GOLDEN = {
    True: [9, 5, 19, 23, 7, 1, 10, 3, 17, 13],
    False: [19, 17, 13, 16, 15, 18, 20, 14, 21, 8],
}
