"""The planner's account against a plain one that remembers every sample."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from strategies import make_infos

from msdata_jax.roles.holdings import NOBODY, Holdings


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
    """Blocks that are known, of two sources of blocks of 8 and 4."""
    blocks = [(source, start) for source, size in ((0, 8), (1, 4)) for start in range(0, 40, size)]
    return [block for block in blocks if holdings.owner(*block) is not None]


def test_forgets_blocks_that_are_done():
    holdings = Holdings([8, 4])
    for source, start in ((0, 0), (0, 8), (0, 16), (0, 24), (1, 0), (1, 4)):
        holdings.lease(1, source, start)
        holdings.report(source, start, 100, digest=7)
    waiting = [make_infos(0, [1] * 2, positions=[1, 30]), make_infos(1, [])]
    holdings.forget_before(np.array([23, -1]), waiting)  # one that waits does not hold the blocks behind it
    assert known(holdings) == [(0, 0), (0, 16), (0, 24), (1, 0), (1, 4)]
    assert (holdings.digest(0, 8), holdings.digest(0, 0)) == (None, 7)
    holdings.lease(2, 0, 0)  # it is read again, and while it is, its loader must be known
    holdings.forget_before(np.array([23, 5]), [])
    assert known(holdings) == [(0, 0), (0, 16), (0, 24), (1, 4)]
    holdings.report(0, 0, 100, digest=7)
    holdings.forget_before(np.array([23, 5]), [])
    assert known(holdings) == [(0, 16), (0, 24), (1, 4)]


def test_a_block_that_is_lost_or_not_kept_belongs_to_nobody_and_keeps_its_digest():
    holdings = Holdings([8, 4])
    for start, loader in ((0, 1), (8, 1), (16, 2)):
        holdings.lease(loader, 0, start)
    holdings.report(0, 0, 100, digest=5)
    assert holdings.lose(1) == [(0, 0), (0, 8)]
    assert holdings.num_bytes(1) == 0
    assert holdings.without_owner() == [(0, 0), (0, 8)]
    assert (holdings.owner(0, 0), holdings.owner(0, 16), holdings.owner(0, 24)) == (NOBODY, 2, None)
    assert (holdings.digest(0, 0), holdings.digest(0, 8)) == (5, None)
    assert not holdings.is_being_read(0, 8)
    assert holdings.owners(make_infos(0, [1, 1, 1], positions=[7, 16, 24])).tolist() == [NOBODY, 2, NOBODY]
    holdings.report(0, 16, 100, digest=6, kept=False)
    assert (holdings.num_bytes(2), holdings.owner(0, 16), holdings.digest(0, 16)) == (0, NOBODY, 6)
    holdings.lease(2, 0, 0)
    assert (holdings.num_bytes(2), holdings.is_being_read(0, 0)) == (100, True)  # as large as the last one


# --- the law ------------------------------------------------------------------------------------------------

BLOCK_SIZES = (4, 3)
LOADERS = (1, 2, 3)


@dataclass
class Plain:
    """Every block with its owner, and every sample that a loader has or is reading."""

    contents: dict = field(default_factory=dict)  # by block: what its positions yield, every time
    owner: dict = field(default_factory=dict)
    promised: dict = field(default_factory=dict)  # blocks that are being read, and what they count
    last_bytes: dict = field(default_factory=dict)  # by source, of the block reported last
    gone: set = field(default_factory=set)  # samples that nobody will ask for
    planned: set = field(default_factory=set)
    steps: dict = field(default_factory=dict)

    def num_bytes(self, loader):
        held = sum(
            info["num_bytes"]
            for block, infos in self.contents.items()
            if self.owner.get(block) == loader and block not in self.promised
            for info in infos
            if key(info) not in self.gone
        )
        return held + sum(n for block, n in self.promised.items() if self.owner[block] == loader)

    def samples(self, keys):
        return [info for infos in self.contents.values() for info in infos if key(info) in keys]

    def to_plan(self):
        """Samples that are known, and in no step yet."""
        return sorted(
            {key(info) for infos in self.contents.values() for info in infos} - self.planned - self.gone
        )


def key(info):
    return info["source"], info["position"], info["part"]


def as_infos(samples):
    return np.array(samples, dtype=make_infos(0, []).dtype)


@given(st.data())
def test_bytes_are_those_of_a_plain_recount_whatever_happens(data):
    """Leases, reports, steps, losses and new leases, in any order that a planner may bring about."""
    holdings, plain = Holdings(BLOCK_SIZES), Plain()
    alive, step, released = list(LOADERS), 0, -1

    def lease(block, loader):
        holdings.lease(loader, *block)
        plain.owner[block] = loader
        plain.promised[block] = plain.last_bytes.get(block[0], 1)

    def report(block, kept=True):
        source, start = block
        if block not in plain.contents:
            positions = data.draw(st.lists(st.integers(0, BLOCK_SIZES[source] - 1), max_size=5).map(sorted))
            tokens = data.draw(st.lists(st.integers(1, 9), min_size=len(positions), max_size=len(positions)))
            parts = [positions[:place].count(p) for place, p in enumerate(positions)]
            infos = make_infos(source, tokens, positions=[start + p for p in positions], parts=parts)
            plain.contents[block] = list(infos)
        infos = as_infos(plain.contents[block])
        holdings.report(*block, int(infos["num_bytes"].sum()), digest=start, kept=kept)
        plain.last_bytes[source] = max(int(infos["num_bytes"].sum()), 1)
        del plain.promised[block]
        if not kept:
            plain.owner[block] = NOBODY
            return
        # Of a block that was read again, the loader is told what nobody wants.
        holdings.drop(as_infos([info for info in plain.contents[block] if key(info) in plain.gone]))

    def plan(keys):
        holdings.plan_step(step, as_infos(plain.samples(keys)))
        plain.planned |= set(keys)
        plain.steps[step] = set(keys)

    def release(up_to):
        holdings.release(up_to)
        for done in [each for each in plain.steps if each <= up_to]:
            plain.gone |= plain.steps.pop(done)

    for _ in range(data.draw(st.integers(1, 30))):
        unowned = sorted(block for block, owner in plain.owner.items() if owner == NOBODY)
        reading, to_plan = sorted(plain.promised), plain.to_plan()
        may = ["lease"] + ["report"] * bool(reading) + ["plan"] * bool(to_plan)
        may += ["release"] * (step > released + 1) + ["again"] * bool(unowned) + ["lose"] * (len(alive) > 1)
        match data.draw(st.sampled_from(may)):
            case "lease":
                source = data.draw(st.integers(0, 1))
                number = sum(block[0] == source for block in plain.owner)
                lease((source, number * BLOCK_SIZES[source]), data.draw(st.sampled_from(alive)))
            case "again":
                lease(data.draw(st.sampled_from(unowned)), data.draw(st.sampled_from(alive)))
            case "report":
                report(data.draw(st.sampled_from(reading)), kept=data.draw(st.integers(0, 4)) > 0)
            case "plan":
                plan(data.draw(st.lists(st.sampled_from(to_plan), unique=True)))
                step += 1
            case "release":
                released = data.draw(st.integers(released + 1, step - 1))
                release(released)
            case "lose":
                loader = data.draw(st.sampled_from(alive))
                alive.remove(loader)
                had = [block for block, owner in plain.owner.items() if owner == loader]
                assert holdings.lose(loader) == sorted(had)
                for block in had:
                    plain.owner[block] = NOBODY
                    plain.promised.pop(block, None)
        assert {each: holdings.num_bytes(each) for each in LOADERS} == {
            each: plain.num_bytes(each) for each in LOADERS
        }
        for block, owner in plain.owner.items():
            assert holdings.owner(*block) == owner
            assert holdings.is_being_read(*block) == (block in plain.promised)
    for block in sorted(plain.promised):
        report(block)
    plan(plain.to_plan())
    release(step)
    assert [holdings.num_bytes(loader) for loader in LOADERS] == [0, 0, 0]
