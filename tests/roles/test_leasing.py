"""Who reads what, block by block: when somebody is lost, and when a job goes on from a saved state."""

from dataclasses import replace

import numpy as np
import pytest
from roles.played import make_placement, make_recipe, opened, whole_block
from strategies import make_infos

from msdata_jax.data_state import BadRecords
from msdata_jax.errors import LaunchError
from msdata_jax.planning.graph import initial_state
from msdata_jax.records import BadSample
from msdata_jax.roles import messages as m
from msdata_jax.roles.holdings import NOBODY
from msdata_jax.roles.leasing import Leasing


class Played:
    """A `Leasing` of sources a, b, ... (0, 1, ...) in blocks of 8, and what loaders were asked for."""

    def __init__(
        self, weights="ab", *, loaders=2, shadows=0, begin=True, last=None, bad=None, carried=(), **options
    ):
        recipe = make_recipe(weights=dict.fromkeys(weights, 1), **options)
        placement = make_placement(loaders, num_shadows=shadows)
        self.shadows = placement.shadows
        self.leasing = Leasing(recipe, placement)
        self.sent = []
        self.take(self.leasing.open_first())
        if begin:
            self.open()
            count = len(weights)
            state = initial_state(count)
            if last is not None:
                position = np.array(last, dtype=np.int64)
                state = replace(state, last_position=position, last_part=np.where(position < 0, -1, 0))
            if len(carried):
                ones = np.ones(len(carried), dtype=np.int64)
                carry = replace(state.carry, infos=carried, start=0 * ones, length=ones, unit=-ones)
                state = replace(state, carry=carry)
            self.state = state
            self.leasing.begin(state, bad or (BadRecords(),) * count, repeat=True)

    def take(self, effects):
        self.sent += [(effect.rank, effect.message) for effect in effects]
        return [(effect.rank, effect.message) for effect in effects]

    def open(self, **facts):
        for rank, message in self.asked_to_open():
            self.take(self.leasing.opened(rank, opened(message, **facts)))

    def asked_to_open(self):
        """(rank, source), and those that are asked for meanwhile."""
        for rank, message in self.sent:
            if isinstance(message, m.OpenSource) and rank not in self.leasing.lost:
                yield rank, message.source

    def lease(self, source, loader, keep=True):
        ((_, lease),) = self.take(self.leasing.lease_next(source, loader, keep=keep))
        return lease

    def read(self, loader, lease, needed=(), step=0, **content):
        """What the planner sends when a lease is reported."""
        block = whole_block(lease, **content)
        return self.take(self.leasing.take_block(loader, block, lambda: needed, step))

    def lose(self, rank, needed=()):
        effects = [*self.leasing.lose(rank, "it was killed"), *self.leasing.lease_unkept(needed)]
        return self.take(effects)


def places(leases):
    """(loader, source, start) of each."""
    return [(rank, each.source, each.start) for rank, each in leases if isinstance(each, m.Lease)]


def infos(source, *positions, tokens=4):
    return make_infos(source, [tokens] * len(positions), positions=positions)


# --- opening ------------------------------------------------------------------------------------------------


def test_a_source_is_opened_on_its_shadow_too():
    job = Played("abc", loaders=2, shadows=2, begin=False)
    assert list(job.asked_to_open()) == [(1, 0), (2, 1), (1, 2)]
    job.open()
    first, second = job.shadows
    assert list(job.asked_to_open())[3:] == [(first, 0), (second, 1), (first, 2)]
    assert job.leasing.unopened() == []
    assert [facts.name for facts in job.leasing.facts()] == ["a", "b", "c"]


def test_where_a_loader_is_lost_before_it_opened_its_source_another_one_is_asked():
    job = Played("ab", loaders=2, begin=False)
    assert job.leasing.unopened() == [(0, 1), (1, 2)]
    assert job.take(job.leasing.lose(1, "it was killed")) == [(2, m.OpenSource(source=0))]
    assert job.leasing.unopened() == [(0, 2), (1, 2)]
    job.open()
    assert job.leasing.unopened() == []


def test_where_the_first_loader_of_a_source_is_lost_the_next_one_is_asked():
    job = Played("a", loaders=3, begin=False)
    assert job.take(job.leasing.lose(1, "it was killed")) == [(2, m.OpenSource(source=0))]
    job.open()
    assert [rank for rank, _ in job.asked_to_open()] == [2, 3]


def test_where_a_shadow_is_lost_before_the_start_another_one_opens_its_sources():
    job = Played("ab", loaders=2, shadows=2, begin=False)
    first, second = job.shadows
    for source, loader in ((0, 1), (1, 2)):
        job.take(job.leasing.opened(loader, opened(source)))
    job.take(job.leasing.opened(second, opened(1)))
    assert job.take(job.leasing.lose(first, "it was killed")) == [(second, m.OpenSource(source=0))]
    assert job.leasing.unopened() == [(0, second)]


def test_a_source_that_its_lost_loader_had_opened_must_be_the_same_on_the_next_one():
    job = Played("ab", loaders=2, begin=False)
    job.take(job.leasing.opened(1, opened(0, num_records=9)))
    job.take(job.leasing.lose(1, "it was killed"))
    with pytest.raises(LaunchError, match=r"'a' is not the same on all its loaders: 9 records, .* on rank 1"):
        job.leasing.opened(2, opened(0, num_records=8))


# --- widening and narrowing ---------------------------------------------------------------------------------


def test_a_source_is_leased_to_one_more_loader_when_that_has_opened_it():
    job = Played("ab", loaders=2)
    assert job.take(job.leasing.widen(0, 2)) == [(2, m.OpenSource(source=0, may_fail=True))]
    assert job.leasing.opening(0) == [2]
    assert job.leasing.loaders_of(0) == [1]
    assert job.take(job.leasing.opened(2, opened(0))) == []
    assert job.leasing.opening(0) == []
    assert job.leasing.loaders_of(0) == [1, 2]
    job.lease(0, 1)
    assert job.leasing.least_loaded(0) == 2
    assert job.leasing.widen(0, 2) == [], "it has it"


@pytest.mark.parametrize("how", ["it does not open", "it is other data"])
def test_a_loader_that_cannot_read_a_source_is_left_out_for_it(how):
    job = Played("ab", loaders=2)
    job.leasing.widen(0, 2)
    answer = opened(0, num_records=8 if how == "it is other data" else 1000)
    answer = replace(answer, error="there is no such file" if how == "it does not open" else "")
    assert job.leasing.opened(2, answer) == []
    assert job.leasing.loaders_of(0) == [1]
    why = job.leasing.refused[0, 2]
    assert (
        why == "there is no such file"
        if how == "it does not open"
        else "8 records, fingerprint f, not" in why
    )
    assert job.leasing.widen(0, 2) == []


def test_a_source_is_closed_on_a_loader_that_keeps_what_it_holds():
    job = Played("a", loaders=2)
    lease = job.lease(0, 2)
    assert job.take(job.leasing.narrow(0, 2)) == [(2, m.CloseSource(source=0))]
    assert job.leasing.loaders_of(0) == [1]
    job.read(2, lease)  # it was reading it
    assert job.leasing.holdings.owner(0, lease.start) == 2
    assert job.leasing.narrow(0, 1) == [], "one must stay"
    assert job.leasing.least_loaded(0) == 1
    # What it held is leased to those that are left when it is lost.
    assert places(job.lose(2, [infos(0, *range(8))])) == [(1, 0, 0)]


def test_a_block_goes_to_the_loader_that_is_done_first():
    job = Played("ab", loaders=2)
    for source, rank in ((0, 2), (1, 1)):
        job.leasing.widen(source, rank)
        job.leasing.opened(rank, opened(source))
    job.read(1, job.lease(0, 1), seconds=8.0)  # a second a position
    job.read(2, job.lease(1, 2), seconds=0.08)
    job.lease(0, 1)
    for _ in range(3):
        job.lease(1, 2)
    assert job.leasing.least_loaded(0) == 2, "three cheap blocks are read sooner than a dear one"
    for _ in range(2):
        job.lease(0, 2)
    assert job.leasing.least_loaded(0) == 1
    job.leasing.set_threads(2, 8)
    assert job.leasing.least_loaded(0) == 2


def test_loaders_that_are_full_are_left_out():
    job = Played("a", loaders=2)
    job.read(1, job.lease(0, 1), num_bytes=100)
    assert job.leasing.least_loaded(0, most_bytes=800) == 2
    job.read(2, job.lease(0, 2), num_bytes=100)
    assert job.leasing.least_loaded(0, most_bytes=800) is None


def test_a_lost_loaders_source_goes_to_one_that_can_read_it():
    job = Played("a", loaders=3, begin=True)
    for rank in (2, 3):
        job.leasing.narrow(0, rank)
    job.leasing.widen(0, 2)
    job.leasing.opened(2, replace(opened(0), error="there is no such file"))
    job.take(job.leasing.lose(1, "it was killed"))
    assert job.leasing.loaders_of(0) == [3]


def test_other_data_on_the_only_loader_that_is_left_end_the_job():
    job = Played("ab", loaders=2)
    job.leasing.widen(0, 2)
    job.take(job.leasing.lose(1, "it was killed"))
    assert job.leasing.loaders_of(0) == [2]
    with pytest.raises(LaunchError, match="source 'a' cannot be read on rank 2: it is not the same there"):
        job.leasing.opened(2, opened(0, num_records=8))


def test_a_source_that_is_closed_while_it_opens_stays_closed():
    job = Played("a", loaders=2)
    job.leasing.narrow(0, 2)
    job.leasing.widen(0, 2)
    job.take(job.leasing.lose(1, "it was killed"))  # so that rank 2 has it, though it is opening it still
    job.leasing._affinity[0].append(1)  # and another one later
    assert job.take(job.leasing.narrow(0, 2)) == [(2, m.CloseSource(source=0))]
    assert job.leasing.opened(2, opened(0)) == []
    assert job.leasing.loaders_of(0) == [1]


def test_sources_begin_where_they_are_put():
    recipe, placement = make_recipe(weights=dict.fromkeys("abc", 1)), make_placement(3)
    leasing = Leasing(recipe, placement, {2: "it was killed"}, affinity=[[3], [2], [1, 2, 3]])
    assert [leasing.loaders_of(source) for source in range(3)] == [[3], [3], [1, 3]]


# --- loss ---------------------------------------------------------------------------------------------------


def test_what_is_needed_is_leased_to_the_shadow_and_what_is_not_is_not():
    job = Played("ab", loaders=2, shadows=1)
    for _ in range(4):
        job.read(1, job.lease(0, 1))
    job.read(2, job.lease(1, 2))
    under_way = job.lease(0, 1)
    needed = [infos(0, 9, 11), infos(0, 30), infos(1, 3)]  # of blocks 8 and 24, and of another loader's
    (shadow,) = job.shadows
    assert places(job.lose(1, needed)) == [(shadow, 0, 8), (shadow, 0, 24), (shadow, 0, under_way.start)]
    holdings = job.leasing.holdings
    assert [holdings.owner(0, start) for start in (0, 8, 16, 24, 32)] == [
        NOBODY,
        shadow,
        NOBODY,
        shadow,
        shadow,
    ]
    assert holdings.owner(1, 0) == 2
    assert list(job.leasing.loaders_of(0)) == [shadow]  # and what comes next is its too
    assert list(job.leasing.readers) == [2, shadow]


def test_another_loader_of_the_source_comes_before_the_shadow():
    job = Played("a", loaders=2, shadows=1)
    lease = job.lease(0, 1)
    assert places(job.lose(1)) == [(2, 0, lease.start)]
    assert list(job.leasing.loaders_of(0)) == [2]


def test_without_a_shadow_the_loader_with_the_fewest_sources_opens_the_source_and_reads_it():
    job = Played("abcd", loaders=3)  # a and d on rank 1, b on rank 2, c on rank 3
    job.lease(1, 2)
    later = len(job.sent)
    job.lose(2)
    opens, lease = job.sent[later:]
    assert opens == (3, m.OpenSource(source=1))
    assert places([lease]) == [(3, 1, 0)]


def test_of_a_block_that_is_read_again_the_samples_that_nobody_needs_are_forgotten():
    job = Played("ab", loaders=2)
    job.read(1, job.lease(0, 1), num_bytes=100)
    ((_, again),) = [each for each in job.lose(1, [infos(0, 2, 5)]) if isinstance(each[1], m.Lease)]
    ((rank, forget),) = job.read(2, again, [infos(0, 2, 5), infos(1, 2)], step=7, num_bytes=100)
    assert (rank, forget.step) == (2, 7)
    assert forget.position.tolist() == [0, 1, 3, 4, 6, 7]
    assert set(forget.source.tolist()) == {0}
    assert set(forget.constructor.tolist()) == {-1}  # they are sent to nobody
    assert forget.is_last.all()
    assert job.leasing.holdings.num_bytes(2) == 200


def test_where_all_samples_of_it_are_needed_none_are():
    job = Played("ab", loaders=2)
    job.read(1, job.lease(0, 1))
    ((_, again),) = [each for each in job.lose(1, [infos(0, 2)]) if isinstance(each[1], m.Lease)]
    assert job.read(2, again, [infos(0, *range(8))]) == []


def test_a_block_that_was_not_read_is_taken_from_the_one_that_reads_it_now():
    job = Played("a", loaders=2)
    late = job.lease(0, 1)
    ((_, again),) = job.lose(1)
    assert job.read(1, late) == []  # it was only slow
    assert len(job.leasing.streams[0].ahead) == 0
    job.read(2, again)
    assert len(job.leasing.streams[0].ahead) == 8
    assert job.read(2, again) == []  # twice is once
    assert len(job.leasing.streams[0].ahead) == 8


def test_blocks_that_came_out_of_order_are_read_again_too():
    job = Played("a", loaders=2)
    first, second = job.lease(0, 2), job.lease(0, 1)
    job.read(1, second)
    assert places(job.lose(1)) == [(2, 0, 8)]  # its samples are for later steps
    job.read(2, second)
    assert len(job.leasing.streams[0].ahead) == 0
    job.read(2, first)
    assert job.leasing.streams[0].ahead["position"].tolist() == list(range(16))


def test_what_was_being_read_when_its_loader_was_lost_is_read_in_a_process_of_its_own():
    job = Played("a", loaders=3)
    job.read(1, job.lease(0, 1))
    suspect, other = job.lease(0, 1), job.lease(0, 2)
    assert not suspect.isolate
    leases = job.lose(1, [infos(0, 3)])
    assert [(each.start, each.isolate) for _, each in leases] == [(0, False), (8, True)]
    (_, _), (rank, isolated) = leases
    job.read(rank, isolated)
    job.read(2, other)
    again = [each for _, each in job.lose(rank, [infos(0, 9)])]
    assert (8, False) in [(each.start, each.isolate) for each in again]  # for it could be read


def test_a_suspect_stays_one_until_it_is_read():
    job = Played("a", loaders=3)
    job.lease(0, 1)
    for loader in (1, 2):
        ((_, lease),) = job.lose(loader)
        assert lease.isolate


def test_blocks_that_are_read_to_be_skipped_are_read_so_again_and_only_where_they_are_unknown():
    job = Played("a", loaders=2)
    job.read(1, job.lease(0, 1, keep=False))
    lost, waiting = job.lease(0, 1, keep=False), job.lease(0, 1, keep=False)
    job.read(1, waiting)
    job.take(job.leasing.lose(1, "it was killed"))
    ((rank, again),) = job.take(job.leasing.lease_unread())
    assert (rank, again.start, again.keep, again.isolate) == (2, lost.start, False, True)
    job.read(2, again)
    assert len(job.leasing.streams[0].ahead) == 24
    assert job.leasing.holdings.num_bytes(2) == 0
    assert {job.leasing.holdings.owner(0, start) for start in (0, 8, 16)} == {NOBODY}


def test_a_block_that_was_being_skipped_may_be_wanted_when_it_is_leased_again():
    job = Played("a", loaders=2)
    job.lease(0, 1, keep=False)
    ((_, again),) = job.lose(1)
    assert again.keep
    job.read(2, again, num_bytes=10)
    assert job.leasing.holdings.owner(0, 0) == 2
    assert job.leasing.holdings.num_bytes(2) == 80


# --- the law of every recovery ------------------------------------------------------------------------------


def test_a_block_that_gives_other_samples_when_it_is_read_again_breaks_the_law():
    job = Played("ab", loaders=2)
    job.lease(1, 2)
    job.read(1, job.lease(0, 1))
    ((_, again),) = [each for each in job.lose(1, [infos(0, 2)]) if isinstance(each[1], m.Lease)]
    assert job.leasing.broken == ""
    job.read(2, again, [infos(0, 2)], digest=1)
    assert job.leasing.broken.startswith(
        "source 'a', positions 0 to 7: it gave other samples when it was read again; its data changed, or a "
        "transform is not a function of the record"
    )


@pytest.mark.parametrize(
    ("carried", "is_broken"),
    [(infos(0, 9, 9), False), (infos(0, 9, 20), True), (infos(0, 9, tokens=5), True), (infos(1, 9), True)],
)
def test_samples_that_the_saved_state_has_must_be_there(carried, is_broken):
    job = Played("ab", loaders=1, last=[20, 20], carried=carried)
    for rank, lease in job.take(job.leasing.lease_unkept([carried])):
        bad = [20] if lease.source == 0 else [9]
        job.read(rank, lease, [carried], bad=bad)
    assert bool(job.leasing.broken) == is_broken
    if is_broken:
        says = "it does not give the samples that the saved state has drawn from it; its data changed, or"
        assert says in job.leasing.broken


# --- going on from a saved state ----------------------------------------------------------------------------


def test_the_block_that_a_source_stands_in_is_leased_once_though_samples_of_it_wait():
    carried = np.concatenate([infos(0, 3, 17), infos(1, 2)])
    job = Played("ab", loaders=2, last=[18, 9], carried=carried)
    leases = job.take(job.leasing.lease_unkept([carried]))
    assert places(leases) == [(1, 0, 0), (1, 0, 16), (2, 1, 0)]
    assert [job.lease(0, 1).start, job.lease(1, 2).start] == [24, 8]
    for rank, lease in leases:
        job.read(rank, lease, [carried])
    assert job.leasing.streams[0].ahead["position"].tolist() == [19, 20, 21, 22, 23]


def test_of_the_block_that_a_source_stands_in_what_was_delivered_is_forgotten():
    carried = infos(0, 17)
    job = Played("ab", loaders=2, last=[18, -1], carried=carried)
    ((_, lease),) = job.take(job.leasing.lease_unkept([carried]))
    block = whole_block(lease, num_bytes=10)
    stream = job.leasing.streams[0]
    ((rank, forget),) = job.take(
        job.leasing.take_block(1, block, lambda: [carried, stream.ahead], 4)
    )  # what is ahead is known by then
    assert (rank, forget.step, forget.position.tolist()) == (1, 4, [16, 18])
    assert job.leasing.holdings.num_bytes(1) == 60
    assert job.read(2, job.lease(1, 2)) == []  # of a source that stands at its beginning, nothing


# --- bad records --------------------------------------------------------------------------------------------

VERDICTS = [(9, "took longer than 60 s"), (12, "crashed")]


def test_verdicts_travel_with_every_lease_of_their_block_and_into_the_state():
    job = Played("ab", loaders=2, on_bad_sample="skip")
    job.read(1, job.lease(0, 1))
    lease = job.lease(0, 1)
    assert lease.verdicts == []
    job.read(1, lease, bad=[9, 12], verdicts=VERDICTS)
    state = replace(job.state, last_position=np.array([15, -1]))
    mine, others = job.leasing.bad_records(state)
    assert others == BadRecords()
    assert mine.verdicts == ((8, 9, "took longer than 60 s"), (8, 12, "crashed"))
    ((_, again),) = [each for each in job.lose(1, [infos(0, 8)]) if isinstance(each[1], m.Lease)]
    assert again.verdicts == VERDICTS
    job.read(2, again, [infos(0, 8)])
    assert not job.leasing.broken


def test_saved_verdicts_are_known_until_their_block_is_behind():
    saved = BadRecords(num_bad=1, verdicts=((8, 9, "took longer than 60 s"), (24, 30, "crashed")))
    job = Played("ab", loaders=1, last=[10, -1], bad=(saved, BadRecords()), on_bad_sample="skip")
    assert job.leasing.bad_records(job.state)[0].verdicts == saved.verdicts
    first = job.lease(0, 1)
    assert first.verdicts == [(9, "took longer than 60 s")]
    job.read(1, first, [job.leasing.streams[0].ahead])
    behind = replace(job.state, last_position=np.array([16, -1]))
    job.read(1, job.lease(0, 1))
    job.leasing.forget(behind)
    assert job.leasing.bad_records(behind)[0].verdicts == ((24, 30, "crashed"),)
    assert job.lease(0, 1).verdicts == [(30, "crashed")]  # though that block was not read since


def test_bad_samples_are_counted_up_to_a_state():
    job = Played("ab", loaders=1, on_bad_sample="skip")
    for _ in range(3):
        job.read(1, job.lease(0, 1), bad=[1, 9, 18, 20])

    def up_to(position):
        return job.leasing.bad_records(replace(job.state, last_position=np.array([position, -1])))[0]

    listed = tuple(BadSample(position=p, reason="cannot be read") for p in (1, 9, 18, 20))
    assert up_to(-1) == BadRecords()
    assert up_to(8) == BadRecords(num_bad=1, listed=listed[:1])
    assert up_to(19) == BadRecords(num_bad=3, listed=listed[:3])
    job.leasing.forget(replace(job.state, last_position=np.array([10, -1])))
    assert up_to(19) == BadRecords(num_bad=3, listed=listed[:3])


@pytest.mark.parametrize(
    ("block_size", "expected"), [(8, [[], [9, 12]]), (4, [[], [], [9], [12]]), (32, [[9, 12]])]
)
def test_saved_verdicts_find_their_block_though_blocks_are_of_another_size_now(block_size, expected):
    start = 8 if block_size == 8 else -1  # as `changes` says it of blocks of another size
    saved = BadRecords(verdicts=tuple((start, position, why) for position, why in VERDICTS))
    job = Played("a", loaders=1, bad=(saved,), on_bad_sample="skip", block_size=block_size)
    leases = [job.lease(0, 1) for _ in expected]
    assert [[position for position, _ in lease.verdicts] for lease in leases] == expected


def test_a_substitute_that_was_tried_is_known_to_the_block_that_tried_it():
    saved = BadRecords(verdicts=((8, 16, "crashed"),))
    job = Played("a", loaders=1, bad=(saved,), on_bad_sample="replace")
    assert [job.lease(0, 1).verdicts for _ in range(3)] == [[], [(16, "crashed")], []]


def test_where_blocks_are_smaller_now_every_block_that_may_try_a_position_knows_its_verdict():
    saved = BadRecords(verdicts=((-1, 6, "crashed"),))
    job = Played("a", loaders=1, bad=(saved,), on_bad_sample="replace", block_size=4)
    assert [job.lease(0, 1).verdicts for _ in range(3)] == [[(6, "crashed")], [(6, "crashed")], []]
