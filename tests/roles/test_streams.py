import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import make_infos

from msdata_jax.data_state import BadRecords
from msdata_jax.recipe import Source
from msdata_jax.records import BadSample, info_dtype
from msdata_jax.roles import streams
from msdata_jax.roles.streams import SourceStream


def stream(num_records=20, *, repeat=True, block_size=8, last=(-1, -1), known=None, **options):
    source = Source([], block_size=block_size, **options)
    return SourceStream(
        "web",
        source,
        num_records=num_records,
        repeat=repeat,
        dtype=info_dtype(),
        last=last,
        bad=known or BadRecords(),
    )


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


# --- going on from a saved state ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "leases", "ahead"),
    [
        ((-1, -1), [(0, 8), (8, 16)], [(0, 0), (0, 1), (1, 0), (1, 1)]),
        ((0, 0), [(0, 8), (8, 16)], [(0, 1), (1, 0), (1, 1), (2, 0)]),
        ((10, 0), [(8, 16), (16, 24)], [(10, 1), (11, 0), (11, 1), (12, 0)]),
        ((10, 1), [(8, 16), (16, 24)], [(11, 0), (11, 1), (12, 0), (12, 1)]),
        ((15, 1), [(8, 16), (16, 24)], []),
    ],
)
def test_begins_behind_the_last_sample_that_was_drawn(last, leases, ahead):
    each = stream(last=last)
    lease = each.next_lease()
    positions = np.repeat(np.arange(*lease), 2)
    infos = make_infos(0, [1] * 16, positions=positions, parts=[0, 1] * 8)
    each.add_block(*lease, infos, [])
    assert [lease, each.next_lease()] == leases
    assert each.ahead[["position", "part"]].tolist()[:4] == ahead
    assert each.begins_behind(lease[0]) == (last != (-1, -1))
    assert not each.begins_behind(lease[1])


def test_a_block_that_is_leased_for_what_waits_of_it_is_not_leased_again():
    each = stream(last=(18, 0))
    each.claim(8)  # long behind
    each.claim(16)
    assert each.expects(16)
    assert each.next_lease() == (24, 32)
    each.claim(24)
    each.claim(40)
    assert each.next_lease() == (32, 40)


NUM_POSITIONS = 24


@st.composite
def contents(draw):
    """What every position yields: (samples, whether it is bad); with a bad one a substitute may stand in."""
    some = st.sampled_from([(0, False), (1, False), (1, False), (2, False), (0, True), (1, True)])
    return draw(st.lists(some, min_size=NUM_POSITIONS, max_size=NUM_POSITIONS))


def block_of(yields, start, stop):
    keys = [(p, part) for p in range(start, stop) for part in range(yields[p][0])]
    positions, parts = np.array(keys, dtype=np.int64).reshape(-1, 2).T
    infos = make_infos(0, [1] * len(keys), positions=positions, parts=parts)
    bad = [BadSample(position=p, reason=f"bad {p}") for p in range(start, stop) if yields[p][1]]
    return start, stop, infos, bad


def read_up_to(each, yields, position):
    """Read what before a position is not known yet, and the rest of its block."""
    while each.known_to < position and (lease := each.next_lease()) is not None:
        each.add_block(*block_of(yields, *lease))


@given(contents(), st.data())
@settings(max_examples=200)
def test_bad_counts_of_a_resumed_stream_equal_those_of_one_that_never_stopped(yields, data):
    """However often it stops, wherever it had read to, whatever was forgotten, in blocks of any size."""
    options = {"num_records": NUM_POSITIONS, "repeat": False, "on_bad_sample": "replace"}
    options["max_bad_samples"] = data.draw(st.none() | st.integers(0, 9))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "MAX_LISTED", data.draw(st.integers(1, 5)))
        whole, part = (stream(**options, block_size=data.draw(st.integers(1, 9))) for _ in range(2))
        read_up_to(whole, yields, NUM_POSITIONS)
        drawn = 0
        for _ in range(data.draw(st.integers(0, 3))):  # how often it stops
            read_up_to(part, yields, data.draw(st.integers(1, NUM_POSITIONS)))
            count = data.draw(st.integers(0, len(part.ahead)))
            if not count:
                continue
            last = part.ahead[count - 1]
            part.drop(count)
            drawn, position = drawn + count, int(last["position"])
            if data.draw(st.booleans()):
                part.forget_bad_up_to(position)
            num_bad, listed = part.bad_up_to(position)
            assert (num_bad, listed) == whole.bad_up_to(position)
            assert num_bad == sum(bad for _, bad in yields[: position + 1])
            part = stream(
                **options,
                block_size=data.draw(st.integers(1, 9)),
                last=(position, int(last["part"])),
                known=BadRecords(num_bad=num_bad, listed=listed),
            )
        read_up_to(part, yields, NUM_POSITIONS)
        assert part.ahead.tolist() == whole.ahead[drawn:].tolist()
        assert (part.num_bad, part.bad, part.failure) == (whole.num_bad, whole.bad, whole.failure)
        assert part.ended == whole.ended


def test_a_resumed_stream_fails_at_the_same_position():
    options = {"on_bad_sample": "skip", "max_bad_samples": 2, "num_records": 100}
    whole = stream(**options)
    for bad in (3, 9, 17):
        add(whole, *whole.next_lease(), bad=[bad])
    assert whole.failure.startswith("source 'web', position 17: broken (max_bad_samples=2")
    known = BadRecords(num_bad=1, listed=(BadSample(position=3, reason="broken"),))
    part = stream(**options, last=(8, 0), known=known)  # 9 is met again, 3 is not
    for bad in (9, 17):
        add(part, *part.next_lease(), bad=[bad])
    assert part.failure == whole.failure
    assert part.ahead["position"].tolist() == [*range(9, 17)]


# --- one sample of each record ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("positions", "count"), [([0, 1, 3, 4, 5, 6, 7], 0), ([0, 1, 2, 2, 3, 4, 5, 6, 7], 2)]
)
def test_a_record_that_yields_none_or_several_samples_ends_the_data_there(positions, count):
    each = stream(one_per_record=True)
    parts = [positions[:i].count(p) for i, p in enumerate(positions)]
    each.add_block(
        *each.next_lease(), make_infos(0, [1] * len(positions), positions=positions, parts=parts), []
    )
    assert each.ahead["position"].tolist() == [0, 1]
    assert each.failure == (
        f"source 'web', position 2: it yields {count} samples, and one_per_record=True says one; leave that "
        "out, or the transform that filters or splits"
    )
    assert each.next_lease() is None


def test_bad_records_that_are_replaced_yield_what_stands_in_for_them():
    each = stream(one_per_record=True, on_bad_sample="replace")
    add(each, *each.next_lease(), bad=[3])  # a sample stands in for it
    add(each, *each.next_lease(), yields=range(9, 16), bad=[8])  # nothing could
    assert each.failure is None
    assert len(each.ahead) == 15


@pytest.mark.parametrize("fatal", [1, 5])
def test_of_a_bad_record_and_one_that_yields_several_the_first_one_counts(fatal):
    each = stream(one_per_record=True)
    lease = each.next_lease()
    positions = [p for p in (0, 1, 2, 3, 3, 4, 5, 6, 7) if p != fatal]
    infos = make_infos(0, [1] * 8, positions=positions, parts=[0] * 8)
    each.add_block(*lease, infos, [BadSample(position=fatal, reason="broken")])
    assert each.ahead["position"].tolist() == list(range(min(fatal, 3)))
    assert each.failure.startswith(f"source 'web', position {min(fatal, 3)}: ")
