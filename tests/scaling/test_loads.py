"""How work spreads over loaders, against the best there is."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msdata_jax.scaling.loads import spread


def least_maximum(needs, loaders, threads):
    """The least possible level of the busiest loader: the most that sources crowd their loaders by."""
    level = 0.0
    for size in range(1, len(needs) + 1):
        for chosen in combinations(range(len(needs)), size):
            there = {rank for source in chosen for rank in loaders[source]}
            level = max(level, sum(needs[s] for s in chosen) / sum(threads[rank] for rank in there))
    return level


@st.composite
def jobs(draw):
    threads = {rank: draw(st.integers(1, 4)) for rank in range(1, draw(st.integers(1, 4)) + 1)}
    some = st.lists(st.sampled_from(sorted(threads)), min_size=1, unique=True)
    sources = draw(st.lists(st.tuples(st.floats(0, 5), some), min_size=1, max_size=6))
    return [need for need, _ in sources], [each for _, each in sources], threads


@given(jobs())
def test_all_work_is_done_where_it_may_be_and_nearly_as_evenly_as_can_be(job):
    needs, loaders, threads = job
    levels, parts = spread(needs, loaders, threads)
    assert sum(levels[rank] * threads[rank] for rank in threads) == pytest.approx(sum(needs))
    for need, mine, part in zip(needs, loaders, parts, strict=True):
        assert sum(part.values()) == pytest.approx(need)
        assert set(part) <= set(mine)
    of_nobody = set(threads) - {rank for each in loaders for rank in each}
    assert all(levels[rank] == 0 for rank in of_nobody)
    best = least_maximum(needs, loaders, threads)
    assert best - 1e-9 <= max(levels.values()) <= 1.1 * best + 1e-9


def test_one_source_fills_its_emptiest_loaders_to_one_level():
    levels, parts = spread([1.0, 2.0], [[1], [1, 2, 3]], {1: 1, 2: 1, 3: 2})
    assert parts[1] == pytest.approx({2: 2 / 3, 3: 4 / 3})
    assert levels == pytest.approx({1: 1.0, 2: 2 / 3, 3: 2 / 3})
