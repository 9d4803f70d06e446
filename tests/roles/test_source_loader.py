import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roles.played import make_placement
from strategies import make_infos

from msdata_jax.errors import JobFailed, MSDataError, SourceError
from msdata_jax.records import IMAGE_TOKEN, BadSample, Block
from msdata_jax.roles import messages as m
from msdata_jax.roles.effects import Finish, Forget, Resize, Run, Send
from msdata_jax.roles.source_loader import Process, SourceLoader, digest_of


class Reader:
    """A source of samples that tell where they come from: position p yields p % 3 samples."""

    num_records, num_open_files = 100, 1

    def __init__(self, source):
        self.source, self.closed = source, False

    def fingerprint(self):
        return f"print-{self.source}"

    def file_digests(self):
        return {"part-0": f"digest-{self.source}"}

    def read_block(self, start, stop, verdicts):
        keys = [(p, part) for p in range(start, stop) for part in range(p % 3)]
        samples = [{"tokens": np.array([100 * p + part, p, part], np.int32)} for p, part in keys]
        positions, parts = np.array(keys, dtype=np.int64).reshape(-1, 2).T
        infos = make_infos(self.source, [3] * len(keys), positions=positions, parts=parts)
        return Block(
            start=start,
            stop=stop,
            infos=infos,
            samples=samples,
            bad=[BadSample(position=start, reason="no")],
            verdicts=verdicts,
        )

    def close(self):
        self.closed = True


class Loader:
    """A SourceLoader whose background work is done when a test says so."""

    def __init__(self, reader=Reader, clock=None):
        self.readers = {}
        clock = clock or itertools.count().__next__
        process = Process(figures=lambda: {"pss_mb": 1}, clock=clock, memory_bytes=lambda: 7 << 20)
        self.role = SourceLoader(make_placement(), self, process, ["first", "second"])
        self.reader = reader
        assert self.role.start() == []

    def open(self, source, isolate):
        return self.readers.setdefault((source, isolate), self.reader(source))

    def close(self, source):
        if (source, False) in self.readers:
            self.readers.pop((source, False)).close()

    def tell(self, message):
        """Effects, after any background work is done."""
        effects = []
        for effect in self.role.handle(0, message):
            effects += self.role.handle(1, effect.call()) if isinstance(effect, Run) else [effect]
        return effects

    def begin(self, message):
        """Background work that is to be done, and that the test does when it wants to."""
        (run,) = self.role.handle(0, message)
        assert isinstance(run, Run)
        return run

    def end(self, run):
        return self.role.handle(1, run.call())


def lease(source, start, stop, keep=True, isolate=False, verdicts=()):
    return m.Lease(source=source, start=start, stop=stop, keep=keep, isolate=isolate, verdicts=list(verdicts))


def order(step, *wanted, later=()):
    """wanted: (constructor, index, source, position, part, start, length); later: keys asked for again."""
    columns = np.array(wanted, dtype=np.int64).reshape(-1, 7).T
    names = ("constructor", "index", "source", "position", "part", "start", "length")
    is_last = np.array([key not in later for key in zip(*columns[2:5].tolist(), strict=True)], dtype=bool)
    fields = dict(zip(names, (c.astype(np.int32) for c in columns), strict=True))
    return m.Order(
        step=step, is_last=is_last, is_image=np.zeros_like(is_last), without_patches=False, **fields
    )


def opened_loader(num_blocks=2):
    loader = Loader()
    loader.tell(m.OpenSource(source=0))
    for block in range(num_blocks):
        loader.tell(lease(0, 8 * block, 8 * block + 8))
    return loader


def test_opens_in_the_background_and_tells_the_planner():
    loader = Loader()
    (run,) = loader.role.handle(0, m.OpenSource(source=3))
    assert isinstance(run, Run)
    assert not loader.readers  # nothing happens before the work is done
    assert loader.role.handle(1, run.call()) == [
        Send(
            rank=0,
            message=m.SourceOpened(
                source=3, num_records=100, fingerprint="print-3", files={"part-0": "digest-3"}
            ),
        )
    ]


def test_reads_a_lease_in_the_background_and_reports_metadata_only():
    loader = opened_loader(0)
    ((send),) = loader.tell(lease(0, 8, 12))
    ready = send.message
    assert (send.rank, ready.source, ready.start, ready.stop) == (0, 0, 8, 12)
    assert ready.infos[["position", "part"]].tolist() == [(8, 0), (8, 1), (10, 0), (11, 0), (11, 1)]
    assert (ready.bad, ready.verdicts) == ([(8, "no", False)], [])
    assert ready.seconds == 1  # the clock's next tick


def test_one_message_for_each_constructor_of_a_step():
    loader = opened_loader()
    wanted = order(
        4,
        (7, 0, 0, 11, 1, 0, 3),
        (5, 9, 0, 2, 0, 1, 2),
        (7, 2, 0, 11, 0, 0, 1),
        (5, 3, 0, 2, 1, 0, 3),
        (-1, 0, 0, 5, 0, 0, 0),
    )
    first, second = loader.tell(wanted)
    assert (first.rank, second.rank) == (5, 7)
    assert (first.message.step, first.message.index.tolist()) == (4, [9, 3])
    assert first.message.tokens.tolist() == [2, 0, 201, 2, 1]
    assert second.message.index.tolist() == [0, 2]
    assert second.message.tokens.tolist() == [1101, 11, 1, 1100]
    assert second.message.num_patches.tolist() == [0, 0]


def test_an_order_of_dropped_samples_only_sends_nothing():
    assert opened_loader().tell(order(0, (-1, 0, 0, 5, 0, 0, 0))) == []


def test_keeps_samples_until_their_step_is_released_then_forgets_them():
    loader = opened_loader(1)  # samples at 1.0, 2.0, 2.1, 4.0, 5.0, 5.1, 7.0
    held = loader.role._samples
    assert len(held) == 7
    loader.tell(order(0, (5, 0, 0, 1, 0, 0, 3), (-1, 0, 0, 2, 0, 0, 0)))
    loader.tell(order(1, (5, 0, 0, 5, 1, 0, 3)))
    assert len(held) == 7
    assert loader.tell(m.Release(step=0)) == []
    assert sorted(held) == [(0, 2, 1), (0, 4, 0), (0, 5, 0), (0, 5, 1), (0, 7, 0)]
    loader.tell(m.Release(step=5))
    assert sorted(held) == [(0, 2, 1), (0, 4, 0), (0, 5, 0), (0, 7, 0)]
    assert not loader.role._ordered


def test_a_sample_that_is_split_is_kept_for_its_other_pieces():
    loader = opened_loader(1)
    (first,) = loader.tell(order(0, (5, 0, 0, 1, 0, 0, 2), later=[(0, 1, 0)]))
    loader.tell(m.Release(step=0))
    (second,) = loader.tell(order(1, (5, 0, 0, 1, 0, 2, 1)))
    assert [first.message.tokens.tolist(), second.message.tokens.tolist()] == [[100, 1], [0]]
    loader.tell(m.Release(step=1))
    assert (0, 1, 0) not in loader.role._samples


def test_patches_of_two_sizes_are_an_error_that_names_step_and_sources():
    class Images(Reader):
        def read_block(self, start, stop, verdicts):
            patches = np.zeros((1, 12 + self.source), np.uint8)
            sample = {"tokens": np.array([IMAGE_TOKEN], np.int32), "patches": patches}
            infos = make_infos(self.source, [1], [1])
            return Block(start=start, stop=stop, infos=infos, samples=[sample])

    loader = Loader(Images)
    for source in range(2):
        loader.tell(m.OpenSource(source=source))
        loader.tell(lease(source, 0, 1))
    with pytest.raises(MSDataError, match=r"step 6, sources first, second: patches have \[12, 13\] values"):
        loader.tell(order(6, (5, 0, 0, 0, 0, 0, 1), (5, 1, 1, 0, 0, 0, 1)))


def test_stop_says_farewell_and_leaves_the_readers_open_for_another_session():
    loader = opened_loader()
    farewell, finish = loader.tell(m.Stop(lost=[2], again=True))
    assert not loader.readers[0, False].closed
    assert farewell.rank == 0
    assert farewell.message.figures == {
        "sources": 1,
        "open_files": {"0": 1},
        "read_seconds": 2,
        "samples": 15,
        "restored_blocks": 0,
        "pss_mb": 1,
    }
    assert finish == Finish(
        figures={"lost": [{"rank": 2}]}, again=True
    )  # nobody waits for that one when leaving


def test_failures_go_to_the_planner_and_an_abort_ends_the_loop():
    loader = opened_loader()
    assert loader.tell(m.Failed(message="no")) == [Send(rank=0, message=m.Failed(message="no"))]
    (finish,) = loader.tell(m.Abort(rank=5, message="gone"))
    assert isinstance(finish.error, JobFailed)
    assert str(finish.error) == "rank 5 failed: gone"


def test_a_message_for_somebody_else():
    with pytest.raises(MSDataError, match="loader got Delivered from rank 0"):
        Loader().tell(m.Delivered(step=0))


# --- leases in every order ----------------------------------------------------------------------------------


def test_a_lease_may_come_before_the_source_is_told_to_be_opened():
    loader = Loader()
    (send,) = loader.tell(lease(1, 0, 4))
    assert send.message.infos["source"].tolist() == [1, 1, 1]
    (opened,) = loader.tell(m.OpenSource(source=1))
    assert opened.message.fingerprint == "print-1"
    assert list(loader.readers) == [(1, False)]  # it is open once


def test_what_is_read_for_its_metadata_alone_is_not_kept():
    loader = opened_loader(0)
    (unkept,) = loader.tell(lease(0, 0, 8, keep=False))
    assert not loader.role._samples
    (kept,) = loader.tell(lease(0, 0, 8))
    assert len(loader.role._samples) == len(kept.message.infos) == 7
    assert np.array_equal(unkept.message.infos, kept.message.infos)
    assert unkept.message.digest == kept.message.digest != 0


def test_suspects_are_read_in_a_child_process_and_with_their_verdicts():
    loader = opened_loader(0)
    (send,) = loader.tell(lease(0, 0, 8, isolate=True, verdicts=[(3, "took 9 s"), (9, "crashed")]))
    assert set(loader.readers) == {(0, False), (0, True)}
    assert send.message.verdicts == [(3, "took 9 s"), (9, "crashed")]
    farewell, _ = loader.tell(m.Stop(lost=[]))
    assert farewell.message.figures["sources"] == 1
    assert [loader.readers[0, isolated].closed for isolated in (False, True)] == [False, True]


def test_an_order_waits_until_all_of_its_samples_are_read():
    loader = opened_loader(1)
    second, third = (loader.begin(lease(0, start, start + 8)) for start in (8, 16))
    wanted = (5, 0, 0, 2, 0, 0, 1), (5, 1, 0, 8, 0, 0, 1), (6, 0, 0, 16, 0, 0, 1)
    assert loader.tell(order(3, *wanted)) == []
    (now,) = loader.tell(order(4, (5, 0, 0, 4, 0, 0, 2)))  # another step need not wait for it
    assert now.message.tokens.tolist() == [400, 4]
    (ready,) = loader.end(third)
    assert ready.message.start == 16
    ready, first, other = loader.end(second)
    assert (ready.message.start, first.rank, other.rank) == (8, 5, 6)
    assert first.message.tokens.tolist() == [200, 800]
    assert other.message.tokens.tolist() == [1600]
    loader.tell(m.Release(step=3))
    assert {(0, 2, 0), (0, 8, 0), (0, 16, 0)}.isdisjoint(loader.role._samples)
    assert {(0, 2, 1), (0, 4, 0), (0, 8, 1)} <= set(loader.role._samples)


def test_an_order_for_samples_that_nobody_leased_is_an_error():
    loader = opened_loader(1)
    with pytest.raises(MSDataError, match="order of step 3 asks for samples that nobody leased to this rank"):
        loader.tell(order(3, (5, 0, 0, 8, 0, 0, 1)))


def test_orders_of_released_steps_send_nothing_and_only_forget():
    loader = opened_loader(1)
    assert loader.tell(m.Release(step=3)) == []
    assert loader.tell(order(3, (5, 0, 0, 2, 0, 0, 1), (5, 1, 0, 2, 1, 0, 1), later=[(0, 2, 1)])) == []
    assert (0, 2, 0) not in loader.role._samples
    assert (0, 2, 1) in loader.role._samples  # a later step asks for the rest of it
    assert loader.tell(order(2, (-1, 0, 0, 2, 0, 0, 0))) == []  # forgotten already
    assert loader.tell(order(1, (5, 0, 0, 2, 0, 0, 1))) == []


def test_an_order_that_waits_and_is_released_meanwhile_sends_nothing():
    loader = opened_loader(0)
    run = loader.begin(lease(0, 0, 8))
    assert loader.tell(order(0, (5, 0, 0, 1, 0, 0, 1))) == []
    assert loader.tell(order(1, (5, 0, 0, 2, 0, 0, 1))) == []
    assert loader.tell(m.Release(step=0)) == []
    ready, samples = loader.end(run)
    assert (ready.message.start, samples.message.step, samples.message.tokens.tolist()) == (0, 1, [200])
    # Whoever leased the block knows by its report what of it nobody wants any more.
    assert loader.tell(order(1, (-1, 0, 0, 1, 0, 0, 0))) == []
    loader.tell(m.Release(step=1))
    assert {(0, 1, 0), (0, 2, 0)}.isdisjoint(loader.role._samples)


# --- alive or not -------------------------------------------------------------------------------------------


def test_heartbeats_name_the_block_that_is_read_longest():
    now = [100.0]
    meanwhile = []  # what other workers do while a block is read

    class Slow(Reader):
        def read_block(self, start, stop, verdicts):
            now[0] += 10
            beats.append(loader.role.tick(1.0))
            while meanwhile:
                meanwhile.pop().call()
            return super().read_block(start, stop, verdicts)

    beats, large = [], {"memory_bytes": 7 << 20}
    loader = Loader(Slow, lambda: now[0])
    idle = [Send(rank=0, message=m.Heartbeat(source=-1, start=-1, seconds=0.0, **large))]
    assert loader.role.tick(1.0) == idle
    first = loader.begin(lease(1, 8, 16))
    meanwhile.append(loader.begin(lease(0, 24, 32)))
    assert loader.role.tick(1.0) == idle  # both wait for a worker
    loader.end(first)
    assert [beat[0].message for beat in beats] == [
        m.Heartbeat(source=1, start=8, seconds=10.0, **large),
        m.Heartbeat(source=1, start=8, seconds=20.0, **large),
    ]
    assert loader.role.tick(1.0)[0].message == m.Heartbeat(source=0, start=24, seconds=10.0, **large)


def test_a_source_is_closed_behind_what_is_being_read_of_it():
    loader = Loader()
    loader.tell(m.OpenSource(source=0))
    reader = loader.readers[0, False]
    reading = loader.begin(lease(0, 0, 8))
    assert loader.tell(m.CloseSource(source=0)) == []
    assert not reader.closed
    loader.end(reading)
    assert reader.closed
    loader.tell(lease(0, 8, 16))  # it opens anew where it is asked for again
    assert loader.readers[0, False] is not reader
    loader.tell(m.CloseSource(source=1))  # which it never had


def test_a_source_that_is_wanted_again_stays_open():
    loader = Loader()
    loader.tell(m.OpenSource(source=0))
    reader = loader.readers[0, False]
    reading = loader.begin(lease(0, 0, 8))
    loader.tell(m.CloseSource(source=0))
    again = loader.begin(m.OpenSource(source=0))
    loader.end(reading)
    loader.end(again)
    assert not reader.closed


def test_a_source_that_need_not_open_says_why_it_does_not():
    class Missing(Reader):
        def __init__(self, source):
            raise SourceError("there is no such file")

    loader = Loader(Missing)
    (said,) = loader.tell(m.OpenSource(source=1, may_fail=True))
    assert said.message == m.SourceOpened(
        source=1, num_records=0, fingerprint="", files={}, error="there is no such file"
    )
    with pytest.raises(SourceError):
        loader.tell(m.OpenSource(source=1))


def test_worker_threads_are_as_many_as_the_planner_says():
    assert Loader().tell(m.SetThreads(num_threads=3)) == [Resize(num_threads=3)]


def test_goes_on_without_other_loaders_but_without_nobody_else():
    loader = Loader()
    assert loader.tell(m.Lost(rank=2, why="killed")) == [Forget(rank=2, why="killed")]
    for rank in (0, 3):
        with pytest.raises(JobFailed, match="lost contact: killed") as failed:
            loader.tell(m.Lost(rank=rank, why="killed"))
        assert failed.value.rank == rank


# --- digests ------------------------------------------------------------------------------------------------


@st.composite
def blocks(draw):
    """What some positions yield, of text and images."""
    lengths = draw(st.lists(st.integers(1, 5), max_size=4))
    samples = [{"tokens": np.array(draw(st.lists(st.integers(0, 99), min_size=n, max_size=n)), np.int32)}
               for n in lengths]  # fmt: skip
    for sample in samples:
        if draw(st.booleans()):
            sample["patches"] = np.array(
                draw(st.lists(st.integers(0, 255), min_size=4, max_size=4)), np.uint8
            )
            sample["patches"] = sample["patches"].reshape(2, 2)
    infos = make_infos(1, lengths, [2 * ("patches" in sample) for sample in samples])
    return Block(start=0, stop=8, infos=infos, samples=samples)


def copied(block):
    """An equal block of other arrays, some of them not contiguous."""
    samples = [
        {name: np.repeat(value, 2, axis=0)[::2] for name, value in reversed(sample.items())}
        for sample in block.samples
    ]
    return replace(block, infos=np.repeat(block.infos, 2)[::2], samples=samples)


@given(blocks(), st.data())
def test_digests_are_equal_for_equal_blocks_and_see_every_byte(block, data):
    assert digest_of(block) == digest_of(copied(block))
    if not block.samples:
        return
    other = copied(block)
    place = data.draw(st.integers(0, len(block.samples) - 1))
    if data.draw(st.booleans()):
        column = data.draw(st.sampled_from(["position", "part", "tokens", "num_bytes"]))
        other.infos[column][place] += 1
    else:
        name = data.draw(st.sampled_from(sorted(block.samples[place])))
        values = other.samples[place][name] = other.samples[place][name].copy()
        values[data.draw(st.integers(0, len(values) - 1))] ^= 1
    assert digest_of(other) != digest_of(block)
