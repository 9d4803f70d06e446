import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import make_infos

from msdata_jax.recipe import Source
from msdata_jax.records import BadSample, info_dtype
from msdata_jax.roles.streams import SourceStream


def stream(num_records=20, *, repeat=True, block_size=8, **options):
    source = Source([], block_size=block_size, **options)
    return SourceStream("web", source, num_records=num_records, repeat=repeat, dtype=info_dtype())


def add(each, start, stop, yields=None, bad=()):
    """Positions of the block that yield a sample: all by default."""
    positions = np.array([p for p in range(start, stop) if yields is None or p in yields], dtype=np.int64)
    infos = make_infos(0, np.ones(len(positions), dtype=int), positions=positions)
    each.add_block(start, stop, infos, [BadSample(position=p, reason="broken") for p in bad])


def test_leases_blocks_for_ever_or_up_to_the_end():
    endless = stream()
    assert [endless.next_lease() for _ in range(4)] == [(0, 8), (8, 16), (16, 24), (24, 32)]
    ending = stream(repeat=False)
    assert [ending.next_lease() for _ in range(4)] == [(0, 8), (8, 16), (16, 20), None]
    assert ending.num_leased_positions == 20


@given(st.permutations(range(6)), st.lists(st.integers(0, 47), max_size=40))
def test_blocks_come_in_any_order(order, yields):
    each = stream(num_records=48, repeat=False)
    leases = [each.next_lease() for _ in range(6)]
    for count, i in enumerate(order):
        assert not each.ended
        add(each, *leases[i], yields=yields)
        done = set(order[: count + 1])
        contiguous = next(k for k in range(7) if k not in done)
        expected = [p for p in range(8 * contiguous) if p in yields]
        assert each.ahead["position"].tolist() == expected
        assert each.num_leased_positions == 48 - 8 * contiguous
    assert each.ended == bool(yields) or each.failure is not None


def test_drop_forgets_the_drawn_ones():
    each = stream()
    add(each, *each.next_lease())
    each.drop(3)
    assert each.ahead["position"].tolist() == [3, 4, 5, 6, 7]
    assert not each.ended


def test_a_fatal_sample_cuts_the_stream_before_it():
    each = stream(repeat=False, num_records=16)
    first, second = each.next_lease(), each.next_lease()
    add(each, *second)
    add(each, *first, bad=[2, 5])
    assert each.ahead["position"].tolist() == [0, 1]
    assert (
        each.failure
        == "source 'web', position 2: broken (on_bad_sample='raise'; 'skip' leaves such records out)"
    )
    assert each.next_lease() is None
    assert not each.ended


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_bad_ones_are_counted_up_to_the_limit(policy):
    each = stream(on_bad_sample=policy, max_bad_samples=2)
    add(each, *each.next_lease(), bad=[1, 2])
    assert (each.num_bad, each.failure) == (2, None)
    assert len(each.ahead) == 8
    add(each, *each.next_lease(), bad=[11])
    assert each.ahead["position"].tolist() == [*range(8), 8, 9, 10]
    assert (
        "position 11: broken (max_bad_samples=2 bad records came before it; raise the limit" in each.failure
    )


def test_without_a_limit_only_the_first_hundred_are_listed():
    each = stream(on_bad_sample="skip", num_records=10**6)
    for _ in range(20):
        lease = each.next_lease()
        add(each, *lease, bad=range(*lease))
    assert (each.num_bad, len(each.bad), each.failure) == (160, 100, None)


def test_a_whole_epoch_without_a_sample_is_a_failure():
    each = stream(num_records=20, block_size=4)
    for _ in range(3):
        add(each, *each.next_lease())  # up to position 11
    for _ in range(4):
        add(each, *each.next_lease(), yields=[])
    assert each.failure is None  # 16 positions
    add(each, *each.next_lease(), yields=[])
    assert each.failure.startswith(
        "source 'web' yielded no sample in a whole epoch of 20 records (0 bad ones)"
    )


def test_a_source_that_is_short_for_its_blocks_wraps_round():
    each = stream(num_records=3)
    add(each, *each.next_lease(), yields=[0, 6])
    assert each.failure is None
    assert each.ahead["position"].tolist() == [0, 6]
